package election

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// assignableNodes makes nodes n0, n1, … that may be hosts of egress IPs.
func assignableNodes(n int) cluster.Objects {
	o := objects(n)
	for name, node := range o.Nodes.All() {
		node.Labels = map[string]string{cluster.LabelAssignable: "yes"}
		o.Nodes = o.Nodes.With(name, node)
	}
	return o
}

func egressIP(addresses ...string) (e cluster.EgressIP) {
	for _, text := range addresses {
		e.Addresses = append(e.Addresses, netip.MustParseAddr(text))
	}
	return e
}

// TestAddressesApart expects the addresses of an EgressIP at different nodes as long as there are enough, except where every node elects
// for itself, and the standby of each at another node than its host.
func TestAddressesApart(t *testing.T) {
	for nodes := 1; nodes <= 6; nodes++ {
		for n := range 20 {
			o := assignableNodes(nodes)
			name := fmt.Sprint("e", n)
			o.EgressIPs = o.EgressIPs.With(cluster.Key{Name: name}, egressIP("192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1"))
			for _, policy := range []Policy{{}, {Alone: true}} {
				choices := policy.Elect(o, nil)
				require.Len(t, choices, 4)
				if !policy.Alone {
					require.Len(t, hosts(choices), min(nodes, 4), "%d nodes: %v", nodes, choices)
				}
				for s, c := range choices {
					require.NotEmpty(t, c.Host, "%v", s)
					require.Equal(t, nodes > 1, c.Standby != "", "%v", s)
					require.NotEqual(t, c.Host, c.Standby, "%v", s)
				}
			}
		}
	}
}

// TestAddressStays expects an address to stay with the host in the status, and its standby to follow when that is gone.
func TestAddressStays(t *testing.T) {
	o := assignableNodes(4)
	a := netip.MustParseAddr("192.0.2.1")
	e := egressIP("192.0.2.1", "192.0.2.2")
	e.Holders = []cluster.Holder{{Addr: a, Host: "n3", Standby: "n2", Term: 7}}
	o.EgressIPs = o.EgressIPs.With(cluster.Key{Name: "e"}, e)
	seat := EgressIPSeat("e", a)
	choice := Elect(o, nil)[seat]
	require.Equal(t, []any{"n3", "n2", int64(7)}, []any{choice.Host, choice.Standby, choice.Term})

	n := o.Nodes.At("n3")
	n.Labels = nil
	o.Nodes = o.Nodes.With("n3", n)
	choice = Elect(o, nil)[seat]
	require.Equal(t, "n2", choice.Host)
	require.Equal(t, "node n3 has no label k8s.ovn.org/egress-assignable any more", choice.Why)
}

// TestAddressStaysUntilItsNodesReport gives an address another network by the configuration: host and standby stay until they report about
// it, and are chosen by their reports from then on.
func TestAddressStaysUntilItsNodesReport(t *testing.T) {
	o, reports := assignableNodes(3), up("n0", "n1", "n2")
	e := egressIP("192.0.2.1")
	e.Holders = []cluster.Holder{{Addr: e.Addresses[0], Host: "n0", Standby: "n1", Term: 7}}
	o.EgressIPs = o.EgressIPs.With(cluster.Key{Name: "e"}, e)
	policy := Policy{Networks: []config.Network{{Name: "red", EgressIPs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}}
	roles := func() []string {
		c := policy.Elect(o, reports)[EgressIPSeat("e", e.Addresses[0])]
		return []string{c.Host, c.Standby}
	}
	report := func(node string, red cluster.NetworkState) {
		r := reports[node]
		r.Networks = map[string]cluster.NetworkState{"default": r.Networks["default"], "red": red}
		reports[node] = r
	}
	fit := cluster.NetworkState{Usable: true, IPv4: true, IPv6: true}
	require.Equal(t, []string{"n0", "n1"}, roles(), "no node has reported")
	report("n2", fit)
	require.Equal(t, []string{"n0", "n1"}, roles(), "another node has")
	require.NotContains(t, reports["n0"].Networks, "red", "the reports are the caller's")
	report("n1", cluster.NetworkState{})
	require.Equal(t, []string{"n0", "n2"}, roles(), "the standby lacks the network")
	report("n0", cluster.NetworkState{Sessions: 1})
	require.Equal(t, []string{"n2", ""}, roles(), "the host has no session there")
	delete(reports, "n2")
	require.Equal(t, []string{"", ""}, roles(), "a node without a report is not waited for")
}

// TestStandbyBesideAnotherAddress has the standby of an address be the host of another one of the object: a free node replaces it, unless
// that lacks more, or the standby was the host and stays for its flows.
func TestStandbyBesideAnotherAddress(t *testing.T) {
	const free = "n2"
	o, reports := assignableNodes(3), up("n0", "n1", free)
	e := egressIP("192.0.2.1", "192.0.2.2")
	e.Holders = []cluster.Holder{{Addr: e.Addresses[0], Host: "n0", Standby: "n1", Term: 7}, {Addr: e.Addresses[1], Host: "n1", Standby: "n0", Term: 3}}
	o.EgressIPs = o.EgressIPs.With(cluster.Key{Name: "e"}, e)
	standbys := func(o cluster.Objects) (nodes []string) {
		choices := Elect(o, reports)
		for _, h := range e.Holders {
			c := choices[EgressIPSeat("e", h.Addr)]
			require.Equal(t, h.Host, c.Host)
			nodes = append(nodes, c.Standby)
		}
		return nodes
	}
	require.Equal(t, []string{free, free}, standbys(o))

	choice := Elect(o, reports)[EgressIPSeat("e", e.Addresses[0])]
	require.Equal(t, "n1", NextHolder(o, reports, View{Choice: choice, Former: "n1"}, e.Holders[0]).Standby, "flows go by it")
	require.Equal(t, free, NextHolder(o, reports, View{Choice: choice}, e.Holders[0]).Standby, "they have ended")

	cordoned := o
	cordon(&cordoned, free, true)
	require.Equal(t, []string{"n1", "n0"}, standbys(cordoned), "the free node lacks more")
	for _, node := range []string{"n0", "n1"} {
		r := reports[node]
		r.Old = true
		reports[node] = r
	}
	require.Equal(t, []string{"n1", "n0"}, standbys(cordoned), "an old report is no lack of a standby that stays")
	require.Equal(t, []string{free, free}, standbys(o))
	delete(reports, free)
	unready(&o, free)
	require.Equal(t, []string{"n1", "n0"}, standbys(o), "there is no free node")
}

// TestAddressHasOneOwner expects an address that several objects name to have one owner: an EgressService, then the oldest EgressIP.
func TestAddressHasOneOwner(t *testing.T) {
	o := assignableNodes(3)
	with := objects(3, "web")
	o.EgressServices, o.Services, o.Endpoints = with.EgressServices, with.Services, with.Endpoints
	o.Services = o.Services.With(key("web"), cluster.Service{LoadBalancer: true, Ingress: []cluster.Ingress{{IP: "192.0.2.1"}}})
	for i, name := range []string{"young", "old"} {
		e := egressIP("192.0.2.1", "192.0.2.2")
		e.Created = time.Unix(int64(9-i), 0)
		o.EgressIPs = o.EgressIPs.With(cluster.Key{Name: name}, e)
	}
	choices := Elect(o, nil)
	require.NotEmpty(t, choices[seat("web")].Host)
	first, second := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	require.NotEmpty(t, choices[EgressIPSeat("old", second)].Host)
	for s, owner := range map[Seat]string{
		EgressIPSeat("old", first): "EgressService shop/web", EgressIPSeat("young", first): "EgressService shop/web",
		EgressIPSeat("young", second): "EgressIP old",
	} {
		p := choices[s].Problem
		require.NotNil(t, p, "%v", s)
		require.Equal(t, cluster.ReasonAddressConflict, p.Reason)
		require.Equal(t, s.Slot.String(), p.Value)
		require.Contains(t, p.Message, "belongs to "+owner)
	}
}

// TestRefusedByOneNode has a node refuse an address that it has itself: no host serves it if that is the host, which another one does.
func TestRefusedByOneNode(t *testing.T) {
	a := netip.MustParseAddr("192.0.2.1")
	p := cluster.Problem{Reason: cluster.ReasonEgressIPConflict, Value: a.String(), Node: "n1", Message: "is an address of node n1"}
	reports := map[string]cluster.Report{"n1": {AppliedIPs: 5}, "n2": {AppliedIPs: 5}}
	at := func(host string) metav1.Condition {
		return programmedAll(reports, []Sitting{{Holder: cluster.Holder{Addr: a, Host: host}, View: View{Kind: cluster.KindEgressIP, Since: 5}}}, []cluster.Problem{p})
	}
	require.Equal(t, metav1.ConditionFalse, at("n1").Status)
	require.Equal(t, "192.0.2.1: is an address of node n1", at("n1").Message)
	require.Equal(t, metav1.ConditionTrue, at("n2").Status)
	p.Node = ""
	require.Equal(t, metav1.ConditionFalse, at("n2").Status)
}

// TestNoAssignableNode expects an address without a host to say which label is missing.
func TestNoAssignableNode(t *testing.T) {
	o := objects(2)
	o.EgressIPs = o.EgressIPs.With(cluster.Key{Name: "e"}, egressIP("192.0.2.1", "10.0.0.1"))
	choices := Elect(o, nil)
	require.Equal(t, "EgressIP e: spec.egressIPs: \"192.0.2.1\": has no host: no Ready node has the label k8s.ovn.org/egress-assignable; "+
		"add it, with any value, to those that may be", choices[EgressIPSeat("e", netip.MustParseAddr("192.0.2.1"))].Problem.Error())
	require.Equal(t, cluster.ReasonEgressIPConflict, choices[EgressIPSeat("e", netip.MustParseAddr("10.0.0.1"))].Problem.Reason)
}
