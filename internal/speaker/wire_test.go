package speaker

import (
	"encoding/binary"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// wirePeer is a router that says exactly what it is told to say (RFC 4271), and notes when it hears what. It costs next to
// nothing, however many routes it tells.
type wirePeer struct {
	tb      testing.TB
	port    uint16
	updates chan heardUpdate

	mu   sync.Mutex // guards what follows, and writes
	conn net.Conn   // of the session that is established; nil: none
	up   chan struct{}
}

// heardUpdate is an UPDATE that has arrived.
type heardUpdate struct {
	at              time.Time
	told, withdrawn int
}

const (
	wireASN     = 64601
	wireNextHop = "192.0.2.9"
)

// newWirePeer listens for speakers. Up to 65,536 UPDATEs may wait to be looked at.
func newWirePeer(tb testing.TB) *wirePeer {
	tb.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(tb, err)
	p := &wirePeer{tb: tb, port: uint16(l.Addr().(*net.TCPAddr).Port), updates: make(chan heardUpdate, 1<<16), up: make(chan struct{}, 1)}
	var running sync.WaitGroup
	tb.Cleanup(func() {
		l.Close()
		p.hangUp()
		running.Wait()
	})
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = p.talk(conn) // the session has ended
			conn.Close()
		}
	})
	return p
}

// hangUp breaks the session without a word.
func (p *wirePeer) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		p.conn.Close()
	}
}

const (
	openType      = 1
	updateType    = 2
	keepaliveType = 4
)

func bgpMessage(kind byte, body []byte) []byte {
	m := make([]byte, 19, 19+len(body))
	for i := range 16 {
		m[i] = 0xff
	}
	binary.BigEndian.PutUint16(m[16:], uint16(19+len(body)))
	m[18] = kind
	return append(m, body...)
}

func readMessage(r io.Reader) (kind byte, body []byte, err error) {
	var header [19]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return 0, nil, err
	}
	body = make([]byte, binary.BigEndian.Uint16(header[16:])-19)
	_, err = io.ReadFull(r, body)
	return header[18], body, err
}

// talk is a session, from the other's OPEN on.
func (p *wirePeer) talk(conn net.Conn) error {
	if _, _, err := readMessage(conn); err != nil {
		return err
	}
	open := []byte{4, 0, 0, 0, 90, 192, 0, 2, 1, 16, // version, AS, hold time, identifier, length
		2, 14, 1, 4, 0, 1, 0, 1, 65, 4, 0, 0, 0, 0, 2, 0} // capabilities: IPv4 unicast, AS of four bytes, ROUTE-REFRESH
	binary.BigEndian.PutUint16(open[1:], wireASN)
	binary.BigEndian.PutUint32(open[20:], wireASN)
	if _, err := conn.Write(append(bgpMessage(openType, open), bgpMessage(keepaliveType, nil)...)); err != nil {
		return err
	}
	for established := false; ; {
		kind, body, err := readMessage(conn)
		if err != nil {
			return err
		}
		switch {
		case kind == keepaliveType && !established:
			established = true
			p.mu.Lock()
			p.conn = conn
			p.mu.Unlock()
			signal(p.up)
		case kind == keepaliveType:
			if err := p.write(bgpMessage(keepaliveType, nil)); err != nil {
				return err
			}
		case kind == updateType:
			withdrawn := 2 + int(binary.BigEndian.Uint16(body))
			attrs := withdrawn + 2 + int(binary.BigEndian.Uint16(body[withdrawn:]))
			if attrs > 4 { // else it is the end of a table
				p.updates <- heardUpdate{time.Now(), countPrefixes(body[attrs:]), countPrefixes(body[2:withdrawn])}
			}
		}
	}
}

func countPrefixes(b []byte) (n int) {
	for ; len(b) > 0; n++ {
		b = b[1+(int(b[0])+7)/8:]
	}
	return n
}

func (p *wirePeer) write(b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err := p.conn.Write(b)
	return err
}

func appendPrefix(b []byte, prefix netip.Prefix) []byte {
	addr := prefix.Addr().As4()
	return append(append(b, byte(prefix.Bits())), addr[:(prefix.Bits()+7)/8]...)
}

// tell tells and withdraws routes, so many in a message. Each message has another MED, from med on: a router makes one of its
// own for each set of attributes.
func (p *wirePeer) tell(told, withdrawn []netip.Prefix, inMessage int, med uint32) {
	p.tb.Helper()
	var out []byte
	for len(told) > 0 || len(withdrawn) > 0 {
		var gone, nlri, attrs []byte
		for range min(inMessage, len(withdrawn)) {
			gone, withdrawn = appendPrefix(gone, withdrawn[0]), withdrawn[1:]
		}
		if len(gone) == 0 {
			for range min(inMessage, len(told)) {
				nlri, told = appendPrefix(nlri, told[0]), told[1:]
			}
			hop := netip.MustParseAddr(wireNextHop).As4()
			attrs = append(attrs, 0x40, 1, 1, 0, // ORIGIN: IGP
				0x40, 2, 6, 2, 1, 0, 0, byte(wireASN>>8), byte(wireASN&255)) // AS_PATH
			attrs = append(append(attrs, 0x40, 3, 4), hop[:]...)
			attrs = binary.BigEndian.AppendUint32(append(attrs, 0x80, 4, 4), med)
			med++
		}
		body := binary.BigEndian.AppendUint16(nil, uint16(len(gone)))
		body = binary.BigEndian.AppendUint16(append(body, gone...), uint16(len(attrs)))
		body = append(append(body, attrs...), nlri...)
		if out = append(out, bgpMessage(updateType, body)...); len(out) > 1<<16 {
			require.NoError(p.tb, p.write(out))
			out = nil
		}
	}
	if out != nil {
		require.NoError(p.tb, p.write(out))
	}
}

// speaker is what an agent wants to be spoken to the peer.
func (p *wirePeer) speaker() plan.Speaker {
	return plan.Speaker{
		Network: "red", ASN: 64512, RouterID: netip.MustParseAddr("192.0.2.2"), ListenPort: -1,
		Peers: []plan.Peer{{
			Peer: config.Peer{
				Address: netip.MustParseAddr("127.0.0.1"), ASN: wireASN, Port: p.port, MaxPrefixes: 1 << 20,
				HoldTime: config.Duration(90 * time.Second), KeepaliveTime: config.Duration(30 * time.Second), ConnectTime: config.Duration(time.Second),
				Receive: []config.PrefixPattern{{Prefix: netip.MustParsePrefix("0.0.0.0/0"), GE: 1, LE: 32}},
			},
			NextHop4: netip.MustParseAddr("192.0.2.2"),
		}},
	}
}

// established waits for a session.
func (p *wirePeer) established() {
	p.tb.Helper()
	select {
	case <-p.up:
	case <-time.After(limit):
		require.Fail(p.tb, "no session")
	}
}

// hears waits for an UPDATE.
func (p *wirePeer) hears() heardUpdate {
	p.tb.Helper()
	select {
	case u := <-p.updates:
		return u
	case <-time.After(10 * limit):
		require.Fail(p.tb, "no UPDATE")
		return heardUpdate{}
	}
}

// manyPrefixes makes n IPv4 prefixes that may be learned.
func manyPrefixes(n int) []netip.Prefix {
	all := make([]netip.Prefix, 0, n)
	for i := range n {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{20 + byte(i>>16), byte(i >> 8), byte(i), 0}), 24))
	}
	return all
}

// TestLearnedIsWhatPeerTold has a peer tell and withdraw at random, few routes and many, and its session break: what the
// agent has is what the peer has told last.
func TestLearnedIsWhatPeerTold(t *testing.T) {
	p := newWirePeer(t)
	path := filepath.Join(t.TempDir(), "s.sock")
	serve(t, path)
	c, _ := drive(t, ClientOptions{Socket: path, Version: "v1"})
	ready(t, c)
	desired := p.speaker()
	apply(t, c, desired)
	p.established()
	all := manyPrefixes(6000)
	told := map[netip.Prefix]bool{}
	random := rand.New(rand.NewPCG(1, 2))
	for step := range 40 {
		var set, gone []netip.Prefix
		most := []int{1, 20, len(all)}[random.IntN(3)]
		for range 1 + random.IntN(most) {
			if prefix := all[random.IntN(len(all))]; random.IntN(5) < 2 {
				gone = append(gone, prefix)
			} else {
				set = append(set, prefix)
			}
		}
		switch random.IntN(8) {
		case 0:
			p.hangUp()
			p.established()
			clear(told)
		case 1: // addresses that are not to be learned, for a while
			desired.Refuse = sorted.Of(plan.Prefix{Prefix: netip.PrefixFrom(all[random.IntN(len(all))].Addr(), 32)})
			apply(t, c, desired)
		}
		inMessage := 1 + random.IntN(300)
		p.tell(nil, gone, inMessage, 0)
		p.tell(set, nil, inMessage, random.Uint32N(100))
		for _, prefix := range gone {
			delete(told, prefix)
		}
		for _, prefix := range set {
			told[prefix] = true
		}
		if step%4 > 0 {
			continue // the next step comes upon this one
		}
		want := slices.SortedFunc(maps.Keys(told), netip.Prefix.Compare)
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			var have []netip.Prefix
			for _, network := range c.Learned() {
				for r := range network.Routes.All() {
					have = append(have, r.Dst)
				}
			}
			require.True(t, slices.Equal(want, have), "step %d: %d routes are learned, %d told", step, len(have), len(want))
		}, limit, 20*time.Millisecond)
		require.EventuallyWithT(t, func(t *assert.CollectT) {
			s := c.Sessions()[0]
			require.Equal(t, len(told), s.Received)
			require.Equal(t, len(told), s.Accepted)
		}, limit, 20*time.Millisecond)
	}
}

// TestNetworkWithoutPeers has a network lose its last peer: the agent has none of its routes any more, although no session reports
// their end.
func TestNetworkWithoutPeers(t *testing.T) {
	p := newWirePeer(t)
	path := filepath.Join(t.TempDir(), "s.sock")
	serve(t, path)
	c, _ := drive(t, ClientOptions{Socket: path, Version: "v1"})
	ready(t, c)
	for how, leave := range map[string]func() error{
		"withdraw": func() error { return c.Withdraw(t.Context(), nil) },
		"apply":    func() error { return c.Apply(t.Context(), nil) },
	} {
		apply(t, c, p.speaker())
		p.established()
		prefix := manyPrefixes(1)
		p.tell(prefix, nil, 1, 0)
		h := &hostile{t: t, c: c}
		h.learns(prefix[0], wireNextHop)
		require.NoError(t, leave())
		require.EventuallyWithT(t, func(t *assert.CollectT) { require.Empty(t, c.Learned(), how) }, limit, 20*time.Millisecond)
	}
}
