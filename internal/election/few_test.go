package election

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
)

// served returns the nodes that are host or standby.
func served(choices map[Seat]Choice) map[string]bool {
	nodes := map[string]bool{}
	for _, c := range choices {
		nodes[c.Host], nodes[c.Standby] = true, true
	}
	return nodes
}

// obeyed writes the choices to the statuses.
func obeyed(o cluster.Objects, choices map[Seat]Choice) cluster.Objects {
	for s, c := range choices {
		e := o.EgressServices.At(s.Key)
		e.Status.Host, e.Status.Standby = c.Host, c.Standby
		o.EgressServices = o.EgressServices.With(s.Key, e)
	}
	return o
}

// TestHostsAreFew checks that the hosts and standbys of many services are few nodes, with equally many services each, and that
// they stay: when nodes come and go, and when the policy changes.
func TestHostsAreFew(t *testing.T) {
	const most = 12
	policy := Policy{Hosts: most}
	o := objects(100, names(600)...)
	first := policy.Elect(o, nil)
	require.Len(t, served(first), most)
	for node, n := range hosts(first) {
		require.Equal(t, 600/most, n, node)
	}
	for _, c := range first {
		require.NotEmpty(t, c.Standby)
		require.NotEqual(t, c.Host, c.Standby)
	}
	o = obeyed(o, first)
	require.Equal(t, served(first), served(policy.Elect(o, nil)), "another election changes nothing")

	var dead string
	for dead = range served(first) {
		break
	}
	without := o
	without.Nodes = o.Nodes.Without(dead)
	second := policy.Elect(without, nil)
	replaced := served(second)
	require.Len(t, replaced, most, "another node takes the place of the one that is gone")
	require.NotContains(t, replaced, dead)
	back := obeyed(o, second)
	require.Equal(t, replaced, served(policy.Elect(back, nil)), "the node that returns is not needed")

	spread := obeyed(o, Elect(objects(100, names(600)...), nil))
	require.Len(t, served(Elect(objects(100, names(600)...), nil)), 100)
	for s, c := range policy.Elect(spread, nil) {
		was := spread.EgressServices.At(s.Key).Status
		require.Equal(t, was.Host, c.Host, "hosts in place stay")
		require.Equal(t, was.Standby, c.Standby)
	}
}

// TestFewOfTheCandidates checks that services with other candidates have few hosts among those, and that a defect counts more
// than being a host.
func TestFewOfTheCandidates(t *testing.T) {
	policy := Policy{Hosts: 2}
	o := objects(20, names(40)...)
	for i, name := range names(40) {
		e := o.EgressServices.At(key(name))
		e.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"zone": []string{"even", "odd"}[i%2]}}
		o.EgressServices = o.EgressServices.With(key(name), e)
	}
	choices := policy.Elect(o, nil)
	require.Len(t, served(choices), 4)
	for s, c := range choices {
		require.NotEqual(t, c.Host, c.Standby, s)
		require.Equal(t, o.Nodes.At(c.Host).Labels, o.Nodes.At(c.Standby).Labels, s)
	}
	for node := range served(choices) {
		n := o.Nodes.At(node)
		n.Cordoned = true
		o.Nodes = o.Nodes.With(node, n)
	}
	for s, c := range policy.Elect(o, nil) {
		require.False(t, o.Nodes.At(c.Host).Cordoned, s)
		require.False(t, o.Nodes.At(c.Standby).Cordoned, s)
	}
}

func BenchmarkElectFew(b *testing.B) {
	for _, most := range []int{0, 12} {
		b.Run(fmt.Sprint(most), func(b *testing.B) {
			o := objects(1000, names(10_000)...)
			for b.Loop() {
				Policy{Hosts: most}.Elect(o, nil)
			}
		})
	}
}
