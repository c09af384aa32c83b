package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/counters"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/leader"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/internal/speaker"
	"github.com/egressway/egressway/internal/status"
)

// pass makes this node follow the current state of sources, kernel and peers. Its cost depends on what changed since
// the last one.
func (a *Agent) pass(ctx context.Context) error {
	pass := status.Pass{Began: time.Now(), Draining: a.draining.wanted()}
	pass.DrainReported = a.drainReported()
	a.last.restless = false
	a.mu.Lock()
	base, stale := a.config, a.stale
	a.mu.Unlock()
	a.last.confirmed = a.confirmed.Load() // before the objects are read, which it is about
	a.source.Follow(base)
	objects, changed, found, ok := a.source.Objects()
	c, node, known := a.last.nodewise.Resolve(base, objects.Nodes, changed.All || a.last.plan == nil)
	a.last.changed.Join(changed)
	a.last.inForce.pending.Join(changed)
	// node holds the problems that are not of objects.
	if pass.ConfigStale = stale != nil; pass.ConfigStale {
		node = append(node, configProblems(a.configFile, stale)...)
	}
	if err := a.speakers.Problem(); err != nil {
		node = append(node, cluster.Problem{Kind: "Speaker", Object: c.Speaker.Socket, Reason: reasonNoSpeaker, Message: err.Error()})
	}
	if !ok || !known { // nothing is known yet: everything stays in force
		pass.Ended, pass.Unknowing = time.Now(), true
		if ok {
			a.last.problems.Update(a.log, pass.Began, found, nil, node)
		}
		a.publish(nil, slices.Concat(found, node), everyPeer(c, nil, a.speakers.Sessions(), nil), pass) // the source has logged found
		return nil
	}
	if a.last.plan == nil {
		a.log.Info("all objects known", "egressservices", objects.EgressServices.Len(), "nodes", objects.Nodes.Len(),
			"after", time.Since(a.started).Round(time.Millisecond))
		spareMemory()
	}
	former := a.last.plan
	planned, local, err := a.replan(ctx, c, objects)
	node = append(node, local...)
	if a.pace.endless() {
		node = append(node, cluster.Problem{
			Kind: "Node", Object: c.Node, Field: "kernel", Reason: reasonEndlessPasses,
			Message: fmt.Sprintf("each pass changes the kernel, and its own changes request the next one: "+
				"passes now wait up to %s for each other; the log names what fails or comes back", paceRest),
		})
	}
	if err == nil {
		a.carry(c, objects, a.last.planChange, former, a.last.plan)
		a.flowLog.Set(c.FlowLog, objects, a.last.planChange, former, a.last.plan)
		var result kernel.Result
		var unwatched []cluster.Problem
		result, unwatched, pass.ConnectionsEnded, err = a.apply(ctx, c, a.last.plan, pass.Began)
		pass.InForce, a.last.refused = result.Whole(), result.Refused
		if unmade := slices.Sorted(maps.Keys(result.Unmade)); !slices.Equal(unmade, a.last.unmade) {
			a.last.unmade = unmade
			a.wake() // the plan depends on it
		}
		pass.Watched = a.last.others.nodes.Watched
		a.last.losses.Add(a.log, result.Restored, pass.Began)
		a.look(pass.Began)
		node = append(node, unwatched...)
		node = append(node, a.flowLog.Problems()...)
		node = append(node, a.flows.Problems()...)
		node = append(node, a.names.Problems(c.Node)...)
		node = append(node, a.troubles(c.Node, pass.Began)...)
		node = append(node, unmadeProblems(c.Node, c, result.Unmade)...)
		a.report(c, objects, planned, &result)
		a.giveBack(result.InForce)
		a.last.restless = len(result.Restored) > 0
	} else {
		a.reportUnread()
	}
	a.last.restless = a.last.restless || err != nil || a.last.plan != former
	if ctx.Err() != nil {
		return nil // stopping: an interrupted pass is not a failure
	}
	problems := a.last.problems.Update(a.log, pass.Began, found, planned, node)
	a.submit(leader.Input{Config: c, Objects: objects, Changed: changed, Problems: problems})
	a.logErrors(err)
	pass.Ended, pass.Err = time.Now(), err
	a.publish(a.last.plan, problems, everyPeer(c, a.last.plan, a.speakers.Sessions(), a.last.down), pass)
	return err
}

// submit hands what a leader decides by to the leader, once there is a plan: without one, refused objects would seem valid.
func (a *Agent) submit(in leader.Input) {
	if a.leader != nil && a.last.plan != nil {
		a.leader.Submit(in)
	}
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

// replan is plan, but with the problems of the last plan where plan fails: the last plan stays in force.
func (a *Agent) replan(ctx context.Context, c *config.Config, objects cluster.Objects) (planned, local []cluster.Problem, err error) {
	if planned, local, err = a.plan(ctx, c, objects); err != nil {
		return a.last.planned, a.last.local, err
	}
	a.last.planned, a.last.local = planned, local
	return planned, local, nil
}

// plan updates this node's plan. It returns the plan's problems with objects, and this node's own.
func (a *Agent) plan(ctx context.Context, c *config.Config, objects cluster.Objects) (planned, local []cluster.Problem, err error) {
	tables := tablesOf(c, a.last.plan)
	facts, err := a.facts(ctx, tables)
	if err != nil {
		return nil, nil, err
	}
	unsettled := a.unsettled(c) // before Learned is read: the routes of settled networks are complete then
	change := a.last.changed
	elected, others := a.source.Hosts(objects, change, election.PolicyOf(c))
	if a.last.plan == nil {
		shared, err := a.kernel.SharedHosts()
		if err != nil {
			return nil, nil, err
		}
		a.last.others.detector.Presume(steeredTo(facts.Paths, shared, objects.Nodes), time.Now())
	}
	a.trust(c)
	a.forget(c, objects)
	a.last.others.nodes = a.observe(a.last.config)
	a.last.others.failing = a.last.others.nodes.Changed()
	resumed, err := a.resumed(objects)
	if err != nil {
		return nil, nil, err
	}
	for _, seat := range a.last.choices.Update(elected, others, a.sight(c, objects, resumed)) {
		change.Add(seat.ID)
	}
	learned := a.speakers.Learned()
	if a.last.settling.isNew(a.speakers.Started()) { // another speaker answers meanwhile, and has learned nothing yet
		unsettled = a.unsettled(c)
	}
	snapshot := plan.Snapshot{
		Node: c.Node, Config: c, Objects: objects, Hosts: a.last.choices.Choices(), Facts: facts,
		Learned: learned, Unsettled: unsettled, Unmade: a.last.unmade, APIServer: a.reached(),
		Draining: a.draining.wanted(), Leaving: a.draining.left(), HeldDown: a.heldDown(ctx, c),
		Unsure: a.unsure(ctx, c.Node, objects, facts.Links), Heard: a.heard(), Answering: a.answering(c),
		InternalIPv4: a.last.nodewise.InternalIPv4(),
	}
	desired, planned := a.planner.Plan(snapshot, change)
	if now := tablesOf(c, desired); !slices.Equal(now, tables) { // of networks that objects name, not the configuration
		if snapshot.Facts, err = a.facts(ctx, now); err != nil {
			return nil, nil, err
		}
		facts = snapshot.Facts
		desired, planned = a.planner.Plan(snapshot, change)
	}
	// Dead nodes stay watched. Without a witness of its death, the leader would have a dead node be standby again.
	watching := slices.Concat(desired.Watched, slices.Sorted(maps.Keys(a.last.others.nodes.Dead)))
	if change.All || c != a.last.config || !slices.Equal(watching, a.last.others.watching) {
		a.last.config, a.last.others.watching, a.last.others.peers = c, watching, peers(c, objects, watching)
	}
	local = append(local, flaps(c.Node, a.speakers.Nodes(), a.speakers.Sessions())...)
	local = append(local, unheard(c, a.speakers.Sessions())...)
	a.last.planChange, a.last.changed = change, cluster.Changed{}
	a.last.routed, a.last.down = facts.Routed, linksDown(facts.Links)
	a.last.plan = desired
	inTheWay, err := a.kernel.Problems(a.last.kernel, c.Node, devices(desired, facts))
	if err != nil {
		a.log.Debug("cannot check this node for settings that get in the way", "error", err)
	}
	return planned, append(local, inTheWay...), nil
}

// facts reads the node. It first has routes put back that others removed: a plan made from a momentary loss would end
// connections.
func (a *Agent) facts(ctx context.Context, tables []uint32) (plan.Facts, error) {
	a.last.kernel = a.last.kernel.At(time.Now())
	facts, lost, err := a.kernel.Facts(ctx, a.last.kernel, tables...)
	const tries = 3 // another program may remove them again meanwhile
	for try := 0; lost && err == nil && try < tries; try++ {
		var failed error
		if a.last.kernel, failed = a.kernel.Restore(ctx, a.last.kernel); failed != nil {
			break // Apply reports the error
		}
		facts, lost, err = a.kernel.Facts(ctx, a.last.kernel, tables...)
	}
	return facts, err
}

// tablesOf lists the routing tables of the configured networks, and of those by which a plan has packets leave, sorted. The
// plan may be nil.
func tablesOf(c *config.Config, p *plan.NodePlan) []uint32 {
	tables := make([]uint32, 0, len(c.Networks))
	for _, n := range c.Networks {
		tables = append(tables, n.Table)
	}
	if p != nil {
		for _, path := range p.DataPlane.Paths {
			if path.Key.Kind == plan.PathNetwork {
				tables = append(tables, path.Table)
			}
		}
	}
	slices.Sort(tables)
	return slices.Compact(tables)
}

// watch makes the speaker watch other nodes and answer them, once the packet filter is in force: from then on they hand
// packets to this node. A new speaker sends nothing before that.
func (a *Agent) watch(ctx context.Context, c *config.Config, inForce bool) (problems []cluster.Problem) {
	if a.last.others.stands = a.last.others.stands || inForce; !a.last.others.stands {
		return nil
	}
	// A new speaker starts without peers, so set them every pass. A missing speaker is reported elsewhere.
	err := a.speakers.Watch(ctx, nodeBFD(c), a.last.others.peers)
	if err == nil {
		a.last.others.detector.Watching()
	} else if !errors.Is(err, speaker.ErrAbsent) {
		problems = append(problems, cluster.Problem{
			Kind: "Config", Object: a.configFile, Field: "failover.bfd", Reason: reasonNotWatched,
			Message: fmt.Sprintf("%s: this node neither watches other nodes nor answers them: "+
				"packets of pods that should be steered from or to this node are dropped, except where they were steered so before: "+
				"that continues without a watch, after a start of the daemon or the speaker for a short time only; "+
				"another port, or enabled: false on all nodes, may be right", err),
		})
	}
	return problems
}

// reached returns the addresses of the API server; nil with manifests.
func (a *Agent) reached() []netip.Addr {
	if a.server == nil {
		return nil
	}
	return a.server.Reached()
}

// unsettled returns the networks whose peers may not have announced all their routes to a new speaker yet. Meanwhile
// the routes of the former one stay: otherwise every start would interrupt traffic.
func (a *Agent) unsettled(c *config.Config) (names []string) {
	if started := a.speakers.Started(); a.last.settling.isNew(started) {
		a.last.settling = settling{speaker: started, since: time.Now(), done: map[string]bool{}}
		a.last.kernel.Whole = false // routes learned by another speaker count as left by an earlier run
		a.last.others.detector.Restart(time.Now())
	}
	sessions := a.speakers.Sessions()
	for _, n := range c.Networks {
		if !a.last.settling.settled(n, sessions) {
			names = append(names, n.Name)
		}
	}
	return names
}

// isNew reports whether a speaker, by its start, is another one than that of the last pass.
func (s *settling) isNew(started time.Time) bool {
	return s.since.IsZero() || !started.Equal(s.speaker)
}

// settled reports whether the peers of a network have announced their routes to the speaker once, or had time for it.
func (s *settling) settled(n config.Network, sessions []bgp.Session) bool {
	if !s.done[n.Name] {
		s.done[n.Name] = len(n.Peers) == 0 || haveAnnounced(sessions, n.Name, time.Now()) || time.Since(s.since) > settleWithin
	}
	return s.done[n.Name]
}

// haveAnnounced reports whether all peers of a network have announced their routes, or never will: a session that we ended
// because its peer sent too much is not waited for.
func haveAnnounced(sessions []bgp.Session, network string, now time.Time) bool {
	all := slices.ContainsFunc(sessions, func(s bgp.Session) bool { return s.Network == network })
	for _, s := range sessions {
		all = all && (s.Network != network || s.Ended || s.Up && now.Sub(s.Since) > announceWithin)
	}
	return all
}

// apply withdraws first and announces last, so that no peer sends packets before the kernel is ready. BFD with other
// nodes starts before BGP: a speaker that replaces a killed one must answer them within their detection time, and GoBGP
// may take most of that to start. Neighbours on a link hear of addresses after routers do: the kernel answers their questions by then.
func (a *Agent) apply(
	ctx context.Context, c *config.Config, desired *plan.NodePlan, began time.Time,
) (result kernel.Result, unwatched []cluster.Problem, ended uint, err error) {
	clock := time.Now()
	lap := func() time.Duration { d := time.Since(clock); clock = clock.Add(d); return d }
	withdraw := a.speakers.Withdraw(ctx, desired.Speakers)
	bgpTook := lap()
	result, err = a.kernel.Apply(ctx, a.last.kernel, desired)
	a.last.kernel = result.Record
	if held := result.Record.Table.Data; held != nil { // a table that was not written keeps its sets
		a.names.Follow(held, c.Firewall.Names)
	} else {
		a.names.NotMade()
	}
	counters.Applied(a.status, result)
	speakers := desired.Speakers
	if result.InForce {
		a.failedOver(began)
	} else {
		speakers = a.onlyAnnounced(speakers)
	}
	unwatched = a.watch(ctx, c, result.InForce)
	lap()
	announce := a.speakers.Apply(ctx, speakers)
	bgpTook += lap()
	unwatched = append(unwatched, a.answerOnLink(ctx, c, result.OnLink)...)
	lap()
	a.status.Applied(counters.ApplyBGP, bgpTook, errors.Join(withdraw, announce))
	a.announcedInstead(speakers, announce)
	var contradictions error
	if result.Contradicted {
		ended, contradictions = a.endContradictions(ctx, desired)
		a.status.Applied(counters.ApplyConnections, lap(), contradictions)
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
