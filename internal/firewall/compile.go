package firewall

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/classes"
	"github.com/egressway/egressway/internal/cluster"
)

// Indices of families.
const ipv4, ipv6 = 0, 1

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

// everywhere holds all addresses of each family.
var everywhere = [2]netip.Prefix{
	ipv4: netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	ipv6: netip.PrefixFrom(netip.IPv6Unspecified(), 0),
}

// rule is a rule for one family, with its destinations resolved to prefixes, or for a DNS name.
type rule struct {
	deny  bool
	to    []netip.Prefix
	name  string                 // empty: to holds the destinations
	ports []cluster.FirewallPort // none: all
}

// mostWork bounds, for a stretch, the ports that its rules list for all of its prefixes, each prefix with those around it. A
// policy that has more is cut into several stretches.
const mostWork = 1 << 16

// resolveBoth resolves the rules of both families. If one has names, so has the other: a pod may ask by either family for addresses of
// both.
func resolveBoth(rules [2][]rule) (both [2][]Stretch) {
	for family := range both {
		both[family] = resolve(rules[family], family, false)
	}
	for family := range both {
		if other := 1 - family; hasNames(both[other]) && !hasNames(both[family]) {
			both[family] = resolve(rules[family], family, true)
		}
	}
	return both
}

func hasNames(all []Stretch) bool {
	return slices.ContainsFunc(all, func(s Stretch) bool { return len(s.Names) > 0 })
}

// resolve resolves the rules of a family into stretches, in order. Names that are allowed at the end have no stretch unless all keep
// theirs: connections that no rule matches are allowed as well.
func resolve(rules []rule, family int, keep bool) (all []Stretch) {
	rules = namesLast(rules)
	for end := len(rules); end > 0; {
		begin := end - 1
		for begin > 0 && together(&rules[begin-1], &rules[end-1]) {
			begin--
		}
		part, last := rules[begin:end], len(all) == 0
		switch {
		case part[0].name == "":
			all = append(compile(part, last), all...)
		case part[0].deny || !last || keep:
			all = append([]Stretch{named(part, family)}, all...)
		}
		end = begin
	}
	return all
}

// namesLast puts the names of consecutive rules with one action behind the prefixes, and those with the same ports together: among such
// rules the order makes no difference, and each change from prefixes to names costs a lookup.
func namesLast(rules []rule) []rule {
	if !slices.ContainsFunc(rules, func(r rule) bool { return r.name != "" }) {
		return rules
	}
	rules = slices.Clone(rules)
	for i := range rules {
		if r := &rules[i]; r.name != "" {
			r.ports = slices.Compact(slices.SortedFunc(slices.Values(r.ports), comparePorts))
		}
	}
	for begin, end := 0, 0; begin < len(rules); begin = end {
		for end = begin + 1; end < len(rules) && rules[end].deny == rules[begin].deny; {
			end++
		}
		slices.SortStableFunc(rules[begin:end], func(a, b rule) int {
			if c := cmp.Compare(min(len(a.name), 1), min(len(b.name), 1)); c != 0 || a.name == "" {
				return c
			}
			return slices.CompareFunc(a.ports, b.ports, comparePorts)
		})
	}
	return rules
}

// together reports whether two rules belong into one stretch.
func together(a, b *rule) bool {
	if a.name == "" || b.name == "" {
		return a.name == b.name
	}
	return a.deny == b.deny && slices.Equal(a.ports, b.ports)
}

// named makes the stretch of rules for names that have one action, and the same ports.
func named(rules []rule, family int) Stretch {
	s := Stretch{Named: outcome(rules[0].deny), IPv6: family == ipv6}
	for i := range rules {
		s.Names = append(s.Names, rules[i].name)
	}
	slices.Sort(s.Names)
	s.Names = slices.Compact(s.Names)
	if len(rules[0].ports) > 0 {
		ports := Ports{Otherwise: Undecided}
		for _, port := range rules[0].ports {
			ports.add(port, s.Named)
		}
		s.Named, s.Ports = FirstPorts, []Ports{ports}
	}
	return s
}

// compile resolves the rules of a family for prefixes into stretches. last reports that nothing comes after them: then connections that
// no rule matches are allowed. Almost every policy is one stretch.
func compile(rules []rule, last bool) []Stretch {
	nested := nest(rules)
	if len(rules) > 1 && work(nested, rules) > mostWork {
		half := len(rules) / 2
		rest := compile(rules[half:], last)
		return append(compile(rules[:half], last && len(rest) == 0), rest...)
	}
	s := sweep{rules: rules, last: last, outcomes: map[string]Outcome{}}
	for i := range nested {
		s.enter(&nested[i])
	}
	s.leave(netip.Addr{})
	if len(s.Ranges) == 0 {
		return nil
	}
	s.renumber()
	return []Stretch{s.Stretch}
}

// span is a prefix that rules name: its first and last address, and the rules, in order.
type span struct {
	first, last netip.Addr
	rules       []int
}

// nest returns the different prefixes of rules, each before those that it contains.
func nest(rules []rule) []span {
	at := map[netip.Prefix]int{}
	var all []span
	for i := range rules {
		for _, p := range rules[i].to {
			n, known := at[p]
			if !known {
				n = len(all)
				at[p], all = n, append(all, span{first: p.Addr(), last: cluster.LastAddr(p)})
			}
			all[n].rules = append(all[n].rules, i)
		}
	}
	slices.SortFunc(all, func(a, b span) int {
		if c := a.first.Compare(b.first); c != 0 {
			return c
		}
		return b.last.Compare(a.last)
	})
	return all
}

// work counts the ports of each prefix and of those that contain it.
func work(nested []span, rules []rule) (sum int) {
	type around struct {
		last  netip.Addr
		ports int
	}
	var open []around
	for i := range nested {
		p := &nested[i]
		for len(open) > 0 && open[len(open)-1].last.Less(p.first) {
			open = open[:len(open)-1]
		}
		ports := 0
		if len(open) > 0 {
			ports = open[len(open)-1].ports
		}
		for _, r := range p.rules {
			ports += len(rules[r].ports)
		}
		open = append(open, around{p.last, ports})
		sum += ports
	}
	return sum
}

// sweep goes through the addresses of a family in order.
type sweep struct {
	Stretch
	rules    []rule
	last     bool
	at       netip.Addr // the first address that has no range yet; invalid: past the last one
	open     []opened   // prefixes that contain it, from the largest on
	outcomes map[string]Outcome
}

// opened is a prefix with the rules for it, those of the prefixes around it among them.
type opened struct {
	last    netip.Addr
	all     int   // the first rule for all ports; len(rules): none
	some    []int // rules before that one for some ports, in order
	outcome Outcome
}

// enter goes on to the first address of a prefix.
func (s *sweep) enter(p *span) {
	s.leave(p.first)
	now := opened{last: p.last, all: len(s.rules)}
	if n := len(s.open); n > 0 {
		around := &s.open[n-1]
		if s.at.Less(p.first) {
			s.add(p.first.Prev(), around.outcome)
		}
		now.all, now.some = around.all, around.some
	}
	s.at = p.first
	now.take(p.rules, s.rules)
	now.outcome = s.outcomeOf(&now)
	s.open = append(s.open, now)
}

// take adds the rules of the prefix itself to those of the prefixes around it.
func (o *opened) take(own []int, rules []rule) {
	some := slices.Clone(o.some)
	for _, r := range own {
		if len(rules[r].ports) == 0 {
			o.all = min(o.all, r)
			break
		}
		some = append(some, r)
	}
	slices.Sort(some)
	end, _ := slices.BinarySearch(some, o.all)
	o.some = some[:end]
}

// leave closes the prefixes that end before an address; all of them if it is invalid.
func (s *sweep) leave(before netip.Addr) {
	for n := len(s.open); n > 0 && (!before.IsValid() || s.open[n-1].last.Less(before)); n = len(s.open) {
		p := &s.open[n-1]
		s.open = s.open[:n-1]
		if s.at.IsValid() && !p.last.Less(s.at) {
			s.add(p.last, p.outcome)
		}
	}
}

// add ends a range at its last address. Neighbours with the same outcome are one range.
func (s *sweep) add(last netip.Addr, o Outcome) {
	n := len(s.Ranges)
	switch {
	case o == Undecided || s.last && o == Allow:
	case n > 0 && s.Ranges[n-1].Outcome == o && s.Ranges[n-1].Last.Next() == s.at:
		s.Ranges[n-1].Last = last
	default:
		s.Ranges = append(s.Ranges, Range{s.at, last, o})
	}
	s.at = last.Next()
}

// outcomeOf returns the outcome of rules.
func (s *sweep) outcomeOf(of *opened) Outcome {
	p := Ports{Otherwise: Undecided}
	switch {
	case of.all < len(s.rules):
		p.Otherwise = outcome(s.rules[of.all].deny)
	case s.last:
		p.Otherwise = Allow
	}
	seen := map[cluster.FirewallPort]bool{}
	for _, r := range of.some {
		for _, port := range s.rules[r].ports {
			if !seen[port] {
				seen[port] = true
				p.add(port, outcome(s.rules[r].deny))
			}
		}
	}
	if len(p.Allow)+len(p.Deny) == 0 {
		return p.Otherwise
	}
	slices.SortFunc(p.Allow, comparePorts)
	slices.SortFunc(p.Deny, comparePorts)
	key := string(p.encode(nil))
	o, known := s.outcomes[key]
	if !known {
		o = FirstPorts + Outcome(len(s.Ports))
		s.outcomes[key], s.Ports = o, append(s.Ports, p)
	}
	return o
}

func outcome(deny bool) Outcome {
	if deny {
		return Deny
	}
	return Allow
}

// add adds a port whose outcome is not that of the others.
func (p *Ports) add(port cluster.FirewallPort, o Outcome) {
	switch o {
	case p.Otherwise:
	case Allow:
		p.Allow = append(p.Allow, port)
	default:
		p.Deny = append(p.Deny, port)
	}
}

// renumber numbers ports in the order of the ranges, and drops those that no range has. Equal policies are so encoded alike.
func (s *sweep) renumber() {
	numbers := map[Outcome]Outcome{}
	var used []Ports
	for i := range s.Ranges {
		o := &s.Ranges[i].Outcome
		if *o < FirstPorts {
			continue
		}
		n, known := numbers[*o]
		if !known {
			n = FirstPorts + Outcome(len(used))
			numbers[*o], used = n, append(used, s.Ports[*o-FirstPorts])
		}
		*o = n
	}
	s.Ports = used
}

// encode appends an encoding of ports.
func (p *Ports) encode(b []byte) []byte {
	b = append(b, byte(p.Otherwise))
	for _, list := range [][]cluster.FirewallPort{p.Allow, p.Deny} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(list))) //nolint:gosec // at most 65535 ports of three protocols
		for _, port := range list {
			b = binary.BigEndian.AppendUint16(append(b, port.Protocol), port.Number)
		}
	}
	return b
}

func boolByte(v bool) byte {
	if v {
		return 1
	}
	return 0
}

// keyOf hashes stretches; zero: the slice is empty.
func keyOf(all []Stretch) classes.Key {
	var b []byte
	for _, s := range all {
		b = append(b, 's')
		for _, r := range s.Ranges {
			b = append(append(append(b, 'r'), r.First.AsSlice()...), r.Last.AsSlice()...)
			b = binary.BigEndian.AppendUint32(b, uint32(r.Outcome))
		}
		if len(s.Names) > 0 {
			b = binary.BigEndian.AppendUint32(append(b, 'n', byte(s.Named), boolByte(s.IPv6)), uint32(len(s.Names))) //nolint:gosec // few
			for _, name := range s.Names {
				b = append(append(b, byte(len(name))), name...) //nolint:gosec // at most 253 bytes, and the wildcard's two
			}
		}
		for i := range s.Ports {
			b = s.Ports[i].encode(append(b, 'p'))
		}
	}
	return classes.KeyOf(b)
}
