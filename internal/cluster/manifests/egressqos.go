package manifests

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
)

// egressQoS reads an EgressQoS rule by rule: a value of the wrong type costs its rule alone.
func (r *reading) egressQoS(d *document) {
	var raw struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			Egress []rawJSON `json:"egress"`
		} `json:"spec"`
	}
	if !r.into(d, &raw) {
		return
	}
	if raw.Spec.Egress == nil {
		r.report(d, cluster.Problem{
			Kind: d.kind, Object: d.object, Field: "spec.egress", Reason: cluster.ReasonInvalidValue,
			Message: "missing: a list of rules, such as [{dscp: 46}]",
		})
		return
	}
	o, unread := egressv1.EgressQoS{ObjectMeta: raw.Metadata}, map[int]bool{}
	o.Namespace = namespaceOr(o.Namespace)
	o.Spec.Egress = make([]egressv1.EgressQoSRule, len(raw.Spec.Egress))
	var problems []cluster.Problem
	for i, data := range raw.Spec.Egress {
		if p := d.qosRule(fmt.Sprintf("spec.egress[%d]", i), data, &o.Spec.Egress[i]); p != nil {
			problems, unread[i] = append(problems, *p), true
		}
	}
	if len(unread) == 0 {
		r.intoStrictly(d, &egressv1.EgressQoS{}) // reports fields that it does not have
	}
	key, q, found, ok := cluster.FromEgressQoS(&o, unread)
	if problems = cluster.Few(append(found, problems...)); ok {
		r.claim(d, egressQoS{key, q}, problems...)
	} else {
		r.report(d, problems...)
	}
}

// qosRule decodes the rule at a field, and returns why it cannot be read; nil: it can.
func (d *document) qosRule(field string, data []byte, rule *egressv1.EgressQoSRule) *cluster.Problem {
	const right = "a number from 0 to 63, such as 46 for expedited forwarding: this rule is left out"
	var given struct {
		DSCP *int `json:"dscp"`
	}
	e := d.decodePart(field, data, rule)
	switch {
	case e != nil && strings.HasSuffix(e.field, ".dscp"):
		e.message = right
	case e != nil:
		e.message += ": this rule is left out"
	default:
		if e = d.decodePart(field, data, &given); e == nil && given.DSCP == nil {
			e = &fault{field: field + ".dscp", message: "missing: " + right}
		}
	}
	if e == nil {
		return nil
	}
	return new(e.problem(d.kind, d.object))
}
