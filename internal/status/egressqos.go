package status

import (
	"net/netip"
	"strconv"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/qos"
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

// Marking explains the DSCP value of a pod's packets to a destination.
type Marking struct {
	Object string `json:"object"`          // the EgressQoS whose rules select the pod
	DSCP   *uint8 `json:"dscp,omitempty"`  // nil: the packets keep their own
	Rule   string `json:"rule,omitempty"`  // that counts, in words
	Later  []int  `json:"later,omitempty"` // numbers of rules that match too, but come later
	Twice  bool   `json:"twice,omitempty"` // other rules select a second Pod with the address: neither gets a value
}

// markingOf explains the DSCP value of packets from a pod's address; nil: no rule of an EgressQoS selects the pod.
func markingOf(p *plan.NodePlan, from, to netip.Addr) *Marking {
	pod, selected := p.QoSPods.Get(qos.Pod{Addr: from})
	if !selected {
		return nil
	}
	o, _ := p.EgressQoSes.Get(qos.Object{Key: cluster.Key{Namespace: pod.Key.Namespace, Name: cluster.NameEgressQoS}})
	m := &Marking{Object: o.Key.String(), Twice: pod.Twice}
	if pod.Twice {
		return m
	}
	for i, rule := range o.Matching(pod, to) {
		if i > 0 {
			m.Later = append(m.Later, rule.Number)
			continue
		}
		m.DSCP, m.Rule = &rule.DSCP, rule.Text()
	}
	return m
}
