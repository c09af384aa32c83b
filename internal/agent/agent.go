// Package agent connects sources, plan and appliers on one node. Events only wake the loop; each pass takes a snapshot
// of the sources, updates the plan by what changed since the last pass, and makes kernel and speakers equal to the
// plan.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/flows"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/liveness"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/picture"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/internal/speaker"
	"github.com/egressway/egressway/internal/status"
)

const (
	// retryAfter is the pause after a pass with errors; many failures end with an event that wakes the loop anyway.
	retryAfter = time.Second
	// beatEvery is how often an idle loop shows that it is alive.
	beatEvery = 10 * time.Second
	// tellWithin is how long a peer may take to announce its routes after its session is established.
	tellWithin = 5 * time.Second
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
	status     *status.Status
	awake      chan struct{} // by sources, peers or operators
	drifted    chan struct{} // by events of the kernel
	pace       pace          // of passes that drifted asks for

	mu     sync.Mutex // guards the fields that watches hand to the loop
	config *config.Config
	stale  error // why the current file is not in force

	source   source
	leader   *leader // nil: every node elects for itself
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
	config   *config.Config
	changed  cluster.Changed // not planned yet
	restored restored
	refused  []kernel.Refused // examples of the planned routes that the kernel lacks
	filling  filling
	unmade   []string // VRF devices, sorted
	plan     *plan.NodePlan
	planned  *plan.NodePlan // before announcements were held down
	restless bool           // the last pass failed, changed the plan, or restored missing objects
	told     told
	errors   string
	inForce  inForce
	reported bool            // to the leader, since the daemon started
	speaker  time.Time       // start time of the speaker that the last pass used
	settling time.Time       // when that speaker was first seen
	settled  map[string]bool // networks whose peers have announced their routes to it once
	routed   map[uint32]plan.Families
	watching []string   // the nodes to watch
	peers    []bfd.Peer // the nodes to watch, and all that may watch this one
	detector liveness.Detector
	nodes    liveness.View // as the detector last saw them
	stands   bool          // the packet filter has been in force since the daemon started
	named    []string      // the dead nodes that are hosts or standbys according to the sources
	failing  bool          // the dead nodes have changed, which is not in force yet
	failover failover
	choices  choices
	sweep    sweep
	taken    cluster.Changed // planned by the last plan
	roles    roles
	holdDown liveness.HoldDown
	gaveBack bool // memory used by the start was returned
}

// Run serves until ctx ends. c is the content of configFile; Run follows changes of the file, and reads it again when
// again receives a signal. The state in the kernel stays in force when Run returns.
func Run(ctx context.Context, log *slog.Logger, configFile string, c *config.Config, version string, again <-chan os.Signal) error {
	node, err := kernel.Open()
	if err != nil {
		return err
	}
	defer node.Close()
	if err := node.CheckRival(); kernel.IsRival(err) {
		return err
	} else if err != nil {
		log.Warn("cannot check this node for another program that serves EgressServices", "error", err)
	}
	a := &Agent{
		log: log, configFile: configFile, kernel: node, flows: flows.New(log, c.Node, marks(c)), status: status.New(version, c.Node),
		awake: make(chan struct{}, 1), drifted: make(chan struct{}, 1), config: c, started: time.Now(), last: last{settled: map[string]bool{}},
	}
	a.speakers = speaker.NewClient(speaker.ClientOptions{
		Log: log, Socket: c.Speaker.Socket, Version: version, Start: speakerCommand(c), Wake: a.wake,
	})
	log.Info("starting", "node", c.Node, "version", version, "config", configFile)

	stop := ctx
	ctx, end := context.WithCancel(context.WithoutCancel(ctx)) // the daemon may drain its node before it ends
	defer end()
	g, ctx := errgroup.WithContext(ctx)
	a.source = newSource(log, c, version, a.wake)
	a.status.OnDrain(a.drain)
	a.status.OnPicture(picture.WritePage)
	a.countFlows()
	a.expect()
	counts := newCounting(log, marks(c), c.Status.PerService && c.Status.ServiceCounters)
	a.status.OnScrape(c.Status.PerService, counts.traffic)
	g.Go(func() error { counts.run(ctx); return nil })
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
	g.Go(func() error { a.source.Run(ctx); return nil })
	if api, ok := a.source.(apiServer); ok {
		a.leader = newLeader(api)
		a.status.OnLead(func() bool { _, leads := api.Leading(); return leads })
		g.Go(func() error { a.leader.run(ctx); return nil })
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
	case c.Node != a.config.Node || c.Source != a.config.Source || c.Status != a.config.Status || c.Marks != a.config.Marks || c.Speaker != a.config.Speaker || c.Log != a.config.Log:
		a.stale = errors.New("node, source, speaker, status, marks and log change with a restart only: the last configuration stays in force")
		a.log.Error("configuration refused", "file", a.configFile, "error", a.stale)
	default:
		a.config = c
	}
	a.status.Reloaded(a.stale)
	a.wake()
}

// loop runs a pass after every change, and retries a pass with errors.
func (a *Agent) loop(ctx context.Context) {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	look := time.NewTimer(math.MaxInt64)
	defer look.Stop()
	select { // the first pass should know the announced and the learned routes
	case <-ctx.Done():
	case <-a.speakers.Ready():
	case <-time.After(speakerWithin):
	}
	var due <-chan time.Time // when the delayed pass for kernel events is due; nil: none is
	foreign := a.kernel.ForeignHands()
	for {
		byKernel := false
		select {
		case <-ctx.Done():
			return
		case now := <-beat.C:
			if changed := a.look(now); !changed && (a.last.plan == nil || len(a.last.plan.Held) == 0) {
				a.status.Beat()
				continue
			}
		case <-a.awake:
		case <-a.drifted:
			if due != nil {
				continue
			}
			if wait := a.pace.take(time.Now()); wait > 0 {
				due = time.After(wait)
				continue
			}
			byKernel = true
		case <-due:
			byKernel = true
		case <-retry.C:
		case <-look.C:
		}
		due = nil // this pass sees what the events reported
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
		if err != nil || a.leader != nil && !a.last.reported {
			retry.Reset(max(retryAfter, a.pace.rest()))
		}
		if next := a.kernel.NextLook(); !next.IsZero() {
			look.Reset(max(time.Until(next), retryAfter))
		}
	}
}

// pass makes this node follow the current state of sources, kernel and peers. Its cost depends on what changed since
// the last one.
func (a *Agent) pass(ctx context.Context) error {
	pass := status.Pass{Began: time.Now(), Draining: a.draining.wanted()}
	a.last.restless = false
	a.mu.Lock()
	c, stale := a.config, a.stale
	a.mu.Unlock()
	a.source.FollowPods(len(c.Hold) > 0)
	objects, changed, found, ok := a.source.Objects()
	a.last.changed.Join(changed)
	a.last.inForce.pending.Join(changed)
	var node []cluster.Problem // without those of objects
	if pass.ConfigStale = stale != nil; pass.ConfigStale {
		node = append(node, configProblems(a.configFile, stale)...)
	}
	if err := a.speakers.Problem(); err != nil {
		node = append(node, cluster.Problem{Kind: "Speaker", Object: c.Speaker.Socket, Reason: reasonNoSpeaker, Message: err.Error()})
	}
	if !ok { // nothing is known yet: everything stays in force
		pass.Ended, pass.Unknowing = time.Now(), true
		a.publish(nil, slices.Concat(found, node), everyPeer(c, nil, a.speakers.Sessions()), pass) // the source has logged found
		return nil
	}
	if a.last.plan == nil {
		a.log.Info("all objects known", "egressservices", objects.EgressServices.Len(), "nodes", objects.Nodes.Len(), "after", time.Since(a.started).Round(time.Millisecond))
		spareMemory()
	}
	former := a.last.planned
	planned, local, err := a.plan(ctx, c, objects)
	node = append(node, local...)
	if a.pace.endless() {
		node = append(node, cluster.Problem{
			Kind: "Node", Object: c.Node, Field: "kernel", Reason: reasonEndlessPasses,
			Message: fmt.Sprintf("each pass changes the kernel, and its own changes request the next one: passes now wait up to %s for each other; the log names what fails or comes back", paceRest),
		})
	}
	if err == nil {
		a.carry(c, objects, a.last.taken, a.last.plan)
		var result kernel.Result
		var unwatched []cluster.Problem
		result, unwatched, pass.ConnectionsEnded, err = a.apply(ctx, c, a.last.plan, pass.Began)
		pass.InForce, a.last.refused = result.Whole(), result.Refused
		if unmade := slices.Sorted(maps.Keys(result.Unmade)); !slices.Equal(unmade, a.last.unmade) {
			a.last.unmade = unmade
			a.wake() // the plan depends on it
		}
		pass.Watched = a.last.nodes.Watched
		a.last.restored.add(a.log, result.Restored, pass.Began)
		a.look(pass.Began)
		node = append(node, unwatched...)
		node = append(node, a.troubles(c.Node, pass.Began)...)
		node = append(node, unmadeProblems(c.Node, c, result.Unmade)...)
		a.report(c, objects, planned, result.InForce)
		a.giveBack(result.InForce)
		a.last.restless = len(result.Restored) > 0
	}
	a.last.restless = a.last.restless || err != nil || a.last.planned != former
	if ctx.Err() != nil {
		return nil // stopping: an interrupted pass is not a failure
	}
	problems := a.last.told.take(a.log, pass.Began, found, planned, node)
	if a.leader != nil {
		a.leader.tell(matter{config: c, objects: objects, changed: changed, problems: problems})
	}
	a.logErrors(err)
	pass.Ended, pass.Err = time.Now(), err
	a.publish(a.last.plan, problems, everyPeer(c, a.last.plan, a.speakers.Sessions()), pass)
	return err
}

// publish hands the result of a pass to the status, which makes a report of it only on request.
func (a *Agent) publish(p *plan.NodePlan, problems []cluster.Problem, sessions []bgp.Session, pass status.Pass) {
	announced := a.speakers.Announced()
	pass.Plan = p
	if p != nil && a.speakers.Problem() == nil {
		a.status.TakeSessions(sessions)
	}
	a.status.Publish(pass, func() status.Report {
		pass.Announced = prefixes(announced)
		return status.From(p, problems, sessions, pass)
	})
}

// plan updates this node's plan. It returns the plan's problems with objects, and this node's own.
func (a *Agent) plan(ctx context.Context, c *config.Config, objects cluster.Objects) (planned, local []cluster.Problem, err error) {
	var tables []uint32
	for _, n := range c.Networks {
		tables = append(tables, n.Table)
	}
	facts, err := a.kernel.Facts(ctx, tables...)
	if err != nil {
		return nil, nil, err
	}
	unsettled := a.unsettled(c) // before Learned is read: the routes of settled networks are complete then
	change := a.last.changed
	elected, others := a.source.hosts(objects, change)
	if a.last.plan == nil {
		a.last.detector.Presume(steeredTo(facts.Paths), time.Now())
	}
	a.last.nodes = a.observe(a.last.config)
	a.last.failing, a.last.named = a.last.nodes.Changed(), named(elected, a.last.nodes.Dead)
	if a.last.choices.resumed, err = a.resumed(objects); err != nil {
		return nil, nil, err
	}
	for _, key := range a.last.choices.update(c.Node, elected, others, a.last.nodes.Dead, a.heard()) {
		change.Add(key)
	}
	desired, planned := a.planner.Plan(plan.Snapshot{
		Node: c.Node, Config: c, Objects: objects, Hosts: a.last.choices.now, Facts: facts,
		Learned: a.speakers.Learned(), Unsettled: unsettled, Unmade: a.last.unmade, Draining: a.draining.wanted(),
		Heard: a.heard(), Answering: a.answering(c), APIServer: a.reached(),
	}, change)
	a.last.planned = desired
	if speakers := a.holdDown(ctx, a.draining.silenced(desired.Speakers)); !sorted.OneSlice(speakers, desired.Speakers) {
		quiet := *desired
		quiet.Speakers = speakers
		desired = &quiet
	}
	watching := slices.Concat(desired.Watched, a.last.named)
	if change.All || c != a.last.config || !slices.Equal(watching, a.last.watching) {
		a.last.config, a.last.watching, a.last.peers = c, watching, peers(c, objects, watching)
	}
	local = append(local, flaps(c.Node, a.speakers.Nodes(), a.speakers.Sessions())...)
	local = append(local, unheard(c, a.speakers.Sessions())...)
	a.last.taken, a.last.changed = change, cluster.Changed{}
	a.last.routed = facts.Routed
	a.last.plan = desired
	inTheWay, err := a.kernel.Problems(c.Node, devices(desired, facts))
	if err != nil {
		a.log.Debug("cannot check this node for settings that get in the way", "error", err)
	}
	return planned, append(local, inTheWay...), nil
}

// watch makes the speaker watch other nodes and answer them, once the packet filter is in force: from then on they hand
// packets to this node. A new speaker sends nothing before that.
func (a *Agent) watch(ctx context.Context, c *config.Config, inForce bool) (problems []cluster.Problem) {
	if a.last.stands = a.last.stands || inForce; !a.last.stands {
		return nil
	}
	// A new speaker starts without peers, so set them every pass. A missing speaker is reported elsewhere.
	if err := a.speakers.Watch(ctx, nodeBFD(c), a.last.peers); err != nil && !errors.Is(err, speaker.ErrAbsent) {
		problems = append(problems, cluster.Problem{
			Kind: "Config", Object: a.configFile, Field: "failover.bfd", Reason: reasonNotWatched,
			Message: fmt.Sprintf("%s: this node neither watches other nodes nor answers them: packets of pods that should be steered from or to this node are dropped, "+
				"unless they were steered so before; another port, or enabled: false on all nodes, may be right", err),
		})
	}
	return problems
}

// reached returns the addresses of the API server; nil: there is none.
func (a *Agent) reached() []netip.Addr {
	if api, ok := a.source.(following); ok {
		return api.Reached()
	}
	return nil
}

// unsettled returns the networks whose peers may not have announced all their routes to a new speaker yet. Meanwhile
// the routes of the former one stay: otherwise every start would interrupt traffic.
func (a *Agent) unsettled(c *config.Config) (names []string) {
	if started := a.speakers.Started(); a.last.settling.IsZero() || !started.Equal(a.last.speaker) {
		a.last.speaker, a.last.settling, a.last.settled = started, time.Now(), map[string]bool{}
		a.kernel.Forget() // routes learned by another speaker count as left by an earlier run
		a.last.detector.Restart(time.Now())
	}
	sessions := a.speakers.Sessions()
	for _, n := range c.Networks {
		if a.last.settled[n.Name] {
			continue
		}
		if len(n.Peers) == 0 || haveTold(sessions, n.Name, time.Now()) || time.Since(a.last.settling) > settleWithin {
			a.last.settled[n.Name] = true
			continue
		}
		names = append(names, n.Name)
	}
	return names
}

// haveTold reports whether all peers of a network have announced their routes, or never will: a session that we ended
// because its peer sent too much is not waited for.
func haveTold(sessions []bgp.Session, network string, now time.Time) bool {
	told := slices.ContainsFunc(sessions, func(s bgp.Session) bool { return s.Network == network })
	for _, s := range sessions {
		told = told && (s.Network != network || s.Ended || s.Up && now.Sub(s.Since) > tellWithin)
	}
	return told
}

// apply withdraws first and announces last, so that no peer sends packets before the kernel is ready. BFD with other
// nodes starts before BGP: a speaker that replaces a killed one must answer them within their detection time, and GoBGP
// may take most of that to start.
func (a *Agent) apply(ctx context.Context, c *config.Config, desired *plan.NodePlan, began time.Time) (result kernel.Result, unwatched []cluster.Problem, ended uint, err error) {
	clock := time.Now()
	lap := func() time.Duration { d := time.Since(clock); clock = clock.Add(d); return d }
	withdraw := a.speakers.Withdraw(ctx, desired.Speakers)
	told := lap()
	result, err = a.kernel.Apply(ctx, desired)
	a.took(result)
	speakers := desired.Speakers
	if result.InForce {
		a.failedOver(began)
	} else {
		speakers = a.onlyAnnounced(speakers)
	}
	unwatched = a.watch(ctx, c, result.InForce)
	lap()
	announce := a.speakers.Apply(ctx, speakers)
	told += lap()
	a.status.Applied(applyBGP, told, errors.Join(withdraw, announce))
	a.announcedInstead(speakers, announce)
	var contradictions error
	if result.Contradicted {
		ended, contradictions = a.endContradictions(ctx, desired)
		a.status.Applied(applyConnections, lap(), contradictions)
	}
	return result, unwatched, ended, errors.Join(withdraw, err, announce, contradictions)
}

// onlyAnnounced removes prefixes that are not announced yet, and does not let the others become more preferred than
// they are.
func (a *Agent) onlyAnnounced(speakers []plan.Speaker) []plan.Speaker {
	speakers = slices.Clone(speakers)
	announced := a.speakers.Announced()
	for i, s := range speakers {
		var stay []plan.Announcement
		for had := range announced[s.Network].All() {
			switch wanted, ok := s.Announce.Get(had); {
			case !ok:
			case wanted.Standby:
				stay = append(stay, wanted)
			default:
				stay = append(stay, had)
			}
		}
		speakers[i].Announce = sorted.Of(stay...)
	}
	return speakers
}

// prefixes returns the prefixes that are announced in each network, by hosts and standbys.
func prefixes(announced map[string]sorted.List[plan.Announcement]) map[string][]netip.Prefix {
	all := make(map[string][]netip.Prefix, len(announced))
	for network, announcements := range announced {
		for a := range announcements.All() {
			all[network] = append(all[network], a.Prefix)
		}
	}
	return all
}

// devices returns the interfaces that packets of selected pods pass: kernel settings of these matter.
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

// configProblems turns the errors of a refused configuration into problems.
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

const (
	reasonConfigRefused cluster.Reason = "ConfigRefused"
	reasonNoSpeaker     cluster.Reason = "NoSpeaker"
	reasonNotWatched    cluster.Reason = "NodesNotWatched"
	reasonEndlessPasses cluster.Reason = "EndlessPasses"
)

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
