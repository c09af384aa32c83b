package flows

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/conntrack"
)

func TestRecords(t *testing.T) {
	udp6 := conntrack.Flow{
		Proto: unix.IPPROTO_UDP, Src: at("[fd44:1::11]:5353"), Dst: at("[2001:db8:100::10]:53"), SNAT: at("[2001:db8:2::10]:1024"), Timeout: 90,
	}
	all := []record{{Flow: tcpFlow("10.244.1.11:40000", "198.51.100.10:443", "192.0.2.10:1024")}, {Flow: udp6}, {Flow: udp6, ended: true}}
	var b []byte
	for i := range all {
		all[i].Path = 0
		b = appendRecord(b, all[i])
	}
	b = append(b, 3, 99, 1, 2) // a record of a future kind
	var got []record
	require.NoError(t, decodeRecords(b, func(r record) { got = append(got, r) }))
	require.Equal(t, all, got)

	var parts int
	many := bytes.Repeat(b, 1000)
	var joined []byte
	require.NoError(t, frames(many, func(part []byte) error {
		parts++
		joined = append(joined, part...)
		require.LessOrEqual(t, len(part), maxFrame)
		return decodeRecords(part, func(record) {})
	}))
	require.Equal(t, many, joined)
	require.Equal(t, (len(many)+maxFrame-1)/maxFrame, parts)

	for what, bad := range map[string][]byte{
		"cut":           b[:20],
		"short":         {4, kindAlive, 6, 0, 0},
		"other size":    append([]byte{size4 + 1}, append(bytes.Clone(b[1:1+size4]), 0)...),
		"protocol":      append([]byte{size4, kindAlive, 1}, b[3:1+size4]...),
		"IPv4 as IPv6":  appendRecord(nil, record{Flow: conntrack.Flow{Proto: 6, Src: at("[::ffff:1.2.3.4]:1"), Dst: at("[fd00::1]:1"), SNAT: at("[fd00::2]:1")}}),
		"wrong version": {size6, kindEnded, 17, 0, 0, 0, 0},
	} {
		require.ErrorIs(t, decodeRecords(bad, func(record) {}), errFormat, what)
	}
}

// FuzzRecords feeds the decoder arbitrary input and checks the records that it accepts.
func FuzzRecords(f *testing.F) {
	f.Add(appendRecord(nil, record{Flow: tcpFlow("10.244.1.11:40000", "198.51.100.10:443", "192.0.2.10:1024")}))
	f.Add(appendRecord(nil, record{Flow: tcpFlow("[fd44:1::11]:1", "[2001:db8:100::10]:53", "[2001:db8:2::10]:1024"), ended: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		err := decodeRecords(b, func(r record) {
			require.Contains(t, []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP}, r.Proto)
			require.Equal(t, r.Src.Addr().Is4(), r.Dst.Addr().Is4())
			require.Equal(t, r.Src.Addr().Is4(), r.SNAT.Addr().Is4())
			again := r
			require.NoError(t, decodeRecords(appendRecord(nil, r), func(r record) { again = r }))
			require.Equal(t, r, again)
		})
		if err != nil {
			return
		}
		require.NoError(t, frames(b, func(part []byte) error {
			require.NotEmpty(t, part)
			return decodeRecords(part, func(record) {})
		}))
	})
}
