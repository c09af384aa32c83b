package plan_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/stories"
)

// storyOf reads the snapshot of node a of a story, with a configuration of its own.
func storyOf(t *testing.T, name string) plan.Snapshot {
	t.Helper()
	s, err := stories.Read("testdata/"+name, "a")
	require.NoError(t, err)
	c := *s.Snapshot.Config
	s.Snapshot.Config = &c
	return s.Snapshot
}

// TestObjectNamesLAN has an EgressService name the device that leads to the other nodes, which is no VRF: nothing but that object suffers.
func TestObjectNamesLAN(t *testing.T) {
	s := storyOf(t, "one-service")
	s.Config.AllowUnlisted = true
	before, _ := plan.Build(s)
	require.NotEmpty(t, before.DataPlane.Between)
	s.Objects.EgressServices = s.Objects.EgressServices.With(cluster.Key{Namespace: "other", Name: "x"},
		cluster.EgressService{Network: before.DataPlane.Between[0], SourceIPBy: cluster.SourceIPByNetwork})
	after, problems := plan.Build(s)
	require.Equal(t, before.DataPlane, after.DataPlane)
	require.Equal(t, before.Routes, after.Routes)
	require.True(t, slices.ContainsFunc(problems, func(p cluster.Problem) bool {
		return p.Object == "other/x" && p.Reason == plan.ReasonVRFMissing && p.Node == "a"
	}), "%v", problems)
}

// TestIngressIPOnALink has a link of node a carry the ingress IP: that concerns this node alone, unless a Node object has the address.
func TestIngressIPOnALink(t *testing.T) {
	s := storyOf(t, "one-service")
	ingress := addr("203.0.113.10")
	want := func(node string) {
		t.Helper()
		_, problems := plan.Build(s)
		i := slices.IndexFunc(problems, func(p cluster.Problem) bool { return p.Object == "shop/web" && p.Value == ingress.String() })
		require.GreaterOrEqual(t, i, 0, "%v", problems)
		require.Equal(t, plan.ReasonInvalidAddress, problems[i].Reason)
		require.Equal(t, node, problems[i].Node)
	}
	links := s.Facts.Links
	s.Facts.Links = append(slices.Clone(links), plan.Link{Name: "vip0", Index: 99, Addrs: []netip.Prefix{netip.PrefixFrom(ingress, 32)}})
	want("a")
	b := s.Objects.Nodes.At("b")
	b.Addresses = append(addrs(), append(b.Addresses, ingress)...)
	s.Objects.Nodes = s.Objects.Nodes.With("b", b)
	want("")
	s.Facts.Links = links
	want("")
}

// TestNodeListsAPod has the Node of b list the address of a selected pod of node a, as b's kubelet may write it. The pod stays selected.
func TestNodeListsAPod(t *testing.T) {
	s := storyOf(t, "one-service")
	pod := addr("10.244.1.5")
	path := func() plan.PathID {
		p, _ := plan.Build(s)
		e, selected := p.DataPlane.Endpoints.Get(plan.Endpoint{Addr: pod})
		require.True(t, selected)
		return e.Path
	}
	want := path()
	key := cluster.Key{Namespace: "shop", Name: "web"}
	b := s.Objects.Nodes.At("b")
	b.Addresses = append(addrs(), append(b.Addresses, pod)...)
	s.Objects.Nodes = s.Objects.Nodes.With("b", b)
	require.Equal(t, want, path())

	forged := slices.Clone(s.Objects.Endpoints.At(key))
	for i := range forged {
		forged[i].Target = cluster.TargetUnknown
	}
	unowned := s
	unowned.Objects.Endpoints = s.Objects.Endpoints.With(key, forged)
	p, _ := plan.Build(unowned)
	_, selected := p.DataPlane.Endpoints.Get(plan.Endpoint{Addr: pod})
	require.False(t, selected, "its EndpointSlice names no Pod")

	_, problems := plan.Build(s)
	require.Contains(t, problems, cluster.Problem{
		Kind: "EgressService", Object: "shop/web", Field: "endpoints", Value: pod.String(), Reason: plan.ReasonInvalidAddress,
		Message: "is an address of node b, not of a pod on node a",
	})
}

// TestNoARPFamily has the host of an EgressIP in the subnet of an uplink lack nftables' family arp: it does not answer, and says so.
func TestNoARPFamily(t *testing.T) {
	s := storyOf(t, "on-link")
	with, problems := plan.Build(s)
	require.NotZero(t, with.DataPlane.OnLink.Len())
	silent := func(p cluster.Problem) bool { return p.Reason == plan.ReasonNoARPFamily }
	require.False(t, slices.ContainsFunc(problems, silent))

	s.Facts.ARP = false
	without, problems := plan.Build(s)
	require.Zero(t, without.DataPlane.OnLink.Len())
	i := slices.IndexFunc(problems, silent)
	require.GreaterOrEqual(t, i, 0, "%v", problems)
	require.Equal(t, "EgressIP", problems[i].Kind)
	require.Equal(t, "a", problems[i].Node)
}
