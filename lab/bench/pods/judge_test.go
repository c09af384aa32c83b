package main

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestJudge(t *testing.T) {
	begin, right, other := time.Now(), netip.MustParseAddr("198.18.0.1"), nodeAddress
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	seen := []sight{
		{at: at(1), device: "eth1", source: other},
		{at: at(2), device: "eth1", source: other},
		{at: at(11), device: "eth1", source: other}, // written at 10
		{at: at(21), device: "eth1", source: other}, // told at 20
		{at: at(22), device: "eth1", source: right}, // by a wrong way
		{at: at(30), device: "eth2", source: right},
		{at: at(31), device: "eth2", source: right, again: true},
		{at: at(32), device: "eth1", source: other, again: true},
		{at: at(33), device: "eth2", source: other},
	}
	require.Equal(t, verdict{first: at(30), right: 2, early: 2, underway: 3, afterEvent: 2, late: 1, lateAgain: 1},
		judge(seen, right, "eth2", at(10), at(20)))
	require.Equal(t, verdict{early: 2}, judge(seen[:2], right, "eth2", at(10), at(20)))
	require.Equal(t, verdict{underway: 2}, judge(seen[:2], right, "eth2", at(0), time.Time{}), "no watch was told")
}

func TestSYN(t *testing.T) {
	p := &pod{number: 513, addr: netip.MustParseAddr("10.160.2.1")}
	for n, again := range map[int]bool{0: true, 7: false, 1<<16 + 3: false} {
		frame := syn([headers]byte{}, p, n, again)
		x, ok := read(frame[14:])
		require.True(t, ok)
		require.Equal(t, sight{source: p.addr, pod: 513, again: again}, x)
		require.EqualValues(t, 0xffff, sum(frame[14:34], 0))
		require.EqualValues(t, 0xffff, sum(frame[34:], uint32(sum(frame[26:34], 6+20))), "checksum, RFC 9293")
	}
	for _, packet := range [][]byte{nil, make([]byte, 40), {0x45}} {
		_, ok := read(packet)
		require.False(t, ok)
	}
}
