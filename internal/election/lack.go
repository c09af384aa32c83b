package election

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
)

// lack is what speaks against a node that may be the host: as a number, the larger the worse.
type lack uint8

const (
	lacksWill   lack = 1 << iota // cordoned
	lacksStay                    // draining
	lacksOne                     // of two families needed, one has no route; or of one
	lacksBoth                    // neither has
	lacksLife                    // other nodes see it dead
	lacksRoutes = lacksOne | lacksBoth
	everyLack   = ^lack(0)
)

// families are those that a service sends packets of.
type families struct{ ipv4, ipv6 bool }

func (f families) and(o families) families { return families{f.ipv4 || o.ipv4, f.ipv6 || o.ipv6} }

// need tells which families a service needs routes for: those that have an ingress IP and an endpoint. found says that it has
// an endpoint with an address of its own at all.
func (e *elector) need(endpoints []cluster.Endpoint, ingress []netip.Addr) (f families, found bool) {
	var source families
	for _, a := range ingress {
		source.ipv4, source.ipv6 = source.ipv4 || a.Is4(), source.ipv6 || a.Is6()
	}
	for _, p := range endpoints {
		ipv6 := strings.Contains(p.Address, ":")
		if found && (ipv6 && (f.ipv6 || !source.ipv6) || !ipv6 && (f.ipv4 || !source.ipv4)) {
			continue // would tell nothing new
		}
		a, err := cluster.ParseAddr(p.Address)
		if err != nil || e.nodeAddrs[a] || p.Target != cluster.TargetPod {
			continue
		}
		found = true
		f.ipv4, f.ipv6 = f.ipv4 || !ipv6 && source.ipv4, f.ipv6 || ipv6 && source.ipv6
		if f == source {
			break
		}
	}
	return f, found
}

// routeless says which routes a node lacks.
func routeless(n cluster.NetworkState, need families) lack {
	switch missing4, missing6 := need.ipv4 && !n.IPv4, need.ipv6 && !n.IPv6; {
	case missing4 && missing6:
		return lacksBoth
	case missing4 || missing6:
		return lacksOne
	}
	return 0
}

// demand is what the lacks of nodes depend on.
type demand struct {
	network string
	need    families
}

// lacksFor tells of every node, by its number, what it lacks for a service with that demand.
func (e *elector) lacksFor(d demand) []lack {
	lacks, known := e.lacks[d]
	if known {
		return lacks
	}
	lacks = make([]lack, len(e.nodes))
	for i, name := range e.nodes {
		r, reports := e.reports[name]
		if e.objects.Nodes.At(name).Cordoned {
			lacks[i] |= lacksWill
		}
		if r.Draining {
			lacks[i] |= lacksStay
		}
		if e.dead[name] {
			lacks[i] |= lacksLife
		}
		if reports {
			lacks[i] |= routeless(r.Networks[d.network], d.need)
		}
	}
	e.lacks[d] = lacks
	return lacks
}

// least is the least that a candidate of the unit lacks.
func (u *unit) least() lack {
	least := everyLack
	for _, i := range u.candidates {
		least = min(least, u.lacks[i])
	}
	return least
}

// bearable is what a standby may lack: what its host lacks too, and never life or the will to stay.
func bearable(host lack) lack {
	may := host &^ (lacksLife | lacksStay)
	if may&lacksBoth != 0 {
		may |= lacksOne
	}
	return may
}

// serving names those of the host and the standby by the contender's status that can serve it now, be they elected or not. A
// node that is not Ready can, where another one sees that it is alive.
func (e *elector) serving(c *contender, u *unit) (nodes []string) {
	for _, name := range []string{c.status.Host, c.status.Standby} {
		n, exists := e.objects.Nodes.Get(name)
		state := e.reports[name].Networks[c.network]
		apart := name != e.name(u.host) && slices.Contains(e.apart[e.name(u.host)], name)
		if exists && (n.Ready || e.seen[name]) && !e.dead[name] && !apart && state.Fit() && routeless(state, u.demand.need) == 0 {
			nodes = append(nodes, name)
		}
	}
	return nodes
}

// against says in words what a node lacks, the worst only; empty: nothing.
func against(node string, l lack, n cluster.NetworkState, d demand) string {
	switch {
	case l&lacksLife != 0:
		return silent(node)
	case l&lacksRoutes != 0:
		var missing []string
		if d.need.ipv4 && !n.IPv4 {
			missing = append(missing, "IPv4")
		}
		if d.need.ipv6 && !n.IPv6 {
			missing = append(missing, "IPv6")
		}
		return fmt.Sprintf("network %s has no %s route on node %s", d.network, strings.Join(missing, " nor "), node)
	case l&lacksStay != 0:
		return fmt.Sprintf("node %s is draining", node)
	case l&lacksWill != 0:
		return fmt.Sprintf("node %s is cordoned", node)
	}
	return ""
}

func (e *elector) against(node int, u *unit) string {
	name := e.nodes[node]
	return against(name, u.lacks[node], e.reports[name].Networks[u.demand.network], u.demand)
}

// despite says what speaks against the host that a unit has.
func (e *elector) despite(u *unit) string {
	text := e.against(u.host, u)
	switch {
	case text == "":
		return ""
	case len(u.candidates) == 1:
		return text + ", but no other node may be the host"
	}
	return text + ", but no other node would be better"
}

// unfit says why the host that a contender has by its status is not its host any more.
func (e *elector) unfit(c *contender, u *unit) string {
	host := c.status.Host
	i, ready := slices.BinarySearch(e.nodes, host)
	switch {
	case host == cluster.AllHosts:
		return "sourceIPBy is not Network any more"
	case !e.exists(host):
		return gone(host)
	case e.dead[host]:
		return silent(host)
	case !ready:
		return fmt.Sprintf("node %s is not Ready", host)
	case e.succeeded(c.status):
		return fmt.Sprintf("node %s, its standby, does not hear node %s, and has taken over", c.status.Standby, host)
	}
	_, has := slices.BinarySearch(c.candidates, i)
	switch text := e.against(i, u); {
	case !c.selector.Matches(labels.Set(e.objects.Nodes.At(host).Labels)):
		return fmt.Sprintf("node %s does not match spec.nodeSelector any more", host)
	case e.reports != nil && !e.reports[host].Networks[c.network].Fit():
		return e.lacking([]int{i}, c.network)
	case !has:
		return fmt.Sprintf("node %s has no endpoint any more, as externalTrafficPolicy: Local asks", host)
	case text != "" && i != u.host:
		return text
	}
	return "an older EgressService with the same ingress IP has another host"
}
