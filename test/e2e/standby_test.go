package e2e

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// fibWatch is what a router's kernel tells of its routes as they change, with the time.
type fibWatch struct {
	router string
	mu     sync.Mutex
	lines  []string
}

// watchFIB watches a router until the test ends.
func watchFIB(t *testing.T, s *stage.Stage, router string) *fibWatch {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := &fibWatch{router: router}
	cmd := s.Node(router).Command(ctx, "ip", "-o", "-ts", "monitor", "route")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var work sync.WaitGroup
	work.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			w.mu.Lock()
			w.lines = append(w.lines, lines.Text())
			w.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		stop()
		work.Wait()
		require.Error(t, cmd.Wait(), "it ends when it is killed")
	})
	const sign = "203.0.113.250"
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		for _, change := range []string{"add", "del"} {
			if _, err := s.Node(router).Run(ctx, "ip", "route", change, sign+"/32", "dev", "lo"); err != nil {
				return err
			}
		}
		if len(w.changes(sign)) == 0 {
			return fmt.Errorf("%s tells nothing of its routes", router)
		}
		return nil
	}))
	return w
}

// changes lists what was told of the route to a host since forget.
func (w *fibWatch) changes(addr string) (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.lines {
		if slices.Contains(strings.Fields(l), addr) {
			all = append(all, l)
		}
	}
	return all
}

func (w *fibWatch) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = nil
}

var viaGateway = regexp.MustCompile(`via (\S+)`)

// requireMoved fails unless the route to a host was there all the time and went over from one gateway to another once. For a
// moment it may have had both.
func (w *fibWatch) requireMoved(t *testing.T, addr, from, to string) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error { // its kernel follows its BGP table
		if !slices.ContainsFunc(w.changes(addr), func(l string) bool { return strings.Contains(l, "via "+to+" ") }) {
			return fmt.Errorf("%s has no route to %s by %s yet", w.router, addr, to)
		}
		return nil
	}))
	stages := []string{from}
	for _, l := range w.changes(addr) {
		require.NotContains(t, l, "Deleted", "%s at %s", addr, w.router)
		var gateways []string
		for _, m := range viaGateway.FindAllStringSubmatch(l, -1) {
			gateways = append(gateways, m[1])
		}
		slices.Sort(gateways)
		stages = append(stages, strings.Join(gateways, " "))
	}
	both := []string{from, to}
	slices.Sort(both)
	stages = slices.DeleteFunc(slices.Compact(stages), func(gateways string) bool { return gateways == strings.Join(both, " ") })
	require.Equal(t, []string{from, to}, slices.Compact(stages), "gateways of %s at %s", addr, w.router)
}

// moving makes a change that gives some pods another host, under the traffic of all. No packet shows another identity,
// connections stay, and every question is answered: what comes to the wrong one of the two hosts is handed to the other.
// Only of lossy pods, whose former host does not stand by the next, some may go unanswered.
func moving(t *testing.T, s *stage.Stage, pods identities, change func(), lossy ...string) {
	t.Helper()
	unheard := identities{}
	for _, pod := range lossy {
		unheard[pod] = identity{}
	}
	s.Witness.Reset()
	old := talk(t, s, pods)
	traffic := ask(t, s, slices.Sorted(maps.Keys(pods))...)
	traffic.answered(t, 3, pods)
	change()
	traffic.answered(t, 5, pods)
	traffic.stop(t, pods, pods.with(unheard))
	old.goOn(t, pods, pods)
	requireInnocent(t, s, pods)
}

// visits are connections from outside to web, each with the answer that it had at first.
type visits []struct {
	session *lab.Session
	first   lab.Answer
}

// visit opens connections from a node outside: some are served by pods of the host, some by pods of another node.
func visit(t *testing.T, s *stage.Stage, from string) (all visits) {
	t.Helper()
	for _, f := range ipFamilies {
		for range 4 {
			session, err := s.Node(from).Open(t.Context(), netip.AddrPortFrom(f.web, 80))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, session.Close()) })
			first, err := session.Ask(t.Context())
			require.NoError(t, err)
			all = append(all, struct {
				session *lab.Session
				first   lab.Answer
			}{session, first})
		}
	}
	return all
}

// goOn asks once more by every connection: the same pod answers, and sees the same source.
func (all visits) goOn(t *testing.T) {
	t.Helper()
	for _, v := range all {
		a, err := v.session.Ask(t.Context())
		require.NoError(t, err, "served by %s", v.first.Name)
		require.Equal(t, v.first, a)
	}
}

// TestStandby has routers know the way to the node that takes over before it does: they have a way at every moment.
func TestStandby(t *testing.T) {
	now := strings.Replace(manifest(t, "web.yaml"), "network: red\n", "network: red\nstatus: {host: a, standby: b, term: 1}\n", 1)
	s := play(t, stage.Options{
		Nodes:     []string{"a", "b", "c"},
		Manifests: map[string]string{"cluster.yaml": manifest(t, "cluster.yaml"), "batch.yaml": manifest(t, "batch.yaml"), "web.yaml": now},
	})
	ctx := t.Context()
	all := asDeployed()
	routers := []string{"red1", "red2"}
	paths := func(active, standby string) {
		t.Helper()
		for _, router := range routers {
			for _, f := range ipFamilies {
				require.NoError(t, s.AwaitRoute(ctx, router, host(f.web), f.of(f.red, active).String()))
				if standby != "" {
					require.NoError(t, s.AwaitStandby(ctx, router, host(f.web), f.of(f.red, standby).String()))
				}
			}
		}
	}
	paths("a", "b")
	awaitServed(t, s, all)
	awaitWatched(t, s, "a", "b")
	awaitWatched(t, s, "b", "a")
	watches := make([]*fibWatch, len(routers))
	for i, router := range routers {
		watches[i] = watchFIB(t, s, router)
	}
	status := func(host, standby string, term int) string {
		return fmt.Sprintf("status: {host: %s, standby: %s, term: %d}", host, standby, term)
	}
	was := status("a", "b", 1)
	// tell writes another status, as whoever elects would.
	tell := func(host, standby string, term int) {
		t.Helper()
		next := status(host, standby, term)
		require.NoError(t, s.Edit(ctx, "web.yaml", was, next))
		was = next
		paths(host, standby)
	}
	moved := func(t *testing.T, from, to string) {
		t.Helper()
		for _, w := range watches {
			for _, f := range ipFamilies {
				w.requireMoved(t, f.web.String(), f.of(f.red, from).String(), f.of(f.red, to).String())
			}
			w.forget()
		}
	}
	// visited is moving with connections from outside, which go on too.
	visited := func(t *testing.T, change func()) {
		t.Helper()
		all := visit(t, s, "ext-red")
		moving(t, s, asDeployed(), change)
		all.goOn(t)
	}
	fromOutside := func(t *testing.T) {
		t.Helper()
		for _, f := range ipFamilies {
			a, err := s.Node("ext-red").AskTCP(ctx, netip.AddrPortFrom(f.web, 80))
			require.NoError(t, err)
			require.Contains(t, []string{"a-p1", "b-p1"}, a.Name)
		}
	}

	t.Run("the host's kube-proxy lags", func(t *testing.T) {
		// The standby's does not, but its answers would leave by network default.
		run(t, s, "a", "nft flush map ip kube-proxy service-ips", "nft flush map ip6 kube-proxy service-ips")
		s.Witness.Reset()
		for _, f := range ipFamilies {
			to := netip.AddrPortFrom(f.web, 80)
			for range 4 {
				unanswered(t, func(ctx context.Context) error { _, err := s.Node("ext-red").AskTCP(ctx, to); return err })
				unanswered(t, func(ctx context.Context) error { _, err := s.Node("ext-red").AskUDP(ctx, to, 100); return err })
			}
			require.NotEmpty(t, with(s, "red", f.web))
			require.Empty(t, with(s, "default", f.web))
		}
		objects := s.Objects()
		require.NoError(t, s.ProxyServices(ctx, &objects, "a"))
		fromOutside(t)
	})
	for _, w := range watches {
		w.forget()
	}
	t.Run("to the standby", func(t *testing.T) {
		visited(t, func() { tell("b", "a", 2) })
		moved(t, "a", "b")
	})
	t.Run("routers still send to the former host", func(t *testing.T) {
		visits := visit(t, s, "ext-red")
		// A table of its own: FRR would take its route out of the main one, and be late to put it back.
		late := func(change string) {
			for _, router := range routers {
				for i, f := range ipFamilies {
					flag := []string{"-4", "-6"}[i]
					if change == "add" {
						run(t, s, router, fmt.Sprintf("ip %s route add default via %s table 99", flag, f.of(f.red, "a")))
					}
					run(t, s, router, fmt.Sprintf("ip %s rule %s to %s table 99 priority 100", flag, change, host(f.web)))
				}
			}
		}
		late("add")
		visits.goOn(t)
		late("del")
		visits.goOn(t)
	})
	t.Run("and back, to a daemon that starts anew just then", func(t *testing.T) {
		visited(t, func() {
			tell("a", "b", 3)
			s.Daemons["a"].Kill()
			require.NoError(t, s.StartDaemon("a"))
			awaitOwner(t, s, "a")
		})
		moved(t, "b", "a")
	})
	t.Run("to a third node, which is the standby first", func(t *testing.T) {
		visited(t, func() {
			tell("a", "c", 3)
			awaitWatched(t, s, "a", "c")
			awaitWatched(t, s, "c", "a")
			tell("c", "a", 4)
		})
		moved(t, "a", "c")
	})
	t.Run("the host's sessions end", func(t *testing.T) {
		fromOutside(t)
		for _, router := range routers {
			_, err := s.Node(router).VTY("bgpd", "configure terminal", "router bgp 64601", "neighbor 10.1.0.13 shutdown")
			require.NoError(t, err)
		}
		paths("a", "")
		moved(t, "c", "a")
		fromOutside(t)
	})
}

// TestStandbyInDefaultNetwork moves a service of network default, which has no uplinks: strays come by the same LAN as all packets.
func TestStandbyInDefaultNetwork(t *testing.T) {
	was := "status: {host: a, standby: b, term: 1}"
	s := play(t, stage.Options{
		Nodes: []string{"a", "b", "c"}, Manifests: written(t, []string{"web.yaml"}, "  network: red\n", was+"\n"),
	})
	ctx := t.Context()
	inDefault := identity{"ext-default", web.source4, web.source6}
	pods := identities{"a-p1": inDefault, "b-p1": inDefault, "c-p1": nodeC}
	to := func(active, standby string) {
		t.Helper()
		for _, f := range ipFamilies {
			require.NoError(t, s.AwaitRoute(ctx, "gw", host(f.web), f.of(f.lan, active).String()))
			require.NoError(t, s.AwaitStandby(ctx, "gw", host(f.web), f.of(f.lan, standby).String()))
		}
	}
	to("a", "b")
	awaitServed(t, s, pods)
	awaitWatched(t, s, "a", "b")
	awaitWatched(t, s, "b", "a")
	move := func(host, standby string, term int) {
		t.Helper()
		next := fmt.Sprintf("status: {host: %s, standby: %s, term: %d}", host, standby, term)
		require.NoError(t, s.Edit(ctx, "web.yaml", was, next))
		was = next
		to(host, standby)
	}
	t.Run("trace says where strays go on to", func(t *testing.T) {
		for _, f := range ipFamilies {
			for node, other := range map[string]string{"a": "b", "b": "a"} {
				r, _ := traced(t, s, node, fromTo(f.outside.Addr(), f.web)...)
				require.Contains(t, found(r, "stray"), "go on to node "+other+" with a hop limit of 8")
			}
			r, _ := traced(t, s, "c", fromTo(f.outside.Addr(), f.web)...)
			require.Empty(t, found(r, "stray"))
		}
	})
	t.Run("to the standby", func(t *testing.T) {
		visits := visit(t, s, "ext-default")
		moving(t, s, pods, func() { move("b", "a", 2) })
		visits.goOn(t)
	})
	t.Run("the router still sends to the former host", func(t *testing.T) {
		visits := visit(t, s, "ext-default")
		late := func(change string) {
			for i, f := range ipFamilies {
				flag := []string{"-4", "-6"}[i]
				if change == "add" {
					run(t, s, "gw", fmt.Sprintf("ip %s route add default via %s table 99", flag, f.of(f.lan, "a")))
				}
				run(t, s, "gw", fmt.Sprintf("ip %s rule %s to %s table 99 priority 100", flag, change, host(f.web)))
			}
		}
		moving(t, s, pods, func() { late("add") })
		visits.goOn(t)
		moving(t, s, pods, func() { late("del") })
		visits.goOn(t)
	})
	t.Run("and back, to a daemon that restarts just then", func(t *testing.T) {
		visits := visit(t, s, "ext-default")
		moving(t, s, pods, func() {
			move("a", "b", 3)
			s.Daemons["a"].Kill()
			require.NoError(t, s.StartDaemon("a"))
			awaitOwner(t, s, "a")
		})
		visits.goOn(t)
	})
	t.Run("a packet that neither knows ends at the second one", func(t *testing.T) {
		w, err := s.Lab.Witness("gw:eth1", "a:eth1", "b:eth1")
		require.NoError(t, err)
		defer w.Close()
		for _, f := range ipFamilies {
			sent := func(node string) (n int) {
				for _, count := range w.Find(func(p lab.Packet) bool { return p.Node == node && p.Out && p.Src == f.clientMain && p.Dst == f.web }) {
					n += count
				}
				return n
			}
			unanswered(t, func(ctx context.Context) error {
				_, err := s.Node("ext-default").AskTCP(ctx, netip.AddrPortFrom(f.web, 81))
				return err
			})
			require.Positive(t, sent("gw"))
			require.Equal(t, sent("gw"), sent("a"))
			require.Zero(t, sent("b"))
		}
	})
}
