package manifests

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
)

// egressFirewall reads an EgressFirewall rule by rule, and of a rule part by part: a value of the wrong type costs its rule alone,
// which then counts as its strictest reading. An object whose rules are no list denies everything.
func (r *reading) egressFirewall(d *document) {
	var raw struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     rawJSON           `json:"spec"`
	}
	if !r.into(d, &raw) {
		return
	}
	o := egressv1.EgressFirewall{ObjectMeta: raw.Metadata}
	o.Namespace = namespaceOr(o.Namespace)
	rules, fault := d.firewallRules(raw.Spec)
	o.Spec.Egress = make([]egressv1.EgressFirewallRule, len(rules))
	var problems []cluster.Problem
	unread := map[int]cluster.UnreadRule{}
	for i, data := range rules {
		rule := firewallRule{document: d, field: fmt.Sprintf("spec.egress[%d]", i), to: &o.Spec.Egress[i]}
		if rule.decode(data); len(rule.problems) > 0 {
			problems, unread[i] = append(problems, rule.problems...), rule.unread
		}
	}
	key, e, found, ok := cluster.FromEgressFirewall(&o, unread)
	switch {
	case !ok:
	case fault != nil:
		fault.message += ": until then every connection to outside of the cluster is denied"
		found, e = append(found, fault.problem(d.kind, d.object)), cluster.DenyAll()
	case len(unread) == 0:
		r.intoStrictly(d, &egressv1.EgressFirewall{}) // reports fields that it does not have
	}
	if problems = append(problems, found...); ok {
		r.claim(d, egressFirewall{key, e}, problems...)
	} else {
		r.report(d, problems...)
	}
}

// firewallRules returns the rules in a spec, or why they cannot be read.
func (d *document) firewallRules(spec rawJSON) ([]rawJSON, *fault) {
	var given struct {
		Egress *[]rawJSON `json:"egress"`
	}
	if len(spec) > 0 {
		if why := d.decodePart("spec", spec, &given); why != nil {
			return nil, why
		}
	}
	if given.Egress == nil {
		return nil, &fault{field: "spec.egress", message: "missing: a list of rules, such as [{type: Deny, to: {cidrSelector: 0.0.0.0/0}}]"}
	}
	return *given.Egress, nil
}

// firewallRule decodes a rule.
type firewallRule struct {
	*document
	field    string
	to       *egressv1.EgressFirewallRule
	unread   cluster.UnreadRule
	problems []cluster.Problem
}

// decode decodes the parts of the rule.
func (r *firewallRule) decode(data []byte) {
	var parts struct {
		Type  rawJSON `json:"type"`
		Ports rawJSON `json:"ports"`
		To    rawJSON `json:"to"`
	}
	if why := r.decodePart(r.field, data, &parts); why != nil {
		r.unread = cluster.UnreadRule{Type: true, Ports: true, To: true}
		r.report(why, "until then this rule denies every destination")
		return
	}
	r.part("type", parts.Type, &r.to.Type, &r.unread.Type, "one of Allow, Deny: this rule counts as Deny")
	otherwise := "until then this rule denies everything that its other fields say"
	if r.to.Type == egressv1.EgressFirewallAllow {
		otherwise = "until then this rule allows nothing"
	}
	r.part("ports", parts.Ports, &r.to.Ports, &r.unread.Ports, otherwise)
	r.part("to", parts.To, &r.to.To, &r.unread.To, otherwise)
}

// part decodes a part of the rule, if it is given.
func (r *firewallRule) part(name string, data rawJSON, into any, unread *bool, otherwise string) {
	if len(data) == 0 || string(data) == "null" {
		return
	}
	if why := r.decodePart(r.field+"."+name, data, into); why != nil {
		*unread = true
		r.report(why, otherwise)
	}
}

func (r *firewallRule) report(why *fault, otherwise string) {
	why.message += "; " + otherwise
	r.problems = append(r.problems, why.problem(r.kind, r.object))
}
