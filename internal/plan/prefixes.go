package plan

import (
	"cmp"
	"net/netip"
	"slices"
)

var (
	anyIPv4 = netip.MustParsePrefix("0.0.0.0/0")
	anyIPv6 = netip.MustParsePrefix("::/0")
)

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// single returns the prefix that contains only a; it is invalid if a is.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// minimal sorts prefixes and drops those inside others.
func minimal(all []netip.Prefix) []netip.Prefix {
	all = slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool { return !p.IsValid() })
	for i, p := range all {
		all[i] = p.Masked()
	}
	slices.SortFunc(all, comparePrefix)
	out := all[:0]
	for _, p := range all {
		if len(out) > 0 && out[len(out)-1].Contains(p.Addr()) && out[len(out)-1].Bits() <= p.Bits() {
			continue
		}
		out = append(out, p)
	}
	return slices.Clip(out)
}

// within reports whether one of the minimal prefixes contains addr.
func within(minimal []netip.Prefix, addr netip.Addr) bool {
	i, found := searchPrefixes(minimal, addr)
	return found || i > 0 && minimal[i-1].Contains(addr)
}

// holds reports whether one of the minimal prefixes contains addr only.
func holds(minimal []netip.Prefix, addr netip.Addr) bool {
	i, found := searchPrefixes(minimal, addr)
	return found && minimal[i].IsSingleIP()
}

// searchPrefixes finds the first of the minimal prefixes that does not begin before addr, and whether it begins there.
func searchPrefixes(minimal []netip.Prefix, addr netip.Addr) (int, bool) {
	return slices.BinarySearchFunc(minimal, addr, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
}

// merged joins minimal prefixes and sorted single addresses outside of them.
func merged(minimal []netip.Prefix, singles []Prefix) []netip.Prefix {
	if len(singles) == 0 {
		return minimal
	}
	all := make([]netip.Prefix, 0, len(minimal)+len(singles))
	for _, s := range singles {
		i, _ := searchPrefixes(minimal, s.Addr())
		all = append(append(all, minimal[:i]...), s.Prefix)
		minimal = minimal[i:]
	}
	return append(all, minimal...)
}

func compareStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
