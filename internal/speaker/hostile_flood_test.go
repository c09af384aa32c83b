//go:build !race

package speaker // not with the race detector, which takes several times the memory that is measured here

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab"
)

// floodMost is how much memory a speaker may take under a flood, in MiB: its container has 512.
const floodMost = 448

// flood sends as much as the speaker takes, until the session ends or the peer has had its say.
func (s *hostileSession) flood(n int, message func(i int) []byte) (sent int) {
	var b []byte
	for i := range n {
		if b = append(b, message(i)...); len(b) < 1<<16 && i < n-1 {
			continue
		}
		if _, err := s.Write(b); err != nil {
			return sent
		}
		sent, b = i+1, b[:0]
	}
	return sent
}

// heavy tells a prefix with attributes of nearly 4 KiB that nobody else has.
func heavy(i int, prefix netip.Prefix, path []byte) []byte {
	communities := many(3800-len(path), 7)
	communities = communities[:len(communities)/4*4]
	binary.BigEndian.PutUint32(communities, uint32(i))
	return updateMessage(nil, join(originIGP, path, nextHop(newHop), attribute(0xd0, 8, communities...)), nlri(prefix))
}

// ownAS is a path that went through our AS.
var ownAS = attribute(0x40, 2, 2, 2, 0, 0, byte(wireASN>>8), byte(wireASN&255), 0, 0, 252, 0)

// TestHostileFloods has a peer send as much as it can. The speaker's memory has a bound, and nobody else notices.
func TestHostileFloods(t *testing.T) {
	ownOften := []byte{2, 255}
	for range 255 {
		ownOften = append(ownOften, 0, 0, 252, 0)
	}
	ownOften = append(ownOften, 2, 1, 0, 0, 252, 0)
	ownOften = attribute(0x50, 2, ownOften...)
	for _, c := range []struct {
		name    string
		n       int
		message func(i int) []byte
		over    string // why the session is ended; empty: it is not
		most    uint32 // maxPrefixes, other than 1,000
	}{
		{name: "one route again and again", n: 100_000, message: func(i int) []byte {
			return updateMessage(nil, join(originIGP, asPath, nextHop(newHop), attribute(0x80, 4, 0, byte(i>>16), byte(i>>8), byte(i))), nlri(nth(0)))
		}},
		{name: "more in its routes than there is memory for", n: 200_000, most: 1 << 20, message: func(i int) []byte { return heavy(i, nth(i), asPath) }, over: "memory"},
		{name: "900 routes with much in them again and again", n: 10_000, message: func(i int) []byte { return heavy(i, nth(i%900), asPath) }},
		{name: "too many routes", n: 1_000_000, message: func(i int) []byte { return heavy(i, nth(i), asPath) }, over: "maxPrefixes"},
		{name: "too many routes that went through our AS", n: 1_000_000, message: func(i int) []byte { return heavy(i, nth(i), ownAS) }, over: "maxPrefixes"},
		{name: "too many routes that went through our AS 256 times", n: 1_000_000, message: func(i int) []byte { return heavy(i, nth(i), ownOften) }, over: "maxPrefixes"},
		{name: "withdrawals", n: 200_000, message: func(i int) []byte { return updateMessage(nlri(nth(i)), nil, nil) }},
		{name: "what is malformed", n: 100_000, message: func(i int) []byte {
			return updateMessage(nil, join(attribute(0x40, 1, 9), asPath, nextHop(newHop)), nlri(nth(i)))
		}},
		{name: "keepalives", n: 1_000_000, message: func(int) []byte { return bgpMessage(keepaliveType, nil) }},
		{name: "ends of tables", n: 100_000, message: func(int) []byte { return updateMessage(nil, nil, nil) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, peers := amidHostile(t, 1, func(p *plan.Peer) { p.MaxPrefixes = cmp.Or(c.most, p.MaxPrefixes) })
			h := peers[0]
			s := h.settles(goodOpen())
			began := time.Now()
			sent := s.flood(c.n, c.message)
			if c.over != "" {
				<-s.ended
				require.Less(t, sent, c.n)
				require.EventuallyWithT(t, func(t *assert.CollectT) {
					for _, e := range in.c.Sessions() {
						if e.Address == h.addr {
							require.False(t, e.Up)
							require.Contains(t, e.LastError, c.over)
						}
					}
				}, limit, 20*time.Millisecond)
			} else {
				require.Equal(t, c.n, sent)
				s.says(good(oldHop, netip.MustParsePrefix("21.0.0.0/24")))
				h.learns(netip.MustParsePrefix("21.0.0.0/24"), oldHop)
			}
			in.unharmed()
			now, most := in.p.resident(t)
			t.Logf("%d messages in %s; memory %d MiB, at most %d MiB", sent, time.Since(began).Round(time.Millisecond), now, most)
			require.Less(t, most, floodMost)
		})
	}
}

// TestDeafPeer has a peer take nothing of what it is sent, and ask for it again and again.
func TestDeafPeer(t *testing.T) {
	in, peers := amidHostile(t, 1, nil)
	h := peers[0]
	conn := h.accepts()
	require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4096))
	_, err := conn.Write(append(bgpMessage(openType, goodOpen()), bgpMessage(keepaliveType, nil)...))
	require.NoError(t, err)
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		for _, e := range in.c.Sessions() {
			require.True(t, e.Up, "%+v", e)
		}
	}, limit, 20*time.Millisecond)
	var all []plan.Announcement
	for i := range 10_000 {
		all = append(all, plan.Announcement{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 32)})
	}
	for i := range in.desired {
		in.desired[i].Announce = sorted.Of(all...)
	}
	apply(t, in.c, in.desired...)
	for told := 0; told < 2*len(all); {
		select {
		case u := <-in.red.updates:
			told += u.told
		case u := <-in.blue.updates:
			told += u.told
		case <-time.After(limit):
			require.Fail(t, "not all is told", "%d", told)
		}
	}
	deadline := time.Now().Add(20 * time.Second)
	require.NoError(t, conn.SetWriteDeadline(deadline))
	n := 0
	for ; n < 20_000; n++ {
		if _, err := conn.Write(bgpMessage(refreshType, []byte{0, 1, 0, 1})); err != nil {
			break
		}
	}
	now, most := in.p.resident(t)
	t.Logf("%d requests; memory %d MiB, at most %d MiB", n, now, most)
	for i := range in.desired {
		in.desired[i].Announce = sorted.List[plan.Announcement]{}
	}
	apply(t, in.c, in.desired...)
	for gone := 0; gone < 2*len(all); {
		select {
		case u := <-in.red.updates:
			gone += u.withdrawn
		case u := <-in.blue.updates:
			gone += u.withdrawn
		case <-time.After(limit):
			require.Fail(t, "not all is withdrawn", "%d", gone)
		}
	}
	in.unharmed()
	require.Less(t, most, floodMost)
}

// TestSlowFlood has eight peers fill memory together, each at a rate that is no flood: with routes that went through our AS,
// of which there may be many, with much in them. In another network a router tells its table at once, again and again. Its session
// stays, and so does that of the router beside the hostile ones. Those who fill memory lose theirs for a while.
func TestSlowFlood(t *testing.T) {
	const hostiles, inATick, enough = 8, 3, 3
	in, peers := amidHostile(t, hostiles, func(p *plan.Peer) { p.MaxPrefixes = 10_000 })
	var running sync.WaitGroup
	stop := make(chan struct{})
	for _, h := range peers {
		s := h.settles(goodOpen())
		running.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for i := 0; ; {
				select {
				case <-tick.C:
				case <-s.ended:
					return
				case <-stop:
					return
				}
				for range inATick {
					s.says(heavy(i, nth(i), ownAS))
					i++
				}
			}
		})
	}
	var table []netip.Prefix
	for i := range 300 {
		table = append(table, netip.PrefixFrom(netip.AddrFrom4([4]byte{60, byte(i >> 8), byte(i), 0}), 24))
	}
	looks, ended := 0, map[netip.Addr]bool{}
	require.NoError(t, lab.Wait(t.Context(), 2*limit, func() error {
		if looks++; looks%25 == 0 {
			in.blue.tell(table, nil, 1, 0)
			in.blue.tell(nil, table, 1, 0)
		}
		if now, _ := in.p.resident(t); now > floodMost {
			require.Fail(t, "the speaker takes too much memory", "%d MiB", now)
		}
		clear(ended)
		for _, e := range in.c.Sessions() {
			if e.Ended {
				ended[e.Address] = true
				require.NotEqual(t, netip.MustParseAddr("127.0.0.1"), e.Address, "%+v", e)
				require.Contains(t, e.LastError, "more than its share of memory; next attempt after 15s")
			}
		}
		if len(ended) < enough {
			return fmt.Errorf("%d sessions were ended, not %d", len(ended), enough)
		}
		return nil
	}))
	close(stop)
	running.Wait()
	in.unharmed()
	for _, h := range peers {
		if ended[h.addr] { // it may come back
			again, mark := h.settles(goodOpen()), netip.MustParsePrefix("21.0.0.0/24")
			again.says(good(newHop, mark))
			h.learns(mark, newHop)
			break
		}
	}
	now, most := in.p.resident(t)
	t.Logf("memory %d MiB, at most %d MiB", now, most)
	require.Less(t, most, floodMost)
}
