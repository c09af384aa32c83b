package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/egressway/egressway/lab"
)

// peerASN is the AS of the peer, which announces routes.
const peerASN = 64601

// The messages of BGP, RFC 4271.
const (
	bgpHeader    = 19
	bgpOpen      = 1
	bgpUpdate    = 2
	bgpNotify    = 3
	bgpKeepalive = 4
)

const keepalive = time.Second

// peer speaks as much BGP as it takes to announce routes, and no more: it ignores the routes of the other side. It
// accepts one session at a time, and none while it is away.
type peer struct {
	address netip.Addr
	perMsg  int // prefixes of an UPDATE

	mu      sync.Mutex
	conn    net.Conn // of the session that is established
	up      chan struct{}
	away    bool
	silent  bool
	med     uint32
	lastErr error
}

// listen has the peer take sessions in a node, until ctx ends.
func listen(ctx context.Context, n *lab.Node, address netip.Addr, perMsg int) (*peer, error) {
	p := &peer{address: address, perMsg: perMsg, up: make(chan struct{}, 1), away: true}
	var l net.Listener
	err := n.Do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", netip.AddrPortFrom(address, 179).String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen as a BGP peer: %w", err)
	}
	context.AfterFunc(ctx, func() { l.Close(); p.hangUp() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			away := p.away
			p.mu.Unlock()
			if !away {
				err := p.talk(c)
				p.mu.Lock()
				p.conn, p.lastErr = nil, err
				p.mu.Unlock()
			}
			c.Close()
		}
	}()
	return p, nil
}

func message(kind byte, body []byte) []byte {
	m := make([]byte, bgpHeader, bgpHeader+len(body))
	for i := range 16 {
		m[i] = 0xff
	}
	binary.BigEndian.PutUint16(m[16:], uint16(bgpHeader+len(body)))
	m[18] = kind
	return append(m, body...)
}

func readMessage(c io.Reader, b []byte) (kind byte, body []byte, err error) {
	if _, err := io.ReadFull(c, b[:bgpHeader]); err != nil {
		return 0, nil, err
	}
	size := int(binary.BigEndian.Uint16(b[16:]))
	if size < bgpHeader {
		return 0, nil, fmt.Errorf("a message of %d bytes", size)
	}
	_, err = io.ReadFull(c, b[bgpHeader:size])
	return b[18], b[bgpHeader:size], err
}

// talk holds a session until it ends, and says why it did.
func (p *peer) talk(c net.Conn) error {
	address := p.address.As4()
	capabilities := binary.BigEndian.AppendUint32([]byte{1, 4, 0, 1, 0, 1, 65, 4}, peerASN) // IPv4 unicast; four-byte AS numbers
	open := binary.BigEndian.AppendUint16([]byte{4}, peerASN)
	open = binary.BigEndian.AppendUint16(open, 90)
	open = append(append(open, address[:]...), byte(len(capabilities)+2), 2, byte(len(capabilities)))
	if _, err := c.Write(append(message(bgpOpen, append(open, capabilities...)), message(bgpKeepalive, nil)...)); err != nil {
		return err
	}
	done := make(chan struct{})
	defer close(done)
	b := make([]byte, 1<<16)
	for established := false; ; {
		kind, body, err := readMessage(c, b)
		switch {
		case err != nil:
			return err
		case kind == bgpNotify:
			return fmt.Errorf("the session is ended by a NOTIFICATION %v", body)
		case kind == bgpKeepalive && !established:
			established = true
			p.mu.Lock()
			p.conn, p.silent = c, false
			p.mu.Unlock()
			select {
			case p.up <- struct{}{}:
			default:
			}
			go p.stayAlive(done)
		}
	}
}

func (p *peer) stayAlive(done chan struct{}) {
	tick := time.NewTicker(keepalive)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			_ = p.write(message(bgpKeepalive, nil)) // the reader notices that the session is gone
		}
	}
}

var errNoSession = errors.New("the session is gone")

func (p *peer) write(b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		return fmt.Errorf("%w: %w", errNoSession, p.lastErr)
	}
	if p.silent {
		return nil
	}
	_, err := p.conn.Write(b)
	return err
}

// come has the peer take a session, and waits for it.
func (p *peer) come(ctx context.Context, within time.Duration) error {
	select { // of a former session
	case <-p.up:
	default:
	}
	p.mu.Lock()
	p.away = false
	p.mu.Unlock()
	select {
	case <-p.up:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(within):
		return fmt.Errorf("no session with %s within %s", p.address, within)
	}
}

// hangUp ends the session as the kernel does for a process that dies, and accepts no other.
func (p *peer) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = true
	if p.conn != nil {
		p.conn.Close()
	}
}

// fallSilent stops all messages of the peer, and accepts no other session: a router that lost its power.
func (p *peer) fallSilent() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away, p.silent = true, true
}

// route is a route of the peer, with its next hop.
type route struct {
	prefix netip.Prefix
	hop    netip.Addr // invalid: withdrawn
}

// announce announces and withdraws routes. Each UPDATE has attributes of its own, as those of a full table have.
func (p *peer) announce(routes []route) error {
	var out []byte
	for len(routes) > 0 {
		n := 1
		for n < len(routes) && n < p.perMsg && routes[n].hop == routes[0].hop {
			n++
		}
		var prefixes, gone, nlri, attributes []byte
		for _, r := range routes[:n] {
			a := r.prefix.Addr().As4()
			prefixes = append(append(prefixes, byte(r.prefix.Bits())), a[:(r.prefix.Bits()+7)/8]...)
		}
		if hop := routes[0].hop; hop.IsValid() {
			nlri, attributes = prefixes, p.attributes(hop)
		} else {
			gone = prefixes
		}
		body := append(binary.BigEndian.AppendUint16(nil, uint16(len(gone))), gone...)
		body = append(binary.BigEndian.AppendUint16(body, uint16(len(attributes))), attributes...)
		out = append(out, message(bgpUpdate, append(body, nlri...))...)
		routes = routes[n:]
		if len(out) > 1<<16 || len(routes) == 0 {
			if err := p.write(out); err != nil {
				return err
			}
			out = out[:0]
		}
	}
	return nil
}

// attributes are those of an UPDATE: ORIGIN, AS_PATH, NEXT_HOP and a MULTI_EXIT_DISC that no other one has.
func (p *peer) attributes(hop netip.Addr) []byte {
	p.med++
	next := hop.As4()
	b := append([]byte{0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, peerASN >> 8, peerASN & 255, 0x40, 3, 4}, next[:]...)
	return binary.BigEndian.AppendUint32(append(b, 0x80, 4, 4), p.med)
}
