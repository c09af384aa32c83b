package speaker

import (
	"context"
	"maps"
	"net"
	"reflect"
	"sync"
	"time"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

const (
	// countEvery is the shortest interval at which routes are counted for reports.
	countEvery = time.Second
	// routesEvery is the shortest interval at which learned routes are sent to the agent: each message makes it plan
	// again.
	routesEvery = 100 * time.Millisecond
)

// driver is the speaker's end of an agent's connection.
type driver struct {
	*wire
	server  *server
	number  int           // of the connection: a later one has a higher number
	version string        // of the agent
	groups  bool          // the agent understands learned.groups
	changed chan struct{} // sessions may have changed
	routes  chan struct{} // learned routes may have changed
	stirred chan struct{} // BFD sessions with other nodes may have changed
	unsure  chan struct{} // the agent should apply again

	telling  sync.Mutex // guards the session state that was sent to the agent
	sessions []bgp.Session
	counted  time.Time // when the routes of sessions were counted
	recount  *time.Timer

	tellingRoutes sync.Mutex // guards the learned routes that were sent to the agent
	learned       map[string]sorted.List[plan.Route]

	tellingNodes sync.Mutex // guards the node sessions that were sent to the agent
	nodes        []nodeSession
}

// serve serves an agent until its connection, the number-th that was accepted, or ctx ends.
func (s *server) serve(ctx context.Context, conn net.Conn, number int) {
	defer conn.Close()
	hangUp := context.AfterFunc(ctx, func() { conn.Close() })
	defer hangUp()
	d := &driver{
		wire: newWire(conn), server: s, number: number,
		changed: make(chan struct{}, 1), routes: make(chan struct{}, 1), stirred: make(chan struct{}, 1), unsure: make(chan struct{}, 1),
		learned: map[string]sorted.List[plan.Route]{},
	}
	d.recount = time.AfterFunc(countEvery, func() { signal(d.changed) })
	defer d.recount.Stop()
	h, err := d.readHello()
	if err != nil {
		s.log.Debug("connection without a hello", "error", err)
		return
	}
	if h.Protocol != Protocol {
		// The agent compares the versions too, and logs the remedy.
		s.log.Warn("agent refused: it speaks another protocol", "agentVersion", h.Version, "agentProtocol", h.Protocol,
			"version", s.version, "protocol", Protocol)
		_ = d.write(message{Hello: &hello{Protocol: Protocol, Version: s.version, Started: s.started}}, writeWithin)
		return
	}
	d.version, d.groups = h.Version, h.Groups
	former, now, ok := s.takeOver(d)
	if !ok {
		s.log.Debug("agent ignored: it has gone, or a later one has taken over", "agentVersion", d.version)
		return
	}
	defer s.leave(d)
	if former != nil {
		s.log.Info("another agent takes over", "agentVersion", d.version, "formerVersion", former.version)
		former.farewell(message{Superseded: d.version})
	} else {
		s.log.Info("agent connected", "agentVersion", d.version)
	}
	if d.sendState(now) != nil {
		return
	}

	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { d.keepSending(ctx, d.changed, func() error { return d.sendSessions(true) }) })
	running.Go(func() { d.keepSending(ctx, d.routes, func() error { return d.sendRoutes(ctx) }) })
	running.Go(func() { d.keepSending(ctx, d.stirred, d.sendNodes) }) // not delayed by the others
	running.Go(func() {
		d.keepSending(ctx, d.unsure, func() error { return d.write(message{Again: true}, writeWithin) })
	})
	d.listen(ctx)
	stop()
	running.Wait()
}

// sendState sends a new agent the whole state.
func (d *driver) sendState(h hello) error {
	for _, send := range []func() error{
		func() error { return d.write(message{Hello: &h}, writeWithin) },
		d.sendNodes,
		d.tellAllRoutes,
		func() error { return d.sendSessions(true) },
		func() error { return d.write(message{Complete: true}, writeWithin) },
	} {
		if err := send(); err != nil {
			return err
		}
	}
	return nil
}

// farewell sends a last message and closes the connection. An agent that no longer reads delays it by a second at most.
func (d *driver) farewell(m message) {
	_ = d.conn.SetWriteDeadline(time.Now().Add(time.Second)) // applies to a write in progress too
	_ = d.write(m, time.Second)
	d.conn.Close()
}

// listen serves the agent's requests.
func (d *driver) listen(ctx context.Context) {
	for {
		m, err := d.read()
		if err != nil {
			return
		}
		a := d.execute(ctx, m)
		signal(d.changed)
		if d.sendAnswer(m, a) != nil {
			return
		}
		if m.End && len(a.Errors) == 0 {
			d.server.ending.Do(func() { close(d.server.end) })
		}
	}
}

// execute executes a request. One that was begun is completed, even if the agent disconnects.
func (d *driver) execute(ctx context.Context, m message) *answer {
	within := answerWithin
	if m.Milliseconds > 0 {
		within = min(within, time.Duration(m.Milliseconds)*time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	return d.server.do(ctx, d, m)
}

// sendAnswer answers a request, after sending the sessions that result from Apply, or the nodes that result from Watch.
func (d *driver) sendAnswer(m message, a *answer) error {
	var err error
	switch {
	case m.Apply != nil:
		err = d.sendSessions(false)
	case m.Watch != nil:
		err = d.sendNodes()
	}
	if err != nil {
		return err
	}
	return d.write(message{ID: m.ID, Answer: a}, writeWithin)
}

// keepSending calls send whenever note receives, until ctx ends or send fails.
func (d *driver) keepSending(ctx context.Context, note chan struct{}, send func() error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-note:
		}
		if send() != nil {
			d.conn.Close()
			return
		}
	}
}

// sendSessions sends the agent the sessions if they changed. It counts their routes only if count is set, because
// counting may take long, and at most every countEvery; otherwise it schedules a later message with the counts.
func (d *driver) sendSessions(count bool) error {
	d.telling.Lock()
	defer d.telling.Unlock()
	var now []bgp.Session
	if rest := countEvery - time.Since(d.counted); count && rest <= 0 {
		d.counted = time.Now()
		now = d.server.speakers.Sessions()
	} else {
		now = d.server.speakers.States()
		d.recount.Reset(max(rest, 0))
	}
	if reflect.DeepEqual(now, d.sessions) {
		return nil
	}
	d.sessions = now
	return d.write(message{Sessions: &sessions{now}}, writeWithin)
}

// sendRoutes sends changes of learned routes. If there were any, it returns after routesEvery at the earliest. A lone change does
// not wait.
func (d *driver) sendRoutes(ctx context.Context) error {
	began := time.Now()
	if sent, err := d.sendRoutesNow(); !sent || err != nil {
		return err
	}
	signal(d.changed) // route counts have changed
	pause.For(ctx, routesEvery-time.Since(began))
	return nil
}

// tellAllRoutes sends the learned routes to a new agent.
func (d *driver) tellAllRoutes() error {
	_, err := d.sendRoutesNow()
	return err
}

func (d *driver) sendRoutesNow() (sent bool, err error) {
	d.tellingRoutes.Lock()
	defer d.tellingRoutes.Unlock()
	gone := maps.Clone(d.learned)
	for _, n := range d.server.speakers.Learned() {
		delete(gone, n.Network)
		had, known := d.learned[n.Network]
		c := changeIn(had, n.Routes, destination)
		if d.learned[n.Network] = n.Routes; known && c.empty() {
			continue
		}
		sent = true
		if err := d.tellLearned(n.Network, c); err != nil {
			return sent, err
		}
	}
	for network := range gone {
		delete(d.learned, network)
		sent = true
		if err := d.write(message{Learned: &learned{Network: network, Gone: true}}, writeWithin); err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// tellLearned sends the changes of one network in pieces, so that other messages can go in between.
func (d *driver) tellLearned(network string, c listChange[plan.Route]) error {
	for {
		piece := listChange[plan.Route]{Gone: c.Gone[:min(len(c.Gone), chunk)], Set: c.Set[:min(len(c.Set), chunk)]}
		c.Gone, c.Set = c.Gone[len(piece.Gone):], c.Set[len(piece.Set):]
		more := !c.empty()
		m := learned{Network: network, Routes: piece, More: more}
		if d.groups {
			m.Routes.Set, m.Groups = nil, grouped(piece.Set)
		}
		if err := d.write(message{Learned: &m}, writeWithin); err != nil {
			return err
		}
		if !more {
			return nil
		}
	}
}
