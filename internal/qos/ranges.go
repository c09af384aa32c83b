package qos

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
)

// span is the destinations of a rule: its first and last address, and its place among the rules.
type span struct {
	first, last netip.Addr
	rule        int
}

// everywhere holds all addresses of each family.
var everywhere = [2]netip.Prefix{
	ipv4: netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	ipv6: netip.PrefixFrom(netip.IPv6Unspecified(), 0),
}

// firstMatches resolves rules into disjoint ranges of a family's addresses: each address has the value of the first rule that
// matches it. n rules give at most 2n-1 ranges.
func firstMatches(rules []cluster.QoSRule, family int) []Range {
	var spans []span
	for i, rule := range rules {
		to := rule.To
		if !to.IsValid() {
			to = everywhere[family]
		}
		if familyOf(to.Addr()) == family {
			spans = append(spans, span{to.Addr(), cluster.LastAddr(to), i})
		}
	}
	// Prefixes contain one another or are disjoint: those that contain an address are on a stack when the sweep is there.
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(a.first.Compare(b.first), b.last.Compare(a.last), cmp.Compare(a.rule, b.rule))
	})
	s := sweep{rules: rules}
	for _, p := range spans {
		s.enter(p)
	}
	s.leave(netip.Addr{})
	return s.ranges
}

// sweep goes through the addresses of a family in order.
type sweep struct {
	rules  []cluster.QoSRule
	at     netip.Addr // the first address that has no range yet; invalid: past the last one
	open   []span     // that contain it, each with the first rule of those before it
	ranges []Range
}

// enter goes on to the first address of a span.
func (s *sweep) enter(p span) {
	s.leave(p.first)
	if n := len(s.open); n > 0 {
		if s.at.Less(p.first) {
			s.add(p.first.Prev(), s.open[n-1].rule)
		}
		p.rule = min(p.rule, s.open[n-1].rule)
	}
	s.at = p.first
	s.open = append(s.open, p)
}

// leave closes the spans that end before an address; all of them if it is invalid.
func (s *sweep) leave(before netip.Addr) {
	for n := len(s.open); n > 0 && (!before.IsValid() || s.open[n-1].last.Less(before)); n = len(s.open) {
		p := s.open[n-1]
		s.open = s.open[:n-1]
		if s.at.IsValid() && !p.last.Less(s.at) {
			s.add(p.last, p.rule)
		}
	}
}

// add ends a range at its last address. Neighbours with the same value are one range.
func (s *sweep) add(last netip.Addr, rule int) {
	value := s.rules[rule].DSCP
	if n := len(s.ranges); n > 0 && s.ranges[n-1].DSCP == value && s.ranges[n-1].Last.Next() == s.at {
		s.ranges[n-1].Last = last
	} else {
		s.ranges = append(s.ranges, Range{s.at, last, value})
	}
	s.at = last.Next()
}
