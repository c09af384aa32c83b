package e2e

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/lab/stage"
)

// TestMovesBesideAbsentNetwork moves web, of red, on purpose to and from a node that lacks the interface of silver. Connections from
// outside go on, also those that begin while routers and nodes go over from one host to the other.
func TestMovesBesideAbsentNetwork(t *testing.T) {
	s := play(t, stage.Options{
		API: true, Config: func(c string) string { return c + silver },
		Exec: map[string][]string{"a": {"ip link add eth9 type dummy", "ip link set eth9 up"}},
	})
	ctx := t.Context()
	host, standby := hosts(t, s)
	hostAt(t, s, host)
	reserve(t, s, standby)
	awaitServed(t, s, asDeployed())
	awaitReport(t, s, "b", func(r status.Report) string {
		if !slices.ContainsFunc(r.Networks, func(n status.Network) bool { return n.Name == "silver" && !n.Usable }) || !r.Ready || len(r.Errors) > 0 {
			return "only silver should not be usable"
		}
		return ""
	})
	for range 4 {
		all := visit(t, s, "ext-red")
		editNode(t, s, host, "spec:\n", "spec:\n  unschedulable: true\n")
		for moved := false; !moved; {
			all = append(all, visit(t, s, "ext-red")...)
			e, err := s.EgressService(ctx, "shop", "web")
			require.NoError(t, err)
			moved = e.Status.Host == standby
		}
		for range 3 {
			all = append(all, visit(t, s, "ext-red")...)
		}
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, host))
		hostAt(t, s, standby)
		reserve(t, s, host)
		all.goOn(t)
		editNode(t, s, host, "  unschedulable: true\n", "")
		host, standby = standby, host
	}
	requireInnocent(t, s, asDeployed())
}
