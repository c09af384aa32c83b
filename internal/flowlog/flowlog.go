// Package flowlog writes one JSON line for each connection of a selected pod that left this node, when it has ended: the pod, the
// object that selects it, the source that others saw, the destination, times and bytes. All of it comes from conntrack's event about
// the end of the connection, so nothing is kept while a connection lasts.
//
// Neither a flood of connections nor a slow file holds up the daemon: lines without room are counted, and the count becomes a
// line of its own.
package flowlog

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/kernel/sysctl"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/plan"
)

// Counters holds counts since the start of the process.
type Counters struct {
	Lines      uint64 // written about connections
	EventsLost uint64 // events about ends of connections that the kernel dropped for lack of room
	LinesLost  uint64 // lines that the file did not accept, or that had no room while it accepted nothing
}

// Log is the flow log of a node.
type Log struct {
	log   *slog.Logger
	node  string
	marks plan.Marks
	wake  func()

	written, eventsLost, linesLost atomic.Uint64

	mu       sync.Mutex // guards the fields below
	settings config.FlowLog
	changed  chan struct{} // closed when settings change
	owners   *owners       // nil: off
	trouble  string        // why the log is incomplete; empty: it is not
}

// New returns the flow log of a node, which is off until Set switches it on. wake is called when the result of Problems changes.
func New(log *slog.Logger, node string, marks plan.Marks, wake func()) *Log {
	return &Log{log: log, node: node, marks: marks, wake: wake, changed: make(chan struct{})}
}

// Counters returns the present counts.
func (l *Log) Counters() Counters {
	return Counters{Lines: l.written.Load(), EventsLost: l.eventsLost.Load(), LinesLost: l.linesLost.Load()}
}

// Set replaces the settings, and the plan and objects by which connections are attributed to objects. former is the plan of the
// call before, and changed names the objects that differ since. Call it before the plan comes into force: connections that
// contradict it end then. Its cost depends on the difference; without a flow log there is none.
func (l *Log) Set(s config.FlowLog, objects cluster.Objects, changed cluster.Changed, former, p *plan.NodePlan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s != l.settings {
		l.settings, l.trouble = s, ""
		close(l.changed)
		l.changed = make(chan struct{})
	}
	if s.File == "" {
		l.owners = nil
		return
	}
	if l.owners == nil {
		l.owners, former, changed = newOwners(l.node), nil, cluster.Everything()
	}
	l.owners.follow(objects, changed, former, p, time.Now())
}

// Run writes the log until ctx ends.
func (l *Log) Run(ctx context.Context) {
	for ctx.Err() == nil {
		l.mu.Lock()
		s, changed := l.settings, l.changed
		l.mu.Unlock()
		each, end := context.WithCancel(ctx)
		var work sync.WaitGroup
		work.Go(func() {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			end()
		})
		if s.File != "" {
			l.serve(each, s)
		}
		work.Wait()
	}
}

// restartAfter is the pause before a failed subscription or list is tried again.
const restartAfter = time.Second

// serve writes the log to one file until ctx ends.
func (l *Log) serve(ctx context.Context, s config.FlowLog) {
	l.log.Info("flow log begins", "file", s.File)
	out := newQueue(l, s.File)
	writing, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		out.run(writing)
	}()
	g := new(errgroup.Group)
	for ctx.Err() == nil {
		err := conntrack.WatchEnds(ctx, l.marks, conntrack.Ends{
			Buffer: s.EventBuffer,
			Begun: func() {
				out.begin()
				g.Go(func() error { l.listOpen(ctx, out); return nil })
			},
			Ended: func(r conntrack.Record) { l.ended(out, r) },
			Lost: func(events uint32) {
				l.eventsLost.Add(uint64(events))
				out.miss(lossKernel, uint64(events))
			},
		})
		if err != nil {
			l.report(fmt.Sprintf("connections cannot be followed: %s", err))
			l.log.Warn("cannot follow ends of connections, trying again", "error", err)
			pause.For(ctx, restartAfter)
		}
	}
	_ = g.Wait() // none of them fails
	out.put(line{Event: eventStop, Time: time.Now().UTC(), Node: l.node})
	stop()
	select { // a file that hangs must not hold up the end of the daemon
	case <-done:
	case <-time.After(flushWithin):
		l.log.Warn("flow log ends with lines that its file did not accept in time", "file", s.File)
	}
}

// listOpen writes a line for each connection that is open when the log begins. A connection that began while no program listened to
// conntrack events gets no other line.
func (l *Log) listOpen(ctx context.Context, out *queue) {
	err := conntrack.ListConnections(ctx, l.marks, func(r conntrack.Record) bool {
		if entry, ok := l.entry(eventOpen, r); ok {
			out.await(ctx)
			out.put(entry)
		}
		return ctx.Err() == nil
	})
	if err != nil && ctx.Err() == nil {
		l.log.Warn("cannot list the connections that are open when the flow log begins", "error", err)
	}
}

// ended writes a line about a connection that has ended.
func (l *Log) ended(out *queue, r conntrack.Record) {
	entry, ok := l.entry(eventConnection, r)
	if !ok {
		return
	}
	if r.End.IsZero() {
		r.End = entry.Time
	}
	entry.End = &r.End
	out.put(entry)
}

// entry returns the line about a connection. ok is false if the connection did not leave this node: it was steered to another, or
// it is a copy of another host's connection that never carried a packet here.
func (l *Log) entry(event string, r conntrack.Record) (entry line, ok bool) {
	if r.Counted && r.Sent.Packets+r.Received.Packets == 0 {
		return entry, false
	}
	entry = newLine(event, l.node, r)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owners == nil || l.owners.steers[r.Path] {
		return entry, false
	}
	l.owners.attribute(&entry, r)
	return entry, true
}

// report sets the reason why the log is incomplete; empty: it is not.
func (l *Log) report(trouble string) {
	l.mu.Lock()
	was := l.trouble
	l.trouble = trouble
	l.mu.Unlock()
	if was != trouble {
		l.wake()
	}
}

// ReasonFlowLogIncomplete is the reason of the Problem that the flow log lacks fields or lines.
const ReasonFlowLogIncomplete cluster.Reason = "FlowLogIncomplete"

// Problems returns problems that keep lines or their fields out of the log. The daemon changes none of these settings: they concern all
// connections of the node.
func (l *Log) Problems() (problems []cluster.Problem) {
	l.mu.Lock()
	file, trouble := l.settings.File, l.trouble
	l.mu.Unlock()
	if file == "" {
		return nil
	}
	add := func(field, value, message string) {
		problems = append(problems, cluster.Problem{
			Kind: "Node", Object: l.node, Field: field, Value: value, Reason: ReasonFlowLogIncomplete, Message: message,
		})
	}
	if trouble != "" {
		add("flowLog.file", file, trouble)
	}
	for _, s := range []struct{ name, message string }{
		{"nf_conntrack_acct", "the flow log has no bytes and packets: set it to 1, for connections that begin afterwards"},
		{"nf_conntrack_timestamp", "the flow log does not know when connections began: set it to 1, for those that begin afterwards"},
		{"nf_conntrack_events", "the kernel does not report ends of connections, so the flow log is empty: set it to 2 or 1"},
	} {
		if v, ok := sysctl.Read("net", "netfilter", s.name); ok && v == 0 {
			add(sysctl.Name("net", "netfilter", s.name), strconv.Itoa(v), s.message)
		}
	}
	return problems
}
