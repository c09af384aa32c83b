package e2e

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/lab/stage"
)

// TestUnlistedTable: a network may be the number of a routing table that no configuration lists. A service that gets such a
// network keeps its host, and changes of the table count at once.
func TestUnlistedTable(t *testing.T) {
	s := play(t, stage.Options{
		API: true, Manifests: oneFile(t), Config: func(c string) string { return "allowUnlisted: true\n" + c },
	})
	ctx := t.Context()
	host, _ := hosts(t, s)
	hostAt(t, s, host)
	awaitServed(t, s, asDeployed())
	before, err := s.EgressService(ctx, "shop", "web")
	require.NoError(t, err)
	number := map[string]string{"a": "11", "b": "12"}[host]
	run(t, s, "gw", "ip route add 192.0.2.10 via 10.0.0."+number, "ip route add 2001:db8:2::10 via fd00::"+number)
	routes := func(change ...string) {
		t.Helper()
		for _, node := range []string{"a", "b"} {
			run(t, s, node, change...)
		}
	}
	lacksRoute := func(lacks bool) {
		t.Helper()
		awaitReport(t, s, host, func(r status.Report) string {
			if slices.ContainsFunc(r.Problems, func(p status.Problem) bool { return p.Reason == "NoRoute" && p.Object == "100" }) != lacks {
				return "a network without a route, and no other, should be a problem"
			}
			return ""
		})
	}
	out := identity{"ext-default", "192.0.2.10", "2001:db8:2::10"}
	by100 := identities{"a-p1": out, "b-p1": out}

	traffic := ask(t, s, "a-p1", "b-p1")
	traffic.answered(t, 3, asDeployed())
	require.NoError(t, s.Edit(ctx, "shop.yaml", "network: red", `network: "100" # of web`))
	lacksRoute(true)
	traffic.unanswered(t, 3)
	routes("ip route add default via 10.0.0.1 table 100 metric 100", "ip route add default via fd00::1 table 100 metric 100")
	lacksRoute(false)
	traffic.answered(t, 3, by100)
	routes("ip route add blackhole default table 100 metric 50", "ip -6 route add blackhole default table 100 metric 50")
	traffic.unanswered(t, 3)
	routes("ip route del blackhole default table 100 metric 50", "ip -6 route del blackhole default table 100 metric 50")
	traffic.answered(t, 3, by100)
	lacksRoute(false)
	routes("ip route flush table 100", "ip -6 route flush table 100")
	lacksRoute(true)
	traffic.unanswered(t, 3)

	traffic.stop(t, asDeployed(), by100, by100.nobody())
	after, err := s.EgressService(ctx, "shop", "web")
	require.NoError(t, err)
	require.Equal(t, []any{host, before.Status.Term}, []any{after.Status.Host, after.Status.Term}, "no node was better")
}
