package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// onLinkConfig has no BGP at all: b and c have a static default route in the VRF of red.
const onLinkConfig = `source:
  manifests: /etc/egressway/manifests
failover: {bfd: {transmitInterval: 1000, receiveInterval: 1000}}
networks:
  - name: red
    vrf: vrf-red
    interfaces: [eth2]
    table: 1001
    egressIPs: [10.1.0.32/27, "fd01::20/123"]
  - name: blue
    vrf: vrf-blue
    interfaces: [eth3]
    table: 1002
`

// onLinkManifest has an EgressIP with addresses in the subnet of the LAN, and one with addresses in that of red's uplinks.
const onLinkManifest = `apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: lan}
spec:
  egressIPs: [10.0.0.33, "fd00::33"]
  namespaceSelector: {matchLabels: {egress: "yes"}}
  podSelector: {matchLabels: {app: web}}
status:
  items:
  - {egressIP: 10.0.0.33, node: b, standby: c, term: 1}
  - {egressIP: "fd00::33", node: b, standby: c, term: 1}
---
apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: red}
spec:
  egressIPs: [10.1.0.34, "fd01::34"]
  namespaceSelector: {matchLabels: {egress: "yes"}}
  podSelector: {matchLabels: {app: db}}
status:
  items:
  - {egressIP: 10.1.0.34, node: b, standby: c, term: 1}
  - {egressIP: "fd01::34", node: b, standby: c, term: 1}
`

// Addresses of both EgressIPs.
var (
	onLAN = []netip.Addr{netip.MustParseAddr("10.0.0.33"), netip.MustParseAddr("fd00::33")}
	onRed = []netip.Addr{netip.MustParseAddr("10.1.0.34"), netip.MustParseAddr("fd01::34")}
)

// linkTap counts what neighbours hear about addresses on a link, by the node that says it.
type linkTap struct {
	macs map[string]string // node by MAC

	mu   sync.Mutex
	seen map[string]int
}

// tap listens on an interface of a router until the test ends.
func tap(t *testing.T, s *stage.Stage, router, device, uplink string) *linkTap {
	t.Helper()
	l := &linkTap{macs: map[string]string{}, seen: map[string]int{}}
	for _, node := range []string{"a", "b", "c"} {
		require.NoError(t, s.Node(node).Do(func() error {
			i, err := net.InterfaceByName(uplink)
			if err == nil {
				l.macs[i.HardwareAddr.String()] = node
			}
			return err
		}))
	}
	fd := -1
	require.NoError(t, s.Node(router).Do(func() error {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: i.Index}))
	}))
	ended, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(ended)
		<-stopped
		require.NoError(t, unix.Close(fd))
	})
	go func() {
		defer close(stopped)
		b := make([]byte, 2000)
		for {
			n, _, err := unix.Recvfrom(fd, b, 0)
			select {
			case <-ended:
				return
			default:
			}
			if err == nil {
				l.hear(b[:n])
			}
		}
	}()
	return l
}

// hear counts a frame that says which MAC has an address.
func (l *linkTap) hear(frame []byte) {
	what, address := saidIn(frame)
	if what == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	node := l.macs[net.HardwareAddr(frame[6:12]).String()]
	l.seen[fmt.Sprintf("%s %s for %s", node, what, address)]++
}

// saidIn returns whether a frame answers a question about an address, or announces it; empty: neither.
func saidIn(frame []byte) (what string, address netip.Addr) {
	if len(frame) < 42 {
		return "", address
	}
	body := frame[14:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_ARP:
		sender, target, reply := body[14:18], body[24:28], body[7] == 2
		address, _ = netip.AddrFromSlice(sender)
		switch {
		case reply:
			return "answers", address
		case bytes.Equal(sender, target):
			return "announces", address
		}
	case unix.ETH_P_IPV6:
		if len(body) < 64 || body[6] != unix.IPPROTO_ICMPV6 || body[40] != 136 {
			return "", address
		}
		address, _ = netip.AddrFromSlice(body[48:64])
		if body[44]&0x40 != 0 { // solicited
			return "answers", address
		}
		return "announces", address
	}
	return "", address
}

// about returns the counts of a kind about addresses.
func (l *linkTap) about(what string, addresses []netip.Addr) map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := maps.Clone(l.seen)
	maps.DeleteFunc(found, func(key string, _ int) bool {
		for _, a := range addresses {
			if strings.HasSuffix(key, what+" for "+a.String()) {
				return false
			}
		}
		return true
	})
	return found
}

// hears waits until the link has heard exactly these announcements about the LAN's addresses.
func (l *linkTap) hears(t *testing.T, all ...map[string]int) {
	t.Helper()
	want := map[string]int{}
	for _, some := range all {
		maps.Copy(want, some)
	}
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		if have := l.about("announces", onLAN); !maps.Equal(want, have) {
			return fmt.Errorf("the LAN hears %v, not %v", have, want)
		}
		return nil
	}))
}

// thrice are the announcements of a host that takes over.
func thrice(node string, addresses []netip.Addr) map[string]int {
	all := map[string]int{}
	for _, a := range addresses {
		all[fmt.Sprintf("%s announces for %s", node, a)] = 3
	}
	return all
}

// forgetNeighbours has a router ask for MACs again.
func forgetNeighbours(t *testing.T, s *stage.Stage, router string) {
	t.Helper()
	_, err := s.Node(router).Run(t.Context(), "sh", "-c", "ip -4 neigh flush all; ip -6 neigh flush all; true")
	require.NoError(t, err)
}

// onLinkPods are the identities of the pods: those of app web leave by the LAN, b-p2 by red.
func onLinkPods() identities {
	web := identity{"ext-default", onLAN[0].String(), onLAN[1].String()}
	return identities{"a-p1": web, "a-p2": web, "b-p1": web, "c-p1": web, "b-p2": {"ext-red", onRed[0].String(), onRed[1].String()}}
}

// playOnLink plays three nodes, of which b and c may be hosts of egress IPs, and routers without BGP.
func playOnLink(t *testing.T) *stage.Stage {
	t.Helper()
	routes := []string{"ip route add default via 10.1.0.1 dev eth2 table 1001", "ip route add ::/0 via fd01::1 dev eth2 table 1001"}
	return play(t, stage.Options{
		Nodes:  []string{"a", "b", "c"},
		Config: func(string) string { return onLinkConfig },
		Manifests: map[string]string{
			"cluster.yaml": strings.NewReplacer(plainB, assignableB, plainC, assignableC).Replace(topologyManifest(t, "cluster.yaml")),
			"pods.yaml":    podManifests(), "egressip.yaml": onLinkManifest,
		},
		Exec: map[string][]string{
			"b": routes,
			"c": append([]string{
				"ip link add vrf-red type vrf table 1001", "ip link set vrf-red up", "ip link set eth2 master vrf-red",
				"ip addr replace fd01::13/64 dev eth2 nodad",
			}, routes...),
		},
	})
}

// TestOnLink has pods leave with addresses of the subnets of their hosts' uplinks, while no router speaks BGP: the host alone answers ARP
// and NDP. When it loses its power, the standby announces the addresses to neighbours that know the former host's MAC. A node that comes
// back as the standby announces nothing.
func TestOnLink(t *testing.T) {
	s := playOnLink(t)
	ctx, pods := t.Context(), onLinkPods()
	lan, red := tap(t, s, "gw", "eth1", "eth1"), tap(t, s, "red1", "eth1", "eth2")
	awaitAll(t, s, pods)
	s.Witness.Reset()
	for _, l := range []struct {
		*linkTap
		router    string
		addresses []netip.Addr
	}{{lan, "gw", onLAN}, {red, "red1", onRed}} {
		// A router need not ask where b's own question, which has the egress IP as its source, comes first.
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			forgetNeighbours(t, s, l.router)
			awaitAll(t, s, pods)
			for _, a := range l.addresses {
				if l.about("answers", l.addresses)["b answers for "+a.String()] == 0 {
					return fmt.Errorf("%s hears no answer about %s", l.router, a)
				}
			}
			return nil
		}))
		for said := range l.about("answers", l.addresses) {
			require.True(t, strings.HasPrefix(said, "b "), "%s", said)
		}
	}
	requireInnocent(t, s, pods)

	lan.hears(t, thrice("b", onLAN))
	require.NoError(t, s.PowerOff(ctx, "b"))
	gone := identities{"b-p1": pods["b-p1"], "b-p2": pods["b-p2"]}
	delete(pods, "b-p1")
	delete(pods, "b-p2")
	awaitAll(t, s, pods)
	lan.hears(t, thrice("b", onLAN), thrice("c", onLAN))

	require.NoError(t, s.Edit(ctx, "egressip.yaml", "node: b, standby: c, term: 1", "node: c, standby: b, term: 2"))
	awaitAll(t, s, pods)
	before := lan.about("announces", onLAN)
	require.NoError(t, s.Boot("b"))
	require.NoError(t, s.StartSpeaker("b"))
	require.NoError(t, s.StartDaemon("b"))
	pods = pods.with(gone)
	awaitAll(t, s, pods)
	requireInnocent(t, s, pods, identities{"b-p1": nodeB, "b-p2": nodeB}) // until the daemon's first pass after the boot
	require.Equal(t, before, lan.about("announces", onLAN), "b comes back as the standby")
	for said := range red.about("announces", onRed) {
		require.False(t, strings.HasPrefix(said, "a "), "%s", said)
	}
	out, err := s.Egressway(ctx, "c", "cleanup")
	require.Error(t, err, "a daemon runs: %s", out)
	s.Daemons["c"].Kill()
	_, err = s.Egressway(ctx, "c", "cleanup")
	require.NoError(t, err)
	out2, err := s.Node("c").Run(ctx, "sh", "-c", "ip addr show; nft list tables")
	require.NoError(t, err)
	for _, left := range []string{"metric 14200142", "arp egressway", "10.0.0.33", "fd01::34"} {
		require.NotContains(t, out2, left)
	}
}

// TestOnLinkMoves moves addresses on the link on purpose: connections go on, also those of the former host's own pods, whose answers come
// to the next host.
func TestOnLinkMoves(t *testing.T) {
	s := playOnLink(t)
	pods, lan := onLinkPods(), tap(t, s, "gw", "eth1", "eth1")
	awaitAll(t, s, pods)
	lan.hears(t, thrice("b", onLAN))
	s.Witness.Reset()
	old := talk(t, s, pods)
	require.NoError(t, s.Edit(t.Context(), "egressip.yaml", "node: b, standby: c, term: 1", "node: c, standby: b, term: 2"))
	lan.hears(t, thrice("b", onLAN), thrice("c", onLAN))
	awaitAll(t, s, pods)
	old.goOn(t, pods, pods)
	requireInnocent(t, s, pods)
}
