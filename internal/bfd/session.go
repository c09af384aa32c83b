package bfd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Times of a session are durations since the engine's start, by the monotonic clock.
const never = time.Duration(math.MaxInt64)

const (
	// slowInterval is the shortest transmit interval of a session that is not up (RFC 5880, 6.8.3).
	slowInterval = time.Second

	// urgentGap is the shortest time between two packets of a session. A session comes up after three packets from each
	// end, so within tens of milliseconds of the first one that is heard.
	urgentGap = 5 * time.Millisecond

	// sendSlack is how early packets may be sent, so that one wake-up serves many sessions.
	sendSlack = time.Millisecond
)

// longestInterval limits the intervals that a peer may ask for, and our damped ones. No configuration has longer ones.
const longestInterval = time.Minute

// claimMost limits how long a session waits for a peer that has not shown that it receives our packets: its only packet
// may be forged, with any interval.
const claimMost = 3 * slowInterval

// timers are the two intervals that we send: how often we want to send, and how often we can receive.
type timers struct{ tx, rx time.Duration }

// session is the state of one session (RFC 5880, 6.8.1). Its methods do not use sockets, clocks and other sessions.
type session struct {
	peer Peer
	path *path // to the peer; nil in tests without sockets

	state    State
	diag     Diag
	why      string // reason of the last change to Down, for reports
	sendErr  string // error of the last packet; empty: it was sent
	since    time.Time
	failed   bool
	wasUp    bool // since the peer last failed or took the session down on purpose
	began    bool // by us, not by the peer: we end it if it is no longer wanted here
	farewell int  // with AdminDown: remaining packets

	local      uint32 // discriminators
	remote     uint32 // 0: unknown, or nothing heard for a detection time
	lost       uint32 // remote, before nothing was heard for a detection time
	proven     bool   // the peer has sent local together with remote: it receives our packets
	sentRemote uint32 // the remote discriminator in the last packet sent

	answered time.Duration // when a packet outside the session was last answered

	remoteState timersOf
	demand      bool // the peer wants no packets while the session is up

	losses  uint64 // see Session.Losses
	damping damping

	base    timers // from the profile and the number of sessions, before damping
	mult    uint8  // ours
	offered timers // in our packets
	inForce timers // in use until the peer has confirmed the offered ones
	polling bool   // the peer has not confirmed offered yet
	final   bool   // we have not confirmed the peer's poll yet
	once    bool   // send one more packet although the peer is no longer heard

	lastTx  time.Duration
	nextTx  time.Duration
	expires time.Duration // when the detection time ends
	restAt  time.Duration // when a session that is no longer wanted ends
	backBy  time.Duration // when a peer whose process has ended counts as failed, unless it is up again
	easeAt  time.Duration // when damping eases
	spared  time.Duration // silence of the peer that was forgiven because the engine did not run

	at    time.Duration // position in the queue: not later than due
	index int           // in the queue; -1: not queued
}

// timersOf is the content of a peer's last packet.
type timersOf struct {
	state State
	timers
	mult uint8
}

// unheard stands for the peer's packet before any was received (RFC 5880, 6.8.1).
var unheard = timersOf{state: Down, timers: timers{rx: time.Microsecond}}

func newSession(p Peer, local uint32, now time.Duration) *session {
	return &session{
		peer: p, state: Down, since: time.Now(), local: local, remoteState: unheard, began: p.Active,
		answered: -answerGap, lastTx: now, nextTx: never, expires: never, restAt: never, easeAt: never, backBy: never, index: -1,
	}
}

// speaks reports whether packets are sent at all: a passive end waits until the other one begins. A peer that failed
// while it was watched is asked until it is back, even if no longer watched: otherwise we would never learn that it is
// back.
func (s *session) speaks() bool {
	if s.state == AdminDown {
		return s.farewell > 0
	}
	return s.peer.Active || s.failed && s.began || s.remote != 0 || s.once
}

// interval returns the time between two periodic packets, before jitter; never: none are sent.
func (s *session) interval() time.Duration {
	switch {
	case s.state == AdminDown:
		return farewellGap
	case s.backBy != never && s.speaks():
		return slowInterval // the next process may wait to be asked, and has less time than an interval that the former one wished
	case !s.speaks(), s.remoteState.rx == 0, s.demand && s.state == Up && s.remoteState.state == Up:
		return never
	}
	return max(s.inForce.tx, s.remoteState.rx)
}

// detection returns how long the peer may be silent (RFC 5880, 6.8.4).
func (s *session) detection() time.Duration {
	return time.Duration(s.remoteState.mult) * max(s.inForce.rx, s.remoteState.tx)
}

// heard reports whether the peer was heard in the first half of the detection time, or within 1.25 of its intervals if
// that is longer.
func (s *session) heard(now time.Duration) bool {
	whole := s.detection()
	lately := whole / 2
	if s.remoteState.mult > 0 {
		lately = max(lately, whole/time.Duration(s.remoteState.mult)*5/4)
	}
	return s.expires != never && s.expires-now > whole-lately
}

// due returns when the session needs attention next.
func (s *session) due() time.Duration { return min(s.nextTx, s.expires, s.restAt, s.easeAt, s.backBy) }

// enter changes the state. It does not change timers: call retime and plan afterwards.
func (s *session) enter(state State, diag Diag, why string) {
	s.state, s.diag, s.since = state, diag, time.Now()
	switch state {
	case Up:
		s.failed, s.wasUp, s.why, s.backBy = false, true, "", never
	case Down:
		s.why = why
	}
}

// wanted returns the intervals for a session that is up.
func (s *session) wanted() timers {
	return timers{s.damping.slow(s.base.tx), s.damping.slow(s.base.rx)}
}

// lose records that the session was up and went down unintentionally.
func (s *session) lose(now time.Duration) {
	s.losses++
	s.easeAt = s.damping.lose(now)
}

// receive handles a packet of this session (RFC 5880, 6.8.6).
func (s *session) receive(p packet, now time.Duration) {
	s.began = s.began && s.speaks()
	if s.remote != 0 && s.remote != p.mine && s.state == Up {
		s.enter(Down, DiagSignaled, "the peer has restarted")
	}
	s.record(p)
	s.follow(p, now)
	s.retime()
	s.expires = s.silentUntil(now)
}

// record keeps the peer's side of the session, as the packet states it.
func (s *session) record(p packet) {
	s.proven = p.yours != 0 || s.proven && s.remote == p.mine
	s.remote, s.spared, s.demand = p.mine, 0, p.demand
	s.remoteState = timersOf{p.state, timers{min(p.desiredTx, longestInterval), min(p.requiredRx, longestInterval)}, p.mult}
	s.final = s.final || p.poll
	if p.final && s.polling {
		s.polling, s.inForce = false, s.offered
	}
}

// follow changes the state as the peer's state demands.
func (s *session) follow(p packet, now time.Duration) {
	switch {
	case p.state == AdminDown:
		s.endedByPeer(p.diag, now)
	case s.state == Up && p.state == Down:
		s.downAtPeer(p.diag, now)
	default:
		if next := handshake[s.state][p.state]; next != s.state {
			s.enter(next, DiagNone, "")
		}
	}
}

// handshake holds the states in which a session begins (RFC 5880, 6.2): the next one by ours and the peer's.
var handshake = [...][Up + 1]State{
	AdminDown: {Down: AdminDown, Init: AdminDown, Up: AdminDown},
	Down:      {Down: Init, Init: Up, Up: Down},
	Init:      {Down: Init, Init: Up, Up: Up},
	Up:        {Init: Up, Up: Up},
}

// downAtPeer takes the session down because the peer signals that it is down there.
func (s *session) downAtPeer(why Diag, now time.Duration) {
	if why.isFailure() {
		s.lose(now)
	}
	s.enter(Down, DiagSignaled, "the peer signals down: "+why.String())
}

// endedByPeer ends the session because the peer took it down, and decides by the peer's reason if that is a failure.
func (s *session) endedByPeer(reason Diag, now time.Duration) {
	if s.state != Down {
		s.enter(Down, DiagSignaled, "the peer took the session down: "+reason.String())
	}
	switch {
	case !s.wasUp: // already recorded
	case reason == DiagPathDown:
		s.fail(s.why)
	case reason == DiagReset:
		s.backBy = now + backWithin
	}
	// Its silence from now on is not a failure, and it has no session in which it knows our discriminator.
	s.remote, s.proven, s.final, s.wasUp = 0, false, false, false
}

// silentUntil returns when a peer that was just heard, and is silent from now on, counts as failed.
func (s *session) silentUntil(now time.Duration) time.Duration {
	switch {
	case s.proven:
		return now + s.detection()
	case s.remote != 0:
		return now + min(s.detection(), claimMost)
	}
	return never
}

// expire handles the end of a detection time without a packet.
func (s *session) expire(now time.Duration) {
	silent := s.detection()
	s.lost = s.remote
	s.remote, s.proven, s.remoteState, s.demand, s.final, s.expires = 0, false, unheard, false, false, never
	why := fmt.Sprintf("nothing heard for %s", silent)
	if s.state > Down {
		// If the peer hears us although we do not hear it, signal that once, even as a passive end.
		s.once = s.state == Up
		if s.state == Up {
			s.lose(now)
		}
		s.enter(Down, DiagExpired, why)
	}
	if s.wasUp {
		s.fail(why)
	}
	s.retime()
}

// fail marks the peer as failed, until the session is up again.
func (s *session) fail(why string) {
	s.wasUp, s.failed, s.why, s.since, s.backBy = false, true, why, time.Now(), never
}

// retime makes wanted the intervals that we offer. While the session is up, the peer must confirm them by ending a poll
// sequence, and one change is made at a time. Until then we use the safer of the former and the offered intervals, both
// for sending and for waiting (RFC 5880, 6.8.3).
func (s *session) retime() {
	wanted := s.wanted()
	if s.state != Up {
		s.offered = timers{max(wanted.tx, slowInterval), wanted.rx}
		s.inForce, s.polling = s.offered, false
		return
	}
	if s.polling || s.offered == wanted {
		return
	}
	s.offered, s.polling = wanted, true
	s.inForce.tx = min(s.inForce.tx, wanted.tx)
	s.inForce.rx = max(s.inForce.rx, wanted.rx)
}

// plan sets the times of the next events, after any change. An urgent packet is not delayed until the next periodic
// one.
func (s *session) plan(urgent bool, now time.Duration) {
	s.restAt = s.restFrom(now)
	interval := s.interval()
	switch {
	case urgent && s.speaks(), s.final, s.once:
		s.nextTx = min(s.nextTx, max(now, s.lastTx+urgentGap))
	case interval == never:
		s.nextTx = never
	case s.nextTx > s.lastTx+interval: // the interval became shorter
		s.nextTx = max(now, s.lastTx+s.jitter(interval))
	}
}

// restFrom returns when to end a session that we began and that is no longer watched.
func (s *session) restFrom(now time.Duration) time.Duration {
	switch {
	case s.peer.Active || !s.began || s.state != Up:
		return never
	case s.restAt != never:
		return s.restAt
	}
	return now + restAfter
}

// send returns the packet to send now, and plans the next one.
func (s *session) send(now time.Duration) packet {
	p := packet{
		diag: s.diag, state: s.state, poll: s.polling && !s.final, final: s.final, mult: s.mult,
		mine: s.local, yours: s.yours(), desiredTx: s.offered.tx, requiredRx: s.offered.rx,
	}
	s.final, s.once, s.sentRemote, s.lastTx, s.nextTx = false, false, s.remote, now, never
	if s.state == AdminDown {
		s.farewell--
	}
	if i := s.interval(); i != never {
		s.nextTx = now + s.jitter(i)
	}
	return p
}

// yours returns the discriminator of the peer to send. When we signal that the peer is not heard, it is the lost one: FRR ignores
// a packet without its discriminator in a session that is up.
func (s *session) yours() uint32 {
	if s.once && s.remote == 0 {
		return s.lost
	}
	return s.remote
}

// jitter shortens an interval by up to a quarter, and by at least a tenth if the loss of one packet ends the session
// (RFC 5880, 6.8.7). It allows for packets that are sent up to sendSlack early.
func (s *session) jitter(interval time.Duration) time.Duration {
	least, most := interval*3/4+sendSlack, interval
	if s.mult == 1 {
		most = interval * 9 / 10
	}
	if most <= least {
		return most
	}
	return least + rand.N(most-least)
}

// forgive extends the detection time by a gap in which the engine did not run.
//
// If only this process stood still, packets that arrived meanwhile are in the socket and will be read; if the whole
// machine did, none arrived. So the gap does not count as silence of the peer, and after a gap longer than the
// detection time the peer gets a whole detection time. Until the peer is heard, at most one whole detection time is
// forgiven: even an engine that hardly ever runs detects failures. The result reports whether a gap longer than the
// detection time was forgiven.
func (s *session) forgive(gap, now time.Duration) (spared bool) {
	if s.expires == never {
		return false
	}
	whole := s.detection()
	most := now + whole - s.spared
	expires := min(s.expires+gap, most)
	if gap > whole {
		expires = most
	}
	if expires <= s.expires {
		return false
	}
	s.expires, s.spared = expires, s.spared+min(gap, whole)
	return gap > whole
}

// lastError returns why the session is not well, or an empty string.
func (s *session) lastError() string {
	if s.sendErr != "" {
		return s.sendErr
	}
	return s.why
}
