package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/internal/trace"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// firewallManifest allows a port of one network of each family, by another protocol each.
const firewallManifest = `apiVersion: k8s.ovn.org/v1
kind: EgressFirewall
metadata: {namespace: shop, name: default}
spec:
  egress:
  - {type: Allow, to: {cidrSelector: 198.51.100.0/24}, ports: [{protocol: TCP, port: 8080}]}
  - {type: Allow, to: {cidrSelector: "2001:db8:100::/64"}, ports: [{protocol: UDP, port: 8080}]}
  - {type: Deny, to: {cidrSelector: 0.0.0.0/0}}
  - {type: Deny, to: {cidrSelector: "::/0"}}
`

// question is one that a pod asks.
type question func(context.Context) error

// questions of a pod to the outside: those that firewallManifest allows, and those that it denies.
func questions(s *stage.Stage, pod string) (allowed, denied []question) {
	ask := func(to netip.AddrPort, tcp bool) question {
		return func(ctx context.Context) (err error) {
			if tcp {
				_, err = s.Node(pod).AskTCP(ctx, to)
			} else {
				_, err = s.Node(pod).AskUDP(ctx, to, 100)
			}
			return err
		}
	}
	for i, f := range ipFamilies {
		allowed = append(allowed, ask(f.outside, i == 0))
		denied = append(denied, ask(f.outside, i != 0), ping(s, pod, f.outside.Addr()))
	}
	return allowed, denied
}

func ping(s *stage.Stage, pod string, to netip.Addr) question {
	return func(ctx context.Context) error { return s.Node(pod).Ping(ctx, to, 8) }
}

// awaitAnswers waits until all questions are answered.
func awaitAnswers(t *testing.T, what string, all ...question) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		return atOnce(all, func(q question) error { return q(t.Context()) })
	}), what)
}

// awaitDenied waits until none of the questions is answered.
func awaitDenied(t *testing.T, what string, all ...question) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		ctx, cancel := lab.Within(t.Context(), dropLimit)
		defer cancel()
		return atOnce(all, func(q question) error {
			if q(ctx) == nil {
				return errors.New("answered")
			}
			return nil
		})
	}), what)
}

// endsConnections has pods open connections that firewallManifest allows, and checks that a new Deny ends them.
func endsConnections(t *testing.T, s *stage.Stage, pods ...string) {
	t.Helper()
	ctx := t.Context()
	var open []question
	for _, pod := range pods {
		session, err := s.Node(pod).Open(ctx, stage.Outside4)
		require.NoError(t, err)
		t.Cleanup(func() { _ = session.Close() })
		_, err = session.Ask(ctx)
		require.NoError(t, err)
		open = append(open, func(ctx context.Context) error { _, err := session.Ask(ctx); return err })
	}
	require.NoError(t, s.Edit(ctx, "firewall.yaml", "type: Allow, to: {cidrSelector: 198.51", "type: Deny, to: {cidrSelector: 198.51"))
	awaitDenied(t, "connections that are there", open...)
}

// both sends datagrams each way between a pod and a server on its node every few milliseconds until the test ends, and counts those that the
// server gets.
func both(t *testing.T, s *stage.Stage, pod, server string, port uint16) *atomic.Int64 {
	t.Helper()
	at := netip.AddrPortFrom(ipFamilies[0].of(ipFamilies[0].lan, server), port)
	var here, there *net.UDPConn
	require.NoError(t, s.Node(server).Do(func() (err error) { there, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at)); return err }))
	require.NoError(t, s.Node(pod).Do(func() (err error) { here, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(at)); return err }))
	arrived, from := new(atomic.Int64), make(chan netip.AddrPort, 1)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			_, sender, err := there.ReadFromUDPAddrPort(make([]byte, 1))
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && arrived.Add(1) == 1 {
				from <- sender
			}
		}
	})
	work.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		var to netip.AddrPort
		for range tick.C {
			if _, err := here.Write([]byte{0}); errors.Is(err, net.ErrClosed) {
				return
			}
			select {
			case to = <-from:
			default:
			}
			if to.IsValid() {
				_, _ = there.WriteToUDPAddrPort([]byte{0}, to)
			}
		}
	})
	t.Cleanup(func() { _, _ = here.Close(), there.Close(); work.Wait() })
	return arrived
}

// endsDatagrams checks that a new Deny ends a flow of datagrams to a server on the pod's node, which goes on sending, and that the flow goes
// on once it is allowed again.
func endsDatagrams(t *testing.T, s *stage.Stage) {
	t.Helper()
	const deny, nodes = "  - {type: Deny, to: {cidrSelector: 0.0.0.0/0}}\n", "  - {type: Allow, to: {cidrSelector: 10.0.0.0/24}}\n"
	require.NoError(t, s.Edit(t.Context(), "firewall.yaml", deny, nodes+deny))
	arrived := both(t, s, "a-p1", "a", 9002)
	more := func() {
		t.Helper()
		before := arrived.Load()
		require.NoError(t, lab.Wait(t.Context(), patience, func() error {
			if arrived.Load() < before+10 {
				return errors.New("no datagrams arrive")
			}
			return nil
		}))
	}
	more()
	require.NoError(t, s.Edit(t.Context(), "firewall.yaml", nodes+deny, deny))
	last, since := arrived.Load(), time.Now()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		if now := arrived.Load(); now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < dropLimit {
			return errors.New("datagrams arrive")
		}
		return nil
	}))
	require.NoError(t, s.Edit(t.Context(), "firewall.yaml", deny, nodes+deny))
	more()
	require.NoError(t, s.Edit(t.Context(), "firewall.yaml", nodes+deny, deny))
}

// endsDownloads has a pod read from servers on its own node and on another one, and checks that a new Deny ends that: the servers' packets
// do not begin the connections again.
func endsDownloads(t *testing.T, s *stage.Stage) {
	t.Helper()
	const deny, nodes = "  - {type: Deny, to: {cidrSelector: 0.0.0.0/0}}\n", "  - {type: Allow, to: {cidrSelector: 10.0.0.0/24}}\n"
	ctx := t.Context()
	require.NoError(t, s.Edit(ctx, "firewall.yaml", deny, nodes+deny))
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	var moved [2]atomic.Int64
	for i, server := range []string{"a", "c"} {
		const port = 9001
		_, err := s.Lab.Respond(ctx, s.Node(server), lab.OnPort(port))
		require.NoError(t, err)
		to := netip.AddrPortFrom(ipFamilies[0].of(ipFamilies[0].lan, server), port)
		var session *lab.Session
		require.NoError(t, lab.Wait(ctx, patience, func() (err error) {
			session, err = s.Node("a-p1").Open(ctx, to)
			return err
		}))
		t.Cleanup(func() { _ = session.Close() })
		go func() { _ = session.Pour(ctx, false, stop, &moved[i]) }()
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			if moved[i].Load() == 0 {
				return errors.New("nothing has moved")
			}
			return nil
		}))
	}
	require.NoError(t, s.Edit(ctx, "firewall.yaml", nodes+deny, deny))
	awaitDenied(t, "a node", ping(s, "a-p1", ipFamilies[0].of(ipFamilies[0].lan, "a")), ping(s, "a-p1", ipFamilies[0].of(ipFamilies[0].lan, "c")))
	for i := range moved {
		before, since := moved[i].Load(), time.Now()
		last := before
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			if now := moved[i].Load(); now != last {
				last, since = now, time.Now()
			}
			if time.Since(since) < dropLimit {
				return errors.New("bytes move")
			}
			return nil
		}))
		require.Less(t, last-before, int64(64<<20), "of packets that were under way")
	}
}

// requireNone fails if a router saw one of these packets to the outside, with the source of one of the identities.
func requireNone(t *testing.T, s *stage.Stage, of []identity, denied func(lab.Packet) bool) {
	t.Helper()
	require.Empty(t, s.Witness.Find(func(p lab.Packet) bool {
		return atRouter(p) && (p.Dst == stage.Outside4.Addr() || p.Dst == stage.Outside6.Addr()) && denied(p) &&
			slices.ContainsFunc(of, func(i identity) bool { return p.Src.String() == i.source4 || p.Src.String() == i.source6 })
	}), "a denied packet came out")
}

// TestEgressFirewall asks from pods, allowed and denied, by an EgressService and by their node's address.
func TestEgressFirewall(t *testing.T) {
	documents := strings.Split(podManifests(), "---\n")
	newcomer := documents[4]
	require.Contains(t, newcomer, "b-p2")
	pods := strings.Replace(strings.Join(append(documents[:4:4], documents[5:]...), "---\n"), "shop, name: a-p2", "open, name: a-p2", 1)
	s := play(t, stage.Options{
		Nodes: stage.Nodes, Config: func(c string) string { return c + "steering: {mode: vxlan}\n" },
		Manifests: map[string]string{
			"cluster.yaml": manifest(t, "cluster.yaml"), "web.yaml": manifest(t, "web.yaml") + "status: {host: a}\n",
			"pods.yaml": pods, "firewall.yaml": firewallManifest,
		},
	})
	ctx := t.Context()
	known := identities{"a-p1": web, "b-p1": web, "a-p2": nodeA, "c-p1": nodeC}
	firewalled := []string{"a-p1", "b-p1", "c-p1"} // on the host, steered, and not selected by an EgressService
	asManifest := func(t *testing.T, pods ...string) {
		t.Helper()
		for _, pod := range pods {
			allowed, denied := questions(s, pod)
			awaitAnswers(t, pod, allowed...)
			awaitDenied(t, pod, denied...)
		}
	}

	t.Run("rules", func(t *testing.T) {
		asManifest(t, firewalled...)
		awaitAll(t, s, identities{"a-p2": nodeA})
		s.Witness.Reset()
		for _, pod := range firewalled {
			_, denied := questions(s, pod)
			awaitDenied(t, pod, denied...)
		}
		requireNone(t, s, []identity{web, nodeC}, func(p lab.Packet) bool {
			allowed := map[bool]lab.Protocol{true: lab.TCP, false: lab.UDP}
			return p.Protocol != allowed[p.Src.Is4()]
		})
	})

	t.Run("spared", func(t *testing.T) {
		requireCluster(t, s, "a-p1")
		for _, f := range ipFamilies {
			awaitAnswers(t, "the node itself", func(ctx context.Context) error {
				_, err := s.Node("a").AskTCP(ctx, f.outside)
				return err
			})
			awaitAnswers(t, "answers to a client that no rule allows", func(ctx context.Context) error {
				if _, err := s.Node("ext-red").AskTCP(ctx, netip.AddrPortFrom(f.web, 80)); err != nil {
					return err
				}
				_, err := s.Node("ext-red").AskUDP(ctx, netip.AddrPortFrom(f.web, 80), 100)
				return err
			})
			awaitDenied(t, "that client", ping(s, "a-p1", f.clientRed))
		}
	})

	t.Run("nodes", func(t *testing.T) {
		const first = "  egress:\n"
		require.NoError(t, s.Edit(ctx, "firewall.yaml", first, first+"  - {type: Allow, to: {nodeSelector: {matchLabels: {kubernetes.io/hostname: b}}}}\n"))
		for _, f := range ipFamilies {
			awaitAnswers(t, "the node", ping(s, "a-p1", f.of(f.lan, "b")))
			awaitDenied(t, "another node", ping(s, "a-p1", f.of(f.lan, "c")))
		}
		require.NoError(t, s.Write(ctx, "firewall.yaml", firewallManifest))
		for _, f := range ipFamilies {
			awaitDenied(t, "a node", ping(s, "a-p1", f.of(f.lan, "b")))
		}
	})

	t.Run("a new Deny ends connections", func(t *testing.T) {
		endsConnections(t, s, firewalled...)
		s.Witness.Reset()
		for _, pod := range firewalled {
			allowed, _ := questions(s, pod)
			awaitDenied(t, pod, allowed[0])
			awaitAnswers(t, pod, allowed[1])
		}
		requireNone(t, s, []identity{web, nodeC}, func(p lab.Packet) bool { return p.Src.Is4() })
		require.NoError(t, s.Write(ctx, "firewall.yaml", firewallManifest))
		asManifest(t, "a-p1")
	})

	t.Run("a new Deny ends downloads from nodes", func(t *testing.T) {
		endsDownloads(t, s)
		asManifest(t, "a-p1")
	})

	t.Run("a new Deny ends datagrams, also where the server goes on sending", func(t *testing.T) {
		endsDatagrams(t, s)
		asManifest(t, "a-p1")
	})

	t.Run("a new pod", func(t *testing.T) {
		s.Witness.Reset()
		awaitDropped(t, s, "b-p2") // no Pod is known
		require.NoError(t, s.Write(ctx, "new.yaml", strings.Replace(newcomer, "shop", "closed", 1)))
		head, _, _ := strings.Cut(firewallManifest, "  - ")
		require.NoError(t, s.Write(ctx, "closed.yaml", strings.Replace(head, "shop", "closed", 1)+
			"  - {type: Deny, to: {cidrSelector: 0.0.0.0/0}}\n  - {type: Deny, to: {cidrSelector: \"::/0\"}}\n"))
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			for i, f := range ipFamilies {
				set := strings.Join(inKernel(t, s, "b", fmt.Sprintf("nft list map inet egressway firewalled%d", []int{4, 6}[i])), "\n")
				if !strings.Contains(set, f.pod("b-p2").String()) {
					return errors.New("the Pod has no policy yet: " + set)
				}
			}
			return nil
		}))
		requireCluster(t, s, "b-p2")
		awaitDropped(t, s, "b-p2")
		requireNone(t, s, []identity{nodeB}, func(lab.Packet) bool { return true })
	})

	t.Run("a pod of a namespace without rules", func(t *testing.T) {
		require.NoError(t, s.Remove(ctx, "closed.yaml"))
		awaitAll(t, s, identities{"b-p2": nodeB})
		require.NoError(t, s.Remove(ctx, "new.yaml"))
		awaitDropped(t, s, "b-p2")
	})

	t.Run("no daemon, and others change the table", func(t *testing.T) {
		for what, damage := range map[string]string{
			"nothing": "true", "flush": "nft flush ruleset; nft -f /etc/cni/cni.nft", "the chain": "nft flush chain inet egressway firewall",
			"an element": "nft delete element inet egressway firewalled4 '{ 10.244.1.11 }'",
		} {
			s.Daemons["a"].Kill()
			asManifest(t, "a-p1")
			inKernel(t, s, "a", damage)
			require.NoError(t, s.StartDaemon("a"))
			asManifest(t, "a-p1")
			require.Contains(t, strings.Join(inKernel(t, s, "a", "nft list map inet egressway firewalled4"), "\n"), "10.244.1.11", what)
		}
	})

	t.Run("trace and status", func(t *testing.T) {
		awaitReport(t, s, "a", func(r status.Report) string {
			if !r.Ready {
				return "the daemon that started last is not ready"
			}
			return ""
		})
		from, to := ipFamilies[0].pod("a-p1").String(), stage.Outside4.Addr().String()
		r, code := traced(t, s, "a", "--from", from, "--to", to, "--proto", "udp", "--dport", "8080")
		require.Equal(t, 2, code)
		require.Equal(t, trace.Dropped, r.Verdict.Kind)
		require.Contains(t, r.Verdict.Text, "EgressFirewall shop/default, rule 3: Deny 0.0.0.0/0")
		require.NotContains(t, r.Verdict.Text, "--dport")
		require.Empty(t, r.Damage)
		require.Empty(t, r.Differences)
		r, _ = traced(t, s, "a", "--from", from, "--to", to)
		require.Equal(t, trace.Dropped, r.Verdict.Kind)
		require.Contains(t, r.Verdict.Text, "rule 3: Deny 0.0.0.0/0 (for ports that no rule of the EgressFirewall names; --dport asks about one)")
		r, code = traced(t, s, "a", "--from", from, "--to", to, "--proto", "tcp", "--dport", "8080")
		require.Zero(t, code, "%+v", r)
		steps := ""
		for _, step := range r.Steps {
			steps += step.Found + "\n"
		}
		require.Contains(t, steps, "EgressFirewall shop/default, rule 1: Allow 198.51.100.0/24 tcp/8080")
		out, err := s.Egressway(ctx, "a", "status")
		require.NoError(t, err)
		require.Regexp(t, `(?m)^EGRESSFIREWALL +RULES +PODS HERE +PROBLEM$`, out)
		require.Regexp(t, `(?m)^shop/default +4 +1 +-$`, out)
	})

	t.Run("removal", func(t *testing.T) {
		require.NoError(t, s.Remove(ctx, "firewall.yaml"))
		awaitAll(t, s, known)
		for _, node := range stage.Nodes {
			require.Equal(t, []string{"0"}, inKernel(t, s, node, "nft list table inet egressway | grep -c -e policy- -e firewall -e drop-held || true"))
		}
	})
}
