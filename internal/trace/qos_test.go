package trace

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/kernel/walk"
	"github.com/egressway/egressway/internal/status"
)

// TestExplainDSCP explains values that the kernel gives, with and without a daemon that knows the rule, and differences between both.
func TestExplainDSCP(t *testing.T) {
	value := func(n uint8) *uint8 { return &n }
	class := walk.Lookup{Set: "classes4", Key: pod.String(), Found: true, Value: "7"}
	none := walk.Lookup{Set: "classes4", Key: pod.String()}
	ranged := walk.Lookup{Set: "ranges-7", Key: outside.String(), Found: true, Value: "dscp-46", Range: "198.51.100.0/24"}
	const rule = "rule 1: DSCP 46 to 198.51.100.0/24 from all pods"
	inForce := &walk.Passage{Chain: "qos", Lookups: []walk.Lookup{class, ranged}, DSCP: value(46)}
	planned := &status.Marking{Object: "shop/default", DSCP: value(46), Rule: rule}
	for name, test := range map[string]struct {
		marked  *walk.Passage
		planned *status.Marking
		silent  bool // no daemon answers
		dscp    *uint8
		step    string
		asked   string
		differs string
	}{
		"no EgressQoS":       {marked: &walk.Passage{Empty: true}},
		"pod not selected":   {marked: &walk.Passage{Lookups: []walk.Lookup{none}}},
		"dropped before":     {planned: planned},
		"by the only rule":   {marked: inForce, planned: planned, dscp: value(46), step: "46: EgressQoS shop/default, " + rule, asked: "set ranges-7: 198.51.100.0/24 : dscp-46"},
		"without a daemon":   {marked: inForce, silent: true, dscp: value(46), step: "46", asked: "set ranges-7: 198.51.100.0/24 : dscp-46"},
		"an older daemon":    {marked: inForce, dscp: value(46), step: "46", differs: "the daemon wants packets of 10.244.1.11 to 198.51.100.10 to have no DSCP value but the kernel gives them DSCP 46"},
		"another rule loses": {marked: inForce, planned: &status.Marking{Object: "shop/default", DSCP: value(46), Rule: rule, Later: []int{3}}, dscp: value(46), step: "46: EgressQoS shop/default, " + rule + "; rule 3 matches too, but comes later"},
		"many rules lose": {
			marked: inForce, planned: &status.Marking{Object: "shop/default", DSCP: value(46), Rule: rule, Later: []int{3, 4, 5, 8, 9, 11, 12}}, dscp: value(46),
			step: "46: EgressQoS shop/default, " + rule + "; rules 3, 4, 5, 8, 9 and 2 more match too, but come later",
		},
		"no rule for the destination": {
			marked: &walk.Passage{Lookups: []walk.Lookup{class}}, planned: &status.Marking{Object: "shop/default"}, asked: "set classes4",
			step: "unchanged: no rule of EgressQoS shop/default that selects the pod has this destination",
		},
		"no rule for the destination, without a daemon": {
			marked: &walk.Passage{Lookups: []walk.Lookup{class}}, silent: true, step: "unchanged: 10.244.1.11 has values, but none for this destination",
		},
		"two Pods": {
			marked: &walk.Passage{Lookups: []walk.Lookup{none}}, planned: &status.Marking{Object: "shop/default", Twice: true},
			step: "unchanged: two Pods have the address, and different rules of EgressQoS shop/default select them",
		},
		"not in force": {
			marked: &walk.Passage{Lookups: []walk.Lookup{none}}, planned: planned,
			step:    "unchanged: EgressQoS shop/default gives it a value by " + rule + ", which is not in force",
			differs: "the daemon wants packets of 10.244.1.11 to 198.51.100.10 to have DSCP 46 but the kernel gives them no DSCP value",
		},
		"another value": {
			marked: &walk.Passage{Lookups: []walk.Lookup{class, ranged}, DSCP: value(10)}, planned: planned, dscp: value(10), step: "10",
			differs: "the daemon wants packets of 10.244.1.11 to 198.51.100.10 to have DSCP 46 but the kernel gives them DSCP 10",
		},
		"zero is a value": {
			marked: &walk.Passage{Lookups: []walk.Lookup{class}, DSCP: value(0)}, planned: &status.Marking{Object: "shop/default", DSCP: value(0), Rule: "rule 2: DSCP 0"},
			dscp: value(0), step: "0: EgressQoS shop/default, rule 2: DSCP 0", asked: "chain qos",
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(onHost())
			in.Flight.Marked, in.Wanted.Marking = test.marked, test.planned
			if test.silent {
				in.Report, in.Wanted = nil, nil
			}
			r := Explain(in)
			require.Equal(t, Leaves, r.Verdict.Kind)
			require.Equal(t, test.dscp, r.Verdict.DSCP)
			require.True(t, strings.HasPrefix(strings.Join(r.Differences, " "), test.differs), r.Differences)
			require.Equal(t, test.differs == "", len(r.Differences) == 0, r.Differences)
			var step Step
			for _, s := range r.Steps {
				if s.What == "DSCP" {
					step = s
				}
			}
			require.Equal(t, test.step, step.Found)
			if test.asked != "" {
				require.Equal(t, test.asked, step.Asked)
			}
		})
	}
}
