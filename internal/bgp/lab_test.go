package bgp

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab"
)

// site is a node, which is this process, plugged to routers: to r1 and r2 in VRF red, to r1 in VRF blue with the same
// addresses. By another cable, its VRF blue is a second node to r1's VRF red.
type site struct {
	*lab.Lab
	t        *testing.T
	speakers *Speakers
	woken    chan struct{}
	desired  []plan.Speaker
	detail   bytes.Buffer // the log with all details, to read when the speakers are closed
}

const limit = lab.Patience

func newSite(t *testing.T) *site {
	t.Helper()
	l, err := lab.Deploy(t.Context(), "testdata/routers.clab.yml", lab.Options{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, l.Destroy())
		for _, device := range []string{"red1", "red2", "red3", "blue1", "main4", "main5", "red", "blue"} {
			// The kernel removes cables together with the routers' namespaces, some time after those are gone.
			if err := exec.Command("ip", "link", "del", device).Run(); err != nil {
				_, gone := net.InterfaceByName(device)
				require.Error(t, gone, device)
			}
		}
	})
	for vrf, table := range map[string]string{"red": "110", "blue": "120"} {
		run(t, "ip", "link", "add", vrf, "type", "vrf", "table", table)
		run(t, "ip", "link", "set", vrf, "up")
	}
	s := &site{Lab: l, t: t, woken: make(chan struct{}, 1)}
	s.plug("r1", "red", "red", "red1", 1)
	s.plug("r2", "red", "red", "red2", 2)
	s.plug("r1", "red", "blue", "red3", 3)
	s.plug("r1", "blue", "blue", "blue1", 1)

	// What was there before, the lab's threads among it, is no leak of the speakers.
	before := goleak.IgnoreCurrent()
	s.speakers = New(slog.New(slog.NewMultiHandler(
		slog.NewTextHandler(t.Output(), nil),
		slog.NewTextHandler(&s.detail, &slog.HandlerOptions{Level: slog.LevelDebug}),
	)), Hints{Apply: s.wake, Routes: func() {}})
	t.Cleanup(func() {
		require.NoError(t, s.speakers.Close(context.WithoutCancel(t.Context()), false))
		if t.Failed() {
			t.Log("all that was logged:\n" + s.detail.String())
		}
		// GoBGP forgets the pump of a queue that was not empty when its peer was removed.
		goleak.VerifyNone(t, before, goleak.IgnoreTopFunction("github.com/eapache/channels.(*InfiniteChannel).infiniteBuffer"))
	})
	return s
}

// plug makes a cable from a VRF of the node, or none, to one of a router.
func (s *site) plug(router, there, here, device string, subnet int) {
	s.t.Helper()
	_, err := s.Node(router).Run(s.t.Context(), "sh", "-ec", fmt.Sprintf(`
ip link add %[1]s type veth peer name %[1]s netns %[2]d
ip link set %[1]s master %[3]s up`, device, os.Getpid(), there))
	require.NoError(s.t, err)
	// FRR reads links and addresses in two threads, and forgets an address that it meets before its link. It would then
	// refuse every session over it: https://github.com/FRRouting/frr/issues/13288
	require.NoError(s.t, lab.Wait(s.t.Context(), limit, func() error {
		known, err := s.Node(router).VTY("zebra", "show interface "+device)
		if err == nil && !strings.Contains(known, "vrf: "+there) {
			err = fmt.Errorf("%s does not know %s in its VRF %s: %s", router, device, there, known)
		}
		return err
	}))
	_, err = s.Node(router).Run(s.t.Context(), "sh", "-ec", fmt.Sprintf(`
ip addr add 10.0.%[2]d.1/24 dev %[1]s
ip addr add fd00:%[2]d::1/64 dev %[1]s nodad`, device, subnet))
	require.NoError(s.t, err)
	if here != "" {
		run(s.t, "ip", "link", "set", device, "master", here)
	}
	run(s.t, "sh", "-ec", fmt.Sprintf(`
ip link set %[1]s up
ip addr add 10.0.%[2]d.2/24 dev %[1]s
ip addr add fd00:%[2]d::2/64 dev %[1]s nodad`, device, subnet))
}

func run(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%v: %s", args, out)
}

func (s *site) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// apply does what the daemon does for a change.
func (s *site) apply(desired ...plan.Speaker) {
	s.t.Helper()
	s.desired = desired
	require.NoError(s.t, s.speakers.Withdraw(s.t.Context(), desired))
	require.NoError(s.t, s.speakers.Apply(s.t.Context(), desired))
}

// until waits for ok and goes on applying when it is woken, as the daemon does.
func (s *site) until(ok func() error) {
	s.t.Helper()
	require.NoError(s.t, lab.Wait(s.t.Context(), limit, func() error {
		select {
		case <-s.woken:
			if err := s.speakers.Apply(s.t.Context(), s.desired); err != nil {
				return err
			}
		default:
		}
		return ok()
	}))
}

// established waits until every session is.
func (s *site) established() {
	s.t.Helper()
	s.until(func() error {
		for _, e := range s.speakers.Sessions() {
			if !e.Up {
				return fmt.Errorf("session %+v", e)
			}
		}
		return nil
	})
}

func (s *site) session(network, peer string) Session {
	all := s.speakers.Sessions()
	i := slices.IndexFunc(all, func(e Session) bool { return e.Network == network && e.Peer == peer })
	if i < 0 {
		return Session{}
	}
	return all[i]
}

// learned returns the routes of a network as text.
func (s *site) learned(network string) []string {
	var out []string
	for _, n := range s.speakers.Learned() {
		for r := range n.Routes.All() {
			if n.Network != network {
				continue
			}
			var b strings.Builder
			fmt.Fprint(&b, r.Dst)
			for _, h := range r.NextHops {
				fmt.Fprintf(&b, " via %s dev %s", h.Gateway, h.Device)
			}
			out = append(out, b.String())
		}
	}
	return out
}

func (s *site) untilLearned(network string, want ...string) {
	s.t.Helper()
	s.until(func() error {
		if have := s.learned(network); !slices.Equal(have, want) {
			return fmt.Errorf("learned in %s: %q, not %q", network, have, want)
		}
		return nil
	})
}

// configure gives lines of configuration to a router's bgpd.
func (s *site) configure(router string, lines ...string) {
	s.t.Helper()
	_, err := s.Node(router).VTY("bgpd", append([]string{"configure terminal"}, lines...)...)
	require.NoError(s.t, err)
}

// route is a path as FRR shows it.
type route struct {
	ASPath struct {
		String string `json:"string"`
	} `json:"aspath"`
	Origin    string `json:"origin"`
	Metric    int    `json:"metric"`
	LocalPref int    `json:"locPrf"`
	Stale     bool   `json:"stale"`
	Valid     bool   `json:"valid"`
	Multipath bool   `json:"multipath"`
	Bestpath  struct {
		Overall bool `json:"overall"`
	} `json:"bestpath"`
	Community struct {
		String string `json:"string"`
	} `json:"community"`
	LargeCommunity struct {
		String string `json:"string"`
	} `json:"largeCommunity"`
	NextHops []struct {
		IP    string `json:"ip"`
		Scope string `json:"scope"`
		Used  bool   `json:"used"`
	} `json:"nexthops"`
	Peer struct {
		ID string `json:"peerId"`
	} `json:"peer"`
}

// routes asks a router for the paths to prefix.
func (s *site) routes(router, vrf, prefix string) ([]route, error) {
	family := "ipv4"
	if netip.MustParsePrefix(prefix).Addr().Is6() {
		family = "ipv6"
	}
	var answer struct {
		Paths []route `json:"paths"`
	}
	err := s.Node(router).VTYJSON(&answer, "bgpd", fmt.Sprintf("show bgp vrf %s %s unicast %s json", vrf, family, prefix))
	return answer.Paths, err
}

// untilRoute waits for the one path that peer sends to prefix.
func (s *site) untilRoute(router, vrf, prefix, peer string, ok func(route) error) {
	s.t.Helper()
	s.until(func() error {
		paths, err := s.routes(router, vrf, prefix)
		if err != nil {
			return err
		}
		for _, p := range paths {
			if p.Peer.ID == peer {
				return ok(p)
			}
		}
		return fmt.Errorf("%s has no path to %s from %s but %+v", router, prefix, peer, paths)
	})
}

// untilBest waits until a router's best path to prefix is the one from peer, without another that is as good, and returns
// it together with the others.
func (s *site) untilBest(router, vrf, prefix, peer string) (best route, others []route) {
	s.t.Helper()
	s.until(func() error {
		paths, err := s.routes(router, vrf, prefix)
		if err != nil {
			return err
		}
		best, others = route{}, nil
		for _, p := range paths {
			switch {
			case p.Bestpath.Overall:
				best = p
			case p.Multipath:
				return fmt.Errorf("%s has more than one best path to %s: %+v", router, prefix, paths)
			default:
				others = append(others, p)
			}
		}
		if best.Peer.ID != peer {
			return fmt.Errorf("the best path of %s to %s is not by %s: %+v", router, prefix, peer, paths)
		}
		return nil
	})
	return best, others
}

func (s *site) untilNoRoute(router, vrf, prefix string) {
	s.t.Helper()
	s.until(func() error {
		paths, err := s.routes(router, vrf, prefix)
		if err == nil && len(paths) > 0 {
			err = fmt.Errorf("%s still has %s: %+v", router, prefix, paths)
		}
		return err
	})
}

// establishments counts how often a router's session was established, as the router sees it.
func (s *site) establishments(router, vrf, neighbor string) int {
	s.t.Helper()
	return s.neighbor(router, vrf, neighbor).Count
}

// updates counts the UPDATEs that a router has got from a neighbor, withdrawals among them.
func (s *site) updates(router, vrf, neighbor string) int {
	s.t.Helper()
	return s.neighbor(router, vrf, neighbor).Messages.Updates
}

type neighborState struct {
	Count    int `json:"connectionsEstablished"`
	Messages struct {
		Updates int `json:"updatesRecv"`
	} `json:"messageStats"`
}

func (s *site) neighbor(router, vrf, neighbor string) neighborState {
	s.t.Helper()
	var answer map[string]neighborState
	require.NoError(s.t, s.Node(router).VTYJSON(&answer, "bgpd", fmt.Sprintf("show bgp vrf %s neighbors %s json", vrf, neighbor)))
	return answer[neighbor]
}

func red(peers ...plan.Peer) plan.Speaker {
	return plan.Speaker{
		Network: "red", Device: "red", ASN: 64512, RouterID: netip.MustParseAddr("10.255.1.1"), ListenPort: -1, Peers: peers,
	}
}

func blue(peers ...plan.Peer) plan.Speaker {
	sp := red(peers...)
	sp.Network, sp.Device = "blue", "blue"
	return sp
}

// peer is r1 or r2 as the node sees it in a subnet.
func peer(addr, device string, change ...func(*plan.Peer)) plan.Peer {
	a := netip.MustParseAddr(addr)
	router := map[string]uint32{"red1": 65001, "red2": 65002, "red3": 65001, "blue1": 65011, "main4": 65001, "main5": 65002}[device]
	subnet := device[len(device)-1:]
	p := plan.Peer{
		Peer: config.Peer{
			Address: a, ASN: router, Port: 179,
			HoldTime: config.Duration(9 * time.Second), KeepaliveTime: config.Duration(3 * time.Second), ConnectTime: config.Duration(time.Second),
			AddressFamilies: []config.Family{config.IPv4Unicast, config.IPv6Unicast},
			MaxPrefixes:     1000,
		},
		NextHop4: netip.MustParseAddr("10.0." + subnet + ".2"),
		NextHop6: netip.MustParseAddr("fd00:" + subnet + "::2"),
		Device:   device,
		OnLink:   []netip.Prefix{netip.MustParsePrefix("10.0." + subnet + ".2/24"), netip.MustParsePrefix("fd00:" + subnet + "::2/64")},
	}
	for _, c := range change {
		c(&p)
	}
	return p
}

// announcing makes the announcements of a host whose term is not known.
func announcing(s ...string) sorted.List[plan.Announcement] {
	var out []plan.Announcement
	for _, p := range prefixes(s...) {
		out = append(out, plan.Announcement{Prefix: p})
	}
	return sorted.Of(out...)
}

func refusing(s ...string) (l sorted.List[plan.Prefix]) {
	for _, p := range prefixes(s...) {
		l = l.With([]plan.Prefix{{Prefix: p}}, nil)
	}
	return l
}

func receive(patterns ...config.PrefixPattern) func(*plan.Peer) {
	return func(p *plan.Peer) { p.Receive = patterns }
}

func pattern(prefix string, geLE ...uint8) config.PrefixPattern {
	p := config.PrefixPattern{Prefix: netip.MustParsePrefix(prefix)}
	if len(geLE) == 2 {
		p.GE, p.LE = geLE[0], geLE[1]
	}
	return p
}

func prefixes(s ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}
