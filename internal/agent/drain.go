package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/status"
)

// draining says that this node is about to go. It is not stored: a daemon that starts again takes services again.
type draining struct {
	mu      sync.Mutex
	asked   bool // serve nothing
	leaving bool // announce nothing
}

func (d *draining) wanted() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

// left reports whether the daemon is leaving.
func (d *draining) left() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leaving
}

func (d *draining) set(change func(*draining)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(d)
}

var errNoLeader = errors.New("draining needs an API server: objects come from source.manifests, " +
	"where every node elects by itself and no leader moves services; " +
	"set spec.unschedulable of the Node in the manifests instead")

// drain makes this node's services move away, or cancels that.
func (a *Agent) drain(yes bool) error {
	if a.server == nil {
		return errNoLeader
	}
	a.draining.set(func(d *draining) { d.asked = yes })
	a.log.Info("asked to drain", "drain", yes)
	a.wake()
	return nil
}

// drainReported reports whether the leader can read that this node drains.
func (a *Agent) drainReported() bool {
	return a.draining.wanted() && a.server != nil && a.server.DrainReported()
}

// drainOnStop waits for the signal to stop, and then, if so configured, until this node's services have moved. After
// that it withdraws all announcements: flows that still use this node do so through the kernel's state, which stays. If
// services did not move in time, everything stays announced, as without draining. It also returns when ctx ends.
func (a *Agent) drainOnStop(ctx, stop context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-stop.Done():
	}
	a.mu.Lock()
	c := a.config
	a.mu.Unlock()
	if a.server == nil || c.OnStop != config.OnStopDrain {
		return
	}
	within := time.Duration(c.Moves.Within)
	a.log.Info("asked to stop: services move to other nodes first", "within", within)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	a.draining.set(func(d *draining) { d.asked = true })
	a.wake()
	moved := func(r status.Report) bool { return r.DrainReported && !r.Unknowing && len(r.Hosted()) == 0 }
	if !a.status.Await(ctx, moved) {
		a.log.Warn("services did not move in time, announcements stay", "egressservices", a.status.Report().Hosted())
		return
	}
	a.draining.set(func(d *draining) { d.leaving = true })
	a.wake()
	quiet := func(r status.Report) bool {
		for s := range r.Rows() {
			if len(s.Announced) > 0 {
				return false
			}
		}
		return true
	}
	if !a.status.Await(ctx, quiet) {
		a.log.Warn("cannot withdraw this node's announcements in time")
		return
	}
	a.log.Info("services have moved, nothing is announced any more")
}
