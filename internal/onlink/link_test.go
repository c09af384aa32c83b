package onlink

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab/netns"
)

// TestNeighbourLearnsNewHost has a neighbour, which knows the former host's MAC, learn that of this node.
func TestNeighbourLearnsNewHost(t *testing.T) {
	node, neighbour := netns.New(t), netns.New(t)
	netns.Wire(netns.Families[0], node, "eth1", neighbour, "eth0", "203.0.113.")
	node.Run("ip link set eth1 address 02:00:00:00:00:09", "ip addr add 2001:db8::1/64 dev eth1 nodad")
	neighbour.Run("ip addr add 2001:db8::2/64 dev eth0 nodad")
	var all []plan.OnLink
	for _, address := range []string{"203.0.113.33", "2001:db8::33"} {
		neighbour.Run("ip neigh replace " + address + " lladdr 02:00:00:00:00:01 dev eth0 nud stale")
		all = append(all, plan.OnLink{Addr: netip.MustParseAddr(address), Device: "eth1"})
	}
	require.NoError(t, node.Do(func() error { return NewAnnouncer().Set(all) }))
	netns.Eventually(t, func() bool {
		var shown []byte
		require.NoError(t, neighbour.Do(func() (err error) {
			shown, err = exec.CommandContext(t.Context(), "ip", "neigh", "show", "dev", "eth0").Output()
			return err
		}))
		return strings.Count(string(shown), "02:00:00:00:00:09") >= len(all) && !strings.Contains(string(shown), "02:00:00:00:00:01")
	}, "the neighbour knows the new host's MAC for both addresses")
}
