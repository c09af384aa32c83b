package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// answers is by whom a service was answered, and whom each saw.
type answers map[string]netip.Addr

// everyBackend asks a service until all of the pods answered, by TCP and by UDP, and requires each to have seen the source
// that is wanted of it.
func everyBackend(t *testing.T, s *stage.Stage, asker string, service netip.AddrPort, want answers) {
	t.Helper()
	ctx, n := t.Context(), s.Node(asker)
	for _, ask := range []func() (lab.Answer, error){
		func() (lab.Answer, error) { return n.AskTCP(ctx, service) },
		func() (lab.Answer, error) { return n.AskUDP(ctx, service, 100) },
	} {
		seen := answers{}
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			a, err := ask()
			require.NoError(t, err)
			seen[a.Name] = a.Peer.Addr()
			if len(seen) < len(want) {
				return fmt.Errorf("only %v answered", seen)
			}
			return nil
		}))
		require.Equal(t, want, seen, "%s asks %s", asker, service)
	}
}

// forwarded finds what routers were given to pass on within the cluster: neither theirs, nor of their links, nor the
// rest of a connection to the outside.
func forwarded(s *stage.Stage) lab.Packets {
	return s.Witness.Find(func(p lab.Packet) bool {
		for _, a := range []netip.Addr{p.Src, p.Dst} {
			for _, f := range ipFamilies {
				for _, link := range []string{f.lan, f.red, f.blue} {
					for _, number := range []int{1, 2} {
						if a == netip.MustParseAddr(fmt.Sprintf(link, number)) {
							return false
						}
					}
				}
			}
			if a.IsMulticast() || a.IsLinkLocalUnicast() || a == stage.Outside4.Addr() || a == stage.Outside6.Addr() {
				return false
			}
		}
		return true
	})
}

// with finds what passed routers of a network from or to an address.
func with(s *stage.Stage, network string, a netip.Addr) lab.Packets {
	return s.Witness.Find(func(p lab.Packet) bool {
		return stage.Routers[p.Node+":"+p.Interface] == network && (p.Src == a || p.Dst == a)
	})
}

// unanswered asks what nobody should answer.
func unanswered(t *testing.T, ask func(context.Context) error) {
	t.Helper()
	ctx, cancel := lab.Within(t.Context(), dropLimit)
	defer cancel()
	require.Error(t, ask(ctx))
}

func TestIngress(t *testing.T) {
	// As CNIs do whose pods stand behind a bridge: a Service may send a pod back to itself.
	hairpin := []string{"bridge link set dev pod1 hairpin on", "bridge link set dev pod2 hairpin on"}
	s := play(t, stage.Options{Exec: map[string][]string{"a": hairpin, "b": hairpin}})
	await(t, s)
	ctx := t.Context()
	require.NoError(t, s.RespondOn(ctx, "a", "b"))

	t.Run("what stays in the cluster", func(t *testing.T) {
		for _, f := range ipFamilies {
			for _, pair := range [][2]string{{"a-p1", "a-p2"}, {"a-p1", "b-p1"}, {"a-p1", "c-p1"}, {"b-p1", "a-p2"}, {"b-p1", "b-p2"}, {"b-p2", "a-p1"}, {"c-p1", "b-p1"}} {
				from, to := s.Node(pair[0]), netip.AddrPortFrom(f.pod(pair[1]), lab.ResponderPort)
				a, err := from.AskTCP(ctx, to)
				answered(t, a, err, pair[1], f.pod(pair[0]))
				a, err = from.AskUDP(ctx, to, 100)
				answered(t, a, err, pair[1], f.pod(pair[0]))
				require.NoError(t, from.Ping(ctx, to.Addr(), 56))
			}
			// A pod that its own Service sends back to itself is masqueraded by the service proxy, with the bridge's address.
			everyBackend(t, s, "a-p1", f.webCluster, answers{"a-p1": f.bridge("a"), "b-p1": f.pod("a-p1")})
			everyBackend(t, s, "b-p1", f.webCluster, answers{"b-p1": f.bridge("b"), "a-p1": f.pod("b-p1")})
			everyBackend(t, s, "a-p1", f.batchCluster, answers{"a-p2": f.pod("a-p1"), "b-p2": f.pod("a-p1")})
			everyBackend(t, s, "b-p2", f.webCluster, answers{"a-p1": f.pod("b-p2"), "b-p1": f.pod("b-p2")})
			// To ingress IPs it masquerades all, with the address towards the pod.
			everyBackend(t, s, "a-p1", netip.AddrPortFrom(f.web, 80), answers{"a-p1": f.bridge("a"), "b-p1": f.of(f.lan, "a")})
			everyBackend(t, s, "b-p1", netip.AddrPortFrom(f.web, 80), answers{"a-p1": f.of(f.lan, "b"), "b-p1": f.bridge("b")})
			everyBackend(t, s, "b-p2", netip.AddrPortFrom(f.batch, 80), answers{"a-p2": f.of(f.lan, "b"), "b-p2": f.bridge("b")})

			for _, own := range []string{"a", "b"} {
				other := map[string]string{"a": "b", "b": "a"}[own]
				for _, pod := range []string{own + "-p1", own + "-p2"} {
					ask := func(to netip.Addr) (lab.Answer, error) {
						return s.Node(pod).AskTCP(ctx, netip.AddrPortFrom(to, lab.ResponderPort))
					}
					a, err := ask(f.of(f.lan, own))
					answered(t, a, err, own, f.pod(pod))
					a, err = ask(f.bridge(own))
					answered(t, a, err, own, f.pod(pod))
					a, err = ask(f.of(f.lan, other)) // the CNI masquerades
					answered(t, a, err, other, f.of(f.lan, own))
					require.NoError(t, s.Node(pod).Ping(ctx, f.of(f.lan, other), 56))

					to := netip.AddrPortFrom(f.pod(pod), lab.ResponderPort)
					a, err = s.Node(own).AskTCP(ctx, to)
					answered(t, a, err, pod, f.bridge(own))
					a, err = s.Node(other).AskTCP(ctx, to)
					answered(t, a, err, pod, f.of(f.lan, other))
					require.NoError(t, s.Node(own).Ping(ctx, to.Addr(), 56))
				}
			}
		}
		require.Empty(t, forwarded(s))

		// The address of a node's uplink in a VRF is a destination in that network, also for the node's own pods.
		for _, f := range ipFamilies {
			for _, node := range []string{"a", "b"} {
				uplink := f.of(f.red, node)
				bounded, cancel := lab.Within(ctx, dropLimit)
				a, err := s.Node(node+"-p1").AskTCP(bounded, netip.AddrPortFrom(uplink, lab.ResponderPort))
				cancel()
				if err == nil {
					require.Equal(t, node, a.Name)
				}
				require.Empty(t, s.Witness.Find(func(p lab.Packet) bool { return !p.Out && p.Dst == uplink && p.Src != f.web }))
				for _, network := range []string{"blue", "default"} {
					require.Empty(t, with(s, network, uplink))
					require.Empty(t, with(s, network, f.web))
				}
			}
		}
	})

	t.Run("a client in red", func(t *testing.T) {
		s.Witness.Reset()
		for _, f := range ipFamilies {
			everyBackend(t, s, "ext-red", netip.AddrPortFrom(f.web, 80), answers{"a-p1": f.bridge("a"), "b-p1": f.of(f.lan, "a")})
			require.NotEmpty(t, with(s, "red", f.clientRed))
			for _, network := range []string{"blue", "default"} {
				require.Empty(t, with(s, network, f.clientRed))
				require.Empty(t, with(s, network, f.web))
			}
		}
		require.Empty(t, s.Wrong(asWritten()))
	})

	t.Run("a client in blue", func(t *testing.T) {
		s.Witness.Reset()
		for _, f := range ipFamilies {
			client := netip.MustParseAddr(map[string]string{"ipv4": "203.0.113.2", "ipv6": "2001:db8:113::2"}[f.name])
			require.NoError(t, lab.Wait(ctx, patience, func() error {
				a, err := s.Node("ext-blue").AskTCP(ctx, netip.AddrPortFrom(f.batch, 80))
				require.NoError(t, err)
				if a.Name != "a-p2" && a.Name != "b-p2" {
					return fmt.Errorf("%s answered", a.Name)
				}
				return nil
			}))
			for _, network := range []string{"red", "default"} {
				require.Empty(t, with(s, network, client))
			}
		}
	})

	gateway := []string{"ip route add 192.0.2.10 via 10.0.0.11", "ip -6 route add 2001:db8:2::10 via fd00::11"}
	t.Run("a client in the default network", func(t *testing.T) {
		run(t, s, "gw", gateway...)
		s.Witness.Reset()
		for _, f := range ipFamilies {
			everyBackend(t, s, "ext-default", netip.AddrPortFrom(f.web, 80), answers{"a-p1": f.bridge("a"), "b-p1": f.of(f.lan, "a")})
			require.NotEmpty(t, with(s, "default", f.clientMain))
			for _, network := range []string{"red", "blue"} {
				require.Empty(t, with(s, network, f.clientMain))
				require.Empty(t, with(s, network, f.web))
			}
		}
	})

	t.Run("both at once", func(t *testing.T) {
		s.Witness.Reset()
		for _, f := range ipFamilies {
			sessions := map[string]*lab.Session{}
			for range 4 {
				for _, client := range []string{"ext-red", "ext-default"} {
					c, err := s.Node(client).Open(ctx, netip.AddrPortFrom(f.web, 80))
					require.NoError(t, err)
					defer c.Close()
					sessions[client] = c
				}
				for client := range sessions {
					_, err := sessions[client].Transfer(ctx, 10000, 10000)
					require.NoError(t, err)
				}
			}
			require.Empty(t, with(s, "default", f.clientRed))
			require.Empty(t, with(s, "red", f.clientMain))
		}
	})

	t.Run("no listener", func(t *testing.T) {
		for _, f := range ipFamilies {
			for client, source := range map[string]netip.Addr{"ext-red": f.clientRed, "ext-default": f.clientMain} {
				s.Witness.Reset()
				n, to := s.Node(client), netip.AddrPortFrom(f.web, 81)
				for _, ask := range []func(context.Context) error{
					func(ctx context.Context) error { _, err := n.AskTCP(ctx, to); return err },
					func(ctx context.Context) error { _, err := n.AskUDP(ctx, to, 100); return err },
					func(ctx context.Context) error { return n.Ping(ctx, f.web, 56) },
				} {
					unanswered(t, ask)
				}
				sent, back := 0, 0
				for p, count := range s.Witness.Find(func(p lab.Packet) bool { return p.Src == source && p.Dst == f.web }) {
					require.Equal(t, strings.TrimPrefix(client, "ext-"), stage.Routers[p.Node+":"+p.Interface])
					if p.Out {
						sent += count
					} else {
						back += count
					}
				}
				require.Zero(t, back, "packets that the node sent back to the router")
				require.GreaterOrEqual(t, sent, 3, "packets that the router sent to the node")
			}
			// A pod that asks its own ingress IP where nobody listens does not leave either.
			s.Witness.Reset()
			for _, pod := range []string{"a-p1", "b-p1"} {
				unanswered(t, func(ctx context.Context) error {
					_, err := s.Node(pod).AskTCP(ctx, netip.AddrPortFrom(f.web, 81))
					return err
				})
			}
			require.Empty(t, forwarded(s))
		}
	})

	t.Run("externalTrafficPolicy Local", func(t *testing.T) {
		require.NoError(t, s.Edit(ctx, "web.yaml", "  type: LoadBalancer\n", "  type: LoadBalancer\n  externalTrafficPolicy: Local\n"))
		await(t, s)
		for _, f := range ipFamilies {
			for client, source := range map[string]netip.Addr{"ext-red": f.clientRed, "ext-default": f.clientMain} {
				require.NoError(t, s.Await(ctx, client, netip.AddrPortFrom(f.web, 80), "a-p1", source.String())) // the service proxy follows by itself
				for range 6 {
					a, err := s.Node(client).AskTCP(ctx, netip.AddrPortFrom(f.web, 80))
					answered(t, a, err, "a-p1", source)
					a, err = s.Node(client).AskUDP(ctx, netip.AddrPortFrom(f.web, 80), 100)
					answered(t, a, err, "a-p1", source)
				}
			}
			require.Empty(t, with(s, "default", f.clientRed))
			require.Empty(t, with(s, "red", f.clientMain))
		}
		require.Empty(t, s.Wrong(asWritten()))
	})
}
