package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols that the lab speaks.
const (
	ICMP   Protocol = 1
	TCP    Protocol = 6
	UDP    Protocol = 17
	ICMPv6 Protocol = 58
)

func (p Protocol) String() string {
	switch p {
	case ICMP:
		return "icmp"
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case ICMPv6:
		return "icmpv6"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// Seen is who answered, and whom it saw.
type Seen struct {
	Protocol Protocol
	Name     string
	Source   netip.Addr
}

// Tally is what came of a stream of questions.
type Tally struct {
	OK, Failed int
	Seen       map[Seen]int
	Errors     map[string]int // of those that failed, by text
}

// Stream asks by a new connection, again and again, in the background.
type Stream struct {
	stop  context.CancelFunc
	work  sync.WaitGroup
	mu    sync.Mutex
	tally Tally
}

// streamMost is how many questions of one stream may wait for their answers. Where all do, the next ones wait to be
// asked, so that a dead path costs no unbounded number of threads.
const streamMost = 16

// Stream has a node ask a Responder by TCP and by UDP in turn, one question every interval, until Stop or the lab's end.
// Every question has AskLimit to be answered.
func (l *Lab) Stream(ctx context.Context, n *Node, dst netip.AddrPort, every time.Duration, options ...SocketOption) *Stream {
	ctx, stop := context.WithCancel(ctx)
	s := &Stream{stop: stop, tally: Tally{Seen: map[Seen]int{}, Errors: map[string]int{}}}
	s.work.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		slots := make(chan struct{}, streamMost)
		for protocol := TCP; ; protocol = TCP + UDP - protocol {
			select {
			case <-ctx.Done():
				return
			case slots <- struct{}{}:
			}
			s.work.Go(func() {
				s.ask(ctx, n, protocol, dst, options)
				<-slots
			})
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	l.atEnd(func() { s.Stop() })
	return s
}

func (s *Stream) ask(ctx context.Context, n *Node, protocol Protocol, dst netip.AddrPort, options []SocketOption) {
	var a Answer
	var err error
	if protocol == TCP {
		a, err = n.AskTCP(ctx, dst, options...)
	} else {
		a, err = n.AskUDP(ctx, dst, 1, options...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.tally.OK++
		s.tally.Seen[Seen{protocol, a.Name, a.Peer.Addr()}]++
	case ctx.Err() != nil: // cut off by Stop: says nothing
	default:
		s.tally.Failed++
		s.tally.Errors[cause(err)]++
	}
}

// cause is the part of an error that is the same for all questions: without the ports.
func cause(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return "timeout"
	}
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err.Error()
}

// Tally returns what came of the questions so far.
func (s *Stream) Tally() Tally {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tally
	t.Seen, t.Errors = maps.Clone(t.Seen), maps.Clone(t.Errors)
	return t
}

// Stop ends the stream. Questions that wait for an answer are forgotten.
func (s *Stream) Stop() Tally {
	s.stop()
	s.work.Wait()
	return s.Tally()
}
