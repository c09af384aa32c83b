package names

import (
	"net/netip"
	"slices"
	"strings"
)

// Set is a set of the packet filter that holds the addresses of names.
type Set struct {
	Name     string
	IPv6     bool
	Patterns []string // sorted, in lower case, without final dot; "*." stands for exactly one label
}

// wildcard begins a pattern of all names that have one label more.
const wildcard = "*."

// parent returns the name without its first label; empty: it has one label.
func parent(name string) string {
	_, rest, _ := strings.Cut(name, ".")
	return rest
}

// index finds the sets whose patterns match a name.
type index struct {
	sets  map[string]*Set
	exact map[string][]*Set
	below map[string][]*Set // by the name without its first label
}

func newIndex(sets []Set) *index {
	x := &index{sets: map[string]*Set{}, exact: map[string][]*Set{}, below: map[string][]*Set{}}
	for _, s := range sets {
		x.add(s)
	}
	return x
}

// add adds a set, unless there is one of its name.
func (x *index) add(s Set) {
	if x.sets[s.Name] != nil {
		return
	}
	x.sets[s.Name] = &s
	for _, p := range s.Patterns {
		if under, is := strings.CutPrefix(p, wildcard); is {
			x.below[under] = append(x.below[under], &s)
		} else {
			x.exact[p] = append(x.exact[p], &s)
		}
	}
}

// matching returns the sets whose patterns match a name, each once.
func (x *index) matching(name string) []*Set {
	exact, below := x.exact[name], x.below[parent(name)]
	if len(exact) == 0 || len(below) == 0 {
		return append(slices.Clip(exact), below...)
	}
	all := append([]*Set(nil), exact...)
	for _, s := range below {
		if !slices.Contains(exact, s) {
			all = append(all, s)
		}
	}
	return all
}

func (x *index) matches(name string) bool {
	return len(x.exact[name]) > 0 || len(x.below[parent(name)]) > 0
}

// sameSets compares sets. Equal ones of two plans mostly share memory.
func sameSets(a, b []Set) bool {
	return slices.EqualFunc(a, b, func(a, b Set) bool {
		if a.Name != b.Name || a.IPv6 != b.IPv6 || len(a.Patterns) != len(b.Patterns) {
			return false
		}
		return len(a.Patterns) == 0 || &a.Patterns[0] == &b.Patterns[0] || slices.Equal(a.Patterns, b.Patterns)
	})
}

// outside reports whether an address may be in a set at all, beside those that the plan excludes.
func outside(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.IsLinkLocalUnicast() && !a.Is4In6() &&
		a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
