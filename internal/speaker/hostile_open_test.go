package speaker

import (
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// parameters makes an OPEN of nothing but these optional parameters, all else being right.
func parameters(b ...byte) []byte { return opening(4, wireASN, 90, wireID, b) }

// alsoCapable is a good OPEN with a capability more.
func alsoCapable(code byte, value ...byte) []byte {
	return parameters(append(goodParameters(), capability(code, value...)...)...)
}

// hostileOpens are what a peer says instead of a good OPEN, and the NOTIFICATION that it gets for it (RFC 4271, 6.2); nil: the
// session comes up, or ends without.
var hostileOpens = []struct {
	name    string
	says    []byte
	refused []byte // code and subcode
	up      bool   // nothing is wrong with it
	lax     bool   // something is, but it is taken as if not
}{
	{name: "nothing wrong", says: bgpMessage(openType, goodOpen()), up: true},
	{name: "version 3", says: bgpMessage(openType, opening(3, wireASN, 90, wireID, goodParameters())), refused: []byte{2, 1}},
	{name: "version 255", says: bgpMessage(openType, opening(255, wireASN, 90, wireID, goodParameters())), refused: []byte{2, 1}},
	{name: "another AS", says: bgpMessage(openType, opening(4, 64999, 90, wireID, nil)), refused: []byte{2, 2}},
	{name: "another AS in the capability", says: bgpMessage(openType, opening(4, wireASN, 90, wireID, capability(65, 0, 0, 1, 1))), refused: []byte{2, 2}},
	{name: "AS 0", says: bgpMessage(openType, opening(4, 0, 90, wireID, nil)), refused: []byte{2, 2}},
	{name: "our AS", says: bgpMessage(openType, opening(4, 64512, 90, wireID, nil)), refused: []byte{2, 2}},
	{name: "AS_TRANS without the capability", says: bgpMessage(openType, opening(4, 23456, 90, wireID, nil)), refused: []byte{2, 2}},
	{name: "hold time 1", says: bgpMessage(openType, opening(4, wireASN, 1, wireID, goodParameters())), refused: []byte{2, 6}},
	{name: "hold time 2", says: bgpMessage(openType, opening(4, wireASN, 2, wireID, goodParameters())), refused: []byte{2, 6}},
	{name: "hold time 0", says: bgpMessage(openType, opening(4, wireASN, 0, wireID, goodParameters())), up: true},
	{name: "hold time 65,535", says: bgpMessage(openType, opening(4, wireASN, 65535, wireID, goodParameters())), up: true},
	{name: "identifier 0.0.0.0", says: bgpMessage(openType, opening(4, wireASN, 90, [4]byte{}, goodParameters())), refused: []byte{2, 3}},
	{name: "identifier multicast", says: bgpMessage(openType, opening(4, wireASN, 90, [4]byte{224, 0, 0, 1}, goodParameters())), lax: true},
	{name: "our identifier", says: bgpMessage(openType, opening(4, wireASN, 90, [4]byte{192, 0, 2, 2}, goodParameters())), up: true},
	{name: "of no byte", says: bgpMessage(openType, nil)},
	{name: "cut short", says: bgpMessage(openType, goodOpen()[:7])},
	{name: "length of the parameters too large", says: bgpMessage(openType, append(opening(4, wireASN, 90, wireID, nil)[:9], 200))},
	{name: "length of the parameters too small", says: bgpMessage(openType, append(opening(4, wireASN, 90, wireID, nil)[:9], append([]byte{1}, goodParameters()...)...))},
	{name: "a parameter of one byte", says: bgpMessage(openType, parameters(2))},
	{name: "a parameter longer than all", says: bgpMessage(openType, parameters(2, 200, 1, 4, 0, 1, 0, 1))},
	{name: "a capability longer than its parameter", says: bgpMessage(openType, parameters(2, 4, 1, 200, 0, 1))},
	{name: "a capability of one byte", says: bgpMessage(openType, parameters(2, 1, 1)), lax: true},
	{name: "an unknown parameter", says: bgpMessage(openType, parameters(9, 2, 1, 1)), lax: true},
	{name: "authentication", says: bgpMessage(openType, parameters(1, 2, 1, 1)), lax: true},
	{name: "255 bytes of one capability", says: bgpMessage(openType, parameters(append([]byte{2, 253, 250, 251}, many(251, 7)...)...)), lax: true},
	{name: "255 bytes of parameters of none", says: bgpMessage(openType, parameters(append(many(254, 2), 0)...))},
	{name: "120 empty capabilities", says: bgpMessage(openType, parameters(append([]byte{2, 240}, join(repeat(120, []byte{200, 0})...)...)...)), lax: true},
	{name: "extended length (RFC 9072)", says: bgpMessage(openType, append(opening(4, wireASN, 90, wireID, nil)[:9], 255, 255, 0xff, 0xff))},
	{name: "extended length, 4,000 bytes", says: bgpMessage(openType, append(opening(4, wireASN, 90, wireID, nil)[:9], append([]byte{255, 255, 0x0f, 0xa0}, many(4000, 2)...)...))},
	{name: "multiprotocol of three bytes", says: bgpMessage(openType, alsoCapable(1, 0, 1, 0))},
	{name: "multiprotocol of an unknown family", says: bgpMessage(openType, alsoCapable(1, 0x40, 9, 0, 99)), up: true},
	{name: "AS of two bytes in the capability", says: bgpMessage(openType, parameters(capability(65, 1, 2)...))},
	{name: "graceful restart of one byte", says: bgpMessage(openType, alsoCapable(64, 1))},
	{name: "graceful restart, a family cut short", says: bgpMessage(openType, alsoCapable(64, 0x80, 1, 0, 1, 1)), lax: true},
	{name: "graceful restart of an unknown family", says: bgpMessage(openType, alsoCapable(64, 0x8f, 0xff, 0x40, 9, 99, 0xff)), up: true},
	{name: "long-lived graceful restart cut short", says: bgpMessage(openType, alsoCapable(71, 0, 1, 1, 0))},
	{name: "additional paths cut short", says: bgpMessage(openType, alsoCapable(69, 0, 1, 1))},
	{name: "additional paths, mode 9", says: bgpMessage(openType, alsoCapable(69, 0, 1, 1, 9)), lax: true},
	{name: "extended next hop cut short", says: bgpMessage(openType, alsoCapable(5, 0, 1, 0, 1, 0))},
	{name: "host name longer than it", says: bgpMessage(openType, alsoCapable(73, 200, 'a'))},
	{name: "software version longer than it", says: bgpMessage(openType, alsoCapable(75, 200, 'a'))},
	{name: "KEEPALIVE first", says: bgpMessage(keepaliveType, nil), refused: []byte{5, 1}},
	{name: "UPDATE first", says: good(newHop, nth(0)), refused: []byte{5, 1}},
	{name: "ROUTE-REFRESH first", says: bgpMessage(refreshType, []byte{0, 1, 0, 1}), refused: []byte{5, 1}},
	{name: "NOTIFICATION first", says: bgpMessage(notificationType, []byte{6, 2})},
	{name: "NOTIFICATION of no byte first", says: bgpMessage(notificationType, nil)},
	{name: "unknown type first", says: bgpMessage(9, []byte{1})},
	{name: "HTTP", says: []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), refused: []byte{1, 1}},
	{name: "rubbish", says: many(5000, 0xff)},
	{name: "nothing, and hangs up"},
}

// TestHostileOpens has a peer each begin a session as it should not. Whatever it is told, it may come back and be served.
func TestHostileOpens(t *testing.T) {
	in, peers := amidHostile(t, len(hostileOpens), nil)
	var running sync.WaitGroup
	for i, c := range hostileOpens {
		running.Go(func() {
			t.Run(c.name, func(t *testing.T) {
				h := peers[i]
				h.t = t
				mark := netip.PrefixFrom(netip.AddrFrom4([4]byte{21, byte(i >> 8), byte(i), 0}), 24)
				conn := h.accepts()
				s := hear(conn)
				switch {
				case c.up, c.lax:
					// An empty AS path is the same with AS of two bytes and of four.
					s.says(c.says, bgpMessage(keepaliveType, nil), of(originIGP, attribute(0x40, 2), nextHop(oldHop))(mark))
					h.learns(mark, oldHop)
				case c.says != nil:
					s.says(c.says)
					// It may wait for more, where the message is not complete.
					select {
					case <-s.ended:
						if c.refused != nil {
							require.GreaterOrEqual(t, len(s.notification), 2)
							assert.Equal(t, c.refused, s.notification[:2])
						}
					case <-time.After(limit):
						assert.Fail(t, "the connection stays")
					}
				}
				h.comesBack(s, mark)
			})
		})
	}
	running.Wait()
	in.unharmed()
}

// drip sends a byte each 10 ms, until the connection ends.
func (s *hostileSession) drip(b []byte) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := range b {
		select {
		case <-tick.C:
			s.says(b[i : i+1])
		case <-s.ended:
			return
		}
	}
}

// TestSlowPeers have peers that say a byte now and then. What is complete counts, what is not does not keep a session alive.
func TestSlowPeers(t *testing.T) {
	in, peers := amidHostile(t, 3, func(p *plan.Peer) {
		p.HoldTime, p.KeepaliveTime = config.Duration(3*time.Second), config.Duration(time.Second)
	})
	mark := func(i int) netip.Prefix { return nth(100 + i) }
	var running sync.WaitGroup
	for i, f := range []func(*hostile){
		func(h *hostile) { // all of it, slowly
			conn := h.accepts()
			s := hear(conn)
			s.drip(append(bgpMessage(openType, goodOpen()), bgpMessage(keepaliveType, nil)...))
			s.drip(good(oldHop, mark(0)))
			h.learns(mark(0), oldHop)
		},
		func(h *hostile) { // an UPDATE that never ends
			s := h.settles(goodOpen())
			s.says(good(oldHop, mark(1)))
			h.learns(mark(1), oldHop)
			s.drip(updateMessage(nil, attribute(0xd0, 201, many(4000, 1)...), nil))
			<-s.ended
			h.learns(mark(1), "")
			require.Equal(h.t, []byte{4, 0}, s.notification, "hold timer expired")
		},
		func(h *hostile) { // half an OPEN
			conn := h.accepts()
			s := hear(conn)
			s.says(bgpMessage(openType, goodOpen())[:25])
			<-s.ended
		},
	} {
		running.Go(func() {
			f(peers[i])
			s := peers[i].settles(goodOpen())
			s.says(good(newHop, mark(i)))
			peers[i].learns(mark(i), newHop)
		})
	}
	running.Wait()
	in.unharmed()
}

// TestSecondConnection is about a speaker that listens: neither a second connection of a peer whose session is established, nor
// one by a stranger, whatever is said on it, touches a session.
func TestSecondConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	p := serve(t, path)
	c, _ := drive(t, ClientOptions{Socket: path, Version: "v1"})
	ready(t, c)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	h := newHostile(t, 1)
	h.c = c
	desired := plan.Speaker{Network: "red", ASN: 64512, RouterID: netip.MustParseAddr("192.0.2.2"), ListenPort: port, Peers: []plan.Peer{h.peer()}}
	apply(t, c, desired)
	s := h.settles(goodOpen())
	s.says(good(oldHop, nth(0)))
	h.learns(nth(0), oldHop)
	require.EventuallyWithT(t, func(t *assert.CollectT) { require.True(t, c.Sessions()[0].Up) }, limit, 20*time.Millisecond) // reported apart
	since := c.Sessions()[0].Since
	rubbish := [][]byte{nil, []byte("x"), bgpMessage(openType, goodOpen()), bgpMessage(9, []byte{1}), many(5000, 0xff), good(newHop, nth(1))}
	for _, from := range []netip.Addr{h.addr, netip.MustParseAddr("127.9.9.9")} {
		for _, b := range rubbish {
			d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), Timeout: limit}
			conn, err := d.Dial("tcp4", netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port)).String())
			require.NoError(t, err)
			_, _ = conn.Write(b) // it may be closed already
			second := hear(conn)
			select {
			case <-second.ended:
			case <-time.After(limit):
				require.Fail(t, "a second connection stays")
			}
			conn.Close()
		}
	}
	s.says(good(newHop, nth(0)))
	h.learns(nth(0), newHop)
	require.Empty(t, h.learned(nth(1)))
	require.True(t, c.Sessions()[0].Since.Equal(since))
	select {
	case <-p.done:
		require.Fail(t, "the speaker has ended")
	default:
	}
}
