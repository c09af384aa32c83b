// Package chaos breaks the lab, one fault after the other, under traffic that counts every packet that gets lost or
// goes wrong, and requires it to be whole again each time. The faults, their nodes and their durations follow from a
// seed.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// Options are the settings of a run.
type Options struct {
	Containerlab string        // folder of the topologies
	Seed         uint64        // the same seed is the same schedule
	For          time.Duration // no fault begins later; zero: as many as Count says
	Count        int           // of faults; zero: as many as For allows
	Only         []string      // kinds of faults; none: all
	Out          io.Writer     // for the progress

	// For a machine that has other things to do too.
	Slower  int           // questions are asked so many times less often; zero: as often as can be
	Slack   time.Duration // limits are longer by that
	Patient bool          // nodes and routers do not take each other for dead within 300 ms, but nodes within 2 s and routers by BGP alone
}

// Result holds the results of a run.
type Result struct {
	Rows      []Row
	Failures  []string // broken promises; empty: all is well
	Brains    Brains
	Questions int    // that were answered
	Log       string // of the daemons, where something failed
}

// Run deploys the lab, breaks it, and removes it. An error means that some results are not known.
func Run(ctx context.Context, o Options) (result Result, err error) {
	kinds, err := only(o.Only)
	if err != nil {
		return result, err
	}
	r := &run{Options: o, began: time.Now(), rows: map[string]*Row{}, logs: map[string]string{}}
	on := stage.Options{API: true, BFD: !o.Patient, Nodes: stage.Nodes, Config: o.config}
	if err := furnish(o.Containerlab, &on); err != nil {
		return result, err
	}
	r.Stage, err = stage.New(ctx, o.Containerlab, on)
	if err != nil {
		return result, err
	}
	err = r.start(ctx)
	if err == nil {
		err = r.playAll(ctx, kinds)
	}
	result = r.result(kinds)
	if err != nil || len(result.Failures) > 0 {
		for _, node := range stage.Nodes {
			result.Log += fmt.Sprintf("daemon on %s:\n%s\nspeaker on %[1]s:\n%[3]s\n", node, r.logs[node]+r.Daemons[node].Log(),
				r.Speakers[node].Log())
		}
	}
	return result, errors.Join(err, r.end(), r.Close())
}

// config edits the daemons' configuration.
func (o Options) config(c string) string {
	c = withEgressIPs(c) + "moves: {keepFlows: " + keepFlows.String() + "}\n"
	if o.Patient {
		c += "failover: {bfd: {detectMultiplier: 20}}\n"
	}
	return c
}

// keepFlows is how long a host that is left on purpose stays as standby. It is short, so that a move is over in a while.
const keepFlows = 5 * time.Second

// run is one run.
type run struct {
	Options
	*stage.Stage
	began time.Time

	probe  *lab.Probe
	brains *brains
	names  *names

	now, before   identities // of the pods; before: those before the present fault, which stay valid until it is over
	host, standby string     // of web, when the lab was last whole

	rules, rulesBefore int // of the EgressFirewall and the EgressQoS, as now and before are

	rows     map[string]*Row
	failures []string
	logs     map[string]string // of each node's daemons that are no more
}

// start waits until all is served, and starts the traffic.
func (r *run) start(ctx context.Context) (err error) {
	r.now = asDeployed()
	r.before = r.now
	r.say("built; waiting until everything is served")
	if r.names, err = askNames(ctx, r.Stage); err != nil {
		return err
	}
	if r.brains, err = watchBrains(ctx, r.Stage); err != nil {
		return err
	}
	for pod, i := range r.now {
		for _, to := range outside {
			if err := r.Await(ctx, pod, to, i.host, i.source(to)); err != nil {
				return err
			}
		}
	}
	r.Witness.Reset()
	if r.probe, err = r.Probe(questions(r.now, max(1, r.Slower))...); err != nil {
		return err
	}
	if err := r.settle(ctx, time.Now()); err != nil {
		return err
	}
	r.say("whole: host %s, standby %s", r.host, r.standby)
	return nil
}

// playAll plays faults until there are enough, or until the lab stays broken: later faults would prove nothing.
func (r *run) playAll(ctx context.Context, kinds []string) error {
	for i, s := range draw(r.Seed, kinds) {
		if r.enough(i) {
			return nil
		}
		whole, err := r.play(ctx, i, s)
		if err != nil {
			return fmt.Errorf("fault %d, %s: %w", i+1, s, err)
		}
		if !whole {
			return nil
		}
	}
	return nil
}

// enough reports whether the run ends after so many faults.
func (r *run) enough(faults int) bool {
	return r.Count > 0 && faults >= r.Count || r.For > 0 && time.Since(r.began) > r.For
}

// end stops the watchers.
func (r *run) end() error {
	if r.brains != nil {
		r.brains.end()
	}
	if r.names != nil {
		r.names.end()
	}
	if r.probe == nil {
		return nil
	}
	return r.probe.Stop()
}

// result returns the results so far.
func (r *run) result(kinds []string) Result {
	result := Result{Rows: r.table(kinds), Failures: r.failures}
	if r.probe != nil {
		for _, report := range r.probe.Between(r.began, r.began) {
			result.Questions += report.Answered
		}
	}
	if r.brains != nil {
		result.Brains = r.brains.longest()
	}
	if b := result.Brains; b.Longest > splitLimit+r.Slack {
		result.Failures = append(result.Failures, fmt.Sprintf("%s: sent to two nodes for %d ms, may do so for %d ms",
			b.Where, b.Longest.Milliseconds(), splitLimit.Milliseconds()))
	}
	return result
}

// settleLimit is how long the lab may take to be whole again. It is long, so that a slow machine does not look like a
// fault that is never mended: how long each fault may be felt is another limit.
const settleLimit = 90 * time.Second

// play plays one fault, and judges it. It reports whether the lab is whole afterwards.
func (r *run) play(ctx context.Context, number int, s step) (whole bool, err error) {
	f := faults[s.kind]
	s.node = r.cast(s.role)
	in := incident{began: time.Now()}
	r.Witness.Reset()
	if f.dead != nil {
		in.dead = f.dead(r, &s)
	}
	if err := f.inject(ctx, r, &s); err != nil {
		in.errs = append(in.errs, fmt.Errorf("it did not begin: %w", err))
	}
	if f.heal != nil {
		if err := pause(ctx, s.hold); err != nil {
			return false, err
		}
		s.healed = time.Now()
		if err := f.heal(ctx, r, &s); err != nil {
			in.errs = append(in.errs, fmt.Errorf("it did not end: %w", err))
		}
		in.healed = s.healed
	}
	unsettled := r.settle(ctx, time.Now())
	if err := ctx.Err(); err != nil {
		return false, err
	}
	in.settled = time.Now()
	if unsettled != nil {
		in.errs = append(in.errs, unsettled)
	} else {
		// Questions up to the next fault belong to this one, and whether one is lost is known a second later.
		rest := max(s.pause, judged)
		if f.moves {
			rest = max(rest, keepFlows+judged)
		}
		err = pause(ctx, rest)
	}
	in.step, in.ended = s, time.Now().Add(-judged)
	r.judge(number, in)
	r.before, r.rulesBefore = r.now, r.rules
	r.expect()
	return unsettled == nil, err
}

// judged is how long after a question its result is known.
const judged = 1100 * time.Millisecond

// cast finds who plays a role.
func (r *run) cast(role int) string {
	for _, node := range stage.Nodes {
		if node != r.host && node != r.standby {
			return [...]string{r.host, r.standby, node}[role]
		}
	}
	return r.host
}

func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.Out, "%7.1f s  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// only is the kinds named, or all.
func only(names []string) ([]string, error) {
	if len(names) == 0 {
		return kinds(), nil
	}
	for _, n := range names {
		if _, ok := faults[n]; !ok {
			return nil, fmt.Errorf("no fault %q: must be one of %q", n, kinds())
		}
	}
	return slices.Clone(names), nil
}
