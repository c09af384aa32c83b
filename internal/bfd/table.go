package bfd

import (
	"container/heap"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/egressway/egressway/internal/config"
)

const (
	// packetRate limits the packets per second that we ask all peers together to send, and that we send ourselves.
	packetRate = 5000

	// restAfter is how long a session stays up after we stopped watching it: a node that steered to a host often does
	// so again soon.
	restAfter = time.Minute

	// farewells is how often the end of a session is signalled, because packets get lost and an unnoticed end looks
	// like a failure.
	farewells   = 3
	farewellGap = 20 * time.Millisecond

	// backWithin is how long a peer whose process has ended may take to be up again. Replacing a process usually takes
	// less. A machine that restarts takes longer, and forwards by then without our packet filter: it must not be sent
	// anything.
	backWithin = 3 * time.Second

	// answerGap is the shortest time between two answers to packets outside the session, so that we don't answer a
	// flood with one.
	answerGap = 20 * time.Millisecond
)

// Reasons for refusing a control packet that was decoded, or before decoding it.
var (
	errHops      = errors.New("the TTL is not 255: the sender is not a neighbour")
	errInterface = errors.New("the packet came by another interface than the peer's")
	errPeer      = errors.New("the source is not a peer's address")
	errSession   = errors.New("the discriminator belongs to no session with this peer")
	errClaim     = errors.New("the peer has restarted and does not know our discriminator yet")
)

// Counters count an engine's packets and pauses since its start.
type Counters struct {
	Received   uint64            // packets, including those discarded
	Discarded  map[string]uint64 // by reason
	Sent       uint64
	SendErrors uint64
	Pauses     uint64 // times that the engine did not run for longer than a detection time
}

// table holds all sessions and a queue of when they need attention. It uses neither sockets nor the clock: every method
// gets the time as a parameter, so that tests can run hours of many engines in a moment.
type table struct {
	profile config.BFDProfile
	fastest time.Duration // the shortest interval of the profiles in use
	scaled  time.Duration // the shortest interval for the number of sessions that are up
	up      int           // number of sessions that are up

	sessions map[netip.Addr]*session
	leaving  map[netip.Addr]*session // removed; their end is being signalled
	former   map[netip.Addr]former   // removed; they may come back
	locals   map[uint32]bool         // discriminators in use
	queue    queue
	planned  time.Duration // next wake-up; 0: there was none yet

	path  func(Peer) *path // nil: tests without sockets
	drain func()           // calls receive for packets that wait in the sockets; may be nil

	answers  []outgoing
	changes  []Session // since the last call of due
	counters Counters
	popped   []*session // buffer for due
}

// former is the remembered part of a removed session, so that a session that is removed and added again is still
// damped.
type former struct {
	losses  uint64
	damping damping
	easeAt  time.Duration
}

func newTable(profile config.BFDProfile) *table {
	t := &table{
		profile:  profile,
		sessions: map[netip.Addr]*session{},
		leaving:  map[netip.Addr]*session{},
		former:   map[netip.Addr]former{},
		locals:   map[uint32]bool{},
		counters: Counters{Discarded: map[string]uint64{}},
	}
	t.pace()
	return t
}

// wanted returns the intervals of sessions that are up, with the engine's profile and without damping.
func (t *table) wanted() timers { return t.base(t.profile) }

func (t *table) base(p config.BFDProfile) timers {
	return timers{
		tx: max(time.Duration(p.TransmitInterval)*time.Millisecond, t.scaled),
		rx: max(time.Duration(p.ReceiveInterval)*time.Millisecond, t.scaled),
	}
}

// profileOf returns the peer's profile, or the engine's if the peer has none.
func (t *table) profileOf(p Peer) config.BFDProfile {
	if p.Profile == (config.BFDProfile{}) {
		return t.profile
	}
	return p.Profile
}

// pace finds the shortest interval of the profiles in use.
func (t *table) pace() {
	least := min(t.profile.TransmitInterval, t.profile.ReceiveInterval)
	for _, s := range t.sessions {
		p := t.profileOf(s.peer)
		least = min(least, p.TransmitInterval, p.ReceiveInterval)
	}
	t.fastest = time.Duration(least) * time.Millisecond
}

// fit gives a session the timers of its profile.
func (t *table) fit(s *session) {
	p := t.profileOf(s.peer)
	s.mult, s.base = p.DetectMultiplier, t.base(p)
	s.retime() // a poll goes out with the next periodic packet
}

// set replaces the peers. Entries with the same address are one peer, which is watched if one of them is.
func (t *table) set(peers []Peer, now time.Duration) {
	wanted := byAddress(peers)
	for a, s := range t.sessions {
		if _, ok := wanted[a]; !ok {
			t.remember(s)
			t.leave(s, now)
			delete(t.sessions, a)
		}
	}
	for a, f := range t.former {
		if now-f.damping.at > rememberFor {
			delete(t.former, a)
		}
	}
	// Spread the first packets of sessions that begin at once.
	spread := time.Duration(len(peers)) * time.Second / packetRate
	for a, p := range wanted {
		t.update(t.sessions[a], p, spread, now)
	}
	t.pace()
	t.rescale()
}

// byAddress merges the entries with the same address, and drops those whose address no peer can have.
func byAddress(peers []Peer) map[netip.Addr]Peer {
	wanted := make(map[netip.Addr]Peer, len(peers))
	for _, p := range peers {
		p.Address, p.Local = p.Address.Unmap(), p.Local.Unmap()
		if !p.Address.IsValid() || p.Address.IsUnspecified() || p.Address.IsMulticast() {
			continue
		}
		p.Active = p.Active || wanted[p.Address].Active
		wanted[p.Address] = p
	}
	return wanted
}

// update gives the session of a peer, nil for a new one, the peer's current settings. If the session begins to send, its
// first packet goes out within spread.
func (t *table) update(s *session, p Peer, spread, now time.Duration) {
	silent := s == nil || !s.speaks()
	if s == nil {
		s = t.add(p, now)
	}
	t.configure(s, p)
	s.plan(false, now)
	if silent && s.speaks() {
		s.nextTx = now + rand.N(spread+1)
	}
	t.schedule(s)
}

// configure gives a session the settings of its peer.
func (t *table) configure(s *session, p Peer) {
	if t.path != nil && s.needsPath(p) {
		s.path = t.path(p)
	}
	s.peer = p
	t.fit(s)
	s.began = s.began || p.Active
}

// needsPath reports whether packets to the peer may take another path now. A zone's interface may have been replaced by another
// of the same name.
func (s *session) needsPath(p Peer) bool {
	return s.path == nil || s.peer.Local != p.Local || p.Address.Zone() != ""
}

// remember keeps the losses of a removed session for the next one with the peer.
func (t *table) remember(s *session) {
	if s.losses > 0 {
		t.former[s.peer.Address] = former{s.losses, s.damping, s.easeAt}
	}
}

func (t *table) add(p Peer, now time.Duration) *session {
	local := uint32(0)
	for local == 0 || t.locals[local] {
		var b [4]byte
		_, _ = crand.Read(b[:]) // never fails
		local = binary.BigEndian.Uint32(b[:])
	}
	s := newSession(p, local, now)
	if f, ok := t.former[p.Address]; ok {
		delete(t.former, p.Address)
		s.losses, s.damping, s.easeAt = f.losses, f.damping, f.easeAt
	}
	t.fit(s)
	t.locals[local] = true
	t.sessions[p.Address] = s
	return s
}

// leave ends a session that is or will be removed from t.sessions. If the peer knows the session, its end is signalled.
func (t *table) leave(s *session, now time.Duration) {
	t.unschedule(s)
	if s.state == Up {
		t.up--
	}
	known := s.remote != 0
	s.enter(AdminDown, DiagAdminDown, "")
	s.final, s.polling, s.failed, s.expires, s.restAt, s.easeAt, s.backBy = false, false, false, never, never, never, never
	s.retime()
	if !known {
		delete(t.locals, s.local)
		return
	}
	t.settle(s.peer.Address)
	s.farewell, s.nextTx = farewells, now
	t.leaving[s.peer.Address] = s
	t.schedule(s)
}

// settle ends a farewell that is complete, or that the peer would mistake for the end of the session that follows.
func (t *table) settle(a netip.Addr) {
	if s := t.leaving[a]; s != nil {
		t.unschedule(s)
		delete(t.leaving, a)
		delete(t.locals, s.local)
	}
}

// takeDown ends all sessions and returns the packets that signal the reason to each peer. Packets are no longer
// answered then.
func (t *table) takeDown(why Diag, now time.Duration) (out []outgoing) {
	t.set(nil, now)
	for _, s := range t.leaving {
		s.diag = why
		o := outgoing{session: s, path: s.path}
		s.send(now).encode(o.bytes[:0])
		out = append(out, o)
	}
	return out
}

// receive handles a packet.
func (t *table) receive(from netip.Addr, b []byte, now time.Duration) {
	t.counters.Received++
	s := t.sessions[from]
	if s == nil {
		t.discard(errPeer)
		return
	}
	p, err := decode(b)
	if err != nil {
		t.discard(err)
		return
	}
	switch {
	case p.yours == s.local:
	case p.yours != 0:
		t.discard(errSession)
		t.answerStranger(s, p, now)
		return
	case s.proven && p.mine != s.remote:
		t.discard(errClaim)
		if p.state == Down {
			t.answer(s, p.mine, Down, now)
		}
		return
	}
	t.accept(s, p, now)
}

// accept handles a packet of a session.
func (t *table) accept(s *session, p packet, now time.Duration) {
	state, failed, diag := s.state, s.failed, s.diag
	s.receive(p, now)
	t.changed(s, state, failed)
	s.plan(s.state != state || s.diag != diag || s.remote != s.sentRemote && s.mayAnswer(now), now)
	t.schedule(s)
}

// answerStranger answers a packet of the peer in a session that we do not have with it.
func (t *table) answerStranger(s *session, p packet, now time.Duration) {
	switch {
	case s.speaks(): // its packets carry its discriminator
	case p.state >= Init:
		t.answer(s, p.mine, AdminDown, now)
	case p.state == Down:
		t.answer(s, p.mine, Down, now)
	}
}

// answer sends a packet outside the session.
//
// AdminDown is for a peer that has a session up which we do not know, because this engine has restarted since. When the
// peer receives it, it neither waits for its detection time nor treats the end as our failure; if it watches us, it
// begins a new session at once.
//
// Down is for a peer that claims to have restarted while we hear it in a session. RFC 5880 would end that session, and
// an attacker who can forge the peer's address could end it. So the session continues until the peer knows our
// discriminator, which this answer carries. Down is also for a peer that wants a session but names an earlier one: FRR
// does so until it receives an answer.
func (t *table) answer(s *session, yours uint32, state State, now time.Duration) {
	if !s.mayAnswer(now) {
		return
	}
	wanted := s.wanted()
	p := packet{
		state: state, mult: s.mult, mine: s.local, yours: yours,
		desiredTx: max(wanted.tx, slowInterval), requiredRx: wanted.rx,
	}
	if state == AdminDown {
		p.diag = DiagAdminDown
	}
	o := outgoing{session: s, path: s.path}
	p.encode(o.bytes[:0])
	t.answers = append(t.answers, o)
	t.planned = min(t.planned, now)
}

// mayAnswer reports whether a packet may be answered out of turn: at most once per answerGap.
func (s *session) mayAnswer(now time.Duration) bool {
	if now < s.answered+answerGap {
		return false
	}
	s.answered = now
	return true
}

// refuse counts a packet that is discarded unread.
func (t *table) refuse(why error) {
	t.counters.Received++
	t.discard(why)
}

func (t *table) discard(why error) { t.counters.Discarded[why.Error()]++ }

// changed records a change if state or failed of a session differ from the given ones.
func (t *table) changed(s *session, state State, failed bool) {
	if s.state == state && s.failed == failed {
		return
	}
	t.changes = append(t.changes, s.snapshot(never)) // for the log
	if (s.state == Up) != (state == Up) {
		if s.state == Up {
			t.up++
		} else {
			t.up--
		}
		t.rescale()
	}
}

// needed returns the shortest interval for the number of sessions that are up: up/packetRate seconds, rounded up to tenths
// of the fastest profile's, so that single peers that come and go do not change it.
func (t *table) needed() time.Duration {
	need, step := time.Duration(t.up)*time.Second/packetRate, t.tenth()
	if rest := need % step; rest > 0 {
		need += step - rest
	}
	return need
}

func (t *table) tenth() time.Duration { return t.fastest / 10 }

// rescale sets the shortest interval to the needed one. It decreases only by at least two tenths.
func (t *table) rescale() {
	if need := t.needed(); need > t.scaled || need+2*t.tenth() <= t.scaled {
		t.scale(need)
	}
}

func (t *table) scale(shortest time.Duration) {
	t.scaled = shortest
	for _, s := range t.sessions {
		t.fit(s)
	}
}

// setProfile replaces the engine's profile.
func (t *table) setProfile(p config.BFDProfile) {
	t.profile = p
	t.pace()
	t.scale(t.needed())
}

// due does all work that is due: it expires peers and returns the packets to send. It must be called again at next.
func (t *table) due(now time.Duration, out []outgoing) (_ []outgoing, next time.Duration) {
	t.forgive(now)
	out = append(out, t.answers...)
	t.answers = t.answers[:0]
	if silent := t.pop(now); silent && t.drain != nil {
		t.drain() // a peer whose packets wait to be read has not failed
	}
	for _, s := range t.popped {
		if s.state == AdminDown && t.leaving[s.peer.Address] != s {
			continue // settled by a packet that was just read
		}
		out = t.serve(s, now, out)
	}
	clear(t.popped)
	t.planned = t.next(now)
	return out, t.planned
}

// pop moves the sessions that are due from the queue to popped, and reports whether a detection time has ended.
func (t *table) pop(now time.Duration) (silent bool) {
	t.popped = t.popped[:0]
	for len(t.queue) > 0 && t.queue[0].at <= now+sendSlack {
		s := t.queue[0]
		t.unschedule(s)
		t.popped = append(t.popped, s)
		silent = silent || s.expires <= now
	}
	return silent
}

// serve does all work of a session that is due.
func (t *table) serve(s *session, now time.Duration, out []outgoing) []outgoing {
	s = t.onTime(s, now)
	if s.nextTx <= now+sendSlack {
		out = t.transmit(s, now, out)
	}
	if s.state != AdminDown || s.farewell > 0 {
		t.schedule(s)
	}
	return out
}

// next returns when due must be called again.
func (t *table) next(now time.Duration) time.Duration {
	if len(t.answers) > 0 { // to packets that were just drained
		return now
	}
	next := never
	if len(t.queue) > 0 {
		next = t.queue[0].at
	}
	if t.up > 0 {
		next = min(next, now+t.beat())
	}
	return next
}

// onTime does the work of a session that is due, except sending. It returns the session that serves the peer afterwards.
func (t *table) onTime(s *session, now time.Duration) *session {
	if s.expires <= now {
		state, failed := s.state, s.failed
		s.expire(now)
		t.changed(s, state, failed)
		s.plan(true, now)
	}
	if s.backBy <= now {
		failed := s.failed
		s.fail(fmt.Sprintf("the peer's process has ended and is not back after %s", backWithin))
		t.changed(s, s.state, failed)
	}
	if s.easeAt <= now {
		s.easeAt = s.damping.ease(now)
		s.retime()
		t.changes = append(t.changes, s.snapshot(never))
	}
	if s.restAt <= now {
		return t.rest(s, now)
	}
	return s
}

// transmit appends the session's packet to out, and ends a farewell that is complete or superseded.
func (t *table) transmit(s *session, now time.Duration, out []outgoing) []outgoing {
	if s.state != AdminDown {
		t.settle(s.peer.Address)
	}
	o := outgoing{session: s, path: s.path}
	s.send(now).encode(o.bytes[:0])
	if s.state == AdminDown && s.farewell == 0 {
		t.settle(s.peer.Address)
	}
	return append(out, o)
}

// beat is the longest time between two calls of due while a session is up. A gap in which the engine does not run may
// go unnoticed if it is shorter than two beats, which leaves enough time to a peer of which three packets may be
// missed.
func (t *table) beat() time.Duration {
	return max(t.fastest/4, 5*time.Millisecond)
}

// rest ends a session that is no longer watched here, and waits until the peer begins the next one.
func (t *table) rest(s *session, now time.Duration) *session {
	t.remember(s)
	fresh := t.add(s.peer, now)
	fresh.path, fresh.began = s.path, false
	t.leave(s, now)
	t.changes = append(t.changes, fresh.snapshot(never))
	t.rescale()
	return fresh
}

// forgive makes up for the time since the planned wake-up, in which the engine did not run.
func (t *table) forgive(now time.Duration) {
	late, beat := now-t.planned, t.beat()
	if t.planned == 0 || late <= 2*beat {
		return
	}
	spared := false
	for _, s := range t.sessions {
		spared = s.forgive(late+beat, now) || spared // the gap may have begun right after the last call
	}
	if spared {
		t.counters.Pauses++
	}
}

// schedule puts a session into the queue, or moves it forward. A session whose time is later now stays in place and is
// looked at too early, which avoids moving it for every received packet.
func (t *table) schedule(s *session) {
	at := s.due()
	switch {
	case s.index < 0 && at < never:
		s.at = at
		heap.Push(&t.queue, s)
	case s.index >= 0 && at < s.at:
		s.at = at
		heap.Fix(&t.queue, s.index)
	default:
		return
	}
	t.planned = min(t.planned, at)
}

func (t *table) unschedule(s *session) {
	if s.index >= 0 {
		heap.Remove(&t.queue, s.index)
	}
}

// queue is a heap of sessions by the time of their next event.
type queue []*session

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at < q[j].at }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	s := x.(*session)
	s.index = len(*q)
	*q = append(*q, s)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	s := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	s.index = -1
	return s
}
