package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// neighbours are the routers with node a's address in their network.
var neighbours = map[string]string{"red1": "10.1.0.11", "red2": "10.1.0.11", "blue1": "10.2.0.11", "blue2": "10.2.0.11", "gw": "10.0.0.11"}

// awaitBFD waits until every router's BFD session with node a is up.
func awaitBFD(t *testing.T, s *stage.Stage) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		for router, node := range neighbours {
			var peers []struct{ Peer, Status string }
			if err := s.Node(router).VTYJSON(&peers, "bfdd", "show bfd peers json"); err != nil {
				return err
			}
			status := ""
			for _, p := range peers {
				if p.Peer == node {
					status = p.Status
				}
			}
			if status != "up" {
				return fmt.Errorf("%s: BFD with %s is %q", router, node, status)
			}
		}
		return nil
	}))
}

// sameSessions notes the sessions of node a's neighbours; what it returns fails where one is not the same any more, or where
// a route to one of the addresses changed at a router meanwhile.
func sameSessions(t *testing.T, s *stage.Stage) (same func(*testing.T, ...string)) {
	t.Helper()
	times := map[string]int{}
	var watches []*fibWatch
	for router, node := range neighbours {
		awaitSession(t, s, router, node, 0)
		n, up, err := established(s, router, node)
		require.NoError(t, err)
		require.True(t, up, "%s", router)
		times[router] = n
		watches = append(watches, watchFIB(t, s, router))
	}
	return func(t *testing.T, addrs ...string) {
		t.Helper()
		for router, node := range neighbours {
			n, up, err := established(s, router, node)
			require.NoError(t, err)
			require.True(t, up, "%s", router)
			require.Equal(t, times[router], n, "%s: sessions up to now", router)
		}
		sameRoutes(t, watches, addrs...)
	}
}

func sameRoutes(t *testing.T, watches []*fibWatch, addrs ...string) {
	t.Helper()
	for _, w := range watches {
		for _, addr := range addrs {
			require.Empty(t, w.changes(addr), "%s", w.router)
		}
	}
}

// kept are the addresses that are announced all the time.
var kept = []string{"192.0.2.10", "2001:db8:2::10", "192.0.2.20", "2001:db8:2::20"}

// extra is an EgressService more, which both nodes announce in blue.
func extra(t *testing.T) string {
	t.Helper()
	return strings.NewReplacer("batch", "extra", "192.0.2.20", "192.0.2.30", "2:20", "2:30", "2::20", "2::30", "10.96.0.20", "10.96.0.30", "fd96::20", "fd96::30",
		"10.244.1.12", "10.244.1.13", "10.244.2.12", "10.244.2.13", "fd44:1::12", "fd44:1::13", "fd44:2::12", "fd44:2::13").Replace(manifest(t, "batch.yaml"))
}

// moment waits for a while that nobody chose.
func moment(t *testing.T, most time.Duration) {
	t.Helper()
	select {
	case <-time.After(rand.N(most)):
	case <-t.Context().Done():
	}
}

// times is how often a test does something: what an environment variable says, or usually.
func times(t *testing.T, variable string, usually int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usually
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, variable)
	return n
}

// lasting returns what a node's kernel has of ours and of others, except for what stays on purpose for a while after a
// change, and for what time alone changes. The parts of our table are sorted: an adopted table has them in another order.
func lasting(t *testing.T, s *stage.Stage, node string) (parts []string) {
	t.Helper()
	var part []string
	for _, l := range unlearned(inKernel(t, s, node, ours)) {
		if strings.HasPrefix(l, "\t\tpackets ") { // of a counter
			continue
		}
		if part = append(part, l); strings.HasPrefix(l, "\t") && l != "\t}" {
			continue
		}
		if !strings.Contains(part[0], "set former") {
			parts = append(parts, strings.Join(part, "\n"))
		}
		part = nil
	}
	slices.Sort(parts)
	return parts
}

// leftovers compares what node a's kernel has with the first look at it, with and without extra, for each version of the
// daemon apart.
type leftovers map[string]map[bool][]string

// newLeftovers looks at node a with the running version's daemon.
func newLeftovers(t *testing.T, s *stage.Stage, version string) leftovers {
	t.Helper()
	ctx := t.Context()
	// settled is a look that shows the same as the one before.
	settled := func() (now []string) {
		t.Helper()
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			before := now
			if now = lasting(t, s, "a"); !slices.Equal(before, now) {
				return errors.New("node a is still changing")
			}
			return nil
		}))
		return now
	}
	want := map[bool][]string{false: settled()}
	require.NoError(t, s.Write(ctx, "extra.yaml", extra(t)))
	require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.30/32", "10.2.0.11", "10.2.0.12"))
	want[true] = settled()
	require.NotEqual(t, want[false], want[true])
	require.NoError(t, s.Remove(ctx, "extra.yaml"))
	require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.30/32"))
	return leftovers{version: want}
}

// none waits until node a's kernel has what it had at the first look: nothing stale, and nothing of others gone.
func (l leftovers) none(t *testing.T, s *stage.Stage, version string, withExtra bool, after string) {
	t.Helper()
	if l[version] == nil {
		l[version] = map[bool][]string{}
	}
	want := l[version][withExtra]
	if want == nil {
		l[version][withExtra] = lasting(t, s, "a")
		return
	}
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		got := lasting(t, s, "a")
		if !slices.Equal(want, got) {
			without := func(all, but []string) string {
				return strings.Join(slices.DeleteFunc(slices.Clone(all), func(part string) bool { return slices.Contains(but, part) }), "\n")
			}
			return fmt.Errorf("after %s node a has\n%s\nwant\n%s", after, without(got, want), without(want, got))
		}
		return nil
	}))
}

// TestSpeakerOutlivesAgents kills the host's daemon again and again, while it starts, changes its node, or does nothing,
// and while its objects change: LAB_KILLS says how often, other than 10 times. No router sees anything of it, none of the
// pods' questions goes unanswered, and nothing stays behind.
func TestSpeakerOutlivesAgents(t *testing.T) {
	s := play(t, stage.Options{BFD: true, BFDInterval: 1000})
	ctx := t.Context()
	all := asDeployed()
	awaitServed(t, s, all)
	awaitBFD(t, s)
	require.NoError(t, s.AwaitRoute(ctx, "red1", "192.0.2.10/32", "10.1.0.11"))
	require.NoError(t, s.AwaitRoute(ctx, "blue2", "2001:db8:2::20/128", "fd02::11", "fd02::12"))
	awaitLearned(t, s)
	left := newLeftovers(t, s, "")

	same := sameSessions(t, s)
	old := talk(t, s, all)
	traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
	for i := range times(t, "LAB_KILLS", 10) {
		hops := []string{"10.2.0.11", "10.2.0.12"}
		if i%2 == 0 {
			require.NoError(t, s.Write(ctx, "extra.yaml", extra(t)))
		} else {
			require.NoError(t, s.Remove(ctx, "extra.yaml"))
			hops = nil
		}
		moment(t, 400*time.Millisecond)
		s.Daemons["a"].Kill()
		moment(t, 400*time.Millisecond)
		require.NoError(t, s.StartDaemon("a"))
		if i%3 == 0 {
			moment(t, 400*time.Millisecond)
			s.Daemons["a"].Kill()
			require.NoError(t, s.StartDaemon("a"))
		}
		require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.30/32", hops...), "the %d. change", i+1)
		left.none(t, s, "", hops != nil, fmt.Sprintf("the %d. change", i+1))
	}
	traffic.answered(t, 40, all)
	traffic.stop(t, all)
	old.goOn(t, all, all)
	requireInnocent(t, s, all)
	same(t, kept...)
	awaitBFD(t, s)
}

// TestUpgrade swaps versions of the daemon back and forth under traffic. LAB_UPGRADES says how often, other than 3 times.
// LAB_OTHER names the program of another commit, whose rules may differ from ours; without it, both are the same code.
func TestUpgrade(t *testing.T) {
	this, err := lab.Binary()
	require.NoError(t, err)
	ctx := t.Context()
	next, nextVersion, err := lab.OtherBinary(ctx)
	require.NoError(t, err)
	rules := "" // of the other version
	if os.Getenv(lab.OtherEnv) != "" {
		rules = nextVersion
	}
	s := play(t, stage.Options{BFD: true, BFDInterval: 1000})
	all := asDeployed()
	awaitServed(t, s, all)
	awaitBFD(t, s)
	require.NoError(t, s.AwaitRoute(ctx, "blue2", "2001:db8:2::20/128", "fd02::11", "fd02::12"))
	awaitLearned(t, s)
	left := newLeftovers(t, s, "")

	same := sameSessions(t, s)
	old := talk(t, s, all)
	traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
	runs := func(version func(string) bool) {
		t.Helper()
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			out, err := s.Egressway(ctx, "a", "status", "-o", "json")
			if err != nil {
				return err
			}
			var r struct {
				Version string
				Ready   bool
			}
			if err := json.Unmarshal([]byte(out), &r); err != nil {
				return err
			}
			if !r.Ready || !version(r.Version) {
				return fmt.Errorf("version %s is ready: %t", r.Version, r.Ready)
			}
			return nil
		}))
	}
	isNext := func(v string) bool { return v == nextVersion }
	isThis := func(v string) bool { return v != nextVersion }
	for i := range times(t, "LAB_UPGRADES", 3) {
		require.NoError(t, s.Daemons["a"].Stop(ctx))
		require.NoError(t, s.StartDaemonOf("a", next))
		runs(isNext)
		require.NoError(t, s.Write(ctx, "extra.yaml", extra(t)))
		require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.30/32", "10.2.0.11", "10.2.0.12"), "the %d. upgrade", i+1)
		left.none(t, s, rules, true, fmt.Sprintf("the %d. upgrade", i+1))
		s.Daemons["a"].Kill()
		require.NoError(t, s.StartDaemonOf("a", this))
		runs(isThis)
		require.NoError(t, s.Remove(ctx, "extra.yaml"))
		require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.30/32"), "the %d. downgrade", i+1)
		left.none(t, s, "", false, fmt.Sprintf("the %d. downgrade", i+1))
	}
	traffic.answered(t, 5, all)
	traffic.stop(t, all)
	old.goOn(t, all, all)
	requireInnocent(t, s, all)
	same(t, kept...)
}

// speakerOf is the process that is the speaker of a node; 0: there is none.
func speakerOf(t *testing.T, s *stage.Stage, node string) (pid int) {
	t.Helper()
	_ = s.Node(node).Do(func() error {
		conn, err := net.Dial("unix", stage.SpeakerSocket)
		if err != nil {
			return err
		}
		defer conn.Close()
		raw, err := conn.(*net.UnixConn).SyscallConn()
		if err != nil {
			return err
		}
		return raw.Control(func(fd uintptr) {
			if peer, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
				pid = int(peer.Pid)
			}
		})
	})
	return pid
}

// TestOwnSpeaker has daemons start their speakers themselves.
func TestOwnSpeaker(t *testing.T) {
	s := play(t, stage.Options{
		BFD: true, BFDInterval: 1000, OwnSpeaker: true,
		Config: replaced("receiveInterval: 1000}}", "receiveInterval: 1000, detectMultiplier: 12}}"), // a slow machine takes 7 s to start a speaker again
	})
	ctx := t.Context()
	all := asDeployed()
	awaitServed(t, s, all)
	awaitBFD(t, s)
	awaitLearned(t, s)
	require.NoError(t, s.AwaitRoute(ctx, "blue2", "2001:db8:2::20/128", "fd02::11", "fd02::12"))
	speaker := speakerOf(t, s, "a")
	require.NotZero(t, speaker)
	require.NotEqual(t, s.Daemons["a"].PID(), speaker)

	t.Run("the daemon is killed", func(t *testing.T) {
		same := sameSessions(t, s)
		traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "c-p1")
		group, err := syscall.Getpgid(s.Daemons["a"].PID())
		require.NoError(t, err)
		s.Daemons["a"].Kill()
		require.Equal(t, speaker, speakerOf(t, s, "a"))
		own, err := syscall.Getpgid(speaker)
		require.NoError(t, err)
		require.NotEqual(t, group, own, "what is done to the daemon's process group is not done to it")
		traffic.answered(t, 80, all) // longer than BFD would take to notice
		require.NoError(t, s.StartDaemon("a"))
		require.NoError(t, s.Write(ctx, "extra.yaml", extra(t)))
		require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.30/32", "10.2.0.11", "10.2.0.12"), "the next one drives it")
		require.NoError(t, s.Remove(ctx, "extra.yaml"))
		require.NoError(t, lab.Wait(ctx, patience, func() error { // a daemon believes after a pause that a file is gone
			if strings.Contains(strings.Join(inKernel(t, s, "a", ours), "\n"), "10.244.1.13 :") {
				return errors.New("node a still has a path for a pod of extra.yaml")
			}
			return nil
		}))
		require.Equal(t, speaker, speakerOf(t, s, "a"))
		traffic.stop(t, all)
		same(t, kept...)
	})

	// Then routers keep, for graceful restart, what they know, until the sessions are back: also where BFD tells them soon
	// after the sessions' end that nobody is there any more.
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "told to end": syscall.SIGTERM} {
		t.Run("the speaker is "+name, func(t *testing.T) {
			awaitBFD(t, s)
			awaitWatched(t, s, "a", "b")
			awaitLearned(t, s)
			var watches []*fibWatch
			times := map[string]int{}
			for router, node := range neighbours {
				n, _, err := established(s, router, node)
				require.NoError(t, err)
				times[router] = n
				watches = append(watches, watchFIB(t, s, router))
			}
			before := unlearned(inKernel(t, s, "a", ours))
			old := talk(t, s, all)
			traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "c-p1")
			former := speakerOf(t, s, "a")
			require.NoError(t, syscall.Kill(former, signal))
			for router, node := range neighbours {
				awaitSession(t, s, router, node, times[router])
			}
			require.NotEqual(t, former, speakerOf(t, s, "a"))
			awaitBFD(t, s)
			awaitWatched(t, s, "a", "b")
			awaitLearned(t, s)
			traffic.answered(t, 10, all)
			traffic.stop(t, all)
			old.goOn(t, all, all)
			require.Equal(t, before, unlearned(inKernel(t, s, "a", ours)))
			sameRoutes(t, watches, kept...)
		})
	}

	t.Run("cleaned up", func(t *testing.T) {
		require.NoError(t, s.Daemons["a"].Stop(ctx))
		require.NotZero(t, speakerOf(t, s, "a"))
		_, err := s.Egressway(ctx, "a", "cleanup", "--config", "/etc/egressway/config.yaml")
		require.NoError(t, err)
		require.Zero(t, speakerOf(t, s, "a"))
		require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.20/32", "10.2.0.12"), "withdrawn, not kept for a restart")
	})
}

// TestSpeakerIsReplaced has the host's speaker away for longer than the leader needs to believe that sessions are down, as while a
// kubelet starts another. Routers keep the node's routes, and it stays the host. BFD between nodes is off: it would take a
// speaker that is away for 3 seconds for dead, and the test is not about that.
func TestSpeakerIsReplaced(t *testing.T) {
	s := play(t, stage.Options{API: true, Config: func(c string) string { return c + "failover: {bfd: {enabled: false}}\n" }})
	ctx := t.Context()
	all := asDeployed()
	awaitServed(t, s, all)
	host, _ := hosts(t, s)
	before, err := s.EgressService(ctx, "shop", "web")
	require.NoError(t, err)
	traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
	traffic.answered(t, 3, all)
	require.NoError(t, s.Speakers[host].Stop(ctx))
	traffic.answered(t, 40, all)
	require.NoError(t, s.StartSpeaker(host))
	awaitAll(t, s, all)
	traffic.answered(t, 10, all)
	traffic.stop(t, all)
	after, err := s.EgressService(ctx, "shop", "web")
	require.NoError(t, err)
	require.Equal(t, []any{host, before.Status.Term}, []any{after.Status.Host, after.Status.Term})
	requireInnocent(t, s, all)
}
