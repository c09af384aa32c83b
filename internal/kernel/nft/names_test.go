package nft

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/names"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// named returns a plan with a policy that allows names, and denies all others.
func named(id firewall.PolicyID) plan.DataPlane {
	d := stories.DataPlane()
	all := firewall.Range{First: netip.MustParseAddr("0.0.0.0"), Last: netip.MustParseAddr("255.255.255.255"), Outcome: firewall.Deny}
	d.Policies = []firewall.Policy{{ID: id, Stretches: []firewall.Stretch{
		{Names: []string{"www.example.com"}, Named: firewall.Allow}, {Ranges: []firewall.Range{all}},
	}}}
	d.Firewalled = sorted.Of(firewall.Firewalled{Addr: netip.MustParseAddr("10.244.1.11"), Policy: id, Asks: true})
	d.Resolvers = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd96::a")}
	return d
}

// TestSetsOfNames writes addresses of names, and expects them to outlive other changes of the table, and the daemon.
func TestSetsOfNames(t *testing.T) {
	netns.Enter(t)
	a, b := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")
	n := new(keptTable)
	t.Cleanup(func() { n.Close() })
	filled := 0
	contents := func(s ruleset.NameSet) []NameElement {
		require.Equal(t, []string{"www.example.com"}, s.Names)
		filled++
		return []NameElement{{Set: s.Set, Addr: a, Timeout: time.Hour}}
	}
	apply := func(d plan.DataPlane) {
		t.Helper()
		n.Names = contents
		_, err := n.Apply(t.Context(), d)
		require.NoError(t, err)
		n.trusted = true
	}
	has := func(of firewall.PolicyID, want ...netip.Addr) {
		t.Helper()
		holds := HeldNames()
		for _, x := range []netip.Addr{a, b} {
			there, err := holds(of, 0, x)
			require.NoError(t, err)
			require.Equal(t, strings.Contains(joined(want), x.String()), there, x)
		}
	}
	apply(named(7))
	has(7, a)
	set := ruleset.NameSetOf(7, 0)
	require.ErrorIs(t, n.WriteNames([]NameElement{{ruleset.NameSetOf(7, 0), b, time.Hour}, {"policy-8-0-names", b, time.Hour}}), unix.ENOENT)
	has(7, a)
	require.NoError(t, n.WriteNames([]NameElement{{set, a, 2 * time.Hour}, {set, b, time.Hour}}), "one is there, one is new")
	has(7, a, b)
	listing, err := exec.CommandContext(t.Context(), "nft", "list", "set", "inet", "egressway", set).CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(listing), "198.51.100.1 timeout 2h", "a new timeout")

	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max}))
	_, err = HeldNames()(7, 0, a)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	require.ErrorIs(t, err, unix.EMFILE, "the set cannot be read")

	more := named(7)
	more.Hold = true
	apply(more)
	has(7, a, b)
	n.Close()
	n = new(keptTable)
	apply(named(7))
	has(7, a, b)
	require.Equal(t, 1, filled, "only the transaction that made the set filled it")

	apply(named(9))
	has(9, a)
	apply(stories.DataPlane())
	has(9)
}

func joined(all []netip.Addr) (text string) {
	for _, a := range all {
		text += a.String() + " "
	}
	return text
}

// TestNamesWithoutQueues expects a kernel without queues to have all other rules, and a problem to say what it lacks.
func TestNamesWithoutQueues(t *testing.T) {
	netns.Enter(t)
	n := new(keptTable)
	t.Cleanup(n.Close)
	_, err := n.Apply(t.Context(), named(7))
	require.NoError(t, err)
	require.Empty(t, n.Problems("a"))
	listing := func() string {
		out, err := exec.CommandContext(t.Context(), "nft", "list", "table", "inet", "egressway").CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	require.Contains(t, listing(), "queue flags bypass to 14201")

	require.NoError(t, n.Cleanup())
	n.held, n.trusted, n.queue, n.asked = Held{}, false, new(false), time.Now()
	_, err = n.Apply(t.Context(), named(7))
	require.NoError(t, err)
	require.NotContains(t, listing(), "queue")
	require.Contains(t, listing(), "chain policy-7-0")
	require.Equal(t, names.ReasonNamesPolled, n.Problems("a")[0].Reason)
	n.trusted = true
	_, err = n.Apply(t.Context(), stories.DataPlane())
	require.NoError(t, err)
	require.NotContains(t, listing(), "policy-7")

	// An operator loads the module.
	_, err = n.Apply(t.Context(), named(7))
	require.NoError(t, err)
	for _, step := range []struct {
		trusted bool
		asked   time.Duration
		queues  bool
	}{{true, queueEvery, false}, {false, 0, false}, {false, queueEvery, true}} {
		n.trusted, n.asked = step.trusted, time.Now().Add(-step.asked)
		_, err = n.Apply(t.Context(), named(7))
		require.NoError(t, err)
		require.Equal(t, step.queues, strings.Contains(listing(), "queue flags bypass to 14201"), step)
		require.Equal(t, step.queues, len(n.Problems("a")) == 0, step)
	}
	n.trusted = true
	_, err = n.Apply(t.Context(), stories.DataPlane())
	require.NoError(t, err)
	require.NotContains(t, listing(), "queue")
}

// TestLacksQueues distinguishes a kernel without queues from one that could not answer.
func TestLacksQueues(t *testing.T) {
	for _, c := range []struct {
		probe         error
		lacks, failed bool
	}{{nil, false, false}, {unix.ENOENT, true, false}, {unix.EOPNOTSUPP, true, false}, {unix.ENOMEM, false, true}} {
		lacks, err := lacksQueues(c.probe)
		require.Equal(t, c.lacks, lacks, c.probe)
		require.Equal(t, c.failed, err != nil, c.probe)
	}
}
