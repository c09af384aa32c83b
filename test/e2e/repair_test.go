package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// kernelEvent is what a node's kernel tells of a link, address, route or rule.
type kernelEvent struct {
	at   time.Time
	gone bool
	text string
}

// kernelEvents follows what a node's kernel tells.
type kernelEvents struct {
	mu     sync.Mutex
	events []kernelEvent
}

// watchKernel follows a node's kernel until the test ends.
func watchKernel(t *testing.T, s *stage.Stage, node string) *kernelEvents {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := &kernelEvents{}
	var work sync.WaitGroup
	var commands []*exec.Cmd
	for _, family := range []string{"-4", "-6"} { // ip monitor takes rules of one family only
		cmd := s.Node(node).Command(ctx, "ip", family, "-ts", "-o", "monitor", "link", "address", "route", "rule")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		commands = append(commands, cmd)
		work.Go(func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				w.read(family, lines.Text())
			}
		})
	}
	t.Cleanup(func() {
		stop()
		work.Wait()
		for _, cmd := range commands {
			require.Error(t, cmd.Wait(), "it ends when it is killed")
		}
	})
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		for _, family := range []string{"-4", "-6"} {
			for _, change := range []string{"add", "del"} {
				if _, err := s.Node(node).Run(ctx, "ip", family, "rule", change, "fwmark", "0x77", "lookup", "77", "priority", "31999"); err != nil {
					return err
				}
			}
		}
		if w.count(func(e kernelEvent) bool { return strings.Contains(e.text, "31999") }) < 2 {
			return fmt.Errorf("%s tells nothing of its rules", node)
		}
		return nil
	}))
	return w
}

func (w *kernelEvents) read(family, line string) {
	stamp, text, ok := strings.Cut(strings.TrimPrefix(line, "["), "] ")
	at, err := time.Parse("2006-01-02T15:04:05.000000", stamp)
	if !ok || err != nil {
		return
	}
	text, gone := strings.CutPrefix(text, "Deleted ")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, kernelEvent{at, gone, family + " " + text})
}

func (w *kernelEvents) count(wanted func(kernelEvent) bool) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if wanted(e) {
			n++
		}
	}
	return n
}

func (w *kernelEvents) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = nil
}

// took is the time between the first loss and the last return of what is ours, and how much was lost.
func (w *kernelEvents) took(ours func(string) bool) (after time.Duration, lost int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var first, last time.Time
	for _, e := range w.events {
		switch {
		case !ours(e.text):
		case e.gone:
			if lost++; first.IsZero() || e.at.Before(first) {
				first = e.at
			}
		case e.at.After(last):
			last = e.at
		}
	}
	return max(0, last.Sub(first)), lost
}

// returns are the times between the loss of something and its return.
func (w *kernelEvents) returns(ours func(string) bool) (all []time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lost := map[string]time.Time{}
	for _, e := range w.events {
		switch at, gone := lost[e.text]; {
		case !ours(e.text):
		case e.gone:
			lost[e.text] = e.at
		case gone:
			all = append(all, e.at.Sub(at))
			delete(lost, e.text)
		}
	}
	return all
}

// steady leaves the host where it is, however busy the machine.
func steady(config string) string { return config + "failover: {bfd: {enabled: false}}\n" }

// damage is what others do to a node.
type damage struct {
	name, node, command string
	ours                []string // signs of what is taken away, in what the kernel tells; nil: nothing of ours is
	pods                []string // that may go unanswered meanwhile
	back                string   // command that puts back what is not ours to put back
}

// standing is what of ours must come back on a node.
const standing = "ip rule; ip -6 rule; for t in 1001 1002; do ip route show table $t proto 142; ip -6 route show table $t proto 142; done | grep -v -e nexthop -e 'metric 20' || true; " +
	"ip -br link show type vrf | cut -d' ' -f1; ip -br link show master vrf-red | cut -d' ' -f1; ip -br link show master vrf-blue | cut -d' ' -f1; " +
	"ip -br link show type vxlan | cut -d' ' -f1; ip route show table all proto 142 | grep 7946 || true; ip -6 route show table all proto 142 | grep 7946 || true"

// mended does some damage under the traffic of all pods. Nobody's packets take another way or show another source while it
// lasts; it is repaired, and all is as before.
func (d damage) mended(t *testing.T, s *stage.Stage, all identities) {
	t.Run(d.name+" on "+d.node, func(t *testing.T) {
		ctx := t.Context()
		may := identities{}
		for _, pod := range d.pods {
			may[pod] = identity{}
		}
		state := func() string {
			lines := inKernel(t, s, d.node, standing)
			slices.Sort(lines)
			return strings.Join(lines, "\n")
		}
		awaitWhole(t, s) // also after the damage before
		before := state()
		s.Witness.Reset()
		watch := watchKernel(t, s, d.node)
		traffic := ask(t, s, slices.Sorted(maps.Keys(all))...)
		for i, to := range []string{"192.0.2.10:80", "[2001:db8:2::10]:80"} {
			from := s.Stream(ctx, s.Node("ext-red"), netip.MustParseAddrPort(to), time.Duration(20+i)*time.Millisecond)
			defer from.Stop() // unanswered or not: it is seen what comes of it
		}
		traffic.answered(t, 3, all)
		watch.forget()
		_, err := s.Node(d.node).Run(ctx, "sh", "-ec", d.command)
		require.NoError(t, err)
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			if now := state(); now != before {
				return fmt.Errorf("not as before:\n%s\nbut\n%s", before, now)
			}
			return nil
		}))
		var after time.Duration
		var lost int
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			after, lost = watch.took(func(line string) bool {
				return slices.ContainsFunc(d.ours, func(sign string) bool { return strings.Contains(line, sign) })
			})
			if d.ours != nil && lost == 0 {
				return errors.New("nothing of ours was taken away")
			}
			return nil
		}))
		t.Logf("%d objects of ours taken away, all back after %s", lost, after)
		if d.back != "" {
			_, err := s.Node(d.node).Run(ctx, "sh", "-ec", d.back)
			require.NoError(t, err)
		}
		began := time.Now()
		traffic.answered(t, 5, all)
		t.Logf("all pods are answered again %s later", time.Since(began))
		traffic.stop(t, all, all.with(may))
		requireInnocent(t, s, all)
	})
}

// takeAway writes what "ip rule" and "ip route" list into a batch of deletions, by which all is gone at once.
const takeAway = `for f in -4 -6; do
	(ip $f rule | awk -F'[: ]' "/$1/ "'{ print "rule del pref", $1 }'
	 ip $f route show table all proto 142 type unicast | grep -v nexthop | grep -e "$2" | sed 's/^/route del /'
	 ip $f route show table all proto 142 type unreachable | grep -e "$2" | sed 's/^/route del /'
	 ) >/tmp/batch$f
done
echo "$3" >>/tmp/batch-6
ip -4 -batch /tmp/batch-4; ip -6 -batch /tmp/batch-6
`

// rulesAndRoutes are commands that take away the rules and routes whose lines match, and do one thing more.
func rulesAndRoutes(rule, route string, more ...string) string {
	return "set -- '" + rule + "' '" + route + "' '" + strings.Join(more, " ") + "'\n" + takeAway
}

const nothing = "^$"

// TestForeignHands takes away what the daemon made, piece by piece and all at once.
func TestForeignHands(t *testing.T) {
	s := play(t, stage.Options{Manifests: oneFile(t), Config: steady})
	all := asDeployed()
	awaitServed(t, s, all)
	awaitLearned(t, s)
	byA, byB, byRed := []string{"a-p1", "a-p2", "b-p1"}, []string{"b-p1", "b-p2"}, []string{"a-p1", "b-p1"}
	ours := []string{"proto 142"}
	for _, d := range []damage{
		{name: "rules 701", node: "a", command: rulesAndRoutes("^701", nothing), ours: ours, pods: byA},
		{name: "rules 701", node: "b", command: rulesAndRoutes("^701", nothing), ours: ours, pods: byB},
		{name: "rule 799", node: "a", command: rulesAndRoutes("^799", nothing), ours: ours, pods: byA},
		{name: "rules 701 and 799", node: "b", command: rulesAndRoutes("^(701|799)", nothing), ours: ours, pods: byB},
		{name: "all rules", node: "a", command: rulesAndRoutes("proto 142", nothing), ours: ours, pods: byA},
		{name: "all rules", node: "b", command: rulesAndRoutes("proto 142", nothing), ours: ours, pods: byB},
		{name: "learned routes", node: "a", command: rulesAndRoutes(nothing, "table 100[12]"), ours: ours, pods: byA},
		{name: "steering routes", node: "b", command: rulesAndRoutes(nothing, "table 7946"), ours: ours, pods: byB},
		{name: "rules and routes", node: "a", command: rulesAndRoutes("proto 142", "."), ours: ours, pods: byA},
		{name: "rules and routes", node: "b", command: rulesAndRoutes("proto 142", "."), ours: ours, pods: byB},
		{name: "VRF", node: "a", command: "ip link del vrf-red", ours: []string{"vrf-red:"}, pods: byA},
		{name: "VRF", node: "b", command: "ip link del vrf-blue", ours: []string{"vrf-blue:"}, pods: byB},
		{name: "VRF, again and again", node: "a", command: "for i in 1 2 3 4 5 6 7 8 9 10; do ip link del vrf-red 2>/dev/null || true; sleep 0.07; done", ours: []string{"vrf-red:"}, pods: byA},
		{name: "VRF made anew by others", node: "a", command: "while ! printf 'link del vrf-red\\nlink add vrf-red type vrf table 1001\\nlink set vrf-red up\\n' | ip -batch -; do :; done 2>/dev/null", ours: []string{"vrf-red:"}, pods: byA},
		{name: "uplink renamed and back", node: "a", command: "ip link set eth2 name foo; while ip link show foo | grep -q vrf-red; do :; done; sleep 0.5; ip link set foo name eth2", pods: byRed},
		{
			name: "uplink down", node: "a", command: "ip link set eth2 down; sleep 0.5; ip link set eth2 up", pods: byRed,
			back: "ip addr add fd01::11/64 dev eth2 nodad",
		}, // the kernel takes IPv6 addresses of every link that goes down
		{
			name: "addresses of an uplink", node: "a", command: "ip addr flush dev eth2", pods: byRed,
			back: "ip addr add 10.1.0.11/24 dev eth2; ip addr add fd01::11/64 dev eth2 nodad",
		},
	} {
		d.mended(t, s, all)
	}
}

// TestForeignHandsOnTunnel takes away the device by which packets are steered.
func TestForeignHandsOnTunnel(t *testing.T) {
	s := play(t, stage.Options{Manifests: oneFile(t), Config: func(c string) string { return steady(c) + "steering: {mode: vxlan}\n" }})
	all := asDeployed()
	awaitServed(t, s, all)
	awaitLearned(t, s)
	ours := []string{"egressway:", "proto 142"}
	steered := []string{"b-p1"}
	for _, d := range []damage{
		{name: "device", node: "b", command: "ip link del egressway", ours: ours, pods: steered},
		{name: "device of the host", node: "a", command: "ip link del egressway", ours: ours, pods: steered},
		{name: "neighbours", node: "b", command: "ip neigh flush dev egressway nud permanent", pods: steered},
		{name: "forwarding entries", node: "b", command: "bridge fdb flush dev egressway", pods: steered},
		{name: "device and all rules", node: "b", command: rulesAndRoutes("proto 142", "table [^7]", "link del egressway"), ours: ours, pods: []string{"b-p1", "b-p2"}},
		{name: "device made anew by others", node: "b", command: "while ! ip link show type dummy | grep -q egressway; do ip link del egressway || true; ip link add egressway type dummy || true; done 2>/dev/null; sleep 1; ip link del egressway", ours: ours, pods: steered},
	} {
		d.mended(t, s, all)
	}
}

// TestSettingsAreLookedAt changes a setting of the kernel on a node where nothing else happens.
func TestSettingsAreLookedAt(t *testing.T) {
	s := play(t, stage.Options{Nodes: []string{"a"}})
	require.NoError(t, s.AwaitRoute(t.Context(), "blue1", "192.0.2.20/32", "10.2.0.11"))
	awaitLearned(t, s)
	_, err := s.Node("a").Run(t.Context(), "sysctl", "-qw", "net.ipv4.conf.eth2.rp_filter=1")
	require.NoError(t, err)
	require.NoError(t, lab.Wait(t.Context(), lab.Patience, func() error {
		out, err := s.Egressway(t.Context(), "a", "status")
		if err == nil && !strings.Contains(out, "eth2.rp_filter") {
			err = errors.New("status does not tell of it: " + out)
		}
		return err
	}))
}
