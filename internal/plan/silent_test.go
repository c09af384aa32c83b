package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
)

// TestSilentNodes expects no packet to be steered to a node that does not answer, be it host, standby or former host.
func TestSilentNodes(t *testing.T) {
	key := cluster.Key{Namespace: "shop", Name: "web"}
	for name, c := range map[string]struct {
		choice    election.Choice
		answering map[string]bool
		node      string
		dropped   bool // packets of the node's pods
		strays    bool // are passed on
		problem   bool
	}{
		"not watched":            {election.Choice{Host: "a"}, nil, "b", false, false, false},
		"host answers":           {election.Choice{Host: "a"}, map[string]bool{"a": true}, "b", false, false, false},
		"host silent":            {election.Choice{Host: "a"}, map[string]bool{}, "b", true, false, true},
		"standby silent":         {election.Choice{Host: "a", Standby: "b"}, map[string]bool{}, "a", false, false, false},
		"standby answers":        {election.Choice{Host: "a", Standby: "b"}, map[string]bool{"b": true}, "a", false, true, false},
		"host silent to standby": {election.Choice{Host: "a", Standby: "b"}, map[string]bool{}, "b", true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := story(t, "testdata/one-service", c.node)
			s.Hosts[election.ServiceSeat(key)], s.Answering = c.choice, c.answering
			desired, problems := plan.Build(s)
			dropped, local := false, false
			for e := range desired.DataPlane.Endpoints.All() {
				if e.Node == c.node {
					local, dropped = true, dropped || e.Path == 0
				}
			}
			require.True(t, local, "the story has a pod on node %s", c.node)
			require.Equal(t, c.dropped, dropped)
			strays := false
			for in := range desired.DataPlane.Ingress.All() {
				strays = strays || in.Stray != 0
			}
			require.Equal(t, c.strays, strays)
			silent := false
			for _, p := range problems {
				silent = silent || p.Reason == cluster.ReasonHostSilent
			}
			require.Equal(t, c.problem, silent, "%v", problems)
			if c.choice.Host != c.node {
				require.Contains(t, desired.Watched, c.choice.Host, "or this node would not learn that it answers")
			}
		})
	}
}
