package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/api/v1alpha1"
	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/manifests"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/flowlog"
	"github.com/egressway/egressway/internal/flows"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/kernel/nft"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/namesets"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/internal/status"
)

// stage is an agent with the sample configuration and manifests. A kernel, speakers and a source of ours write down in order
// which calls change something.
type stage struct {
	*Agent
	t        *testing.T
	kernel   *scriptedKernel
	speakers *scriptedSpeakers
	source   *scriptedSource
	calls    []string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	return newStageOf(t, "a")
}

func newStageOf(t *testing.T, node string) *stage {
	t.Helper()
	c, err := config.Load("../../config/egressway.yaml")
	require.NoError(t, err)
	c.Node = node
	objects, _, problems := manifests.Open("../../config/samples").Read()
	require.Empty(t, problems)
	s := &stage{t: t}
	s.kernel = &scriptedKernel{stage: s, facts: plan.Assume(c, objects, node), result: kernel.Result{InForce: true}, takes: 10 * time.Millisecond}
	s.speakers = &scriptedSpeakers{stage: s, started: time.Now(), announced: map[string]sorted.List[plan.Announcement]{}}
	for _, n := range c.Networks {
		for _, p := range n.Peers {
			s.speakers.sessions = append(s.speakers.sessions, bgp.Session{
				Network: n.Name, Peer: p.Address.String(), Address: p.Address, State: bgp.StateEstablished, Up: true, Since: time.Now(),
			})
		}
	}
	s.source = &scriptedSource{objects: objects, changed: cluster.Changed{All: true}, known: true}
	log := slog.New(slog.DiscardHandler)
	s.Agent = &Agent{
		log: log, config: c, kernel: s.kernel, speakers: s.speakers, flows: flows.New(log, c.Node, marks(c)), flowLog: flowlog.New(log, c.Node, marks(c), func() {}),
		status: status.New("v", c.Node), awake: make(chan struct{}, 1), drifted: make(chan struct{}, 1), started: time.Now(),
	}
	s.names = namesets.New(log, s.kernel, func() {})
	s.setSource(s.source)
	return s
}

func (s *stage) note(format string, args ...any) {
	s.calls = append(s.calls, fmt.Sprintf(format, args...))
}

// passes runs a pass and compares the calls that it makes.
func (s *stage) passes(calls ...string) error {
	s.t.Helper()
	s.calls = nil
	err := s.pass(s.t.Context())
	require.Equal(s.t, calls, s.calls)
	return err
}

// later advances the clock, and returns when all that was due by then has run.
func (s *stage) later(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // passes at once under synctest
	synctest.Wait()
}

// change replaces an EgressService.
func (s *stage) change(key cluster.Key, change func(*cluster.EgressService)) {
	e := s.source.objects.EgressServices.At(key)
	change(&e)
	s.source.objects.EgressServices = s.source.objects.EgressServices.With(key, e)
	s.source.changed.Add(cluster.KindEgressService.ID(key))
}

// reasons are those of the problems that the status reports.
func (s *stage) reasons() (all []cluster.Reason) {
	for _, p := range s.status.Report().Problems {
		all = append(all, p.Reason)
	}
	return all
}

var sampleWeb = cluster.Key{Namespace: "shop", Name: "web"}

// scriptedKernel answers as a test says.
type scriptedKernel struct {
	*stage
	facts      plan.Facts
	lost       int   // how many more times Facts finds that routes are lost
	unreadable error // of Facts
	result     kernel.Result
	err        error // of Restore and Apply
	held       kernel.Record
	resumed    map[netip.Addr]bool
	takes      time.Duration // an EndContradictions
}

func (k *scriptedKernel) Facts(context.Context, kernel.Record, ...uint32) (plan.Facts, bool, error) {
	lost := k.lost > 0
	k.lost = max(0, k.lost-1)
	return k.facts, lost, k.unreadable
}

func (k *scriptedKernel) Restore(_ context.Context, held kernel.Record) (kernel.Record, error) {
	require.NotNil(k.t, held.Plan)
	k.note("restore")
	return held, k.err
}

func (k *scriptedKernel) Problems(kernel.Record, string, []string) ([]cluster.Problem, error) {
	return nil, nil
}

func (k *scriptedKernel) Apply(_ context.Context, held kernel.Record, p *plan.NodePlan) (kernel.Result, error) {
	require.Same(k.t, k.held.Plan, held.Plan, "the record of the last pass is handed down")
	note := "kernel"
	if !held.Whole {
		note = "whole kernel"
	}
	if len(p.Held) > 0 {
		note += fmt.Sprint(", holding ", p.Held)
	}
	k.note("%s", note)
	r := k.result
	r.Record = kernel.Record{Plan: p, Whole: k.err == nil}
	k.held = r.Record
	return r, k.err
}

func (*scriptedKernel) OnNames(func(ruleset.NameSet) []nft.NameElement) {}

func (*scriptedKernel) WriteNames([]nft.NameElement) error { return nil }

func (k *scriptedKernel) EndContradictions(context.Context, plan.DataPlane) (uint, error) {
	k.note("end connections")
	k.later(k.takes)
	return 0, nil
}
func (*scriptedKernel) SharedHosts() (map[plan.MAC]bool, error) { return nil, nil }

func (k *scriptedKernel) Resumed() (map[netip.Addr]bool, error) { return k.resumed, nil }
func (k *scriptedKernel) Connections() (conntrack.Connections, error) {
	return conntrack.Connections{Limit: 1000}, nil
}
func (k *scriptedKernel) ForeignHands() uint64                { return 0 }
func (k *scriptedKernel) Watch(context.Context, func()) error { return nil }

// scriptedSpeakers announce at once, unless a test says otherwise.
type scriptedSpeakers struct {
	*stage
	problem   error
	refuses   error // of Apply
	started   time.Time
	announced map[string]sorted.List[plan.Announcement]
	answered  sorted.List[plan.OnLink]
	sessions  []bgp.Session
	nodes     []bfd.Session
	meanwhile func() // happens while the pass reads what was learned
}

func (s *scriptedSpeakers) Run(context.Context)    {}
func (s *scriptedSpeakers) Ready() <-chan struct{} { return nil }
func (s *scriptedSpeakers) Problem() error         { return s.problem }
func (s *scriptedSpeakers) Started() time.Time     { return s.started }
func (s *scriptedSpeakers) Learned() []plan.NetworkRoutes {
	if s.meanwhile != nil {
		s.meanwhile()
	}
	return nil
}
func (s *scriptedSpeakers) Sessions() []bgp.Session { return s.sessions }
func (s *scriptedSpeakers) Nodes() []bfd.Session    { return s.nodes }
func (s *scriptedSpeakers) Announced() map[string]sorted.List[plan.Announcement] {
	return s.announced
}

func (s *scriptedSpeakers) Withdraw(_ context.Context, desired []plan.Speaker) error {
	var gone []string
	for network, had := range s.announced {
		for a := range had.All() {
			i := slices.IndexFunc(desired, func(d plan.Speaker) bool { return d.Network == network })
			if i >= 0 {
				if _, stays := desired[i].Announce.Get(a); stays {
					continue
				}
			}
			gone = append(gone, a.Prefix.String())
		}
	}
	if len(gone) > 0 {
		slices.Sort(gone)
		s.note("withdraw %s", strings.Join(gone, " "))
	}
	return s.problem
}

func (s *scriptedSpeakers) Apply(_ context.Context, desired []plan.Speaker) error {
	if err := errors.Join(s.problem, s.refuses); err != nil {
		return err
	}
	var begun []string
	for _, d := range desired {
		for a := range d.Announce.All() {
			if had, ok := s.announced[d.Network].Get(a); !ok || had != a {
				begun = append(begun, a.Prefix.String()+map[bool]string{true: " as standby"}[a.Standby])
			}
		}
		s.announced[d.Network] = d.Announce
	}
	if len(begun) > 0 {
		slices.Sort(begun)
		s.note("announce %s", strings.Join(begun, ", "))
	}
	return nil
}

func (s *scriptedSpeakers) Watch(_ context.Context, _ bfd.Options, peers []bfd.Peer) error {
	if s.problem != nil {
		return s.problem
	}
	var watched []string
	for _, p := range peers {
		if p.Active && !slices.Contains(watched, p.Node) {
			watched = append(watched, p.Node)
		}
	}
	s.note("%s", strings.Join(append([]string{"watch"}, watched...), " "))
	return nil
}

func (s *scriptedSpeakers) AnswerOnLink(_ context.Context, all sorted.List[plan.OnLink]) error {
	if s.problem != nil {
		return s.problem
	}
	for one := range all.All() {
		if _, known := s.answered.Get(one); !known {
			s.note("answer for %s", one.Addr)
		}
	}
	s.answered = all
	return nil
}

// scriptedSource is a folder of manifests: every node elects for itself.
type scriptedSource struct {
	objects cluster.Objects
	changed cluster.Changed
	known   bool
	elected election.Elected
	read    func() // called when objects were read; nil: nothing is
}

func (s *scriptedSource) Run(context.Context)   {}
func (s *scriptedSource) Follow(*config.Config) {}
func (s *scriptedSource) Objects() (o cluster.Objects, changed cluster.Changed, problems []cluster.Problem, ok bool) {
	changed, s.changed = s.changed, cluster.Changed{}
	if s.read != nil {
		s.read()
	}
	return s.objects, changed, nil, s.known
}

func (s *scriptedSource) Hosts(
	o cluster.Objects, change cluster.Changed, policy election.Policy,
) (map[election.Seat]election.Choice, []election.Seat) {
	return s.elected.Update(o, nil, change, policy)
}

// scriptedServer is a source with a leader. It confirms what this node knows, unless it is cut off.
type scriptedServer struct {
	*scriptedSource
	cutOff    atomic.Bool // the agent asks from a goroutine of its own
	asked     atomic.Int32
	report    cluster.Report
	addresses cluster.Secondary
}

func (s *scriptedServer) Reached() []netip.Addr                { return nil }
func (s *scriptedServer) Report(r cluster.Report)              { s.report = r }
func (s *scriptedServer) DrainReported() bool                  { return s.report.Draining }
func (s *scriptedServer) ReportNode(v1alpha1.EgressNodeStatus) {}

func (s *scriptedServer) MayGet(context.Context, string, string) (string, bool, error) {
	return "", false, nil
}

func (s *scriptedServer) ShareAddresses(a cluster.Secondary) { s.addresses = a }

func (s *scriptedServer) Current(context.Context) error {
	s.asked.Add(1)
	if s.cutOff.Load() {
		return errors.New("connection refused")
	}
	return nil
}

// What node a announces, and what it withdraws where it is no host of shop/web any more.
const (
	announceAll = "announce 2001:db8:203::10/128, 2001:db8:203::20/128, 203.0.113.10/32, 203.0.113.20/32"
	announceWeb = "announce 2001:db8:203::10/128, 203.0.113.10/32"
	withdrawWeb = "withdraw 2001:db8:203::10/128 203.0.113.10/32"
	holding     = "kernel, holding [254 1001 1002]"
	starting    = "whole kernel, holding [254 1001 1002]"
)

// settled returns a stage whose first passes are over.
func settled(t *testing.T) *stage {
	s := newStage(t)
	require.NoError(t, s.pass(t.Context()))
	s.later(announceWithin + time.Second)
	require.NoError(t, s.passes("kernel", "watch c"))
	return s
}

// served is settled with an API server, which gets the node's reports.
func served(t *testing.T) (*stage, *scriptedServer) {
	t.Helper()
	s := settled(t)
	server := &scriptedServer{scriptedSource: s.source}
	s.setSource(server)
	return s, server
}
