package conntrack

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestPortCount(t *testing.T) {
	at := netip.MustParseAddrPort
	c := newPortCount()
	flow := func(proto uint8, from, to string) {
		c.add(Flow{Proto: proto, SNAT: at(from), Dst: at(to)})
	}
	for port := range 300 {
		c.add(Flow{Proto: unix.IPPROTO_TCP, SNAT: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.10"), uint16(1024+port)), Dst: at("198.51.100.1:443")})
	}
	flow(unix.IPPROTO_UDP, "203.0.113.10:1", "198.51.100.1:443")
	flow(unix.IPPROTO_TCP, "203.0.113.10:1", "198.51.100.1:444")
	flow(unix.IPPROTO_TCP, "203.0.113.10:1", "198.51.100.2:443")
	flow(unix.IPPROTO_TCP, "[2001:db8::10]:1", "[2001:db8::1]:443")
	require.Equal(t, PortUse{Flows: 1, Ports: 1}, c.of[netip.MustParseAddr("2001:db8::10")])
	require.Equal(t, PortUse{Flows: 303, Ports: 300}, c.of[netip.MustParseAddr("203.0.113.10")])
}

// BenchmarkPortCount measures the cost of counting one flow, without the kernel's dump.
func BenchmarkPortCount(b *testing.B) {
	c := newPortCount()
	f := Flow{Proto: unix.IPPROTO_TCP, SNAT: netip.MustParseAddrPort("203.0.113.10:5"), Dst: netip.MustParseAddrPort("198.51.100.1:443")}
	b.ReportAllocs()
	for i := range b.N {
		f.Dst = netip.AddrPortFrom(f.Dst.Addr(), uint16(i))
		c.add(f)
	}
}
