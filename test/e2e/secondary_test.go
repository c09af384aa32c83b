package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// secondary are addresses that interfaces of a node have and its Node object does not list: a second one of the interface to
// the other nodes, and one in a storage network.
var secondary = map[string][]netip.Addr{"a": secondaryOf(61), "b": secondaryOf(62)}

func secondaryOf(number int) (all []netip.Addr) {
	for _, format := range []string{"10.0.0.%d", "fd00::%d", "10.50.0.%d", "fd50::%d"} {
		all = append(all, netip.MustParseAddr(fmt.Sprintf(format, number)))
	}
	return all
}

// secondaryAddresses gives a node its secondary addresses, or removes them: verb is add or del.
func secondaryAddresses(t *testing.T, s *stage.Stage, node, verb string) {
	t.Helper()
	nodad := map[string]string{"add": " nodad"}[verb]
	for i, a := range secondary[node] {
		bits, device := []int{32, 128, 24, 64}[i], []string{"eth1", "eth1", "storage", "storage"}[i]
		line := fmt.Sprintf("ip addr %s %s/%d dev %s", verb, a, bits, device)
		if a.Is6() {
			line += nodad
		}
		run(t, s, node, line)
	}
}

// TestSecondaryAddresses has selected pods of both nodes ask addresses that only an interface of the other node has: they are
// inside the cluster for as long as the interface has them, also for a connection that is older than the daemon.
func TestSecondaryAddresses(t *testing.T) {
	s := play(t, stage.Options{API: true})
	ctx := t.Context()
	now := asDeployed()
	awaitServed(t, s, now)
	require.NoError(t, s.RespondOn(ctx, "a", "b"))
	var all []netip.Prefix
	for _, node := range []string{"a", "b"} {
		run(t, s, node, "ip link add link eth1 name storage type vlan id 50", "ip link set storage up")
		secondaryAddresses(t, s, node, "add")
		for _, a := range secondary[node] {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}

	// asked has a pod ask an address of the other node, which sees an address of the pod's node: the CNI masquerades.
	asked := func(pod string, to netip.Addr, ask func(netip.AddrPort) (lab.Answer, error)) error {
		node := pod[:1]
		a, err := ask(netip.AddrPortFrom(to, lab.ResponderPort))
		may := append(slices.Clone(secondary[node]), ipFamilies[0].of(ipFamilies[0].lan, node), ipFamilies[1].of(ipFamilies[1].lan, node))
		if err == nil && (a.Name != other(node) || !slices.Contains(may, a.Peer.Addr())) {
			err = fmt.Errorf("%s asks %s: %s answered and saw %s", pod, to, a.Name, a.Peer)
		}
		return err
	}
	everybody := func(do func(pod string, to netip.Addr) error) error {
		return atOnce([]string{"a-p1", "a-p2", "b-p1", "b-p2"}, func(pod string) error {
			return atOnce(secondary[other(pod[:1])], func(to netip.Addr) error { return do(pod, to) })
		})
	}
	byTCP := func(pod string) func(netip.AddrPort) (lab.Answer, error) {
		return func(to netip.AddrPort) (lab.Answer, error) { return s.Node(pod).AskTCP(ctx, to) }
	}
	byUDP := func(pod string) func(netip.AddrPort) (lab.Answer, error) {
		return func(to netip.AddrPort) (lab.Answer, error) { return s.Node(pod).AskUDP(ctx, to, 100) }
	}
	require.NoError(t, everybody(func(pod string, to netip.Addr) error {
		return lab.Wait(ctx, patience, func() error { return asked(pod, to, byTCP(pod)) })
	}))

	inside := func() {
		t.Helper()
		s.Witness.Reset()
		require.NoError(t, everybody(func(pod string, to netip.Addr) error { return asked(pod, to, byTCP(pod)) }))
		require.NoError(t, everybody(func(pod string, to netip.Addr) error { return asked(pod, to, byUDP(pod)) }))
		require.Empty(t, s.Witness.Find(lab.Destinations(all...)), "no router sees what stays inside the cluster")
	}
	inside()
	var sessions []*lab.Session
	for _, to := range secondary["b"] {
		session, err := s.Node("a-p1").Open(ctx, netip.AddrPortFrom(to, lab.ResponderPort))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, session.Close()) })
		sessions = append(sessions, session)
	}
	require.NoError(t, s.Daemons["a"].Stop(ctx))
	require.NoError(t, s.StartDaemon("a"))
	awaitLog(t, s, "all objects known", nil, "a")
	awaitAll(t, s, now)
	for _, session := range sessions {
		_, err := session.Ask(ctx)
		require.NoError(t, err)
	}
	inside()
	requireInnocent(t, s, now)

	// Without the interface's addresses they are destinations like any other.
	secondaryAddresses(t, s, "b", "del")
	for _, to := range secondary["b"] {
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			_, _ = s.Node("a-p1").AskTCP(ctx, netip.AddrPortFrom(to, lab.ResponderPort))
			if len(s.Witness.Find(func(p lab.Packet) bool {
				return !p.Out && p.Dst == to && p.Src.String() == web.source(netip.AddrPortFrom(to, 0)) && stage.Routers[p.Node+":"+p.Interface] == "red"
			})) == 0 {
				return fmt.Errorf("no router of red sees %s", to)
			}
			return nil
		}))
	}
	shared := secondary["a"][:2] // b is no longer in the storage network
	require.NoError(t, atOnce(shared, func(to netip.Addr) error { return asked("b-p1", to, byTCP("b-p1")) }))
}
