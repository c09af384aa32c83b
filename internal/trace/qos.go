package trace

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/kernel/walk"
	"github.com/egressway/egressway/internal/status"
)

// marked explains the DSCP value that an EgressQoS gives the packet, and compares it with the daemon's plan for the pod. wanted is nil
// if that is unknown.
func (e *explainer) marked(wanted *status.Address) {
	p := e.Flight.Marked
	if p == nil {
		return
	}
	var plan *status.Marking
	if wanted != nil {
		plan = wanted.Marking
	}
	class, asked := p.LookedUp(ruleset.SetClasses)
	switch {
	case p.DSCP != nil:
		e.step("DSCP", rangeAsked(p), "%d%s", *p.DSCP, byRule(plan, *p.DSCP))
	case plan != nil:
		e.step("DSCP", "set "+setOf(ruleset.SetClasses, e.Flight.Packet.From), "unchanged: %s", whyUnmarked(plan))
	case asked && class.Found:
		e.step("DSCP", "set "+class.Set, "unchanged: %s has values, but none for this destination", e.Flight.Packet.From)
	}
	e.out.Verdict.DSCP = p.DSCP
	e.compareMarking(wanted, p.DSCP)
}

// compareMarking reports whether the kernel gives the packet another DSCP value than planned. wanted is nil if the plan is unknown.
func (e *explainer) compareMarking(wanted *status.Address, dscp *uint8) {
	if wanted == nil || !e.comparable() {
		return
	}
	var planned *uint8
	if wanted.Marking != nil {
		planned = wanted.Marking.DSCP
	}
	if w, has := valueText(planned), valueText(dscp); w != has {
		e.differ("the daemon wants packets of %s to %s to have %s but the kernel gives them %s%s", e.From, e.To, w, has, soon)
	}
}

// rangeAsked returns the lookup of the destination that led to the value.
func rangeAsked(p *walk.Passage) string {
	l, asked := p.LookedUp(ruleset.SetRanges)
	if !asked || !l.Found {
		return "chain " + ruleset.ChainQoS
	}
	return fmt.Sprintf("set %s: %s : %s", l.Set, l.Range, l.Value)
}

// byRule names the rule that gives the packet its value, and the rules that it precedes; empty: they are unknown.
func byRule(plan *status.Marking, value uint8) string {
	if plan == nil || plan.DSCP == nil || *plan.DSCP != value {
		return ""
	}
	text := ": " + cluster.KindEgressQoS.String() + " " + plan.Object + ", " + plan.Rule
	switch n := len(plan.Later); n {
	case 0:
		return text
	case 1:
		return text + "; rule " + strconv.Itoa(plan.Later[0]) + " matches too, but comes later"
	default:
		const most = 5
		all := make([]string, 0, most)
		for _, number := range plan.Later[:min(n, most)] {
			all = append(all, strconv.Itoa(number))
		}
		more := ""
		if n > most {
			more = fmt.Sprintf(" and %d more", n-most)
		}
		return text + "; rules " + strings.Join(all, ", ") + more + " match too, but come later"
	}
}

// whyUnmarked returns why an EgressQoS that selects the pod leaves the packet as it is.
func whyUnmarked(plan *status.Marking) string {
	object := cluster.KindEgressQoS.String() + " " + plan.Object
	switch {
	case plan.DSCP != nil:
		return object + " gives it a value by " + plan.Rule + ", which is not in force"
	case plan.Twice:
		return "two Pods have the address, and different rules of " + object + " select them"
	}
	return "no rule of " + object + " that selects the pod has this destination"
}

func valueText(v *uint8) string {
	if v == nil {
		return "no DSCP value"
	}
	return "DSCP " + strconv.Itoa(int(*v))
}
