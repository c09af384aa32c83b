package bfd

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressway/egressway/internal/config"
)

func TestMain(m *testing.M) {
	// What tests run in a process of its own.
	from, to, count := os.Getenv("BFD_WATCH_FROM"), os.Getenv("BFD_WATCH_TO"), os.Getenv("BFD_WATCHERS")
	var err error
	switch {
	case count != "":
		n, _ := strconv.Atoi(count) // a test's own
		err = watchFromMany(n, to)
	case from != "":
		err = watchInProcess(from, to)
	default:
		goleak.VerifyTestMain(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var fast = config.BFDProfile{TransmitInterval: 100, ReceiveInterval: 100, DetectMultiplier: 3}

// world is machines and the wire between them, in a time of its own: the sessions, without sockets and clocks.
type world struct {
	t        *testing.T
	now      time.Duration
	machines map[netip.Addr]*machine
	order    []*machine
	flight   []flying
	lost     func(d flying) bool // nil: none
}

// tick is how exact the world's time is, and how long a packet travels at least.
const tick = 500 * time.Microsecond

// machine is a node with an engine, or what is left of it.
type machine struct {
	addr netip.Addr
	*table
	next    time.Duration
	stopped bool // the process: packets wait
	frozen  bool // the machine: packets are lost
	waiting []flying

	world   *world
	sent    []flying
	changes []Session
}

type flying struct {
	at       time.Duration // of arrival, of sending in machine.sent
	from, to netip.Addr
	packet   packet
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t: t, now: time.Hour, machines: map[netip.Addr]*machine{}}
}

func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

// boot starts an engine on machine i, anew where there is one.
func (w *world) boot(i int, p config.BFDProfile) *machine {
	a := address(i)
	m := w.machines[a]
	if m == nil {
		m = &machine{addr: a, world: w}
		w.machines[a] = m
		w.order = append(w.order, m)
	}
	m.table = newTable(p)
	m.drain = func() { m.readWaiting(w.now) }
	m.next, m.stopped, m.frozen, m.waiting = w.now, false, false, nil
	return m
}

// leaves ends an engine, which tells its peers why.
func (m *machine) leaves(why Diag) {
	for _, o := range m.takeDown(why, m.world.now) {
		m.world.post(m, o)
	}
	m.kill()
}

// kill ends an engine without a word.
func (m *machine) kill() { m.frozen = true }

func (m *machine) readWaiting(now time.Duration) {
	for _, d := range m.waiting {
		m.receive(d.from, d.packet.encode(nil), now)
	}
	m.waiting = nil
}

// watch makes the others peers of m, all of them active or passive.
func (m *machine) watch(w *world, active bool, others ...*machine) {
	var peers []Peer
	for _, o := range others {
		peers = append(peers, Peer{Node: o.addr.String(), Address: o.addr, Active: active})
	}
	m.set(peers, w.now)
	m.next = w.now
}

// session is what m has with o.
func (m *machine) session(o *machine) Session {
	s := m.sessions[o.addr]
	if s == nil {
		return Session{}
	}
	return s.snapshot(m.world.now)
}

// step lets a tick pass, and after it the time in which nothing happens, but not more than until end.
func (w *world) step(end time.Duration) {
	w.now += tick
	next := end
	for _, m := range w.order {
		if !m.stopped && !m.frozen {
			next = min(next, m.next)
		}
	}
	for _, d := range w.flight {
		next = min(next, d.at)
	}
	if idle := next - w.now; idle > 0 {
		w.now += idle.Truncate(tick)
	}
	for _, d := range w.take() {
		m := w.machines[d.to]
		switch {
		case m == nil || m.frozen:
		case m.stopped:
			m.waiting = append(m.waiting, d)
		default:
			m.receive(d.from, d.packet.encode(nil), w.now)
			m.next = min(m.next, m.planned)
		}
	}
	for _, m := range w.order {
		if !m.stopped && !m.frozen && m.next <= w.now {
			w.work(m)
		}
	}
}

// work is a round of the engine's loop.
func (w *world) work(m *machine) {
	var out []outgoing
	out, m.next = m.due(w.now, nil)
	m.changes = append(m.changes, m.table.changes...)
	m.table.changes = nil
	for _, o := range out {
		w.post(m, o)
	}
}

func (w *world) post(m *machine, o outgoing) {
	p, err := decode(o.bytes[:])
	require.NoError(w.t, err)
	d := flying{at: w.now, from: m.addr, to: o.session.peer.Address, packet: p}
	m.sent = append(m.sent, d)
	if w.lost == nil || !w.lost(d) {
		d.at += tick + rand.N(2*time.Millisecond)
		w.flight = append(w.flight, d)
	}
}

// take returns what arrives now.
func (w *world) take() (arrived []flying) {
	rest := w.flight[:0]
	for _, d := range w.flight {
		if d.at <= w.now {
			arrived = append(arrived, d)
		} else {
			rest = append(rest, d)
		}
	}
	w.flight = rest
	return arrived
}

// pass lets time pass.
func (w *world) pass(d time.Duration) {
	for end := w.now + d; w.now < end; {
		w.step(end)
	}
}

// until lets time pass until ok, at most for limit, and returns how long it took.
func (w *world) until(limit time.Duration, what string, ok func() bool) time.Duration {
	w.t.Helper()
	began := w.now
	for !ok() {
		if w.now > began+limit {
			for _, m := range w.order {
				for _, s := range m.sessions {
					w.t.Logf("%s: %+v", m.addr, s.snapshot(w.now))
				}
			}
			require.Fail(w.t, fmt.Sprintf("not within %s: %s", limit, what))
		}
		w.step(began + limit + tick)
	}
	return w.now - began
}

// meet waits until two machines have a session that is up, with the intervals of which confirmed.
func (w *world) meet(a, b *machine) time.Duration {
	w.t.Helper()
	return w.until(2*time.Second, fmt.Sprintf("%s and %s meet", a.addr, b.addr), func() bool {
		x, y := a.sessions[b.addr], b.sessions[a.addr]
		return x.state == Up && y.state == Up && !x.polling && !y.polling
	})
}

// since is what m sent from a moment on.
func (m *machine) since(from time.Duration) (sent []flying) {
	for _, d := range m.sent {
		if d.at >= from {
			sent = append(sent, d)
		}
	}
	return sent
}

// everFailed says whether m ever took o for dead.
func (m *machine) everFailed(o *machine) bool {
	for _, c := range m.changes {
		if c.Address == o.addr && c.Failed {
			return true
		}
	}
	return false
}
