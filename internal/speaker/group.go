package speaker

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// prefixes is a list of prefixes. Its text has one space between two of them: with very many prefixes, a string for each would take
// most of the time that the messages take.
type prefixes []netip.Prefix

// MarshalText writes the prefixes.
func (p prefixes) MarshalText() ([]byte, error) {
	var b []byte
	for i, prefix := range p {
		if i > 0 {
			b = append(b, ' ')
		}
		b = prefix.AppendTo(b)
	}
	return b, nil
}

// UnmarshalText reads prefixes.
func (p *prefixes) UnmarshalText(text []byte) error {
	*p = make(prefixes, 0, bytes.Count(text, []byte(" "))+1)
	for field := range strings.FieldsSeq(string(text)) {
		prefix, err := netip.ParsePrefix(field)
		if err != nil {
			return err
		}
		*p = append(*p, prefix)
	}
	return nil
}

// grouped groups learned routes. Their other fields are empty, and each has a next hop.
func grouped(routes []plan.Route) (groups []group) {
	of := map[*plan.NextHop]int{} // routes with the same next hops share the slice
	for _, r := range routes {
		i, known := of[&r.NextHops[0]]
		if !known || !sorted.OneSlice(groups[i].NextHops, r.NextHops) {
			i = len(groups)
			of[&r.NextHops[0]] = i
			groups = append(groups, group{NextHops: r.NextHops})
		}
		groups[i].To = append(groups[i].To, r.Dst)
	}
	return groups
}

// ungrouped returns the routes of groups, sorted.
func ungrouped(groups []group, hops *sameHops) []plan.Route {
	count := 0
	for _, g := range groups {
		count += len(g.To)
	}
	routes := make([]plan.Route, 0, count)
	for _, g := range groups {
		next := hops.one(g.NextHops)
		for _, p := range g.To {
			routes = append(routes, plan.Route{Dst: p, NextHops: next})
		}
	}
	if len(groups) > 1 {
		slices.SortFunc(routes, plan.Route.Compare)
	}
	return routes
}
