package leader

import (
	"github.com/egressway/egressway/internal/cluster"
)

// The texts of an EgressQoS's status, as OVN-Kubernetes writes them: users wait for them.
const (
	qosApplied    = "EgressQoS Rules applied"
	qosNotApplied = "EgressQoS Rules not correctly applied"
)

const (
	conditionReady = "Ready"
	zoneReady      = "Ready-In-Zone-" // and the name of a node: only where it is false
)

// egressQoSes is the kind of EgressQoSes.
var egressQoSes = textKind[cluster.EgressQoS]{
	kind:    cluster.KindEgressQoS,
	objects: func(o cluster.Objects) cluster.Map[cluster.Key, cluster.EgressQoS] { return o.EgressQoSes },
	applied: func(r cluster.Report) applied { return applied{digest: r.EgressQoSes} },
	status:  qosStatus,
	inForce: conditionReady,
}

// qosStatus returns the status of an EgressQoS.
func qosStatus(m cluster.Meta, is standing) cluster.TextStatus {
	w := textWriter{TextStatus: cluster.TextStatus{Text: qosApplied}, generation: m.Generation, otherwise: qosNotApplied}
	switch {
	case len(is.problems) > 0:
		w.condition(conditionReady, string(is.problems[0].Reason), "some rules are left out: see "+conditionValid, false)
	case len(is.behind) > 0:
		w.condition(conditionReady, "Pending", "not in force yet on "+listed(is.behind), false)
	default:
		w.condition(conditionReady, "Applied", "in force on all nodes that report", true)
	}
	w.valid(is)
	for _, node := range is.behind[:min(len(is.behind), namesMost)] {
		w.condition(zoneReady+node, "Pending", "the node has not reported this generation as in force", false)
	}
	return w.TextStatus
}
