// Package agent ties sources, plan and appliers together on one node. Whatever happens only wakes the loop; each pass
// takes everything that is known, plans the node anew, and makes kernel and speakers equal to the plan.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/status"
)

const (
	// retryAfter is the pause after a pass with errors; what failed often waits for an event that wakes the loop anyway.
	retryAfter = time.Second
	// beatEvery is how often an idle loop shows that it lives.
	beatEvery = 10 * time.Second
	// tellWithin is how long a peer may take to tell its routes once a session is established.
	tellWithin = 5 * time.Second
	// settleWithin is how long routes of an earlier run stay for peers that do not come back.
	settleWithin = 2 * time.Minute
	// restartAfter is the pause before a watch that failed is started again.
	restartAfter = time.Second
	// closeWithin bounds the orderly end of the speakers.
	closeWithin = 5 * time.Second
)

// Agent is the daemon on one node.
type Agent struct {
	log        *slog.Logger
	configFile string
	kernel     *kernel.Node
	speakers   *bgp.Speakers
	status     *status.Status
	awake      chan struct{}

	mu     sync.Mutex // guards what watches hand to the loop
	config *config.Config
	stale  error // why the file that is there now is not in force

	source  source
	started time.Time
	last    last
}

// last is what the loop remembers of its last pass; losing it costs a little work, nothing else.
type last struct {
	plan      *plan.NodePlan
	announced map[string][]plan.Announcement
	problems  []cluster.Problem
	errors    string
	applied   uint64          // the newest EgressService reported to be in force
	settled   map[string]bool // networks whose peers have told what they know, once
	lead      leadership
}

// Run serves until ctx ends. c is what configFile holds; changes of the file are taken up as they come. What is in force
// in the kernel stays when Run returns.
func Run(ctx context.Context, log *slog.Logger, configFile string, c *config.Config, version string) error {
	node, err := kernel.Open()
	if err != nil {
		return err
	}
	defer node.Close()
	if err := node.CheckRival(); kernel.IsRival(err) {
		return err
	} else if err != nil {
		log.Warn("this node could not be looked over for another that serves EgressServices", "error", err)
	}
	a := &Agent{
		log: log, configFile: configFile, kernel: node, status: status.New(version, c.Node),
		awake: make(chan struct{}, 1), config: c, started: time.Now(), last: last{settled: map[string]bool{}},
	}
	a.speakers = bgp.New(log, a.wake)
	log.Info("starting", "node", c.Node, "version", version, "config", configFile)

	g, ctx := errgroup.WithContext(ctx)
	a.source = newSource(log, c, version, a.wake)
	g.Go(func() error { return a.status.Serve(ctx, c.Status) })
	g.Go(func() error { return a.again(ctx, "kernel events", func() error { return kernel.Watch(ctx, a.wake) }) })
	g.Go(func() error {
		return a.again(ctx, "configuration", func() error { return config.Watch(ctx, configFile, a.reload) })
	})
	g.Go(func() error { a.source.Run(ctx); return nil })
	g.Go(func() error { a.loop(ctx); return nil })
	err = g.Wait()

	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
	defer cancel()
	graceful := a.config.BGP.GracefulRestart.Enabled
	log.Info("stopping; what is in the kernel stays in force", "gracefulRestart", graceful)
	return errors.Join(err, a.speakers.Close(closing, graceful))
}

func (a *Agent) wake() {
	select {
	case a.awake <- struct{}{}:
	default: // a pass is due already, it will see this change too
	}
}

// again runs a watch until ctx ends, starting it anew when it fails.
func (a *Agent) again(ctx context.Context, what string, watch func() error) error {
	for {
		err := watch()
		if ctx.Err() != nil {
			return nil
		}
		a.log.Warn("watch ended, starting it again", "watch", what, "error", err)
		if !sleep(ctx, restartAfter) {
			return nil
		}
		a.wake()
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// reload takes a changed configuration up, or keeps the last good one.
func (a *Agent) reload(c *config.Config, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stale = err
	switch {
	case err != nil:
		a.log.Error("configuration refused, the last good one stays in force", "file", a.configFile, "error", err)
	case c.Node != a.config.Node || c.Source != a.config.Source || c.Status != a.config.Status || c.Marks != a.config.Marks:
		a.stale = errors.New("node, source, status and marks change with a restart only: the last configuration stays in force")
		a.log.Error("configuration refused", "file", a.configFile, "error", a.stale)
	default:
		a.config = c
	}
	a.wake()
}

// loop runs a pass whenever something changed, and again a little later when one had errors.
func (a *Agent) loop(ctx context.Context) {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			if a.last.plan == nil || len(a.last.plan.Held) == 0 {
				a.status.Beat()
				continue
			}
		case <-a.awake:
		case <-retry.C:
		}
		a.status.Beat()
		if err := a.pass(ctx); err != nil || a.last.lead.waiting {
			retry.Reset(retryAfter)
		}
	}
}

// pass brings this node to what the sources, the kernel and the peers say now.
func (a *Agent) pass(ctx context.Context) error {
	began := time.Now()
	a.mu.Lock()
	c, stale := a.config, a.stale
	a.mu.Unlock()
	objects, problems, ok := a.source.Objects()
	pass := status.Pass{Began: began, ConfigStale: stale != nil}
	if stale != nil {
		problems = append(slices.Clone(problems), configProblems(a.configFile, stale)...)
	}
	if !ok { // nothing is known yet: what is in force stays
		pass.Ended = time.Now()
		a.status.Publish(status.From(nil, problems, nil, pass)) // the source has logged them
		return nil
	}
	found, err := a.plan(ctx, c, objects)
	if err == nil {
		problems = append(slices.Clone(problems), found...)
		var result kernel.Result
		result, err = a.apply(ctx, a.last.plan)
		pass.InForce, pass.ConnectionsEnded = result.InForce, result.Ended
		a.report(c, objects, result.InForce)
		a.lead(c, objects, problems)
	}
	if ctx.Err() != nil {
		return nil // stopping: half a pass is no failure
	}
	a.logErrors(err)
	pass.Ended, pass.Err, pass.Announced = time.Now(), err, prefixes(a.last.announced)
	a.status.Publish(status.From(a.last.plan, a.tell(problems), a.speakers.Sessions(), pass))
	return err
}

// plan plans this node anew.
func (a *Agent) plan(ctx context.Context, c *config.Config, objects cluster.Objects) ([]cluster.Problem, error) {
	var tables []uint32
	for _, n := range c.Networks {
		tables = append(tables, n.Table)
	}
	facts, err := a.kernel.Facts(ctx, tables...)
	if err != nil {
		return nil, err
	}
	unsettled := a.unsettled(c) // before the routes are read: they are complete then
	desired, problems := plan.Build(plan.Snapshot{
		Node: c.Node, Config: c, Objects: objects, Hosts: a.source.hosts(objects), Facts: facts,
		Learned: a.speakers.Learned(), Unsettled: unsettled,
	})
	a.last.plan = desired
	local, err := a.kernel.Problems(c.Node, devices(desired, facts))
	if err != nil {
		a.log.Debug("this node could not be looked over for what gets in the way", "error", err)
	}
	return append(problems, local...), nil
}

// unsettled names the networks whose peers may still hold back what they told an earlier run of the daemon: its routes
// stay meanwhile, or every start would be a gap.
func (a *Agent) unsettled(c *config.Config) (names []string) {
	sessions := a.speakers.Sessions()
	for _, n := range c.Networks {
		if a.last.settled[n.Name] {
			continue
		}
		told := slices.ContainsFunc(sessions, func(s bgp.Session) bool { return s.Network == n.Name })
		for _, s := range sessions {
			told = told && (s.Network != n.Name || s.Up && time.Since(s.Since) > tellWithin)
		}
		if len(n.Peers) == 0 || told || time.Since(a.started) > settleWithin {
			a.last.settled[n.Name] = true
			continue
		}
		names = append(names, n.Name)
	}
	return names
}

// apply withdraws first and announces last: no peer sends packets that the kernel is not ready for.
func (a *Agent) apply(ctx context.Context, desired *plan.NodePlan) (kernel.Result, error) {
	withdraw := a.speakers.Withdraw(ctx, desired.Speakers)
	result, err := a.kernel.Apply(ctx, desired)
	speakers := desired.Speakers
	if !result.InForce {
		speakers = a.onlyAnnounced(speakers)
	}
	announce := a.speakers.Apply(ctx, speakers)
	a.last.announced = map[string][]plan.Announcement{}
	for _, s := range speakers {
		a.last.announced[s.Network] = s.Announce
	}
	return result, errors.Join(withdraw, err, announce)
}

// onlyAnnounced leaves out what is not announced yet, and keeps the rest from being preferred more than it is.
func (a *Agent) onlyAnnounced(speakers []plan.Speaker) []plan.Speaker {
	speakers = slices.Clone(speakers)
	for i, s := range speakers {
		now := map[netip.Prefix]plan.Announcement{}
		for _, had := range a.last.announced[s.Network] {
			now[had.Prefix] = had
		}
		speakers[i].Announce = nil
		for _, wanted := range s.Announce {
			had, ok := now[wanted.Prefix]
			if ok && !wanted.Standby {
				wanted = had
			}
			if ok {
				speakers[i].Announce = append(speakers[i].Announce, wanted)
			}
		}
	}
	return speakers
}

// prefixes is what is announced in each network, in whatever way.
func prefixes(announced map[string][]plan.Announcement) map[string][]netip.Prefix {
	all := make(map[string][]netip.Prefix, len(announced))
	for network, announcements := range announced {
		for _, a := range announcements {
			all[network] = append(all[network], a.Prefix)
		}
	}
	return all
}

// devices lists the interfaces that selected pods' packets pass, for which settings of the kernel matter.
func devices(p *plan.NodePlan, f plan.Facts) (all []string) {
	for _, u := range p.DataPlane.Uplinks {
		all = append(all, u.Device)
	}
	for _, path := range p.DataPlane.Paths {
		all = append(all, path.Devices...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return slices.DeleteFunc(all, func(device string) bool {
		return !slices.ContainsFunc(f.Links, func(l plan.Link) bool { return l.Name == device })
	})
}

// configProblems turns why a configuration was refused into problems, one an error.
func configProblems(file string, err error) []cluster.Problem {
	var all config.Errors
	if !errors.As(err, &all) {
		return []cluster.Problem{{Kind: "Config", Object: file, Reason: reasonConfigRefused, Message: err.Error()}}
	}
	problems := make([]cluster.Problem, 0, len(all))
	for _, e := range all {
		problems = append(problems, cluster.Problem{Kind: "Config", Object: file, Reason: reasonConfigRefused, Message: fmt.Sprint(e)})
	}
	return problems
}

const reasonConfigRefused cluster.Reason = "ConfigRefused"

// logErrors logs the errors of a pass when they change.
func (a *Agent) logErrors(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text == a.last.errors {
		return
	}
	a.last.errors = text
	if err != nil {
		a.log.Error("pass failed in part, will be tried again", "error", text)
		return
	}
	a.log.Info("pass complete, earlier errors are gone")
}

// tell sorts the problems and logs those that come and go.
func (a *Agent) tell(problems []cluster.Problem) []cluster.Problem {
	problems = cluster.SortProblems(problems)
	for _, p := range problems {
		if !slices.Contains(a.last.problems, p) {
			a.log.Warn("problem", "kind", p.Kind, "object", p.Object, "reason", p.Reason, "problem", p.Error())
		}
	}
	for _, p := range a.last.problems {
		if !slices.Contains(problems, p) {
			a.log.Info("problem gone", "kind", p.Kind, "object", p.Object, "reason", p.Reason)
		}
	}
	a.last.problems = problems
	return problems
}
