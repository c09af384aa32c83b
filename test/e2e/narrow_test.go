package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// narrowUplink makes red's segment carry less than the pods' links do, at nodes and routers alike.
func narrowUplink(t *testing.T, s *stage.Stage) {
	t.Helper()
	for _, node := range []string{"a", "b", "c"} {
		run(t, s, node, "ip link set eth2 mtu 1400")
	}
	for _, r := range []string{"red1", "red2"} {
		run(t, s, r, "ip link set eth1 mtu 1400")
	}
}

// forgetSizes has everyone forget which sizes a way carries.
func forgetSizes(t *testing.T, s *stage.Stage, nodes ...string) {
	t.Helper()
	for _, n := range nodes {
		run(t, s, n, "ip route flush cache", "ip -6 route flush cache")
	}
}

// TestNarrowUplink: red carries 1400 bytes, pods send 1500. The host tells pods and external hosts which size fits.
func TestNarrowUplink(t *testing.T) {
	for mode, config := range map[string]string{"direct": "", "tunnel": "steering: {mode: vxlan}\n"} {
		t.Run(mode, func(t *testing.T) {
			s := play(t, stage.Options{Config: func(c string) string { return c + config }})
			await(t, s)
			narrowUplink(t, s)
			ctx := t.Context()
			for _, f := range ipFamilies {
				for _, pod := range []string{"a-p1", "b-p1"} {
					t.Run(f.name+" "+pod, func(t *testing.T) {
						s.Witness.Reset()
						n := s.Node(pod)
						forgetSizes(t, s, pod)
						require.NoError(t, lab.Wait(ctx, patience, func() error { // the first ones are lost where the pod has to be told
							a, err := n.AskUDP(ctx, f.outside, 4000)
							if err != nil {
								return err
							}
							return stage.Check(a, "ext-red", f.web.String())
						}))
						forgetSizes(t, s, pod)
						transfers(t, s, f, pod, "ext-red", f.web)

						forgetSizes(t, s, pod)
						require.NoError(t, lab.Wait(ctx, patience, func() error {
							ctx, cancel := context.WithTimeout(ctx, patience)
							defer cancel()
							a, err := s.Node("ext-red").Transfer(ctx, netip.AddrPortFrom(f.web, 80), 0, megabyte)
							require.NoError(t, err)
							if a.Name != pod {
								return fmt.Errorf("%s answered", a.Name)
							}
							return nil
						}))
						require.Empty(t, s.Wrong(asWritten()))
					})
				}
			}
		})
	}
}

// errorsHeard counts the ICMP errors that come to a node.
const errorsHeard = `table inet probe {
	counter expired {}
	counter unreachable {}
	chain input {
		type filter hook input priority 0
		icmp type time-exceeded counter name expired
		icmpv6 type time-exceeded counter name expired
		icmp type destination-unreachable counter name unreachable
		icmpv6 type destination-unreachable counter name unreachable
	}
}`

// TestErrorsOfTheNode: the kernel's other ICMP errors about what passes a VRF reach those whom they are for too.
func TestErrorsOfTheNode(t *testing.T) {
	s := play(t, stage.Options{})
	await(t, s)
	ctx := t.Context()
	for _, n := range []string{"a-p1", "b-p1", "ext-red"} {
		_, err := s.Node(n).Input(ctx, errorsHeard, "nft", "-f", "-")
		require.NoError(t, err)
	}
	// tells asks again and again until the asker has heard one more error.
	tells := func(t *testing.T, asker, heard string, to netip.Addr) {
		t.Helper()
		before := count(t, s, asker, heard)
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			_, err := s.Node(asker).AskUDP(ctx, netip.AddrPortFrom(to, 80), 100)
			if count(t, s, asker, heard) == before {
				return fmt.Errorf("%s has not been told: %w", asker, err)
			}
			return nil
		}))
	}
	for _, f := range ipFamilies {
		far := f.outside.Addr()
		late, noNeighbour, noRoute := far.Next(), far.Next().Next(), far.Next().Next().Next()
		nobody := netip.MustParseAddr(map[string]string{"ipv4": "10.1.0.99", "ipv6": "fd01::99"}[f.name])
		run(t, s, "a", fmt.Sprintf("ip route add %s via %s dev eth2 table 1001", noNeighbour, nobody), fmt.Sprintf("ip route add unreachable %s table 1001", noRoute))
		// a is the second hop of what b's pod and the external host send.
		for asker, hops := range map[string]int{"a-p1": 1, "b-p1": 2} {
			t.Run(f.name+" "+asker, func(t *testing.T) {
				run(t, s, asker, fmt.Sprintf("ip route add %s via %s hoplimit %d", late, f.bridge(asker[:1]), hops))
				tells(t, asker, "expired", late)
				tells(t, asker, "unreachable", noNeighbour)
				tells(t, asker, "unreachable", noRoute)
			})
		}
		t.Run(f.name+" from outside", func(t *testing.T) {
			router := netip.MustParseAddr(map[string]string{"ipv4": "172.31.11.1", "ipv6": "fd31:11::1"}[f.name])
			// Both routers know the way to this source; the node may answer by either.
			run(t, s, "ext-red", fmt.Sprintf("ip route add %s via %s hoplimit 2 src %s", f.web, router, far))
			tells(t, "ext-red", "expired", f.web)
		})
	}
	require.Empty(t, s.Wrong(asWritten()))
}
