// Package agent connects sources, plan and appliers on one node. Events only wake the loop; each pass takes a snapshot
// of the sources, updates the plan by what changed since the last pass, and makes kernel and speakers equal to the
// plan.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/counters"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/flowlog"
	"github.com/egressway/egressway/internal/flows"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/kernel/preflight"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/leader"
	"github.com/egressway/egressway/internal/liveness"
	"github.com/egressway/egressway/internal/namesets"
	"github.com/egressway/egressway/internal/nodewise"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/picture"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/problemlog"
	"github.com/egressway/egressway/internal/speaker"
	"github.com/egressway/egressway/internal/status"
)

const (
	// retryAfter is the pause after a pass with errors; many failures end with an event that wakes the loop anyway.
	retryAfter = time.Second
	// beatEvery is how often an idle loop shows that it is alive.
	beatEvery = 10 * time.Second
	// announceWithin is how long a peer may take to announce its routes after its session is established.
	announceWithin = 5 * time.Second
	// settleWithin is how long routes of an earlier run stay if their peers do not come back.
	settleWithin = 2 * time.Minute
	// restartAfter is the pause before a watch that failed is started again.
	restartAfter = time.Second
	// speakerWithin is how long the first pass waits for the speaker.
	speakerWithin = 5 * time.Second
)

// Agent is the daemon on one node.
type Agent struct {
	log        *slog.Logger
	configFile string
	kernel     nodeKernel
	speakers   nodeSpeakers
	flows      *flows.Carrier
	flowLog    *flowlog.Log
	names      *namesets.Sets
	status     *status.Status
	awake      chan struct{} // by sources, peers or operators
	drifted    chan struct{} // by events of the kernel
	pace       pace          // of passes that drifted asks for

	mu     sync.Mutex // guards the fields that watches hand to the loop
	config *config.Config
	stale  error // why the current file is not in force

	source   nodeSource
	server   following      // the source, where it is an API server; nil: it is not
	leader   *leader.Leader // nil: every node elects for itself
	planner  plan.Planner
	started  time.Time
	draining draining
	last     last

	asking    atomic.Bool               // an API server is being asked whether the known objects are current
	confirmed atomic.Pointer[time.Time] // when they were last known to be current
}

// last is the loop's state between passes. It is not stored: a daemon that starts derives it from API, kernel and
// speaker.
type last struct {
	nodewise    nodewise.Resolver
	config      *config.Config
	kernel      kernel.Record   // our objects in the kernel, as of the last pass
	changed     cluster.Changed // not planned yet
	losses      problemlog.Losses
	refused     []route.Refused // examples of the planned routes that the kernel lacks
	usage       conntrackUsage
	unmade      []string // VRF devices and VLAN sub-interfaces, sorted
	plan        *plan.NodePlan
	planned     []cluster.Problem // of the objects, found by that plan
	local       []cluster.Problem // of this node, found with it
	restless    bool              // the last pass failed, changed the plan, or restored missing objects
	problems    problemlog.Log
	errors      string
	inForce     inForce
	sent        cluster.Report // the last one to the leader
	reported    bool           // to the leader, since the daemon started
	settling    settling
	replacement replacement // of the speaker
	refusal     refusal     // of plans, by the kernel
	routed      map[uint32]plan.Families
	down        map[string]bool // links, by name
	others      others
	choices     election.Local
	sweep       sweep
	planChange  cluster.Changed // of the last plan
	roles       roles
	holdDown    liveness.HoldDown
	confirmed   *time.Time // when the API server was asked whether the objects of the last pass were current; nil: never
	onLink      onLink
	gaveBack    bool // memory used by the start was returned
}

// settling tracks whose routes a new speaker has learned.
type settling struct {
	speaker time.Time       // start time of the speaker that the last pass used
	since   time.Time       // when that speaker was first seen
	done    map[string]bool // networks whose peers have announced their routes to it once
}

// others tracks the other nodes: which to watch, which are dead, and the failover from them.
type others struct {
	watching []string   // the nodes to watch
	peers    []bfd.Peer // the nodes to watch, and all that may watch this one
	detector liveness.Detector
	nodes    liveness.View // as the detector last saw them
	stands   bool          // the packet filter has been in force since the daemon started
	failing  bool          // the dead nodes have changed, which is not in force yet
	failover failover
}

// Run serves until ctx ends. c is the content of configFile; Run follows changes of the file, and reads it again when
// again receives a signal. The state in the kernel stays in force when Run returns.
func Run(ctx context.Context, log *slog.Logger, configFile string, c *config.Config, version string, again <-chan os.Signal) error {
	node, err := kernel.Open()
	if err != nil {
		return err
	}
	defer node.Close()
	if err := node.CheckRival(); preflight.IsRival(err) {
		return err
	} else if err != nil {
		log.Warn("cannot check this node for another program that serves EgressServices", "error", err)
	}
	node.OnLeftOut(func(route string) {
		log.Warn("left a default route of a released interface out of the main table, which has one", "route", route)
	})
	a := &Agent{
		log: log, configFile: configFile, kernel: node, flows: flows.New(log, c.Node, marks(c)), status: status.New(version, c.Node),
		awake: make(chan struct{}, 1), drifted: make(chan struct{}, 1), config: c, started: time.Now(),
	}
	node.HandOver = a.flows.HandOver
	a.flowLog = flowlog.New(log, c.Node, marks(c), a.wake)
	a.names = namesets.New(log, node, a.wake)
	a.speakers = speaker.NewClient(speaker.ClientOptions{
		Log: log, Socket: c.Speaker.Socket, Version: version, Start: speakerCommand(c), Wake: a.wake,
	})
	log.Info("starting", "node", c.Node, "version", version, "config", configFile)

	stop := ctx
	ctx, end := context.WithCancel(context.WithoutCancel(ctx)) // the daemon may drain its node before it ends
	defer end()
	g, ctx := errgroup.WithContext(ctx)
	a.setSource(openSource(log, c, version, a.wake))
	a.status.OnDrain(a.drain)
	a.status.OnPicture(picture.WritePage)
	if a.server != nil {
		a.status.OnToken(a.server.MayGet)
		g.Go(func() error { a.status.FollowNode(ctx, a.server.ReportNode); return nil })
	}
	counters.Flows(a.status, a.flows.Counters)
	counters.FlowLog(a.status, a.flowLog.Counters)
	a.status.OnNames(a.names.Known)
	a.status.OnAnswers(a.names.Counts)
	counters.Expect(a.status)
	counts := counters.NewReader(log, marks(c), c.Status.PerService && c.Status.ServiceCounters)
	a.status.OnScrape(c.Status.PerService, counts.Traffic)
	g.Go(func() error { counts.Run(ctx); return nil })
	g.Go(func() error { defer end(); a.drainOnStop(ctx, stop); return nil })
	g.Go(func() error { return a.status.Serve(ctx, c.Status) })
	g.Go(func() error { a.speakers.Run(ctx); return nil })
	g.Go(func() error {
		return a.again(ctx, "kernel events", func() error { return a.kernel.Watch(ctx, a.drift) })
	})
	g.Go(func() error {
		return a.again(ctx, "configuration", func() error { return config.Watch(ctx, configFile, again, a.reload) })
	})
	g.Go(func() error { a.flows.Run(ctx); return nil })
	g.Go(func() error { a.flowLog.Run(ctx); return nil })
	g.Go(func() error { return a.names.Run(ctx) })
	g.Go(func() error { a.source.Run(ctx); return nil })
	if api, ok := a.source.(leader.API); ok {
		a.leader = leader.New(api)
		a.status.OnLead(func() bool { _, leads := api.Leading(); return leads })
		g.Go(func() error { a.leader.Run(ctx); return nil })
	}
	g.Go(func() error { a.loop(ctx); return nil })
	err = g.Wait()

	log.Info("stopping; the kernel's state and the BGP sessions stay")
	return err
}

// speakerCommand returns the command line of a speaker that the daemon may start; nil: it must not start one.
func speakerCommand(c *config.Config) []string {
	if !c.Speaker.Start {
		return nil
	}
	return []string{"egressway", "speaker", "--socket", c.Speaker.Socket, "--log-level", c.Log.Level, "--log-format", c.Log.Format}
}

func (a *Agent) wake() {
	select {
	case a.awake <- struct{}{}:
	default: // a pass is due already, and will see this change too
	}
}

func (a *Agent) drift() {
	select {
	case a.drifted <- struct{}{}:
	default:
	}
}

// again runs a watch until ctx ends, and starts it again when it fails.
func (a *Agent) again(ctx context.Context, what string, watch func() error) error {
	for {
		err := watch()
		if ctx.Err() != nil {
			return nil
		}
		a.log.Warn("watch ended, starting it again", "watch", what, "error", err)
		if !pause.For(ctx, restartAfter) {
			return nil
		}
		a.wake()
	}
}

// reload switches to a changed configuration, or keeps the last good one.
func (a *Agent) reload(c *config.Config, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stale = err
	switch {
	case err != nil:
		a.log.Error("configuration refused, the last good one stays in force", "file", a.configFile, "error", err)
	case needsRestart(a.config, c):
		a.stale = errors.New("node, source, speaker, status, marks and log change with a restart only: " +
			"the last configuration stays in force")
		a.log.Error("configuration refused", "file", a.configFile, "error", a.stale)
	default:
		a.config = c
	}
	a.status.Reloaded(a.stale)
	a.wake()
}

// needsRestart reports whether a configuration differs from another in settings that only a start of the daemon reads.
func needsRestart(from, to *config.Config) bool {
	return to.Node != from.Node || to.Source != from.Source || to.Status != from.Status ||
		to.Marks.Mask != from.Marks.Mask || to.Marks.RulePriority != from.Marks.RulePriority ||
		to.Speaker != from.Speaker || to.Log != from.Log
}

// loop runs a pass after every change, and retries a pass with errors.
func (a *Agent) loop(ctx context.Context) {
	t := newTriggers()
	defer t.stop()
	a.awaitSpeaker(ctx)
	foreign := a.kernel.ForeignHands()
	for {
		byKernel, ended := a.nextPass(ctx, t)
		if ended {
			return
		}
		a.status.Beat()
		began := processorTime()
		err := a.pass(ctx)
		a.pace.cost = processorTime() - began
		before, endless := foreign, a.pace.endless()
		foreign = a.kernel.ForeignHands()
		a.pace.ran(time.Now(), byKernel, a.last.restless && foreign == before)
		if endless != a.pace.endless() {
			a.wake() // the problem EndlessPasses appears or disappears
		}
		a.schedule(t, err)
	}
}

// awaitSpeaker waits a moment for the speaker: the first pass should know the announced and the learned routes.
func (a *Agent) awaitSpeaker(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-a.speakers.Ready():
	case <-time.After(speakerWithin):
	}
}

// schedule sets the times of the next passes that no event requests. failure is the error of the last pass.
func (a *Agent) schedule(t *triggers, failure error) {
	if failure != nil || a.leader != nil && !a.last.reported {
		t.retry.Reset(max(retryAfter, a.pace.rest()))
	}
	if next := a.last.kernel.NextLook; !next.IsZero() {
		t.look.Reset(max(time.Until(next), retryAfter))
	}
	if due, moving := a.last.choices.Due(); moving {
		t.move.Reset(time.Until(due))
	}
}

// triggers holds the times at which the loop runs a pass or looks whether one is due.
type triggers struct {
	beat  *time.Ticker
	retry *time.Timer
	look  *time.Timer
	move  *time.Timer      // when the next phase of a move begins
	due   <-chan time.Time // when the delayed pass for kernel events is due; nil: none is
}

func newTriggers() *triggers {
	never := time.Duration(math.MaxInt64)
	return &triggers{
		beat: time.NewTicker(beatEvery), retry: time.NewTimer(0), look: time.NewTimer(never), move: time.NewTimer(never),
	}
}

func (t *triggers) stop() {
	t.beat.Stop()
	t.retry.Stop()
	t.look.Stop()
	t.move.Stop()
}

// nextPass waits until a pass is due, and reports whether kernel events requested it. ended: ctx has ended instead.
func (a *Agent) nextPass(ctx context.Context, t *triggers) (byKernel, ended bool) {
	for {
		select {
		case <-ctx.Done():
			return false, true
		case now := <-t.beat.C:
			if changed := a.look(now); !changed && !a.holdsRoutes() {
				a.status.Beat()
				continue
			}
		case <-a.awake:
		case <-a.drifted:
			if a.postpone(t) {
				continue
			}
			byKernel = true
		case <-t.due:
			byKernel = true
		case <-t.retry.C:
		case <-t.look.C:
		case <-t.move.C:
		}
		t.due = nil // the coming pass covers the events so far
		return byKernel, false
	}
}

// holdsRoutes reports whether unplanned routes stay for now: no event requests the pass that removes them.
func (a *Agent) holdsRoutes() bool { return a.last.plan != nil && len(a.last.plan.Held) > 0 }

// postpone reports whether the pass for a kernel event comes later, which it then schedules.
func (a *Agent) postpone(t *triggers) bool {
	if t.due != nil {
		return true
	}
	wait := a.pace.request(time.Now())
	if wait > 0 {
		t.due = time.After(wait)
	}
	return wait > 0
}
