package main

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestUpdateSights(t *testing.T) {
	size := func(b ...byte) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...) }
	a, b, c, d := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.2"), netip.MustParseAddr("198.18.0.3"), netip.MustParseAddr("198.18.0.4")
	host := func(a netip.Addr) []byte { return append([]byte{32}, a.AsSlice()...) }
	unreached := append([]byte{0, 1, 1}, host(b)...)
	reached := append([]byte{0, 1, 1, 4, 10, 1, 0, 2, 0}, host(d)...)
	attributes := append([]byte{0x80, unreachable, byte(len(unreached))}, unreached...)
	attributes = append(append(attributes, 0x90, reachable, 0, byte(len(reached))), reached...)
	update := append(append(size(host(a)...), size(attributes...)...), host(c)...)
	all, err := updateSights(update)
	require.NoError(t, err)
	require.ElementsMatch(t, []sight{{withdrawn, a}, {withdrawn, b}, {announced, c}, {announced, d}}, all)
	for n := range len(update) - len(host(c)) {
		_, err := updateSights(update[:n])
		require.Error(t, err, "of %d bytes", n)
	}
}

func TestElements(t *testing.T) {
	attribute := func(typ uint16, value ...byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(len(value)+4))
		b = append(binary.NativeEndian.AppendUint16(b, typ), value...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
		return b
	}
	message := func(set string, key ...byte) []byte {
		const tableAttribute, setAttribute, elementsAttribute, keyAttribute, valueAttribute, one = 1, 2, 3, 1, 1, 1
		b := append(attribute(tableAttribute, []byte(ourTable+"\x00")...), attribute(setAttribute, append([]byte(set), 0)...)...)
		return append(b, attribute(elementsAttribute, attribute(one, attribute(keyAttribute, attribute(valueAttribute, key...)...)...)...)...)
	}
	a := netip.MustParseAddr("10.128.0.1")
	require.Equal(t, []sight{{added, a}}, elements(message("egress4", a.AsSlice()...), added))
	require.Equal(t, []sight{{removed, a}}, elements(message("sources4", append(a.AsSlice(), 1, 2, 3, 4)...), removed), "a pair begins with the pod")
	require.Empty(t, elements(message("former4", a.AsSlice()...), removed))
}

func TestChangesAreAllToBeSeen(t *testing.T) {
	for _, folder := range []bool{false, true} {
		c := newCluster(options{services: 100, endpoints: 2, nodes: 10, hosts: 4, namespaces: 3, perFile: 7, seed: 1})
		require.Equal(t, 50, c.announcedHere())
		now, last, seen, how := time.Now(), map[*service]time.Time{}, map[sight]bool{}, map[string]int{}
		for range 500 {
			now = now.Add(time.Second)
			x := c.next(now, folder)
			if x == nil {
				continue
			}
			how[x.what]++
			require.True(t, x.commit.addr.IsValid())
			require.Greater(t, now.Sub(last[x.service]), apart, "of one Service")
			last[x.service] = now
			if x.what == endpointAdded || x.what == endpointMoved || x.what == ingressChanged {
				require.False(t, seen[x.commit], "addresses are new")
			}
			seen[x.commit] = true
			require.NotEmpty(t, c.request(x).Path)
			_, manifest := c.file(x.service)
			require.Contains(t, manifest, x.service.name)
		}
		for _, what := range kinds {
			if what != egressElected || !folder {
				require.Positive(t, how[what], what)
			}
		}
	}
}
