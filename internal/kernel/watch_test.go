package kernel

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/kernel/link"
	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/kernel/sysctl"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/netns"
)

// TestWatchSettings expects an event for each setting that Sysctls reads, except src_valid_mark, for which the kernel sends none.
func TestWatchSettings(t *testing.T) {
	netns.Enter(t)
	netns.Uplink(t, "eth1", "10.1.0.2/24", "2001:db8:1::2/64")
	netns.State(t) // wait until addresses settle
	woken := watchHere(t, nl.ReceiveBuffer)
	for _, name := range []string{"ipv4/conf/eth1/rp_filter", "ipv4/conf/all/rp_filter", "ipv4/conf/eth1/forwarding", "ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		path := filepath.Join(sysctl.Root, "net", name)
		before, err := os.ReadFile(path)
		require.NoError(t, err)
		value := "1"
		if before[0] == '1' {
			value = "0"
		}
		drain(t, woken)
		require.NoError(t, os.WriteFile(path, []byte(value), 0o600))
		select {
		case <-woken:
		case <-time.After(netns.Patience):
			t.Fatal("not woken by " + name)
		}
	}
}

func TestWatch(t *testing.T) {
	netns.Enter(t)
	netns.Uplink(t, "eth1", "10.1.0.2/24", "2001:db8:1::2/64")
	netns.State(t) // wait until addresses settle
	woken := watchHere(t, nl.ReceiveBuffer)
	wait := func(why string) {
		t.Helper()
		select {
		case <-woken:
		case <-time.After(netns.Patience):
			t.Fatal("not woken by " + why)
		}
	}
	wait("the start")
	for _, line := range []string{
		"link add eth2 type dummy", "link set eth1 alias x", "addr add 10.1.0.3/24 dev eth1", "-6 addr add 2001:db8:1::3/64 dev eth1 nodad",
		"route add 192.0.2.0/24 via 10.1.0.1 table 1001", "-6 route add 2001:db8:9::/48 via 2001:db8:1::1 table 1001",
		"rule add pref 700 fwmark 1 lookup 1001", "-6 rule add pref 700 fwmark 1 lookup 1001",
		"rule del pref 700", "-6 rule del pref 700", "route flush table 1001", "-6 route flush table 1001", "link del eth2",
	} {
		drain(t, woken)
		netns.IP(t, line)
		wait(line)
	}

	for _, line := range []string{
		"add table inet " + ruleset.TableName, "add set inet " + ruleset.TableName + " s { type ipv4_addr; }", "add element inet " + ruleset.TableName + " s { 192.0.2.1 }",
		"add chain inet " + ruleset.TableName + " c", "add rule inet " + ruleset.TableName + " c accept", "flush chain inet " + ruleset.TableName + " c", "flush ruleset",
	} {
		drain(t, woken)
		netns.MustNFT(t, line)
		wait(line)
	}
	// Entries in our tunnel matter, neighbours on other links do not.
	netns.IP(t, fmt.Sprintf("link add egressway group %d type vxlan id 7946 dstport 4790 nolearning", link.LinkGroup),
		"link set egressway addrgenmode none", "link set egressway up") // an address of its own would wake us later, once the kernel has found no duplicate
	for _, line := range []string{
		"neigh add 192.0.2.7 lladdr 02:00:00:00:00:07 dev egressway nud permanent", "neigh del 192.0.2.7 dev egressway",
	} {
		drain(t, woken)
		netns.IP(t, line)
		wait(line)
	}
	for _, change := range []string{"append", "del"} {
		drain(t, woken)
		out, err := exec.CommandContext(t.Context(), "bridge", "fdb", change, "02:00:00:00:00:07", "dev", "egressway", "dst", "10.1.0.7").CombinedOutput()
		require.NoError(t, err, string(out))
		wait("fdb " + change)
	}
	drain(t, woken)
	netns.IP(t, "neigh add 10.1.0.9 lladdr 02:00:00:00:00:09 dev eth1 nud permanent", "neigh del 10.1.0.9 dev eth1")
	select {
	case <-woken:
		t.Fatal("woken by a neighbour that is no concern of ours")
	case <-moment(t, 100*time.Millisecond):
	}

	drain(t, woken)
	netns.MustNFT(t, "add table inet "+ruleset.TableName)
	wait("our table")
	drain(t, woken)
	netns.MustNFT(t, "add table inet kube-proxy")
	netns.MustNFT(t, "add chain inet kube-proxy c")
	select {
	case <-woken:
		t.Fatal("woken by another's table")
	case <-moment(t, 100*time.Millisecond):
	}
}

// moment ends once this process has run for so long.
func moment(t *testing.T, limit time.Duration) <-chan struct{} {
	t.Helper()
	ctx, cancel := lab.Within(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx.Done()
}

// drain waits until no wake-up comes for a moment: one command may cause several events.
func drain(t *testing.T, woken <-chan struct{}) {
	t.Helper()
	for quiet := false; !quiet; {
		select {
		case <-woken:
		case <-moment(t, 30*time.Millisecond):
			quiet = true
		}
	}
}

func TestWatchOverflows(t *testing.T) {
	h := netns.Enter(t)
	woken := watchHere(t, 1<<12)
	drain(t, woken)
	var many []plan.Route
	for i := range 20_000 {
		many = append(many, plan.Route{Table: 1001, Dst: prefix(fmt.Sprintf("20.%d.%d.0/24", i/250, i%250)), Unreachable: true})
	}
	require.NoError(t, addRoutes(t.Context(), h, many)) // far more events than fit, so some are lost
	drain(t, woken)
	netns.IP(t, "link add eth1 type dummy")
	select {
	case <-woken:
	case <-time.After(netns.Patience):
		t.Fatal("not woken after events were lost")
	}
}

func TestQuietWithoutChange(t *testing.T) {
	netns.Enter(t)
	netns.Quiet(t, func() error { return nil })
	require.Len(t, netns.Show(t, "link show"), 1)
}
