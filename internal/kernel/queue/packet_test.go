package queue

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// ip4 returns an IPv4 packet; ip6 one of IPv6, after extension headers.
func ip4(proto uint8, fragment uint16, payload []byte) []byte {
	b := make([]byte, 20, 20+len(payload))
	b[0], b[9] = 0x45, proto
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(b[6:], fragment)
	return append(b, payload...)
}

func ip6(proto uint8, payload []byte) []byte {
	b := make([]byte, 40, 40+len(payload))
	b[0], b[6] = 0x60, proto
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	return append(b, payload...)
}

func udp(from uint16, message string) []byte {
	b := make([]byte, 8, 8+len(message))
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[4:], uint16(8+len(message)))
	return append(b, message...)
}

func tcp(from uint16, data ...byte) []byte {
	b := make([]byte, 24, 24+len(data)) // with four bytes of options
	binary.BigEndian.PutUint16(b, from)
	b[12] = 6 << 4
	return append(b, data...)
}

func TestMessage(t *testing.T) {
	fragment := func(next uint8, offsetAndMore byte) []byte { return []byte{next, 0, 0, offsetAndMore, 0, 0, 0, 0} }
	jumbo := ip6(unix.IPPROTO_UDP, udp(53, "abc"))
	jumbo[4], jumbo[5] = 0, 0
	for _, c := range []struct {
		name    string
		packet  []byte
		message string
		content Content
	}{
		{"UDP", ip4(unix.IPPROTO_UDP, 0, udp(53, "abc")), "abc", Whole},
		{"UDP over IPv6", ip6(unix.IPPROTO_UDP, udp(53, "abc")), "abc", Whole},
		{"padding", append(ip4(unix.IPPROTO_UDP, 0, udp(53, "abc")), 0, 0, 0), "abc", Whole},
		{"empty", ip4(unix.IPPROTO_UDP, 0, udp(53, "")), "", None},
		{"another port", ip4(unix.IPPROTO_UDP, 0, udp(54, "abc")), "", None},
		{"another protocol", ip4(unix.IPPROTO_SCTP, 0, udp(53, "abc")), "", None},
		{"cut", ip4(unix.IPPROTO_UDP, 0, udp(53, "abc"))[:30], "ab", Part},
		{"cut in the header", ip4(unix.IPPROTO_UDP, 0, udp(53, "abc"))[:25], "", None},
		{"first fragment", ip4(unix.IPPROTO_UDP, 0x2000, udp(53, "abc")), "abc", Part},
		{"later fragment", ip4(unix.IPPROTO_UDP, 1, udp(53, "abc")), "", None},
		{"atomic fragment", ip6(unix.IPPROTO_FRAGMENT, slices.Concat(fragment(unix.IPPROTO_UDP, 0), udp(53, "abc"))), "abc", Whole},
		{"first fragment of IPv6", ip6(unix.IPPROTO_FRAGMENT, slices.Concat(fragment(unix.IPPROTO_UDP, 1), udp(53, "abc"))), "abc", Part},
		{"later fragment of IPv6", ip6(unix.IPPROTO_FRAGMENT, slices.Concat(fragment(unix.IPPROTO_UDP, 8), udp(53, "abc"))), "", None},
		{"options of IPv6", ip6(0, slices.Concat([]byte{unix.IPPROTO_DSTOPTS, 1}, make([]byte, 14), []byte{unix.IPPROTO_TCP, 0}, make([]byte, 6),
			tcp(53, 0, 1, 'a'))), "a", Whole},
		{"a size of 0", jumbo, "abc", Whole},
		{"TCP", ip4(unix.IPPROTO_TCP, 0, tcp(53, 0, 3, 'a', 'b', 'c')), "abc", Whole},
		{"TCP without data", ip4(unix.IPPROTO_TCP, 0, tcp(53)), "", None},
		{"TCP with a length only", ip4(unix.IPPROTO_TCP, 0, tcp(53, 0, 3)), "", Part},
		{"a beginning", ip4(unix.IPPROTO_TCP, 0, tcp(53, 1, 3, 'a', 'b')), "ab", Part},
		{"one and a half", ip4(unix.IPPROTO_TCP, 0, tcp(53, 0, 1, 'a', 0, 5, 'b')), "a", Part},
		{"nothing", nil, "", None},
		{"neither IPv4 nor IPv6", []byte{0x55, 0, 0}, "", None},
	} {
		message, content := Message(c.packet)
		require.Equal(t, c.content, content, c.name)
		require.Equal(t, c.message, string(message), c.name)
	}
}

// FuzzMessage looks for packets that the reader cannot bear, and for messages that are no part of the packet.
func FuzzMessage(f *testing.F) {
	for _, seed := range [][]byte{
		ip4(unix.IPPROTO_UDP, 0, udp(53, "abc")), ip6(unix.IPPROTO_UDP, udp(53, "abc")), ip4(unix.IPPROTO_TCP, 0, tcp(53, 0, 3, 'a', 'b', 'c')),
		ip6(unix.IPPROTO_FRAGMENT, slices.Concat([]byte{17, 0, 0, 0, 0, 0, 0, 0}, udp(53, "abc"))),
		ip6(0, slices.Concat([]byte{6, 0, 0, 0, 0, 0, 0, 0}, tcp(53, 0, 1, 'a'))),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		message, content := Message(packet)
		if len(message) > len(packet) || content == None && message != nil || content == Whole && len(message) == 0 && packet[0]>>4 == 4 && packet[9] == unix.IPPROTO_UDP {
			t.Fatalf("%d bytes, %v, of a packet of %d", len(message), content, len(packet))
		}
	})
}

func TestSettle(t *testing.T) {
	of := func(id uint32) *uint32 { return &id }
	var waiting []verdict
	for id := range uint32(6) {
		waiting = append(waiting, verdict{id: id + 1})
	}
	for _, c := range []struct {
		accept []uint32
		upTo   *uint32
		rest   []uint32
		left   int
	}{
		{[]uint32{3}, nil, []uint32{3}, 6},
		{[]uint32{1, 2, 5}, of(2), []uint32{5}, 3}, // 3 went before
		{[]uint32{5, 99}, nil, []uint32{5, 99}, 3}, // twice, and one that was never read: the kernel refuses them
		{[]uint32{6, 4}, of(6), nil, 0},
	} {
		upTo, rest := settle(&waiting, c.accept)
		require.Equal(t, c.upTo, upTo, c.accept)
		require.Equal(t, c.rest, rest, c.accept)
		require.Len(t, waiting, c.left, c.accept)
	}
}
