package plan

import "slices"

// target is another node that packets are steered to.
type target struct {
	node     string
	needed   bool     // pods of this node egress by it; else it receives only its own, see leads.also
	families Families // of these pods' packets
}

// targets counts the services that lead to each node.
type targets struct {
	of      map[string]*leading
	changed bool // since list ran, a node was added or removed, or its use changed
}

type leading struct{ ipv4, ipv6, also int }

func (t *targets) count(l leads, by int) {
	if l.host != "" {
		n := t.at(l.host)
		if l.of.IPv4 {
			t.add(&n.ipv4, by)
		}
		if l.of.IPv6 {
			t.add(&n.ipv6, by)
		}
	}
	if l.also != "" {
		t.add(&t.at(l.also).also, by)
	}
}

func (t *targets) at(node string) *leading {
	n := t.of[node]
	if n == nil {
		n = &leading{}
		t.of[node] = n
	}
	return n
}

func (t *targets) add(n *int, by int) {
	had := *n > 0
	if *n += by; had != (*n > 0) {
		t.changed = true
	}
}

// list lists the nodes to steer to: first those needed, then the others, each by the rank of the first service that leads
// there.
func (t *targets) list(services []*service) []target {
	oldest, needed := map[string]*service{}, map[string]*service{}
	see := func(by map[string]*service, node string, s *service) {
		if first := by[node]; node != "" && (first == nil || s.before(first) < 0) {
			by[node] = s
		}
	}
	for _, s := range services {
		if s != nil && s.leads != (leads{}) {
			see(needed, s.leads.host, s)
			see(oldest, s.leads.also, s)
		}
	}
	all := make([]target, 0, len(t.of))
	for node, n := range t.of {
		if *n == (leading{}) {
			delete(t.of, node)
			continue
		}
		all = append(all, target{node, n.ipv4+n.ipv6 > 0, Families{n.ipv4 > 0, n.ipv6 > 0}})
	}
	slices.SortFunc(all, func(x, y target) int {
		switch {
		case x.needed && y.needed:
			return needed[x.node].before(needed[y.node])
		case x.needed:
			return -1
		case y.needed:
			return 1
		}
		return oldest[x.node].before(oldest[y.node])
	})
	return all
}

// sending counts the services whose pods need routes.
type sending struct {
	out     map[string]*[2]int // by network, for each family
	dropped [2]int
}

func (n *sending) count(s *service, by int) {
	if s.sends == (sends{}) {
		return
	}
	add := func(counts *[2]int, f Families) {
		if f.IPv4 {
			counts[ipv4] += by
		}
		if f.IPv6 {
			counts[ipv6] += by
		}
	}
	add(&n.dropped, s.sends.dropped)
	if s.sends.out != (Families{}) {
		counts := n.out[s.network.name]
		if counts == nil {
			counts = &[2]int{}
			n.out[s.network.name] = counts
		}
		add(counts, s.sends.out)
	}
}

// by returns the families of packets that leave by a network. For a network without a path, it returns those of dropped
// packets.
func (n *sending) by(f *frame, of *network) Families {
	counts := &n.dropped
	if f.out(of) != 0 {
		if counts = n.out[of.name]; counts == nil {
			return Families{}
		}
	}
	return Families{counts[ipv4] > 0, counts[ipv6] > 0}
}
