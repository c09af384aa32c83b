package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// besideFRR reads a file of containerlab/frr-beside. The guide shows it as it is, without the line for editors.
func besideFRR(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(containerlab, "frr-beside", name))
	require.NoError(t, err)
	guide, err := os.ReadFile("../../docs/guides/frr-beside.md")
	require.NoError(t, err)
	shown := string(b)
	if strings.HasPrefix(shown, "# yaml-language-server: ") {
		_, shown, _ = strings.Cut(shown, "\n")
	}
	require.Contains(t, string(guide), shown, "the guide shows %s", name)
	return string(b)
}

// instead is a configuration in the place of the topology's. Nodes take each other for dead after 12 s: a slow machine takes 7 to start a
// daemon and its speaker again.
func instead(config string) func(string) string {
	const between = "failover: {bfd: {transmitInterval: 1000, receiveInterval: 1000, detectMultiplier: 12}}\n"
	return func(string) string { return config + between }
}

// frrOn gives nodes a and b a configuration of FRR that is written for a.
func frrOn(config string) map[string]string {
	return map[string]string{"a": config, "b": strings.NewReplacer("hostname a", "hostname b", ".0.11", ".0.12", "::11", "::12").Replace(config)}
}

// fabric has routers tell FRR on the nodes of their links to the outside, and the outside answer by red1 alone, the only
// router of red that is told of ingress IPs.
func fabric(t *testing.T, s *stage.Stage) {
	t.Helper()
	tell := func(router, as, prefix4, prefix6 string, more ...string) {
		t.Helper()
		lines := append([]string{"configure terminal", "router bgp " + as, "address-family ipv4 unicast", "network " + prefix4}, more...)
		lines = append(lines, "exit-address-family", "address-family ipv6 unicast", "network "+prefix6)
		_, err := s.Node(router).VTY("bgpd", append(lines, more...)...)
		require.NoError(t, err)
	}
	tell("gw", "64600", "172.31.30.0/24", "fd31:30::/64", "no neighbor NODES route-map NOTHING out")
	tell("red2", "64601", "172.31.12.0/24", "fd31:12::/64")
	run(t, s, "ext-red", "ip route replace default src 203.0.113.1 via 172.31.11.1", "ip -6 route replace default src 2001:db8:113::1 via fd31:11::1")
}

// fabricRoutes are what FRR has learned and written on a node, by family and table.
var fabricRoutes = []struct {
	family             ipFamily
	table, dst, router string
}{
	{ipFamilies[0], "main", "172.31.30.0/24", "10.0.0.1"},
	{ipFamilies[1], "main", "fd31:30::/64", ""}, // by a link-local address
	{ipFamilies[0], "1001", "172.31.12.0/24", "10.1.0.2"},
	{ipFamilies[1], "1001", "fd31:12::/64", ""},
}

// awaitFabric waits until FRR on a node has its sessions and has written its routes.
func awaitFabric(t *testing.T, s *stage.Stage, node string) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		for _, r := range fabricRoutes {
			if have := routes(t, s, node, r.family, r.table, r.dst); len(have) != 1 || r.router != "" && have[0] != r.router {
				return fmt.Errorf("%s has %s in table %s by %v, want %s", node, r.dst, r.table, have, r.router)
			}
		}
		return nil
	}))
}

// theirs lists FRR's routes in a node's kernel, the sockets that listen for BGP, and all rules but ours. It leaves out next hops,
// which zebra makes for every route that it sees, and the sockets' queues.
const theirs = `ip route show table all proto bgp; ip -6 route show table all proto bgp
ss -Hltn sport = :179 | awk "{print \$1, \$4}" | sort; ip rule | grep -v 'proto 142' || true; ip -6 rule | grep -v 'proto 142' || true`

// sessionsOf counts how often sessions came up, once all are up; each is written router:peer.
func sessionsOf(t *testing.T, s *stage.Stage, sessions ...string) map[string]int {
	t.Helper()
	times := map[string]int{}
	for _, session := range sessions {
		router, peer, _ := strings.Cut(session, ":")
		require.NoError(t, lab.Wait(t.Context(), patience, func() error {
			n, up, err := established(s, router, peer)
			if err == nil && !up {
				err = fmt.Errorf("session %s is not up", session)
			}
			times[session] = n
			return err
		}))
	}
	return times
}

// TestFRRBeside has an FRR on the nodes, with sessions in the default VRF and in that of a network, where it listens on port
// 179. The daemon has other sessions in the same VRF and writes to the same tables. Neither notices a restart of the other.
func TestFRRBeside(t *testing.T) {
	s := play(t, stage.Options{Nodes: []string{}, Config: instead(besideFRR(t, "beside.yaml")), FRR: frrOn(besideFRR(t, "beside.conf"))})
	ctx := t.Context()
	all := asDeployed()
	fabric(t, s)
	awaitFabric(t, s, "b") // its VRFs exist
	before := withoutTime(inKernel(t, s, "b", theirs))
	require.Contains(t, strings.Join(before, "\n"), "%vrf-red:179")
	for _, node := range []string{"a", "b"} {
		require.NoError(t, s.StartDaemon(node))
	}
	require.NoError(t, s.AwaitRoute(ctx, "red1", "192.0.2.10/32", "10.1.0.11"))
	require.NoError(t, s.AwaitRoute(ctx, "red1", "2001:db8:2::10/128", "fd01::11"))
	require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.20/32", "10.2.0.11", "10.2.0.12"))
	awaitFabric(t, s, "a") // which had to wait for the VRF that the daemon made
	awaitAll(t, s, all)    // by red1 alone
	s.Witness.Reset()
	frrs := []string{"gw:10.0.0.11", "gw:10.0.0.12", "red2:10.1.0.11", "red2:10.1.0.12"}
	daemons := []string{"red1:10.1.0.11", "red1:10.1.0.12", "blue1:10.2.0.11"}

	t.Run("side by side", func(t *testing.T) {
		require.Equal(t, before, withoutTime(inKernel(t, s, "b", theirs)))
		for node, loopback := range map[string]string{"a": "10.255.0.11/32", "b": "10.255.0.12/32"} {
			require.NoError(t, s.AwaitRoute(ctx, "gw", loopback, inLAN(node)))
		}
		for _, f := range ipFamilies {
			for _, pod := range []string{"a-p1", "b-p1"} {
				outsideAnswers(t, s, f, pod, "ext-red", f.web)
				transfers(t, s, f, pod, "ext-red", f.web)
			}
			everyBackend(t, s, "ext-red", netip.AddrPortFrom(f.web, 80), answers{"a-p1": f.bridge("a"), "b-p1": f.of(f.lan, "a")})
		}
		// FRR's routes in the network's table lead its pods too.
		for _, to := range []netip.AddrPort{netip.MustParseAddrPort("172.31.12.2:8080"), netip.MustParseAddrPort("[fd31:12::2]:8080")} {
			s.Witness.Reset()
			require.NoError(t, s.Await(ctx, "b-p1", to, "ext-red", web.source(to)))
			require.NotZero(t, s.Witness.Find(func(p lab.Packet) bool { return p.Node == "red2" && !p.Out && p.Dst == to.Addr() }).Total(), "packets to %s at red2", to)
		}
		s.Witness.Reset()
	})

	// restart restarts one of the two on node a. The other keeps its sessions, and what is in the kernel by its protocol number.
	restart := func(t *testing.T, sessions []string, protocol, state string, end func()) {
		t.Helper()
		had, times := withoutTime(inKernel(t, s, "a", state)), sessionsOf(t, s, sessions...)
		watch := watchKernel(t, s, "a")
		traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
		traffic.answered(t, 3, all)
		watch.forget()
		end()
		traffic.answered(t, 5, all)
		require.Zero(t, watch.count(func(e kernelEvent) bool { return strings.Contains(e.text, "proto "+protocol) }), "neither lost nor written anew")
		require.Equal(t, had, withoutTime(inKernel(t, s, "a", state)))
		require.Equal(t, times, sessionsOf(t, s, sessions...))
		traffic.stop(t, all)
		requireInnocent(t, s, all)
	}
	t.Run("FRR restarts", func(t *testing.T) {
		const ours = "ip route show table all proto 142; ip -6 route show table all proto 142; ip rule; ip -6 rule"
		restart(t, daemons, "142", ours, func() {
			require.NoError(t, lab.KillFRR(ctx, s.Node("a")))
			require.NoError(t, s.StartFRR(ctx, "a"))
			sessionsOf(t, s, frrs...)
			awaitFabric(t, s, "a")
		})
	})
	t.Run("the daemon restarts", func(t *testing.T) {
		for name, end := range map[string]func(){
			"killed":  func() { s.Daemons["a"].Kill() },
			"stopped": func() { require.NoError(t, s.Daemons["a"].Stop(ctx)) },
		} {
			restart(t, frrs, "bgp", theirs, func() {
				end()
				require.NoError(t, s.StartDaemon("a"), name)
				awaitAll(t, s, all)
			})
			restart(t, frrs, "bgp", theirs, func() {
				s.Daemons["a"].Kill()
				s.Speakers["a"].Kill()
				require.NoError(t, s.StartDaemon("a"))
				awaitAll(t, s, all)
			})
		}
	})
	t.Run("both learn the default route", func(t *testing.T) { besideBoth(t, s, all) })
}

// inLAN is a node's address in the LAN.
func inLAN(node string) string { return map[string]string{"a": "10.0.0.11", "b": "10.0.0.12"}[node] }

// protocols are the route protocols of the default routes in red's table on a node, of both families.
func protocols(t *testing.T, s *stage.Stage, node string) (all []string) {
	t.Helper()
	for _, line := range inKernel(t, s, node, "ip route show table 1001 default; ip -6 route show table 1001 default") {
		if fields := strings.Fields(line); fields[0] == "default" {
			all = append(all, fields[slices.Index(fields, "proto")+1])
		}
	}
	return all
}

// besideBoth has FRR and the daemon learn the same route: the one that is there first stays. When it goes, the other comes,
// and no packet is lost for long; none takes a wrong way.
func besideBoth(t *testing.T, s *stage.Stage, all identities) {
	t.Helper()
	ctx := t.Context()
	configure := func(node string, lines ...string) {
		t.Helper()
		_, err := s.Node(node).VTY("bgpd", append([]string{"configure terminal"}, lines...)...)
		require.NoError(t, err)
	}
	both := func(line string) []string {
		return []string{"address-family ipv4 unicast", line, "exit-address-family", "address-family ipv6 unicast", line, "exit-address-family"}
	}
	awaitProtocols := func(want string) {
		t.Helper()
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			// Beside them stands the last resort of the VRF, which the daemon made.
			have := slices.DeleteFunc(protocols(t, s, "a"), func(p string) bool { return p != want && p != "142" && p != "bgp" })
			if !slices.Equal(have, []string{want, want}) {
				return fmt.Errorf("default routes of %v, want %s", have, want)
			}
			return nil
		}))
	}
	awaitProtocols("142")
	traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
	traffic.answered(t, 3, all)

	// The daemon's is there first.
	configure("a", "ip prefix-list ALL seq 10 permit any", "ipv6 prefix-list ALL seq 10 permit any")
	configure("a", append([]string{"router bgp 64512 vrf vrf-red"}, both("neighbor 10.1.0.2 prefix-list ALL in")...)...)
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		out, err := s.Node("a").VTY("bgpd", "show bgp vrf vrf-red ipv4 unicast 0.0.0.0/0 json")
		if err == nil && !strings.Contains(out, "10.1.0.2") {
			err = errors.New("FRR has not learned the default route")
		}
		return err
	}))
	traffic.answered(t, 5, all)
	awaitProtocols("142")

	// It goes: FRR's takes its place. It comes back: FRR's stays, and the daemon says so.
	configure("red1", append([]string{"router bgp 64601"}, both("no neighbor NODES default-originate")...)...)
	awaitProtocols("bgp")
	traffic.answered(t, 5, all)
	configure("red1", append([]string{"router bgp 64601"}, both("neighbor NODES default-originate")...)...)
	awaitProblem(t, s, "a", route.ReasonRouteCollides, "0.0.0.0/0 via 10.1.0.1 dev eth2", true)
	awaitProtocols("bgp")
	traffic.answered(t, 5, all)
	configure("a", append([]string{"router bgp 64512 vrf vrf-red"}, both("neighbor 10.1.0.2 prefix-list FABRIC in")...)...)
	awaitProtocols("142")
	awaitProblem(t, s, "a", route.ReasonRouteCollides, "0.0.0.0/0 via 10.1.0.1 dev eth2", false)
	traffic.answered(t, 5, all)
	none := identities{"a-p1": {}, "b-p1": {}}
	traffic.stop(t, all, all.with(none))
	requireInnocent(t, s, all)
}

// mail leaves by the default network.
var mail = identity{"ext-default", "192.0.2.30", "2001:db8:2::30"}

// TestThroughLocalFRR has the daemon tell an FRR on its own node, in a network's VRF and in the default one, which has the
// sessions with the routers. When that FRR dies, the node is no host any more.
func TestThroughLocalFRR(t *testing.T) {
	m := written(t, []string{"web.yaml"})
	m["mail.yaml"] = another(t, "mail", mail.source4, mail.source6, "  sourceIPBy: LoadBalancerIP\n")
	s := play(t, stage.Options{API: true, Manifests: m, Config: instead(besideFRR(t, "through.yaml")), FRR: frrOn(besideFRR(t, "through.conf"))})
	ctx := t.Context()
	all := identities{"a-p1": web, "b-p1": web, "a-p2": mail, "b-p2": mail, "c-p1": nodeC}
	host, standby := hosts(t, s)
	told := func(t *testing.T, host, standby string) {
		t.Helper()
		hostAt(t, s, host)
		for _, router := range []string{"red1", "red2"} {
			require.NoError(t, s.AwaitStandby(ctx, router, "192.0.2.10/32", inRedOf(standby)[0]))
			require.NoError(t, s.AwaitStandby(ctx, router, "2001:db8:2::10/128", inRedOf(standby)[1]))
		}
	}
	told(t, host, standby)
	awaitServed(t, s, all)

	t.Run("both directions", func(t *testing.T) {
		e, err := s.EgressService(ctx, "shop", "mail")
		require.NoError(t, err)
		require.NoError(t, s.AwaitRoute(ctx, "gw", "192.0.2.30/32", inLAN(e.Status.Host)))
		for _, f := range ipFamilies {
			gateways := routes(t, s, host, f, "1001", "default")
			require.Len(t, gateways, 1, "of two, an internal peer tells one")
			require.Contains(t, []netip.Addr{netip.MustParseAddr(fmt.Sprintf(f.red, 1)), netip.MustParseAddr(fmt.Sprintf(f.red, 2))}, netip.MustParseAddr(gateways[0]))
			for _, pod := range []string{"a-p1", "b-p1"} {
				outsideAnswers(t, s, f, pod, "ext-red", f.web)
				transfers(t, s, f, pod, "ext-red", f.web)
			}
			for _, pod := range []string{"a-p2", "b-p2"} {
				outsideAnswers(t, s, f, pod, "ext-default", netip.MustParseAddr(mail.source(f.outside)))
			}
			everyBackend(t, s, "ext-red", netip.AddrPortFrom(f.web, 80), answers{host + "-p1": f.bridge(host), standby + "-p1": f.of(f.lan, host)})
			at := e.Status.Host
			everyBackend(t, s, "ext-default", netip.AddrPortFrom(netip.MustParseAddr(mail.source(f.outside)), 25),
				answers{at + "-p2": f.bridge(at), other(at) + "-p2": f.of(f.lan, at)})
		}
		require.Equal(t, []string{"142", "142"}, slices.DeleteFunc(protocols(t, s, host), func(p string) bool { return p != "142" && p != "bgp" }))
		requireInnocent(t, s, all)
	})

	t.Run("the daemon restarts", func(t *testing.T) {
		traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
		traffic.answered(t, 3, all)
		s.Daemons[host].Kill()
		s.Speakers[host].Kill()
		require.NoError(t, s.StartDaemon(host))
		traffic.answered(t, 5, all)
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", host, standby))
		told(t, host, standby)
		traffic.stop(t, all)
		requireInnocent(t, s, all)
	})

	t.Run("FRR dies", func(t *testing.T) {
		traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
		traffic.answered(t, 3, all)
		require.NoError(t, lab.KillFRR(ctx, s.Node(host)))
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, ""))
		hostAt(t, s, standby)
		traffic.answered(t, 5, all)
		require.NoError(t, s.StartFRR(ctx, host))
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, host))
		told(t, standby, host)
		traffic.answered(t, 5, all)
		none := identities{"a-p1": {}, "b-p1": {}, "a-p2": {}, "b-p2": {}}
		traffic.stop(t, all, all.with(none))
		requireInnocent(t, s, all)
	})

	t.Run("FRR writes the routes", func(t *testing.T) {
		require.NoError(t, s.EditConfig(replaced("        receive: [{prefix: 0.0.0.0/0}, {prefix: \"::/0\"}]\n", "")))
		for _, node := range []string{"a", "b"} {
			_, err := s.Node(node).VTY("zebra", "configure terminal", "vrf vrf-red", "ip protocol bgp route-map KERNEL4", "ipv6 protocol bgp route-map KERNEL6")
			require.NoError(t, err)
			require.NoError(t, s.Daemons[node].Stop(ctx))
			require.NoError(t, s.StartDaemon(node))
		}
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			for _, node := range []string{"a", "b"} {
				for _, f := range ipFamilies {
					if have := routes(t, s, node, f, "1001", "default"); len(have) != 2 {
						return fmt.Errorf("%s leaves red by %v, want both routers", node, have)
					}
				}
			}
			return nil
		}))
		told(t, standby, host)
		awaitServed(t, s, all)
		for _, f := range ipFamilies {
			for _, pod := range []string{"a-p1", "b-p1"} {
				transfers(t, s, f, pod, "ext-red", f.web)
			}
		}
		require.NotContains(t, strings.Join(inKernel(t, s, host, "ip route show table all; ip -6 route show table all"), "\n"), "192.0.2.10 ")
		requireInnocent(t, s, all)
	})
}
