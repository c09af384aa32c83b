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
	// packetRate bounds the packets a second that we ask all peers together to send to us, and that we send ourselves.
	packetRate = 5000

	// restAfter is how long a session stays up that we do not watch any more: who steers to a host often comes back.
	restAfter = time.Minute

	// A session's end is told several times, since packets get lost and an untold end looks like a death.
	farewells   = 3
	farewellGap = 20 * time.Millisecond

	// backWithin is how long a peer whose process has ended may take to be up again. A process that is replaced takes less in
	// most cases. A machine that restarts takes longer, and forwards by then without our packet filter: nothing may be sent to it.
	backWithin = 3 * time.Second

	// answerGap lies between two answers to packets that belong to no session, so that a flood is not answered in kind.
	answerGap = 20 * time.Millisecond
)

// Why a control packet belongs to no session of ours.
var (
	errHops      = errors.New("the TTL is not 255: the sender is no neighbour")
	errInterface = errors.New("the packet came by another interface than the peer's")
	errPeer      = errors.New("the source is no peer's address")
	errSession   = errors.New("the discriminator is of no session with this peer")
	errClaim     = errors.New("the peer has begun anew and does not know our discriminator yet")
)

// Counters tell what an engine has seen since its start.
type Counters struct {
	Received   uint64            // packets, those discarded among them
	Discarded  map[string]uint64 // by reason
	Sent       uint64
	SendErrors uint64
	Pauses     uint64 // times that the engine did not run for longer than a detection time
}

// table is all sessions and what is to be done when. It knows neither sockets nor the clock: every method is told the
// time, so that hours of many engines can be tried out in a moment.
type table struct {
	profile config.BFDProfile
	fastest time.Duration // the least interval of the profiles in use
	scaled  time.Duration // the least interval, by the number of sessions that are up
	up      int           // that number

	sessions map[netip.Addr]*session
	leaving  map[netip.Addr]*session // removed, their end is being told
	former   map[netip.Addr]former   // removed, and may come back
	locals   map[uint32]bool         // discriminators in use
	queue    queue
	planned  time.Duration // of the next awakening; 0: there was none yet

	path  func(Peer) *path // nil: tests without sockets
	drain func()           // has receive called for what waits in the sockets; may be nil

	answers  []outgoing
	changes  []Session // since they were last taken
	counters Counters
	popped   []*session // room for due
}

// former is what stays of a session that is removed, so that one that comes and goes is damped all the same.
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

// wanted are the intervals of sessions that are up, with the engine's profile and without damping.
func (t *table) wanted() timers { return t.base(t.profile) }

func (t *table) base(p config.BFDProfile) timers {
	return timers{
		tx: max(time.Duration(p.TransmitInterval)*time.Millisecond, t.scaled),
		rx: max(time.Duration(p.ReceiveInterval)*time.Millisecond, t.scaled),
	}
}

// profileOf is the peer's profile, or the engine's where it has none.
func (t *table) profileOf(p Peer) config.BFDProfile {
	if p.Profile == (config.BFDProfile{}) {
		return t.profile
	}
	return p.Profile
}

// pace finds the fastest of the profiles in use.
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

// set makes peers the ones there are. Entries with the same address are one peer, watched if one of them is.
func (t *table) set(peers []Peer, now time.Duration) {
	wanted := make(map[netip.Addr]Peer, len(peers))
	for _, p := range peers {
		p.Address, p.Local = p.Address.Unmap(), p.Local.Unmap()
		if !p.Address.IsValid() || p.Address.IsUnspecified() || p.Address.IsMulticast() {
			continue
		}
		p.Active = p.Active || wanted[p.Address].Active
		wanted[p.Address] = p
	}
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
	// Sessions that begin at once do not all begin in the same moment.
	spread := time.Duration(len(peers)) * time.Second / packetRate
	for a, p := range wanted {
		s := t.sessions[a]
		silent := s == nil || !s.speaks()
		if s == nil {
			s = t.add(p, now)
		}
		if t.path != nil && (s.path == nil || s.peer.Local != p.Local || p.Address.Zone() != "") {
			s.path = t.path(p) // an interface of the same name may be another one
		}
		s.peer = p
		t.fit(s)
		s.began = s.began || p.Active
		s.plan(false, now)
		if silent && s.speaks() {
			s.nextTx = now + rand.N(spread+1)
		}
		t.schedule(s)
	}
	t.pace()
	t.rescale(false)
}

// remember keeps what a session that has been lost leaves to the next one with the peer.
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

// leave ends a session, which is no longer one of t.sessions or soon will not be. A peer that knows of it is told.
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

// settle ends a farewell: it is over, or would be taken for the end of the session that follows.
func (t *table) settle(a netip.Addr) {
	if s := t.leaving[a]; s != nil {
		t.unschedule(s)
		delete(t.leaving, a)
		delete(t.locals, s.local)
	}
}

// takeDown ends all sessions and returns the packet that tells each peer why. Nothing is answered any more.
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

// receive takes a packet.
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
		switch {
		case s.speaks(): // and so tells its discriminator
		case p.state >= Init:
			t.answer(s, p.mine, AdminDown, now)
		case p.state == Down:
			t.answer(s, p.mine, Down, now)
		}
		return
	case s.proven && p.mine != s.remote:
		t.discard(errClaim)
		if p.state == Down {
			t.answer(s, p.mine, Down, now)
		}
		return
	}
	state, failed, diag := s.state, s.failed, s.diag
	s.receive(p, now)
	t.changed(s, state, failed)
	s.plan(s.state != state || s.diag != diag || s.remote != s.told && s.mayAnswer(now), now)
	t.schedule(s)
}

// answer sends a packet beside those of the session.
//
// AdminDown is for a peer that takes a session for up which we do not know: this engine has begun anew since. Told that
// the session is down on purpose, the peer neither waits for its detection time nor takes its end for our death; if it
// watches us, it begins a new session at once.
//
// Down is for one that says it has begun anew, while we hear it in a session. RFC 5880 would end that session, and
// anybody who can forge the peer's address could end it. So the session goes on until the peer knows our discriminator,
// which it learns by this answer. It is also for one that wants a session, but names an earlier one: FRR does so until it
// is told otherwise.
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

// mayAnswer says, at most once in answerGap, that a packet may be answered out of turn.
func (s *session) mayAnswer(now time.Duration) bool {
	if now < s.answered+answerGap {
		return false
	}
	s.answered = now
	return true
}

// refuse counts a packet that is not looked at.
func (t *table) refuse(why error) {
	t.counters.Received++
	t.discard(why)
}

func (t *table) discard(why error) { t.counters.Discarded[why.Error()]++ }

// changed notes a session whose state may have changed.
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
		t.rescale(false)
	}
}

// rescale sets the least interval for the number of sessions that are up: up/packetRate seconds, rounded up to tenths of
// the profile's, so that single peers which come and go do not change it. Less of it has to be worth two tenths.
func (t *table) rescale(force bool) {
	if force {
		t.pace()
	}
	before := t.scaled
	need := time.Duration(t.up) * time.Second / packetRate
	step := t.fastest / 10
	if rest := need % step; rest > 0 {
		need += step - rest
	}
	if need > t.scaled || need+2*step <= t.scaled || force {
		t.scaled = need
	}
	if t.scaled == before && !force {
		return
	}
	for _, s := range t.sessions {
		t.fit(s)
	}
}

// due does what is to be done by now: gives up peers, and returns the packets to send. Next is when to call it again.
func (t *table) due(now time.Duration, out []outgoing) (_ []outgoing, next time.Duration) {
	t.forgive(now)
	out = append(out, t.answers...)
	t.answers = t.answers[:0]
	t.popped = t.popped[:0]
	silent := false
	for len(t.queue) > 0 && t.queue[0].at <= now+sendSlack {
		s := t.queue[0]
		t.unschedule(s)
		t.popped = append(t.popped, s)
		silent = silent || s.expires <= now
	}
	if silent && t.drain != nil {
		t.drain() // nobody is dead whose packets wait to be read
	}
	for _, s := range t.popped {
		if s.state == AdminDown && t.leaving[s.peer.Address] != s {
			continue // settled by what was read
		}
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
			s = t.rest(s, now)
		}
		if s.nextTx <= now+sendSlack {
			if s.state != AdminDown {
				t.settle(s.peer.Address)
			}
			o := outgoing{session: s, path: s.path}
			s.send(now).encode(o.bytes[:0])
			out = append(out, o)
			if s.state == AdminDown && s.farewell == 0 {
				t.settle(s.peer.Address)
				continue
			}
		}
		t.schedule(s)
	}
	clear(t.popped)
	t.planned = never
	if len(t.queue) > 0 {
		t.planned = t.queue[0].at
	}
	if t.up > 0 {
		t.planned = min(t.planned, now+t.beat())
	}
	if len(t.answers) > 0 { // to what was read meanwhile
		t.planned = now
	}
	return out, t.planned
}

// beat is how often due is called at least while a session is up. A time in which the engine does not run may go
// unnoticed for twice as long, which leaves a peer of which three packets may be missed enough time.
func (t *table) beat() time.Duration {
	return max(t.fastest/4, 5*time.Millisecond)
}

// rest ends a session that nobody here watches, and waits for the peer to begin the next one.
func (t *table) rest(s *session, now time.Duration) *session {
	t.remember(s)
	fresh := t.add(s.peer, now)
	fresh.path, fresh.began = s.path, false
	t.leave(s, now)
	t.changes = append(t.changes, fresh.snapshot(never))
	t.rescale(false)
	return fresh
}

// forgive makes up for the time since the awakening that was planned, in which the engine did not run.
func (t *table) forgive(now time.Duration) {
	late, beat := now-t.planned, t.beat()
	if t.planned == 0 || late <= 2*beat {
		return
	}
	spared := false
	for _, s := range t.sessions {
		spared = s.forgive(late+beat, now) || spared // it may have begun right after the last time
	}
	if spared {
		t.counters.Pauses++
	}
}

// schedule puts a session into the queue, or forward in it. One whose time has moved back stays: it is looked at when
// its former time comes, which spares moving it for every packet that is received.
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

// queue is a heap of sessions by the time at which they want to be looked at.
type queue []*session

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at < q[j].at }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push is for package heap.
func (q *queue) Push(x any) {
	s := x.(*session)
	s.index = len(*q)
	*q = append(*q, s)
}

// Pop is for package heap.
func (q *queue) Pop() any {
	last := len(*q) - 1
	s := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	s.index = -1
	return s
}
