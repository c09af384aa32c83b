package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/kernel/nft"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/status"
)

const (
	// readEvery is the shortest time between two reads of the kernel's counters, however many clients scrape the
	// metrics.
	readEvery = time.Second
	// countEvery is the shortest time between two counts of connections. The kernel scans its whole table for a count,
	// so counting uses at most one part in countShare of a core.
	countEvery = 30 * time.Second
	countShare = 200
)

// counting reads the kernel's counters when the metrics are scraped.
type counting struct {
	log    *slog.Logger
	marks  plan.Marks
	sent   bool // count sent packets by ingress IP
	asked  chan struct{}
	mu     sync.Mutex // guards the fields below
	counts nft.Counts
	last   status.Traffic
	read   time.Time
	ports  map[netip.Addr]status.InUse // nil: not counted yet
	failed error                       // error of the last count
}

func newCounting(log *slog.Logger, m plan.Marks, sent bool) *counting {
	return &counting{log: log, marks: m, sent: sent, asked: make(chan struct{}, 1)}
}

// traffic returns the counters. Connections are those of the last count; the call requests the next one.
func (c *counting) traffic() status.Traffic {
	select {
	case c.asked <- struct{}{}:
	default:
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.read) >= readEvery {
		c.readCounters()
		c.failure(c.last.Err)
		c.read = now
	}
	t := c.last
	t.Ports, t.PortsKnown, t.PortsLimit = c.ports, c.ports != nil, conntrack.PortsMost
	t.Err = errors.Join(t.Err, c.failed)
	return t
}

func (c *counting) readCounters() {
	dropped, err := c.counts.Dropped()
	c.last = status.Traffic{Dropped: make(map[string]uint64, len(dropped)), Err: err}
	for why, n := range dropped {
		c.last.Dropped[string(why)] = n.Packets
	}
	if !c.sent {
		return
	}
	sent, err := c.counts.Sent()
	c.last.Err = errors.Join(c.last.Err, err)
	c.last.Sent = make(map[netip.Addr]status.Sent, len(sent))
	for a, n := range sent {
		c.last.Sent[a] = status.Sent(n)
	}
}

// failure logs why something cannot be counted: the metrics only show that it cannot.
func (c *counting) failure(err error) {
	if err != nil {
		c.log.Debug("the kernel's counters cannot be read", "error", err)
	}
}

// run counts connections on request, until ctx ends.
func (c *counting) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.asked:
		}
		began := time.Now()
		uses, err := conntrack.CountPorts(ctx, c.marks)
		ports := make(map[netip.Addr]status.InUse, len(uses))
		for a, u := range uses {
			ports[a] = status.InUse{Connections: u.Flows, Ports: u.Ports}
		}
		c.mu.Lock()
		if c.failed = err; err == nil {
			c.ports = ports
		}
		c.mu.Unlock()
		if ctx.Err() == nil {
			c.failure(err)
		}
		if !pause.For(ctx, max(countEvery, countShare*time.Since(began))) {
			return
		}
	}
}

// Appliers of a pass besides those of the kernel.
const (
	applyBGP         = "bgp"
	applyConnections = "connections"
)

// expect initialises the counters of possible failures to zero.
func (a *Agent) expect() {
	var drifts []string
	for _, d := range kernel.Drifts() {
		drifts = append(drifts, string(d))
	}
	a.status.Expect([]string{string(kernel.ApplyRoutes), string(kernel.ApplyRules), string(kernel.ApplyTable), applyBGP, applyConnections}, drifts)
}

// took adds the result of a kernel Apply to the metrics.
func (a *Agent) took(r kernel.Result) {
	for _, s := range r.Steps {
		a.status.Applied(string(s.Applier), s.Took, s.Err)
	}
	for kind, n := range r.Drift {
		a.status.Repaired(string(kind), n)
	}
}
