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
	// slowInterval is the least transmit interval of a session that is not up (RFC 5880, 6.8.3).
	slowInterval = time.Second

	// urgentGap lies between two packets of a session at least, however much there is to tell. Three packets each make a
	// session, so that it is up within some ten milliseconds of the first one that is heard.
	urgentGap = 5 * time.Millisecond

	// sendSlack is how much too early packets are sent, so that one awakening serves many sessions.
	sendSlack = time.Millisecond
)

// longestInterval bounds the intervals that a peer may ask for, and what damping makes of ours: no configuration has a longer one.
const longestInterval = time.Minute

// claimMost bounds how long a session waits for a peer that has not shown that it receives our packets: anybody may have sent
// its only packet, with any interval.
const claimMost = 3 * slowInterval

// timers are the two intervals that we tell: how often we want to send, and how often we can receive.
type timers struct{ tx, rx time.Duration }

// session is one session's state (RFC 5880, 6.8.1). Its methods know nothing of sockets, clocks and other sessions.
type session struct {
	peer Peer
	path *path // to the peer; nil in tests without sockets

	state    State
	diag     Diag
	why      string // of the last way down, for people
	sendErr  string // of the last packet; empty: it was sent
	since    time.Time
	failed   bool
	wasUp    bool // since the peer was last taken down on purpose or has failed
	began    bool // by us, not by the peer: a session that nobody here wants any more is ours to end
	farewell int  // with AdminDown: packets to send yet

	local  uint32 // discriminators
	remote uint32 // 0: not known, or nothing heard for a detection time
	lost   uint32 // remote before nothing was heard for a detection time
	proven bool   // the owner of remote has named local: it receives our packets
	told   uint32 // the remote discriminator of the last packet sent

	answered time.Duration // when a packet that belongs to no session was last answered

	remoteState timersOf
	demand      bool // the peer wants no packets while the session is up

	losses  uint64 // see Session.Losses
	damping damping

	base    timers // by profile and number of sessions, before damping
	mult    uint8  // ours
	offered timers // what packets say
	inForce timers // what counts until the peer has confirmed the ones offered
	polling bool   // offered is to be confirmed
	final   bool   // the peer's poll is to be confirmed
	once    bool   // one more packet, though the peer is not heard any more

	lastTx  time.Duration
	nextTx  time.Duration
	expires time.Duration // when the detection time ends
	restAt  time.Duration // when a session that nobody wants ends
	backBy  time.Duration // when a peer whose process has ended must be up again, or it has failed
	easeAt  time.Duration // when damping gets less
	spared  time.Duration // of its silence: the engine did not run

	at    time.Duration // in the queue: not later than due
	index int           // in the queue; -1: not there
}

// timersOf is what a peer's last packet said.
type timersOf struct {
	state State
	timers
	mult uint8
}

// unheard is what counts before a peer has said anything (RFC 5880, 6.8.1).
var unheard = timersOf{state: Down, timers: timers{rx: time.Microsecond}}

func newSession(p Peer, local uint32, now time.Duration) *session {
	return &session{
		peer: p, state: Down, since: time.Now(), local: local, remoteState: unheard, began: p.Active,
		answered: -answerGap, lastTx: now, nextTx: never, expires: never, restAt: never, easeAt: never, backBy: never, index: -1,
	}
}

// speaks says whether packets go out at all: a passive end waits for the other one to begin. A peer that failed while it
// was watched is asked for until it is back, watched or not: otherwise nobody here would learn that it is.
func (s *session) speaks() bool {
	if s.state == AdminDown {
		return s.farewell > 0
	}
	return s.peer.Active || s.failed && s.began || s.remote != 0 || s.once
}

// interval lies between two periodic packets, before jitter; never: there are none.
func (s *session) interval() time.Duration {
	switch {
	case s.state == AdminDown:
		return farewellGap
	case !s.speaks(), s.remoteState.rx == 0, s.demand && s.state == Up && s.remoteState.state == Up:
		return never
	}
	return max(s.inForce.tx, s.remoteState.rx)
}

// detection is how long the peer may be silent (RFC 5880, 6.8.4).
func (s *session) detection() time.Duration {
	return time.Duration(s.remoteState.mult) * max(s.inForce.rx, s.remoteState.tx)
}

// heard says whether the peer was heard of in the first half of the detection time, or, where it may miss less than two packets, since
// it should have been.
func (s *session) heard(now time.Duration) bool {
	whole := s.detection()
	lately := whole / 2
	if s.remoteState.mult > 0 {
		lately = max(lately, whole/time.Duration(s.remoteState.mult)*5/4)
	}
	return s.expires != never && s.expires-now > whole-lately
}

// due is the next moment at which something is to be done.
func (s *session) due() time.Duration { return min(s.nextTx, s.expires, s.restAt, s.easeAt, s.backBy) }

// enter changes the state. It does not touch timers: retime and plan follow.
func (s *session) enter(state State, diag Diag, why string) {
	s.state, s.diag, s.since = state, diag, time.Now()
	switch state {
	case Up:
		s.failed, s.wasUp, s.why, s.backBy = false, true, "", never
	case Down:
		s.why = why
	}
}

// wanted are the intervals to have while the session is up.
func (s *session) wanted() timers {
	return timers{s.damping.slow(s.base.tx), s.damping.slow(s.base.rx)}
}

// lose notes that the session was up and is not any more, by no end's intention.
func (s *session) lose(now time.Duration) {
	s.losses++
	s.easeAt = s.damping.lose(now)
}

// receive takes a packet of the peer that belongs to this session (RFC 5880, 6.8.6).
func (s *session) receive(p packet, now time.Duration) {
	s.began = s.began && s.speaks()
	if s.remote != 0 && s.remote != p.mine && s.state == Up {
		s.enter(Down, DiagSignaled, "the peer has begun anew")
	}
	s.proven = p.yours != 0 || s.proven && s.remote == p.mine
	s.remote, s.spared, s.demand = p.mine, 0, p.demand
	s.remoteState = timersOf{p.state, timers{min(p.desiredTx, longestInterval), min(p.requiredRx, longestInterval)}, p.mult}
	s.final = s.final || p.poll
	if p.final && s.polling {
		s.polling, s.inForce = false, s.offered
	}
	switch {
	case p.state == AdminDown:
		if s.state != Down {
			s.enter(Down, DiagSignaled, "the peer took the session down: "+p.diag.String())
		}
		switch {
		case !s.wasUp: // it was told already
		case p.diag == DiagPathDown:
			s.fail(s.why)
		case p.diag == DiagReset:
			s.backBy = now + backWithin
		}
		// Its silence from here on is no failure; nor is there a session in which it would know our discriminator.
		s.remote, s.proven, s.final, s.wasUp = 0, false, false, false
	case s.state == Down && p.state == Down:
		s.enter(Init, DiagNone, "")
	case s.state == Down && p.state == Init, s.state == Init && p.state >= Init:
		s.enter(Up, DiagNone, "")
	case s.state == Up && p.state == Down:
		if p.diag.isFailure() {
			s.lose(now)
		}
		s.enter(Down, DiagSignaled, "the peer signals down: "+p.diag.String())
	}
	s.retime()
	s.expires = never
	switch {
	case s.proven:
		s.expires = now + s.detection()
	case s.remote != 0:
		s.expires = now + min(s.detection(), claimMost)
	}
}

// expire ends a detection time without a packet.
func (s *session) expire(now time.Duration) {
	silent := s.detection()
	s.lost = s.remote
	s.remote, s.proven, s.remoteState, s.demand, s.final, s.expires = 0, false, unheard, false, false, never
	why := fmt.Sprintf("nothing heard for %s", silent)
	if s.state > Down {
		// A peer that hears us, although we do not hear it, is told once, even by a passive end.
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

// fail notes that the peer has failed, until the session is up again.
func (s *session) fail(why string) {
	s.wasUp, s.failed, s.why, s.since, s.backBy = false, true, why, time.Now(), never
}

// retime makes wanted the intervals that we offer. While the session is up the peer has to confirm them by the end of a
// poll sequence, and one change is made at a time; until then, we send as often and wait as long as before or as
// offered, whichever errs on the safe side (RFC 5880, 6.8.3).
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

// plan sets the times of what comes next, after anything has changed. An urgent packet does not wait for its turn.
func (s *session) plan(urgent bool, now time.Duration) {
	s.restAt = s.restFrom(now)
	interval := s.interval()
	switch {
	case urgent && s.speaks(), s.final, s.once:
		s.nextTx = min(s.nextTx, max(now, s.lastTx+urgentGap))
	case interval == never:
		s.nextTx = never
	case s.nextTx > s.lastTx+interval: // it became shorter
		s.nextTx = max(now, s.lastTx+s.jitter(interval))
	}
}

// restFrom is when a session ends that we began and that is not watched any more.
func (s *session) restFrom(now time.Duration) time.Duration {
	switch {
	case s.peer.Active || !s.began || s.state != Up:
		return never
	case s.restAt != never:
		return s.restAt
	}
	return now + restAfter
}

// send makes the packet that goes out now and plans the next one.
func (s *session) send(now time.Duration) packet {
	p := packet{
		diag: s.diag, state: s.state, poll: s.polling && !s.final, final: s.final, mult: s.mult,
		mine: s.local, yours: s.remote, desiredTx: s.offered.tx, requiredRx: s.offered.rx,
	}
	if s.once && s.remote == 0 {
		p.yours = s.lost // FRR believes no other end of a session that is up
	}
	s.final, s.once, s.told, s.lastTx, s.nextTx = false, false, s.remote, now, never
	if s.state == AdminDown {
		s.farewell--
	}
	if i := s.interval(); i != never {
		s.nextTx = now + s.jitter(i)
	}
	return p
}

// jitter takes up to a quarter off an interval, and a tenth at least where the loss of one packet is a death (RFC 5880,
// 6.8.7). That packets may go out by sendSlack too early is in it.
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

// forgive makes up for a time of this length in which the engine did not run.
//
// Packets that came while only the process stood still are in the socket and will be read; but where the whole machine
// did, none came. So such a time does not count for the peer's silence, and after one that was longer than the detection
// time, the peer has a whole one to be heard. Until it is heard, a whole one is also the most that is forgiven: who hardly
// ever runs still finds out.
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

// lastError is why the session is not well, empty when it is.
func (s *session) lastError() string {
	if s.sendErr != "" {
		return s.sendErr
	}
	return s.why
}
