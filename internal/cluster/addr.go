package cluster

import (
	"errors"
	"net/netip"
	"slices"
)

// ParseAddr parses an address that a pod or a Service may have. The error says why text is not such an address.
func ParseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, errors.New("not an IP address")
	}
	if why := Unfit(a); why != "" {
		return netip.Addr{}, errors.New(why + ", not one of a pod, a Service or a node")
	}
	return a, nil
}

// Unfit returns why no pod, Service or node can have address a; empty: one can.
func Unfit(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "an invalid address"
	case a.Zone() != "":
		return "an address with a zone"
	case a.Is4In6():
		return "an IPv4-mapped IPv6 address"
	case a.IsUnspecified():
		return "the unspecified address"
	case a.IsLoopback():
		return "a loopback address"
	case a.IsMulticast():
		return "a multicast address"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case a.Is4() && a.As4()[0] == 0:
		return "an address of \"this network\""
	case a.Is4() && a.As4()[0] >= 240:
		return "a reserved or the broadcast address"
	}
	return ""
}

// Within reports whether one of the sorted, disjoint prefixes contains an address.
func Within(prefixes []netip.Prefix, a netip.Addr) bool {
	i, found := SearchPrefix(prefixes, a)
	return found || i > 0 && prefixes[i-1].Contains(a)
}

// SearchPrefix finds the first of the sorted, disjoint prefixes that does not begin before an address, and whether it begins there.
func SearchPrefix(prefixes []netip.Prefix, a netip.Addr) (int, bool) {
	return slices.BinarySearchFunc(prefixes, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
}

// LastAddr returns the last address of a prefix.
func LastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
