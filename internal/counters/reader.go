package counters

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

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

// Reader reads the kernel's counters when the metrics are scraped.
type Reader struct {
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

// NewReader returns a reader of the counters of a packet filter with marks m. With sent it also reads those of sent
// packets by ingress IP.
func NewReader(log *slog.Logger, m plan.Marks, sent bool) *Reader {
	return &Reader{log: log, marks: m, sent: sent, asked: make(chan struct{}, 1)}
}

// Traffic returns the counters. Connections are those of the last count; the call requests the next one.
func (r *Reader) Traffic() status.Traffic {
	select {
	case r.asked <- struct{}{}:
	default:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.read) >= readEvery {
		r.readCounters()
		r.failure(r.last.Err)
		r.read = now
	}
	t := r.last
	t.Ports, t.PortsKnown, t.PortsLimit = r.ports, r.ports != nil, conntrack.PortsMost
	t.Err = errors.Join(t.Err, r.failed)
	return t
}

func (r *Reader) readCounters() {
	dropped, err := r.counts.Dropped()
	r.last = status.Traffic{Dropped: make(map[string]uint64, len(dropped)), Err: err}
	for why, n := range dropped {
		r.last.Dropped[string(why)] = n.Packets
	}
	if !r.sent {
		return
	}
	sent, err := r.counts.Sent()
	r.last.Err = errors.Join(r.last.Err, err)
	r.last.Sent = make(map[netip.Addr]status.Sent, len(sent))
	for a, n := range sent {
		r.last.Sent[a] = status.Sent(n)
	}
}

// failure logs why something cannot be counted: the metrics only show that it cannot.
func (r *Reader) failure(err error) {
	if err != nil {
		r.log.Debug("the kernel's counters cannot be read", "error", err)
	}
}

// Run counts connections on request, until ctx ends.
func (r *Reader) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.asked:
		}
		began := time.Now()
		uses, err := conntrack.CountPorts(ctx, r.marks)
		ports := make(map[netip.Addr]status.InUse, len(uses))
		for a, u := range uses {
			ports[a] = status.InUse{Connections: u.Flows, Ports: u.Ports}
		}
		r.mu.Lock()
		if r.failed = err; err == nil {
			r.ports = ports
		}
		r.mu.Unlock()
		if ctx.Err() == nil {
			r.failure(err)
		}
		if !pause.For(ctx, max(countEvery, countShare*time.Since(began))) {
			return
		}
	}
}
