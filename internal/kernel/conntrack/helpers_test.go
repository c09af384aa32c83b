package conntrack

import "net/netip"

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }
