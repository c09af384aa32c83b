package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/egressway/egressway/lab"
)

// The peer speaks as much BGP (RFC 4271) as it takes to receive routes.
const (
	peerASN     = 64601
	peerAddress = "10.1.0.1"
	keepalive   = time.Second

	bgpHeader   = 19
	bgpOpen     = 1
	bgpUpdate   = 2
	bgpNotify   = 3
	bgpAlive    = 4
	reachable   = 14 // MP_REACH_NLRI, RFC 4760
	unreachable = 15
)

// listenAsPeer notes the prefixes that a daemon announces and withdraws to a router in a node, until ctx ends.
func listenAsPeer(ctx context.Context, n *lab.Node, s *seen) error {
	var l net.Listener
	err := n.Do(func() (err error) {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", peerAddress+":179")
		return err
	})
	if err != nil {
		return fmt.Errorf("listen as a BGP peer: %w", err)
	}
	context.AfterFunc(ctx, func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				stop := context.AfterFunc(ctx, func() { c.Close() })
				defer stop()
				defer c.Close()
				if err := talk(c, s); err != nil && ctx.Err() == nil && !errors.Is(err, io.EOF) {
					fmt.Fprintf(os.Stderr, "changes: %s: BGP: %v\n", time.Now().Format(time.TimeOnly), err)
				}
			}()
		}
	}()
	return nil
}

// talk holds one session.
func talk(c net.Conn, s *seen) error {
	atOnce()
	var writing sync.Mutex
	say := func(kind byte, body []byte) error {
		writing.Lock()
		defer writing.Unlock()
		_, err := c.Write(message(kind, body))
		return err
	}
	b := make([]byte, 1<<16)
	open := func() error {
		address := netip.MustParseAddr(peerAddress).As4()
		capabilities := []byte{1, 4, 0, 1, 0, 1, 1, 4, 0, 2, 0, 1, 65, 4} // both families unicast; four-byte AS numbers
		capabilities = binary.BigEndian.AppendUint32(capabilities, peerASN)
		body := []byte{4}
		body = binary.BigEndian.AppendUint16(body, peerASN)
		body = binary.BigEndian.AppendUint16(body, 90)
		body = append(append(body, address[:]...), byte(len(capabilities)+2), 2, byte(len(capabilities)))
		return errors.Join(say(bgpOpen, append(body, capabilities...)), say(bgpAlive, nil))
	}
	tick := time.NewTicker(keepalive)
	defer tick.Stop()
	done := make(chan struct{})
	defer close(done)
	for {
		kind, body, err := read(c, b)
		at := time.Now()
		if err != nil {
			return err
		}
		switch kind {
		case bgpOpen:
			if err := open(); err != nil {
				return err
			}
			go func() {
				for {
					select {
					case <-done:
						return
					case <-tick.C:
						_ = say(bgpAlive, nil) // the reader notices that the session is gone
					}
				}
			}()
		case bgpUpdate:
			all, err := updateSights(body)
			if err != nil {
				return err
			}
			s.note(at, all)
		case bgpNotify:
			return fmt.Errorf("the daemon ends the session: %v", body)
		}
	}
}

func message(kind byte, body []byte) []byte {
	b := make([]byte, bgpHeader, bgpHeader+len(body))
	for i := range 16 {
		b[i] = 0xff
	}
	binary.BigEndian.PutUint16(b[16:], uint16(bgpHeader+len(body)))
	b[18] = kind
	return append(b, body...)
}

func read(c io.Reader, b []byte) (kind byte, body []byte, err error) {
	if _, err := io.ReadFull(c, b[:bgpHeader]); err != nil {
		return 0, nil, err
	}
	size := int(binary.BigEndian.Uint16(b[16:]))
	if size < bgpHeader {
		return 0, nil, fmt.Errorf("a message of %d bytes", size)
	}
	kind, body = b[18], b[bgpHeader:size]
	_, err = io.ReadFull(c, body)
	return kind, body, err
}

var errUpdate = errors.New("an UPDATE that ends too soon")

// updateSights lists the routes that an UPDATE announces and withdraws.
func updateSights(b []byte) (all []sight, err error) {
	cut := func(b []byte) (part, rest []byte, err error) {
		if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
			return nil, nil, errUpdate
		}
		n := 2 + int(binary.BigEndian.Uint16(b))
		return b[2:n], b[n:], nil
	}
	gone, b, err := cut(b)
	if err != nil {
		return nil, err
	}
	attributes, reached, err := cut(b)
	if err != nil {
		return nil, err
	}
	all = append(prefixes(withdrawn, gone), prefixes(announced, reached)...)
	for len(attributes) >= 3 {
		const extended = 0x10
		kind, size, head := attributes[1], int(attributes[2]), 3
		if attributes[0]&extended != 0 && len(attributes) >= 4 {
			size, head = int(binary.BigEndian.Uint16(attributes[2:])), 4
		}
		if len(attributes) < head+size {
			return nil, errUpdate
		}
		all = append(all, attributeSights(kind, attributes[head:head+size])...)
		attributes = attributes[head+size:]
	}
	return all, nil
}

// attributeSights lists the IPv4 routes in an attribute.
func attributeSights(kind byte, value []byte) []sight {
	switch ipv4 := len(value) >= 3 && binary.BigEndian.Uint16(value) == 1; {
	case !ipv4:
		return nil
	case kind == unreachable:
		return prefixes(withdrawn, value[3:])
	case kind == reachable && len(value) >= 5+int(value[3]):
		return prefixes(announced, value[5+int(value[3]):])
	}
	return nil
}

// prefixes reads IPv4 prefixes.
func prefixes(k kind, b []byte) (all []sight) {
	for len(b) > 0 {
		n := (int(b[0]) + 7) / 8
		if n > 4 || len(b) < 1+n {
			break
		}
		var a [4]byte
		copy(a[:], b[1:1+n])
		all = append(all, sight{k, netip.AddrFrom4(a)})
		b = b[1+n:]
	}
	return all
}
