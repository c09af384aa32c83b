package main

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var (
	hopA = netip.MustParseAddr("10.1.0.1")
	hopB = netip.MustParseAddr("10.1.0.3")
)

// hear applies what a peer tells to a table, as a router does, until it has heard so many UPDATEs.
func hear(t *testing.T, c net.Conn, updates int) map[netip.Prefix]netip.Addr {
	t.Helper()
	have := map[netip.Prefix]netip.Addr{}
	b := make([]byte, 1<<16)
	prefixes := func(b []byte, each func(netip.Prefix)) {
		for len(b) > 0 {
			var a [4]byte
			n := (int(b[0]) + 7) / 8
			copy(a[:], b[1:1+n])
			each(netip.PrefixFrom(netip.AddrFrom4(a), int(b[0])))
			b = b[1+n:]
		}
	}
	for range updates {
		kind, body, err := readMessage(c, b)
		require.NoError(t, err)
		require.EqualValues(t, bgpUpdate, kind)
		gone := int(binary.BigEndian.Uint16(body))
		prefixes(body[2:2+gone], func(p netip.Prefix) { delete(have, p) })
		body = body[2+gone:]
		size := int(binary.BigEndian.Uint16(body))
		if size == 0 {
			continue
		}
		hop := netip.AddrFrom4([4]byte(body[2+4+9+3:])) // behind ORIGIN, AS_PATH, and the head of NEXT_HOP
		prefixes(body[2+size:], func(p netip.Prefix) { have[p] = hop })
	}
	return have
}

func TestTell(t *testing.T) {
	here, there := net.Pipe()
	p := &peer{perMsg: 10, conn: here}
	b := &bed{options: options{prefixes: 95}}
	told1 := append(b.everything(hopA), route{prefix(3), netip.Addr{}}, route{prefix(4), hopB})
	done := make(chan error, 1)
	go func() { done <- p.announce(told1) }()
	have := hear(t, there, 10+2)
	require.NoError(t, <-done)
	require.Len(t, have, 94)
	require.Equal(t, hopB, have[prefix(4)])
	require.Equal(t, hopA, have[prefix(94)])
	require.NotContains(t, have, prefix(3))

	p.fallSilent()
	require.NoError(t, p.announce(b.everything(hopA)), "nobody hears it, and nobody waits")
	p.conn = nil
	require.ErrorIs(t, (&peer{perMsg: 1}).announce(b.everything(hopA)), errNoSession)
}

// TestChange: whoever applies the batches has what the peer has.
func TestChange(t *testing.T) {
	b := &bed{options: options{prefixes: 200}}
	routes, random := b.everything(hopA), rand.New(rand.NewPCG(1, 2))
	have := map[netip.Prefix]netip.Addr{}
	for _, r := range routes {
		have[r.prefix] = r.hop
	}
	withdrawn := 0
	for range 50 {
		for _, r := range b.change(random, routes, []netip.Addr{hopA, hopB}, 30) {
			require.NotEqual(t, have[r.prefix], r.hop, "it is a change")
			have[r.prefix] = r.hop
			if !r.hop.IsValid() {
				withdrawn++
			}
		}
	}
	require.Positive(t, withdrawn)
	for _, r := range routes {
		require.Equal(t, r.hop, have[r.prefix])
	}
}

func TestFIB(t *testing.T) {
	f := &fib{table: 1001, protocol: ourProtocol, routes: map[netip.Prefix]netip.Addr{}}
	tell := func(kind uint16, table uint32, protocol byte, p netip.Prefix, hop netip.Addr) {
		attribute := func(kind uint16, value []byte) []byte {
			b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
			return append(binary.NativeEndian.AppendUint16(b, kind), value...)
		}
		body := []byte{unix.AF_INET, byte(p.Bits()), 0, 0, byte(min(table, unix.RT_TABLE_COMPAT)), protocol, 0, unix.RTN_UNICAST, 0, 0, 0, 0}
		body = append(body, attribute(unix.RTA_TABLE, binary.NativeEndian.AppendUint32(nil, table))...)
		body = append(append(body, attribute(unix.RTA_DST, p.Addr().AsSlice())...), attribute(unix.RTA_GATEWAY, hop.AsSlice())...)
		m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
		m = append(append(binary.NativeEndian.AppendUint16(m, kind), make([]byte, 10)...), body...)
		for kind, body := range messages(append(m, 0, 0)) { // too little for another message
			f.note(f.routes, kind, body)
		}
	}
	tell(unix.RTM_NEWROUTE, 1001, ourProtocol, prefix(1), hopA)
	tell(unix.RTM_NEWROUTE, 1001, ourProtocol, prefix(2), hopA)
	tell(unix.RTM_NEWROUTE, 1001, ourProtocol, prefix(2), hopB)
	tell(unix.RTM_NEWROUTE, 1002, ourProtocol, prefix(3), hopA)
	tell(unix.RTM_NEWROUTE, 1001, bgpProtocol, prefix(4), hopA)
	require.Equal(t, map[netip.Prefix]netip.Addr{prefix(1): hopA, prefix(2): hopB}, f.routes)
	reached := f.reaches(2)
	require.Len(t, reached, 1)
	tell(unix.RTM_DELROUTE, 1002, ourProtocol, prefix(1), hopA)
	tell(unix.RTM_DELROUTE, 1001, ourProtocol, prefix(1), hopA)
	require.Equal(t, map[netip.Prefix]netip.Addr{prefix(2): hopB}, f.routes)
}
