package kernel

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/kernel/preflight"
	"github.com/egressway/egressway/lab/netns"
)

func TestWhatPassesOurRulesByIsTold(t *testing.T) {
	h := netns.Enter(t)
	problems, err := preflight.Bypasses(h, "a")
	require.NoError(t, err)
	require.Empty(t, problems)

	netns.IP(t, "link add cilium_host type dummy", "link add eth7 type dummy")
	out, err := exec.Command("nft", "table inet fast { flowtable pods { hook ingress priority 0; devices = { eth7 }; }; }").CombinedOutput()
	require.NoError(t, err, string(out))
	problems, err = preflight.Bypasses(h, "a")
	require.NoError(t, err)
	require.Len(t, problems, 2)
	require.Equal(t, preflight.ReasonNetfilterBypassed, problems[0].Reason)
	require.Equal(t, preflight.ReasonFlowOffload, problems[1].Reason)
	require.Contains(t, problems[1].Error(), `flowtable: "fast pods"`)
	require.Contains(t, problems[1].Message, "eth7")
}

func TestRival(t *testing.T) {
	netns.Enter(t)
	nft := func(line string) {
		out, err := exec.Command("nft", line).CombinedOutput()
		require.NoError(t, err, string(out))
	}
	n, err := Open()
	require.NoError(t, err)
	t.Cleanup(n.Close)
	require.NoError(t, n.CheckRival())
	nft("add table inet ovn-kubernetes")
	require.NoError(t, n.CheckRival(), "without EgressService we live side by side")
	nft("add chain inet ovn-kubernetes egress-services")
	require.True(t, preflight.IsRival(n.CheckRival()))
	nft("delete chain inet ovn-kubernetes egress-services")
	require.NoError(t, n.CheckRival(), "as the message says")
}
