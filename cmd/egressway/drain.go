package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/internal/text"
)

func newDrainCommand() *cobra.Command {
	var socket string
	var undo bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "drain [--undo] [--timeout DURATION] [--socket PATH]",
		Short: "Move this node's services to other nodes, before maintenance",
		Long: `Move all EgressServices off this node, and wait until it is the host of none, and is no longer kept as standby for flows
from the time when it was (moves.keepFlows of the configuration). A service that no other node can serve stays. EgressServices with
sourceIPBy: Network do not move: every node serves its own pods.

Needs an API server as source: with manifests, set spec.unschedulable of the Node. "kubectl cordon" moves services, too.

The node serves no EgressService until --undo, or until the daemon starts again.

Exit codes: 0 the node is drained; 1 an error, or the timeout came first: the node continues to drain.`,
		Example: `  egressway drain && systemctl reboot
  egressway drain --undo`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			within := timeout
			if undo || timeout <= 0 { // the daemon gets the order though the command does not wait
				within = orderWithin
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), within)
			defer cancel()
			err := status.Drain(ctx, socket, !undo)
			switch {
			case errors.Is(err, status.ErrNoDaemon):
				return noDaemon(err)
			case errors.Is(err, context.DeadlineExceeded):
				return fmt.Errorf("the daemon on socket %s did not answer within %s: see its log; it may have the order nevertheless",
					socket, within)
			case err != nil || undo:
				return err
			}
			return awaitDrained(ctx, cmd.OutOrStdout(), socket, timeout)
		},
	}
	c.Flags().BoolVar(&undo, "undo", false, "serve EgressServices again")
	c.Flags().DurationVar(&timeout, "timeout", drainedWithin, "how long to wait")
	socketFlag(c, &socket)
	return c
}

const (
	// quietFor is how long a node that the leader knows to drain must have had no role: the leader may just have elected it, and other
	// nodes may still send packets to it.
	quietFor = 2 * time.Second
	// orderWithin is how long the daemon may take to answer an order for whose effect drain does not wait.
	orderWithin = 10 * time.Second
	// drainedWithin is how long drain waits unless asked otherwise.
	drainedWithin = 2 * time.Minute
	// repeatAfter is the pause between equal lines.
	repeatAfter = 10 * time.Second
)

// awaitDrained follows the daemon's status until its node is drained, and writes the progress.
func awaitDrained(ctx context.Context, out io.Writer, socket string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	reports, failed := make(chan status.Report), make(chan error, 1)
	go func() {
		defer close(failed)
		failed <- status.Follow(ctx, socket, func(r status.Report) error {
			select {
			case reports <- r:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	var last status.Report
	p := progress{out: out}
	tick := time.NewTicker(quietFor / 2)
	defer tick.Stop()
	known := false
	for {
		select {
		case last = <-reports:
			known = true
		case <-tick.C:
		case err := <-failed:
			if err != nil {
				return err
			}
			if !known {
				return fmt.Errorf("the daemon on socket %s did not report its status within %s", socket, timeout)
			}
			return fmt.Errorf("node %s is not drained after %s: %s; it continues to drain", last.Node, timeout, remaining(last))
		}
		if known && p.update(last, time.Now()) {
			cancel()
			for range failed { // wait for the end of the goroutine
			}
			return nil
		}
	}
}

// progress writes lines about a draining node: each when it changes, then every repeatAfter.
type progress struct {
	out      io.Writer
	lastLine string
	at       time.Time
	flows    time.Time // since when only flows remain
	quiet    time.Time // since when the node has no role, and the leader knows that it drains
}

// update writes news from a report, and reports whether the node is drained.
func (p *progress) update(r status.Report, now time.Time) (drained bool) {
	hosted, backed := len(r.Hosted()), len(r.Backed())
	p.noteQuiet(r, hosted+backed, now)
	var line, passed string
	switch {
	case r.Unknowing:
		line = "waiting: the daemon does not know all objects yet since its start"
	case hosted > 0:
		p.flows = time.Time{}
		line = services(hosted) + " moving"
	case backed > 0:
		p.flows = cmp.Or(p.flows, now)
		line = "waiting for the flows of " + services(backed)
		passed = fmt.Sprintf(" (%s)", now.Sub(p.flows).Round(time.Second))
	case p.quiet.IsZero() || now.Sub(p.quiet) < quietFor:
		return false
	default:
		fmt.Fprintln(p.out, text.Line("node "+r.Node+" is drained"))
		return true
	}
	if line != p.lastLine || now.Sub(p.at) >= repeatAfter {
		p.lastLine, p.at = line, now
		fmt.Fprintln(p.out, line+passed)
	}
	return false
}

// noteQuiet notes since when the node has no role, and the leader knows that it drains.
func (p *progress) noteQuiet(r status.Report, roles int, now time.Time) {
	if !r.DrainReported || r.Unknowing || roles > 0 {
		p.quiet = time.Time{}
		return
	}
	p.quiet = cmp.Or(p.quiet, now)
}

func services(n int) string {
	if n == 1 {
		return "1 service"
	}
	return fmt.Sprintf("%d services", n)
}

// remaining describes why a node is not drained.
func remaining(r status.Report) string {
	var parts []string
	for _, p := range []struct {
		role  string
		names []string
	}{{"host of ", r.Hosted()}, {"standby of ", r.Backed()}} {
		const few = 5
		switch n := len(p.names); {
		case n > few:
			parts = append(parts, fmt.Sprintf("%s%s and %d more", p.role, strings.Join(p.names[:few], ", "), n-few))
		case n > 0:
			parts = append(parts, p.role+strings.Join(p.names, ", "))
		}
	}
	switch {
	case r.Unknowing:
		return "the daemon does not know all objects yet"
	case len(parts) == 0 && !r.DrainReported:
		return "the API server does not have its report that it drains, so the leader does not know"
	case len(parts) == 0:
		return "until a moment ago it was host or standby of services"
	}
	return "it is still " + strings.Join(parts, ", and ")
}
