// Package bfd watches other nodes and routers with Bidirectional Forwarding Detection: asynchronous mode (RFC 5880) in
// the encapsulation for one hop (RFC 5881) or for several (RFC 5883), without authentication, echo and demand mode.
// Both ends of a session run BFD; it works with other implementations too.
//
// Packets are not authenticated. A packet is accepted only from a peer's address, and in a session that is up only if
// it contains one of the session's two random discriminators. An attacker who can send packets with a node's source
// address to UDP port 4784 of another node, but cannot read packets, can begin sessions with nodes that have none with
// that node, and can make us send a few packets to it. Such an attacker cannot end a session, nor make a dead peer look
// alive to a node that had a session with it. An attacker who also reads the packets can do both. Over several hops the
// TTL proves nothing, since the number of hops is unknown: the network must not let in packets with nodes' source
// addresses from outside. Over one hop, a packet's TTL must be 255: the sender is on the link.
package bfd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/egressway/egressway/internal/config"
)

const (
	// Port is the UDP port of BFD over several hops (RFC 5883, 5).
	Port = 4784
	// SingleHopPort is the UDP port of BFD over one hop (RFC 5881, 4).
	SingleHopPort = 3784
)

// Peer is another node or a router, identified by one of its addresses.
type Peer struct {
	Node    string
	Address netip.Addr // packets are sent to it and accepted only from it; a link-local one has its interface as zone
	Local   netip.Addr // our source address; invalid: chosen by the routing table

	// Active peers are watched: we begin sessions with them. To others we only answer.
	Active bool

	Profile   config.BFDProfile // zero: the engine's profile
	Interface string            // by which its packets must arrive, with OneHop; empty: any
}

// Options configure an engine.
type Options struct {
	Port    uint16            // UDP port, ours and all peers'; 0: Port or SingleHopPort
	Bind    netip.Addr        // address to listen on and to send from; invalid: every address of both families
	Device  string            // VRF that the sockets are bound to; empty: none
	OneHop  bool              // peers are neighbours: their packets arrive with a TTL of 255
	Profile config.BFDProfile // its name is ignored
	Log     *slog.Logger      // nil: none
	Wake    func()            // called after State or Failed of a session changed, never concurrently; nil: none
}

// Session is the state of the session with a peer.
type Session struct {
	Node    string
	Address netip.Addr
	Active  bool
	State   State

	// Failed means that the session was up, and that since then nothing was heard from the peer for a detection time,
	// or the peer signalled that its process ends and was not up again soon, or that its path is down. It stays set
	// until the session is up again. A peer that was never up, that ended only BFD, or that signals that it does not
	// hear us has not failed. Failed may be outdated for a peer that is not Active and began the session itself: we
	// don't ask whether it is back.
	Failed bool

	// Heard means that the peer was heard in the first half of its detection time: more recently than a peer that is
	// about to fail.
	Heard bool

	// Losses counts how often the session was up and was lost: nothing was heard for a detection time, or the peer
	// signalled that it hears nothing or cannot forward. An end on purpose is not a loss, nor is a restart of the
	// peer's BFD.
	Losses uint64

	// Slowed is the factor by which intervals are longer than the profile's after the session has flapped; 0: not
	// slowed.
	Slowed int

	Since     time.Time     // when State or Failed changed
	Detection time.Duration // how long the peer may be silent; 0: it was not heard
	LastError string        // why the session is not up or cannot send; empty: all is well
}

func (s *session) snapshot(now time.Duration) Session {
	detection := time.Duration(0)
	if s.remote != 0 {
		detection = s.detection()
	}
	return Session{
		Node: s.peer.Node, Address: s.peer.Address, Active: s.peer.Active, State: s.state, Failed: s.failed,
		Heard: s.state == Up && s.heard(now), Losses: s.losses, Slowed: s.damping.factor(),
		Since: s.since, Detection: detection, LastError: s.lastError(),
	}
}

// Engine runs the sessions of this node. Its methods may be called concurrently.
type Engine struct {
	log     *slog.Logger
	oneHop  bool
	started time.Time
	sockets []*socket

	mu     sync.Mutex
	table  *table
	closed bool
	armed  time.Duration // when the loop's timer fires

	kick    chan struct{} // makes the loop look at the queue again
	wake    chan struct{} // makes call call Wake
	done    chan struct{}
	loop    sync.WaitGroup
	readers sync.WaitGroup
}

// Listen opens the sockets and starts an engine without peers. It is not an error if the machine lacks an address
// family, unless that is Bind's, or the machine lacks both.
func Listen(o Options) (*Engine, error) {
	if err := usable(o.Profile); err != nil {
		return nil, err
	}
	port := cmp.Or(o.Port, Port)
	if o.OneHop {
		port = cmp.Or(o.Port, SingleHopPort)
	}
	sockets, err := open(o, port)
	switch {
	case errors.Is(err, syscall.EADDRINUSE) && o.OneHop:
		return nil, fmt.Errorf("open BFD sockets: %w: another program speaks BFD here, such as FRR's bfdd: "+
			"only one of the two can", err)
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("open BFD sockets: %w: FRR's bfdd uses ports 3784 and 4784 if it runs; "+
			"all nodes need the same free port", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open BFD sockets: %w", err)
	}
	e := &Engine{
		log: o.Log, oneHop: o.OneHop, started: time.Now(), sockets: sockets, table: newTable(o.Profile),
		kick: make(chan struct{}, 1), wake: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	e.table.path = func(p Peer) *path { return newPath(p, port) }
	e.table.drain = func() {
		for _, s := range e.sockets {
			s.drain(e.take)
		}
	}
	for _, s := range sockets {
		e.readers.Go(func() { e.read(s) })
	}
	e.loop.Go(e.run)
	go e.call(o.Wake)
	return e, nil
}

func (e *Engine) now() time.Duration { return time.Since(e.started) }

// Set replaces the peers. Sessions of peers that stay continue. The session of a removed peer is taken down; so is, a
// minute later, one that is up with a peer that is no longer Active, unless the peer began it.
func (e *Engine) Set(peers []Peer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return
	}
	for _, s := range e.sockets {
		clear(s.names)
	}
	e.table.set(peers, e.now())
	e.hurry()
}

// SetProfile changes the timers; sessions continue.
func (e *Engine) SetProfile(p config.BFDProfile) error {
	if err := usable(p); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.table.setProfile(p)
	return nil
}

func usable(p config.BFDProfile) error {
	if p.TransmitInterval == 0 || p.ReceiveInterval == 0 || p.DetectMultiplier == 0 {
		return fmt.Errorf("BFD timers: transmit interval %d ms, receive interval %d ms, detection multiplier %d: none may be 0",
			p.TransmitInterval, p.ReceiveInterval, p.DetectMultiplier)
	}
	return nil
}

// Sessions returns the sessions of all peers, sorted by address.
func (e *Engine) Sessions() []Session {
	e.mu.Lock()
	defer e.mu.Unlock()
	all, now := make([]Session, 0, len(e.table.sessions)), e.now()
	for _, s := range e.table.sessions {
		all = append(all, s.snapshot(now))
	}
	slices.SortFunc(all, func(a, b Session) int { return a.Address.Compare(b.Address) })
	return all
}

// Counters returns a copy of the counters.
func (e *Engine) Counters() Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.table.counters
	c.Discarded = maps.Clone(c.Discarded)
	return c
}

// Close signals to every peer that BFD ends here while the node continues as before, and stops the engine. It does not
// wait for a running call of Wake.
func (e *Engine) Close() error { return e.Leave(DiagAdminDown) }

// Leave is Close with another diagnostic, from which peers judge this node: DiagReset or DiagPathDown.
func (e *Engine) Leave(why Diag) error {
	if !e.halt() {
		return nil
	}
	e.mu.Lock()
	last := e.table.takeDown(why, e.now())
	e.mu.Unlock()
	for i := range farewells {
		if i > 0 {
			<-time.After(farewellGap / 2)
		}
		e.send(last)
	}
	return e.release()
}

// Abandon stops the engine without a signal: peers notice after their detection time.
func (e *Engine) Abandon() error {
	if !e.halt() {
		return nil
	}
	return e.release()
}

// halt ends the loop. It returns false if the engine was closed before.
func (e *Engine) halt() bool {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return false
	}
	e.closed = true
	e.mu.Unlock()
	close(e.done)
	e.loop.Wait()
	return true
}

// release closes the sockets.
func (e *Engine) release() error {
	var errs []error
	for _, s := range e.sockets {
		errs = append(errs, s.close())
	}
	e.readers.Wait()
	return errors.Join(errs...)
}

// hurry makes the loop look at the queue again. The caller holds mu.
func (e *Engine) hurry() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// call calls Wake after changes, until the engine is closed. It runs in its own goroutine so that no session waits for
// Wake. Close does not wait for it: Wake may need a lock that Close's caller holds.
func (e *Engine) call(wake func()) {
	for {
		select {
		case <-e.wake:
			if wake != nil {
				wake()
			}
		case <-e.done:
			return
		}
	}
}

// run executes due work until the engine is closed.
func (e *Engine) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var out []outgoing
	var logged time.Time // when a pause was logged last
	for {
		select {
		case <-timer.C:
		case <-e.kick:
		case <-e.done:
			return
		}
		e.mu.Lock()
		now, pauses := e.now(), e.table.counters.Pauses
		var next time.Duration
		out, next = e.table.due(now, out[:0])
		changes := e.table.changes
		e.table.changes = nil
		e.armed = next
		paused := e.table.counters.Pauses != pauses
		e.mu.Unlock()
		if paused && time.Since(logged) > 10*time.Second {
			logged = time.Now()
			e.log.Warn("this process or its machine stood still: giving BFD peers time to be heard before they count as failed")
		}
		e.send(out)
		e.report(changes)
		if next == never {
			timer.Stop()
		} else {
			timer.Reset(next - e.now())
		}
	}
}

// read handles packets as they arrive. It releases mu regularly, so that a flood does not stop the loop.
func (e *Engine) read(s *socket) {
	s.wait(func(fd int) {
		for more := true; more; {
			e.mu.Lock()
			more = s.read(fd, readMost, e.take)
			if e.table.planned < e.armed || len(e.table.changes) > 0 {
				e.hurry()
			}
			e.mu.Unlock()
		}
	})
}

// take handles one packet. The caller holds mu.
func (e *Engine) take(d datagram) {
	if e.oneHop && d.ttl != hops {
		e.table.refuse(errHops)
	} else if s := e.table.sessions[d.from]; s != nil && s.peer.Interface != "" && s.peer.Interface != d.device {
		e.table.refuse(errInterface)
	} else {
		e.table.receive(d.from, d.bytes, e.now())
	}
}

// send sends packets. The session reports errors; whether the peer lives depends only on the packets that it sends.
func (e *Engine) send(out []outgoing) {
	if len(out) == 0 {
		return
	}
	for i := range out {
		out[i].err = errFamily
	}
	for _, s := range e.sockets {
		s.send(out)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range out {
		o := &out[i]
		if o.err == nil {
			o.session.sendErr = ""
			e.table.counters.Sent++
			continue
		}
		o.session.sendErr = "send: " + o.err.Error()
		e.table.counters.SendErrors++
	}
}

// report logs changes and triggers a call of Wake.
func (e *Engine) report(changes []Session) {
	if len(changes) == 0 {
		return
	}
	for _, c := range changes {
		e.log.Log(context.Background(), c.level(), "BFD session changed",
			"node", c.Node, "peer", c.Address, "state", c.State.String(), "failed", c.Failed, "slowed", c.Slowed, "reason", c.LastError)
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// level returns the level at which a change is logged.
func (c Session) level() slog.Level {
	if c.Active && c.State != Init {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}
