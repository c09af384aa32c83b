package status

import (
	"strconv"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
)

// EgressQoS is the state of one EgressQoS on this node.
type EgressQoS struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Rules     int       `json:"rules"` // valid ones
	Pods      int       `json:"pods"`  // of this node that at least one of the rules selects
	Problems  []Problem `json:"problems"`
}

// takeEgressQoSes adds the EgressQoSes of a plan to the report; problems are listed by row.
func (r *Report) takeEgressQoSes(p *plan.NodePlan, problems map[string][]Problem) {
	r.QoSClasses = len(p.DataPlane.QoS)
	for q := range p.EgressQoSes.All() {
		r.EgressQoSes = append(r.EgressQoSes, EgressQoS{
			Namespace: q.Key.Namespace, Name: q.Key.Name, Rules: q.Rules, Pods: q.Pods,
			Problems: orEmpty(problems[cluster.KindEgressQoS.ID(q.Key).String()]),
		})
	}
}

// egressQoSes writes a row for each EgressQoS.
func (w *textWriter) egressQoSes(r Report) {
	if len(r.EgressQoSes) == 0 {
		return
	}
	w.gap()
	w.titles("EGRESSQOS", "RULES", "PODS HERE", "PROBLEM")
	for _, q := range r.EgressQoSes {
		w.row(q.Namespace+"/"+q.Name, strconv.Itoa(q.Rules), strconv.Itoa(q.Pods), w.judged(reasonsIn(q.Problems), false))
	}
}
