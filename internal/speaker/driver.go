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
	// countEvery is how often routes are counted for people, at most.
	countEvery = time.Second
	// routesEvery is how often the agent is told of learned routes, at most: each time it plans anew.
	routesEvery = 100 * time.Millisecond
)

// driver is the connection of an agent, at the speaker's end.
type driver struct {
	*wire
	server  *server
	version string        // of the agent
	changed chan struct{} // there may be something to tell of sessions
	routes  chan struct{} // or of learned routes
	stirred chan struct{} // or of other nodes
	unsure  chan struct{} // the agent should apply once more

	telling  sync.Mutex // guards what the agent was told of sessions
	sessions []bgp.Session
	counted  time.Time // when the routes were that sessions carry
	recount  *time.Timer

	tellingRoutes sync.Mutex // guards what the agent was told of learned routes
	learned       map[string]sorted.List[plan.Route]

	tellingNodes sync.Mutex // guards what the agent was told of other nodes
	nodes        []nodeSession
}

// serve serves an agent until its connection or ctx ends.
func (s *server) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	hangUp := context.AfterFunc(ctx, func() { conn.Close() })
	defer hangUp()
	d := &driver{
		wire: newWire(conn), server: s,
		changed: make(chan struct{}, 1), routes: make(chan struct{}, 1), stirred: make(chan struct{}, 1), unsure: make(chan struct{}, 1),
		learned: map[string]sorted.List[plan.Route]{},
	}
	d.recount = time.AfterFunc(countEvery, func() { signal(d.changed) })
	defer d.recount.Stop()
	h, err := d.readHello()
	if err != nil {
		s.log.Debug("a connection says nothing", "error", err)
		return
	}
	if h.Protocol != Protocol {
		// The agent compares as well, and says what to do.
		s.log.Warn("agent refused: it speaks another protocol", "agentVersion", h.Version, "agentProtocol", h.Protocol, "version", s.version, "protocol", Protocol)
		_ = d.write(message{Hello: &hello{Protocol: Protocol, Version: s.version, Started: s.started}}, writeWithin)
		return
	}
	d.version = h.Version
	former, now := s.takeOver(d)
	defer s.leave(d)
	if former != nil {
		s.log.Info("another agent takes over", "agentVersion", d.version, "formerVersion", former.version)
		former.farewell(message{Superseded: d.version})
	} else {
		s.log.Info("agent drives", "agentVersion", d.version)
	}
	if d.write(message{Hello: &now}, writeWithin) != nil || d.tellNodes() != nil || d.tellAllRoutes() != nil || d.tellSessions(true) != nil ||
		d.write(message{Told: true}, writeWithin) != nil {
		return
	}

	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { d.keepTelling(ctx, d.changed, func() error { return d.tellSessions(true) }) })
	running.Go(func() { d.keepTelling(ctx, d.routes, func() error { return d.tellRoutes(ctx) }) })
	running.Go(func() { d.keepTelling(ctx, d.stirred, d.tellNodes) }) // however long the other takes
	running.Go(func() {
		d.keepTelling(ctx, d.unsure, func() error { return d.write(message{Again: true}, writeWithin) })
	})
	d.listen(ctx)
	stop()
	running.Wait()
}

// farewell ends the connection with a last message. An agent that takes nothing any more holds nobody up.
func (d *driver) farewell(m message) {
	_ = d.conn.SetWriteDeadline(time.Now().Add(time.Second)) // of what is being written, too
	_ = d.write(m, time.Second)
	d.conn.Close()
}

// listen does what the agent asks for.
func (d *driver) listen(ctx context.Context) {
	for {
		m, err := d.read()
		if err != nil {
			return
		}
		within := answerWithin
		if m.Milliseconds > 0 {
			within = min(within, time.Duration(m.Milliseconds)*time.Millisecond)
		}
		// What was begun is done to its end, whoever is still there to hear of it.
		doing, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
		a := d.server.do(doing, d, m)
		cancel()
		signal(d.changed)
		// When an agent has the answer, it knows already what sessions came of what it applied, and what nodes are watched.
		if m.Apply != nil && d.tellSessions(false) != nil || m.Watch != nil && d.tellNodes() != nil || d.write(message{ID: m.ID, Answer: a}, writeWithin) != nil {
			return
		}
		if m.End && len(a.Errors) == 0 {
			d.server.ending.Do(func() { close(d.server.end) })
		}
	}
}

// keepTelling tells the agent whenever there is a note.
func (d *driver) keepTelling(ctx context.Context, note chan struct{}, tell func() error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-note:
		}
		if tell() != nil {
			d.conn.Close()
			return
		}
	}
}

// tellSessions tells the agent what it does not know yet of sessions. Routes are counted only if that may take its time,
// and not too often; otherwise the agent hears of them later.
func (d *driver) tellSessions(count bool) error {
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

// tellRoutes tells the agent of learned routes, and leaves it in peace for a while when there were any. A lone change does not wait.
func (d *driver) tellRoutes(ctx context.Context) error {
	if told, err := d.tellRoutesNow(); !told || err != nil {
		return err
	}
	signal(d.changed) // there are more routes now, or fewer
	pause.For(ctx, routesEvery)
	return nil
}

// tellAllRoutes tells a new agent.
func (d *driver) tellAllRoutes() error {
	_, err := d.tellRoutesNow()
	return err
}

func (d *driver) tellRoutesNow() (told bool, err error) {
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
		told = true
		if err := d.tellLearned(n.Network, c); err != nil {
			return told, err
		}
	}
	for network := range gone {
		delete(d.learned, network)
		told = true
		if err := d.write(message{Learned: &learned{Network: network, Gone: true}}, writeWithin); err != nil {
			return told, err
		}
	}
	return told, nil
}

// tellLearned tells of one network, in pieces that leave room for other messages in between.
func (d *driver) tellLearned(network string, c listChange[plan.Route]) error {
	for {
		piece := listChange[plan.Route]{Gone: c.Gone[:min(len(c.Gone), chunk)], Set: c.Set[:min(len(c.Set), chunk)]}
		c.Gone, c.Set = c.Gone[len(piece.Gone):], c.Set[len(piece.Set):]
		more := !c.empty()
		if err := d.write(message{Learned: &learned{Network: network, Routes: piece, More: more}}, writeWithin); err != nil {
			return err
		}
		if !more {
			return nil
		}
	}
}
