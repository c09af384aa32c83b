package status

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/egressway/egressway/internal/plan"
)

// beatLimit is how long the loop may be silent before it counts as stuck.
const beatLimit = time.Minute

// Status holds the current report and serves it. Its methods may be called concurrently.
type Status struct {
	version, node string
	started       time.Time
	beat          atomic.Pointer[time.Time] // last sign of life of the loop
	current       atomic.Pointer[published]
	connections   atomic.Pointer[[2]uint32] // entries of the kernel's table, and their limit; nil: unknown
	drain         func(yes bool) error      // nil: not supported
	page          func(io.Writer, Report) error
	mayGet        func(ctx context.Context, token, path string) (user string, allowed bool, err error)

	registry *prometheus.Registry
	passes   *prometheus.CounterVec
	seconds  prometheus.Histogram
	ended    prometheus.Counter
	measures *measures

	traffic    func() Traffic // the kernel's counters
	names      func() []Name  // nil: no names are known
	perService bool           // serve metrics of each EgressService
}

// published is a report, made on the first request, and a signal that a newer one exists.
type published struct {
	report     func() Report
	plan       *plan.NodePlan // nil: none yet
	applied    time.Time
	unknowing  bool
	superseded chan struct{} // closed when a newer one is published
}

// New returns the status of a daemon that starts now.
func New(version, node string) *Status {
	s := &Status{
		version: version, node: node, started: time.Now(),
		registry: prometheus.NewRegistry(),
		passes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "egressway_passes_total", Help: "Passes of the loop, by result.",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "egressway_pass_duration_seconds", Help: "How long passes of the loop took.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15),
		}),
		ended: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "egressway_connections_ended_total", Help: "Connections that were ended because they contradicted the plan.",
		}),
	}
	for _, result := range []string{resultOK, resultError} {
		s.passes.WithLabelValues(result) // so that the first one shows as an increase
	}
	none := Pass{Unknowing: true}
	s.current.Store(s.published(none, func() Report { return From(nil, nil, nil, none) }))
	s.Beat()
	s.measures = newMeasures(s.registry)
	s.registry.MustRegister(s.passes, s.seconds, s.ended, reportCollector{s},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return s
}

const (
	resultOK    = "ok"
	resultError = "error"
)

// Publish replaces the current report by that of a pass, which is made once, on the first request. It does not count a
// pass that ended at the same time as the previous one.
func (s *Status) Publish(p Pass, report func() Report) {
	s.Beat()
	next := s.published(p, report)
	last := s.current.Swap(next)
	if !next.applied.Equal(last.applied) {
		result := resultOK
		if p.Err != nil {
			result = resultError
		}
		s.passes.WithLabelValues(result).Inc()
		s.seconds.Observe(p.Ended.Sub(p.Began).Seconds())
		s.ended.Add(float64(p.ConnectionsEnded))
	}
	close(last.superseded)
}

func (s *Status) published(p Pass, report func() Report) *published {
	return &published{
		report: sync.OnceValue(func() Report { return s.sign(report()) }),
		plan:   p.Plan, applied: p.Ended, unknowing: p.Unknowing, superseded: make(chan struct{}),
	}
}

// OnDrain makes f handle requests on the socket to drain this node, or to stop draining. An error of f is the reason of
// its refusal. Call OnDrain before Serve.
func (s *Status) OnDrain(f func(yes bool) error) { s.drain = f }

// OnPicture makes f draw the current report as a page of HTML for browsers that request one on the socket. Call it
// before Serve.
func (s *Status) OnPicture(f func(io.Writer, Report) error) { s.page = f }

// OnToken makes f judge the tokens of clients that read metrics: it returns the user, empty if the token is not accepted, and whether the
// user may get the path. Call it before Serve.
func (s *Status) OnToken(f func(ctx context.Context, token, path string) (user string, allowed bool, err error)) {
	s.mayGet = f
}

// Await waits for a report for which wanted returns true. It returns false if ctx ends first.
func (s *Status) Await(ctx context.Context, wanted func(Report) bool) bool {
	for {
		p := s.current.Load()
		if wanted(p.report()) {
			return true
		}
		select {
		case <-p.superseded:
		case <-ctx.Done():
			return false
		}
	}
}

// Count adds a counter egressway_name_total to the metrics; value is read on each scrape. Call it before Serve.
func (s *Status) Count(name, help string, value func() uint64) {
	s.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "egressway_" + name + "_total", Help: help},
		func() float64 { return float64(value()) }))
}

// SetConnections sets how many connections the kernel tracks and how many it may track.
func (s *Status) SetConnections(entries, limit uint32) {
	s.connections.Store(&[2]uint32{entries, limit})
}

// Beat records that the loop is alive although it has nothing to publish.
func (s *Status) Beat() {
	now := time.Now()
	s.beat.Store(&now)
}

// Report returns the current report, with the DNS names as of now: answers change them between passes.
func (s *Status) Report() Report {
	r := s.current.Load().report()
	r.Names = s.known()
	return r
}

// OnNames makes f list the DNS names of EgressFirewalls with the addresses that are in force. Call it before Serve.
func (s *Status) OnNames(f func() []Name) { s.names = f }

func (s *Status) known() names {
	if s.names == nil {
		return nil
	}
	return s.names()
}

func (s *Status) sign(r Report) Report {
	r.Node, r.Version, r.Started = s.node, s.version, s.started
	r.Ready = r.Ready && r.unserved() == ""
	return r
}
