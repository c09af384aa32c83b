package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// awaitProblem waits until a node's daemon tells of a problem with a value, or no more.
func awaitProblem(t *testing.T, s *stage.Stage, node string, reason cluster.Reason, value string, there bool) {
	t.Helper()
	awaitReport(t, s, node, func(r status.Report) string {
		if there != slices.ContainsFunc(r.Problems, func(p status.Problem) bool { return p.Reason == reason && strings.Contains(p.Value, value) }) {
			return fmt.Sprintf("%s %q wanted %t", reason, value, there)
		}
		return ""
	})
}

// TestRival has another program on the node that deletes our rules ten times a second: they come back each time, nothing
// goes another way meanwhile, and the daemon says what happens without saying it each time.
func TestRival(t *testing.T) {
	began := time.Now()
	s := play(t, stage.Options{Manifests: oneFile(t), Config: steady})
	ctx := t.Context()
	all := asDeployed()
	awaitServed(t, s, all)
	awaitLearned(t, s)
	watch := watchKernel(t, s, "a")
	traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
	traffic.answered(t, 3, all)
	watch.forget()
	state := func() string {
		lines := unlearned(inKernel(t, s, "a", standing))
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	before := state()
	noRoute := strings.Count(s.Daemons["a"].Log(), "NoRoute")
	const times = 100
	// A rule that is not back yet cannot be deleted.
	_, err := s.Node("a").Run(ctx, "sh", "-c", fmt.Sprintf(`n=0; for i in $(seq %d); do
		if ip rule del pref 701; then n=$((n + 1)); fi; ip rule del pref 799; ip route flush table 1001 proto 142; sleep 0.1; [ $n -lt %d ] || exit 0
	done; exit 1`, 10*times, times))
	require.NoError(t, err)
	for _, object := range []string{"rule 701", "rule 799", "routes of table 1001"} {
		awaitProblem(t, s, "a", "ForeignHand", object, true)
	}
	rules := func(line string) bool { return strings.Contains(line, "proto 142") && strings.Contains(line, "fwmark") }
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		if now := state(); now != before {
			return fmt.Errorf("not as before: %s", now)
		}
		return nil
	}))
	var took []time.Duration
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		if took = watch.returns(rules); len(took) < times {
			return fmt.Errorf("%d rules came back, want %d", len(took), times)
		}
		return nil
	}))
	slices.Sort(took)
	t.Logf("%d rules deleted, back after %s in the middle, %s at most", len(took), took[len(took)/2], took[len(took)-1])
	traffic.answered(t, 5, all)
	none := identities{"a-p1": {}, "a-p2": {}, "b-p1": {}}
	traffic.stop(t, all, all.with(none))
	requireInnocent(t, s, all)

	log := s.Daemons["a"].Log()
	minutes := int(time.Since(began) / time.Minute)
	require.LessOrEqual(t, strings.Count(log, "restored objects that another program removed"), 2+minutes, "one line a minute")
	require.LessOrEqual(t, strings.Count(log, "reason=ForeignHand"), 3*(1+minutes))
	require.Equal(t, noRoute, strings.Count(log, "NoRoute"), "a moment is no state")
	require.NotContains(t, s.Daemons["b"].Log(), "ForeignHand")
}

// TestChurn has others change so many routes that the kernel drops the events of some: our own route that goes with them
// comes back.
func TestChurn(t *testing.T) {
	s := play(t, stage.Options{Manifests: oneFile(t), Config: steady})
	ctx := t.Context()
	all := asDeployed()
	awaitServed(t, s, all)
	awaitLearned(t, s)
	var add, del strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&add, "route add 20.%d.%d.0/24 dev eth1 table 77\n", i/250, i%250)
		fmt.Fprintf(&del, "route del 20.%d.%d.0/24 dev eth1 table 77\n", i/250, i%250)
	}
	const ours = "ip route show table 1001 proto 142; ip rule show"
	sorted := func() []string {
		lines := unlearned(inKernel(t, s, "a", ours))
		slices.Sort(lines) // a rule that comes back is the last of its priority
		return lines
	}
	before := sorted()
	traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
	traffic.answered(t, 3, all)
	for _, batch := range []string{add.String(), del.String()} {
		half := len(batch) / 2
		half += strings.IndexByte(batch[half:], '\n') + 1
		_, err := s.Node("a").Input(ctx, batch[:half]+"route flush table 1001 proto 142\nrule del pref 799\n"+batch[half:], "ip", "-batch", "-")
		require.NoError(t, err)
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			if now := sorted(); !slices.Equal(now, before) {
				return fmt.Errorf("not as before: %v", now)
			}
			return nil
		}))
		traffic.answered(t, 3, all)
	}
	none := identities{"a-p1": {}, "a-p2": {}, "b-p1": {}}
	traffic.stop(t, all, all.with(none))
	requireInnocent(t, s, all)
}
