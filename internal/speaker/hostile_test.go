package speaker

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// A hostile peer is a router that may say anything. Each has an address of its own, so that many of them are peers of one
// network, beside a router that does no wrong.
type hostile struct {
	t     *testing.T
	addr  netip.Addr
	port  uint16
	conns chan net.Conn // that were accepted
	c     *Client       // the agent of whoever suffers
}

const (
	notificationType = 3
	refreshType      = 5
)

// newHostile makes the i-th hostile peer.
func newHostile(t *testing.T, i int) *hostile {
	t.Helper()
	h := &hostile{t: t, addr: netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), conns: make(chan net.Conn)}
	l, err := net.Listen("tcp4", netip.AddrPortFrom(h.addr, 0).String())
	require.NoError(t, err)
	h.port = uint16(l.Addr().(*net.TCPAddr).Port)
	ended := make(chan struct{})
	var running sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		close(ended)
		running.Wait()
	})
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			select {
			case h.conns <- conn:
			case <-ended:
				conn.Close()
			}
		}
	})
	return h
}

// peer is the peer as it is configured.
func (h *hostile) peer() plan.Peer {
	return plan.Peer{
		Peer: config.Peer{
			Address: h.addr, ASN: wireASN, Port: h.port, MaxPrefixes: 1000,
			HoldTime: config.Duration(90 * time.Second), KeepaliveTime: config.Duration(30 * time.Second), ConnectTime: config.Duration(time.Second),
			Receive: []config.PrefixPattern{
				{Prefix: netip.MustParsePrefix("0.0.0.0/0"), GE: 0, LE: 32}, {Prefix: netip.MustParsePrefix("::/0"), GE: 0, LE: 128},
			},
		},
		NextHop4: netip.MustParseAddr("192.0.2.2"), NextHop6: netip.MustParseAddr("2001:db8::2"),
	}
}

// hostileSession is one connection of a hostile peer.
type hostileSession struct {
	net.Conn
	ended        chan struct{}
	notification []byte // that was received, once ended; nil: none was
}

// accepts waits for the speaker to connect, and reads its OPEN.
func (h *hostile) accepts() net.Conn {
	h.t.Helper()
	select {
	case conn := <-h.conns:
		h.t.Cleanup(func() { conn.Close() })
		require.NoError(h.t, conn.SetReadDeadline(time.Now().Add(limit)))
		kind, _, err := readMessage(conn)
		require.NoError(h.t, err)
		require.EqualValues(h.t, openType, kind)
		require.NoError(h.t, conn.SetReadDeadline(time.Time{}))
		return conn
	case <-time.After(limit):
		require.Fail(h.t, "the speaker does not connect")
		return nil
	}
}

// hear reads what the speaker says until the connection ends.
func hear(conn net.Conn) *hostileSession {
	s := &hostileSession{Conn: conn, ended: make(chan struct{})}
	go func() { // ends with the connection
		defer close(s.ended)
		for {
			kind, body, err := readMessage(conn)
			if err != nil {
				return
			}
			if kind == notificationType {
				s.notification = body
			}
		}
	}()
	return s
}

// settles begins a session as it should be.
func (h *hostile) settles(open []byte) *hostileSession {
	h.t.Helper()
	conn := h.accepts()
	_, err := conn.Write(append(bgpMessage(openType, open), bgpMessage(keepaliveType, nil)...))
	require.NoError(h.t, err)
	return hear(conn)
}

// notified reports whether the session has ended with a NOTIFICATION.
func (s *hostileSession) notified() bool {
	select {
	case <-s.ended:
		return len(s.notification) >= 2
	default:
		return false
	}
}

// says writes messages. That the speaker has hung up meanwhile is no fault.
func (s *hostileSession) says(messages ...[]byte) {
	for _, m := range messages {
		if _, err := s.Write(m); err != nil {
			return
		}
	}
}

// learned is the next hop of a prefix that the agent has, "" when it has none.
func (h *hostile) learned(prefix netip.Prefix) string {
	for _, network := range h.c.Learned() {
		if network.Network != "red" {
			continue
		}
		for r := range network.Routes.All() {
			if r.Dst == prefix && len(r.NextHops) > 0 {
				return r.NextHops[0].Gateway.String()
			}
		}
	}
	return ""
}

// learns waits for a prefix.
func (h *hostile) learns(prefix netip.Prefix, hop string) {
	h.t.Helper()
	require.EventuallyWithT(h.t, func(t *assert.CollectT) { require.Equal(t, hop, h.learned(prefix), "%s", prefix) }, limit, 20*time.Millisecond)
}

// innocents are two routers that do no wrong, one in the network of the hostile peers, one in another. Their sessions are to
// go on whatever happens.
type innocents struct {
	t         *testing.T
	c         *Client
	p         *process
	red, blue *wirePeer
	desired   []plan.Speaker
	since     map[string]time.Time
}

// amidHostile has a speaker with hostile peers, and with innocents.
func amidHostile(t *testing.T, n int, change func(*plan.Peer)) (*innocents, []*hostile) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.sock")
	in := &innocents{t: t, p: serve(t, path), red: newWirePeer(t), blue: newWirePeer(t)}
	in.c, _ = drive(t, ClientOptions{Socket: path, Version: "v1"})
	ready(t, in.c)
	red, blue := in.red.speaker(), in.blue.speaker()
	blue.Network = "blue"
	var all []*hostile
	for i := range n {
		h := newHostile(t, i+1)
		h.c = in.c
		p := h.peer()
		if change != nil {
			change(&p)
		}
		red.Peers = append(red.Peers, p)
		all = append(all, h)
	}
	in.desired = []plan.Speaker{blue, red}
	apply(t, in.c, in.desired...)
	in.red.established()
	in.blue.established()
	in.since = map[string]time.Time{}
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		for _, s := range in.sessions() {
			require.True(t, s.Up, "%+v", s)
			in.since[s.Network] = s.Since
		}
	}, limit, 20*time.Millisecond)
	return in, all
}

// goodSession is what the agent knows of the session with an innocent router.
type goodSession struct {
	Network string
	Up      bool
	Since   time.Time
}

func (in *innocents) sessions() (all []goodSession) {
	for _, s := range in.c.Sessions() {
		if s.Address == netip.MustParseAddr("127.0.0.1") {
			all = append(all, goodSession{s.Network, s.Up, s.Since})
		}
	}
	return all
}

// unharmed requires that the speaker lives, that the innocents' sessions are those of before, and that routes are exchanged
// by them as ever.
func (in *innocents) unharmed() {
	in.t.Helper()
	select {
	case <-in.p.done:
		require.Fail(in.t, "the speaker has ended", "%v", in.p.err)
	default:
	}
	all := in.sessions()
	require.Len(in.t, all, 2)
	for _, s := range all {
		require.True(in.t, s.Up, "%s", s.Network)
		require.True(in.t, s.Since.Equal(in.since[s.Network]), "the session in %s is another one", s.Network)
	}
	h := &hostile{t: in.t, c: in.c}
	probe := netip.MustParsePrefix("30.0.0.0/24")
	in.red.tell([]netip.Prefix{probe}, nil, 1, 0)
	h.learns(probe, wireNextHop)
	in.red.tell(nil, []netip.Prefix{probe}, 1, 0)
	h.learns(probe, "")
	for _, p := range []*wirePeer{in.red, in.blue} {
		for len(p.updates) > 0 {
			<-p.updates
		}
	}
	announce := sorted.Of(plan.Announcement{Prefix: netip.MustParsePrefix("198.51.100.1/32")})
	for i := range in.desired {
		in.desired[i].Announce = announce
	}
	apply(in.t, in.c, in.desired...)
	for _, p := range []*wirePeer{in.red, in.blue} {
		require.Equal(in.t, 1, p.hears().told)
	}
	for i := range in.desired {
		in.desired[i].Announce = sorted.List[plan.Announcement]{}
	}
	apply(in.t, in.c, in.desired...)
	for _, p := range []*wirePeer{in.red, in.blue} {
		require.Equal(in.t, 1, p.hears().withdrawn)
	}
}

// resident is the memory that a process takes, and has taken at most, in MiB.
func (p *process) resident(t *testing.T) (now, most int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		var kb int
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kb); n == 1 {
			now = kb >> 10
		}
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kb); n == 1 {
			most = kb >> 10
		}
	}
	return now, most
}

// comesBack ends a session, and begins another one as it should be, by which a prefix is learned.
func (h *hostile) comesBack(s *hostileSession, prefix netip.Prefix) {
	h.t.Helper()
	s.Close()
	<-s.ended
	again := h.settles(goodOpen())
	again.says(good(newHop, prefix))
	h.learns(prefix, newHop)
	again.Close()
	<-again.ended
}

// became waits for the mark that follows a message, or the session's end, and says what became of the message.
func (h *hostile) became(s *hostileSession, prefix, mark netip.Prefix, before, after string) (what string) {
	h.t.Helper()
	require.EventuallyWithT(h.t, func(t *assert.CollectT) {
		select {
		case <-s.ended:
			if what = closed; s.notification != nil {
				what = reset
			}
			return
		default:
		}
		require.Equal(t, oldHop, h.learned(mark))
		switch hop := h.learned(prefix); hop {
		case before:
			what = ignored
		case "":
			what = withdrawn
		case after, newHop6:
			what = used
		default:
			what = "next hop " + hop
		}
	}, limit, 20*time.Millisecond)
	return what
}

// nth is one of many prefixes.
func nth(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{22 + byte(i>>16), byte(i >> 8), byte(i), 0}), 24)
}

// TestHostileMessages has a peer each say something that is wrong. What becomes of it is what RFC 7606 and RFC 4271 want,
// where nothing else is said; in any case that peer alone is concerned, and may come back.
func TestHostileMessages(t *testing.T) {
	in, peers := amidHostile(t, len(hostileUpdates), nil)
	var running sync.WaitGroup // not t.Parallel, which runs as many at once as there are processors: most of it is to wait
	for i, c := range hostileUpdates {
		running.Go(func() {
			t.Run(c.name, func(t *testing.T) {
				h := peers[i]
				h.t = t
				prefix, before, after := netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 7), byte(i << 1), 0}), 24), oldHop, newHop
				if c.ipv6 {
					prefix, before, after = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, byte(i >> 8), byte(i)}), 48), oldHop6, newHop6
				}
				mark := netip.PrefixFrom(netip.AddrFrom4([4]byte{21, byte(i >> 8), byte(i), 0}), 24)
				s := h.settles(goodOpen())
				s.says(good(before, prefix))
				h.learns(prefix, before)
				s.says(c.message(prefix), good(oldHop, mark))
				became := h.became(s, prefix, mark, before, after)
				if c.want == closed && became == ignored { // GoBGP may read the next message before it ends the session
					select {
					case <-s.ended:
						became = closed
					case <-time.After(limit):
					}
				}
				assert.Equal(t, c.want, became)
				if s.notified() {
					assert.Equal(t, c.noCode, s.notification[0] == 0, "%v", s.notification)
				}
				h.comesBack(s, mark)
			})
		})
	}
	running.Wait()
	in.unharmed()
}

// TestExtendedNextHops has two peers tell IPv4 routes with IPv6 next hops, of which one has offered to.
func TestExtendedNextHops(t *testing.T) {
	in, peers := amidHostile(t, 2, func(p *plan.Peer) { p.Device = "lo" })
	offered := parameters(append(goodParameters(), capability(5, 0, 1, 0, 1, 0, 2)...)...)
	for i, open := range [][]byte{goodOpen(), offered} {
		h := peers[i]
		s := h.settles(open)
		mark := nth(900 + i)
		for j, hop := range []string{newHop6, "fe80::9"} {
			s.says(extendedNextHop(hop)(nth(10*i + j)))
		}
		s.says(good(oldHop, mark))
		h.learns(mark, oldHop)
		for j, hop := range []string{newHop6, "fe80::9"} {
			want := ""
			if i == 1 {
				want = hop
			}
			assert.Equal(t, want, h.learned(nth(10*i+j)))
		}
		fault := ""
		if i == 0 {
			fault = "the router has not offered extended next hops (RFC 8950)"
		}
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			for _, e := range in.c.Sessions() {
				if e.Address == h.addr {
					assert.True(t, e.Up)
					assert.Equal(t, fault == "", e.LastError == "", e.LastError)
					assert.Contains(t, e.LastError, fault)
				}
			}
		}, limit, 20*time.Millisecond)
	}
	in.unharmed()
}
