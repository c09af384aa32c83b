package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// identity is what a pod is to the outside world: the external host that its packets reach, which tells the network, and
// the source that this host sees, by family.
type identity struct{ host, source4, source6 string }

// identities says what each pod is.
type identities map[string]identity

// The identities of the topology as it is in the repository.
var (
	web    = identity{"ext-red", "192.0.2.10", "2001:db8:2::10"}
	batchA = identity{"ext-blue", "10.2.0.11", "fd02::11"}
	batchB = identity{"ext-blue", "10.2.0.12", "fd02::12"}
	nodeA  = identity{"ext-default", "10.0.0.11", "fd00::11"} // not selected: masqueraded by the CNI
	nodeB  = identity{"ext-default", "10.0.0.12", "fd00::12"}
	nodeC  = identity{"ext-default", "10.0.0.13", "fd00::13"}
)

func asDeployed() identities {
	return identities{"a-p1": web, "b-p1": web, "a-p2": batchA, "b-p2": batchB, "c-p1": nodeC}
}

// with is a copy of all with some changed.
func (all identities) with(changed identities) identities {
	all = maps.Clone(all)
	maps.Copy(all, changed)
	return all
}

func (i identity) source(to netip.AddrPort) string {
	if to.Addr().Is4() {
		return i.source4
	}
	return i.source6
}

func (i identity) is(host string, source netip.Addr, to netip.AddrPort) bool {
	return host == i.host && source.String() == i.source(to)
}

var outside = []netip.AddrPort{stage.Outside4, stage.Outside6}

// atOnce does the same with all of some things at once.
func atOnce[T any](things []T, do func(T) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(things))
	for i, thing := range things {
		wg.Go(func() { errs[i] = do(thing) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// allowed is what routers may see of pods with these identities, by network.
func allowed(all ...identities) map[string][]string {
	networks := map[string]string{"ext-red": "red", "ext-blue": "blue", "ext-default": "default"}
	may := map[string][]string{}
	for _, pods := range all {
		for _, i := range pods {
			n := networks[i.host]
			may[n] = append(may[n], i.source4, i.source6)
		}
	}
	return may
}

// awaitAll waits until new connections of every pod show its identity.
func awaitAll(t *testing.T, s *stage.Stage, all identities) {
	t.Helper()
	for _, pod := range slices.Sorted(maps.Keys(all)) {
		for _, to := range outside {
			require.NoError(t, s.Await(t.Context(), pod, to, all[pod].host, all[pod].source(to)), "pod %s to %s", pod, to)
		}
	}
}

// ways are the routers by which the answers of an external host come back: it spreads them by ports.
var ways = map[string][]string{"ext-red": {"red1", "red2"}, "ext-blue": {"blue1", "blue2"}, "ext-default": {"gw"}}

// awaitWays waits until the kernels of all these routers have routes to the addresses of pods with these identities. BGP has a route before
// its router's kernel does, and questions may have been answered by the other router alone.
func awaitWays(t *testing.T, s *stage.Stage, all identities) {
	t.Helper()
	onLink := []string{"10.0.", "10.1.", "10.2.", "fd00:", "fd01:", "fd02:"} // nodes' own
	waited := map[identity]bool{}
	for _, i := range all {
		if waited[i] {
			continue
		}
		waited[i] = true
		for _, f := range ipFamilies {
			source := i.source(f.outside)
			if source == "" || slices.ContainsFunc(onLink, func(prefix string) bool { return strings.HasPrefix(source, prefix) }) {
				continue
			}
			for _, router := range ways[i.host] {
				require.NoError(t, lab.Wait(t.Context(), patience, func() error {
					if len(routes(t, s, router, f, "main", source)) == 0 {
						return fmt.Errorf("the kernel of %s has no route to %s", router, source)
					}
					return nil
				}))
			}
		}
	}
}

// requireInnocent fails where a router saw what pods with these identities do not send.
func requireInnocent(t *testing.T, s *stage.Stage, all ...identities) {
	t.Helper()
	require.Empty(t, s.Wrong(allowed(all...)), "packets at routers with a wrong source or in the wrong network")
}

// flow is what one pod asks of one address in the background.
type flow struct {
	pod    string
	to     netip.AddrPort
	stream *lab.Stream
}

type flows []flow

// ask has pods ask the outside world by a new connection every now and then, by TCP and UDP in turn.
func ask(t *testing.T, s *stage.Stage, pods ...string) (all flows) {
	t.Helper()
	for _, pod := range pods {
		for _, to := range outside {
			all = append(all, flow{pod, to, s.Stream(t.Context(), s.Node(pod), to, 50*time.Millisecond)})
		}
	}
	return all
}

// answered waits until every flow of these pods was answered n times more, with the identity of its pod.
func (all flows) answered(t *testing.T, n int, pods identities) {
	t.Helper()
	require.NoError(t, atOnce(all, func(f flow) error {
		if _, ok := pods[f.pod]; !ok {
			return nil
		}
		before := f.answers(pods)
		return lab.Wait(t.Context(), patience, func() error {
			if got := f.answers(pods) - before; got < n {
				return fmt.Errorf("pod %s to %s: %d answers as %v: %+v", f.pod, f.to, got, pods[f.pod], f.stream.Tally())
			}
			return nil
		})
	}))
}

// answers counts those that show the pod's identity.
func (f flow) answers(pods identities) (sum int) {
	for seen, times := range f.stream.Tally().Seen {
		if pods[f.pod].is(seen.Name, seen.Source, f.to) {
			sum += times
		}
	}
	return sum
}

// stop ends the flows. None may have shown another identity than one of its pod's, and a pod with a single one must have got every
// answer.
func (all flows) stop(t *testing.T, pods ...identities) {
	t.Helper()
	for _, f := range all {
		f.stream.Stop()
	}
	var lost []string
	for _, f := range all {
		var may []identity
		for _, p := range pods {
			may = append(may, p[f.pod])
		}
		slices.SortFunc(may, func(a, b identity) int {
			return slices.Compare([]string{a.host, a.source4}, []string{b.host, b.source4})
		})
		may = slices.Compact(may)
		tally := f.stream.Stop()
		for seen := range tally.Seen {
			require.True(t, slices.ContainsFunc(may, func(i identity) bool { return i.is(seen.Name, seen.Source, f.to) }),
				"pod %s to %s: %s saw %s by %s, may be %v", f.pod, f.to, seen.Name, seen.Source, seen.Protocol, may)
		}
		if len(may) > 1 {
			t.Logf("pod %s to %s: %d answers, %d failed: %v", f.pod, f.to, tally.OK, tally.Failed, tally.Errors)
		} else if tally.Failed > 0 {
			lost = append(lost, fmt.Sprintf("pod %s to %s: %d answers, lost: %v", f.pod, f.to, tally.OK, tally.Lost))
		}
	}
	require.Empty(t, lost)
}

// conversation is a connection that stays.
type conversation struct {
	pod     string
	to      netip.AddrPort
	session *lab.Session
}

type conversations []conversation

// talk opens a connection from every pod to every outside address.
func talk(t *testing.T, s *stage.Stage, pods identities) (all conversations) {
	t.Helper()
	for _, pod := range slices.Sorted(maps.Keys(pods)) {
		for _, to := range outside {
			session, err := s.Node(pod).Open(t.Context(), to)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, session.Close()) })
			all = append(all, conversation{pod, to, session})
		}
	}
	all.goOn(t, pods, pods)
	return all
}

// goOn asks once more by every connection. A pod that is still who it was is answered; where another's connection
// lives on, it shows the new identity.
func (all conversations) goOn(t *testing.T, before, after identities) {
	t.Helper()
	var wg sync.WaitGroup
	answers, errs := make([]lab.Answer, len(all)), make([]error, len(all))
	for i, c := range all {
		wg.Go(func() { answers[i], errs[i] = c.session.Ask(t.Context()) })
	}
	wg.Wait()
	for i, c := range all {
		if before[c.pod] == after[c.pod] {
			require.NoError(t, errs[i], "pod %s", c.pod)
		}
		if errs[i] == nil {
			require.NoError(t, stage.Check(answers[i], after[c.pod].host, after[c.pod].source(c.to)), "pod %s", c.pod)
		}
	}
}

// transition makes a change while every pod asks the outside world by new connections and by ones that stay. During the
// change each packet shows the identity before or after it, and afterwards that after it alone.
func transition(t *testing.T, s *stage.Stage, before, after identities, change func()) {
	t.Helper()
	pods := slices.Sorted(maps.Keys(before))
	s.Witness.Reset()
	old := talk(t, s, before)
	during := ask(t, s, pods...)
	during.answered(t, 3, before)
	requireInnocent(t, s, before)

	change()
	during.answered(t, 5, after)
	during.stop(t, before, after)
	requireInnocent(t, s, before, after)

	awaitWays(t, s, after)
	s.Witness.Reset()
	old.goOn(t, before, after)
	settled := ask(t, s, pods...)
	settled.answered(t, 5, after)
	settled.stop(t, after)
	requireInnocent(t, s, after)
}

// changer gives what makes one change of shop.yaml after the other, each a subtest: fromTo is what Edit takes,
// changed the pods that are somebody else then, done what to wait for before that is asked.
func changer(t *testing.T, s *stage.Stage, now identities) func(name string, changed identities, done func(*testing.T), fromTo ...string) {
	return func(name string, changed identities, done func(*testing.T), fromTo ...string) {
		t.Helper()
		after := now.with(changed)
		t.Run(name, func(t *testing.T) {
			transition(t, s, now, after, func() {
				require.NoError(t, s.Edit(t.Context(), "shop.yaml", fromTo...))
				if done != nil {
					done(t)
				}
			})
		})
		now = after
	}
}

// awaitServed waits until every pod is who it should be, by all routers, and forgets the packets up to then: before the daemons
// are there, pods leave as the CNI has it.
func awaitServed(t *testing.T, s *stage.Stage, all identities) {
	t.Helper()
	awaitAll(t, s, all)
	awaitWays(t, s, all)
	s.Witness.Reset()
}

// manifest reads a file of the topology.
func manifest(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(containerlab, "vrf-egress", "manifests", name))
	require.NoError(t, err)
	return string(b)
}

// nobody is what the same pods are while they get no answer.
func (all identities) nobody() identities {
	none := identities{}
	for pod := range all {
		none[pod] = identity{}
	}
	return none
}

// unheard asks once more by the connections of some pods: none is answered.
func (all conversations) unheard(t *testing.T, pods identities) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(all))
	for i, c := range all {
		if _, ok := pods[c.pod]; ok {
			wg.Go(func() { _, errs[i] = c.session.Ask(t.Context()) })
		}
	}
	wg.Wait()
	for i, c := range all {
		if _, ok := pods[c.pod]; ok {
			require.Error(t, errs[i], "pod %s to %s", c.pod, c.to)
		}
	}
}
