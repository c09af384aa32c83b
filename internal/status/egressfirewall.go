package status

import (
	"net/netip"
	"strconv"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/plan"
)

// EgressFirewall is the state of one EgressFirewall on this node.
type EgressFirewall struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Rules     int       `json:"rules"` // that the object has
	Pods      int       `json:"pods"`  // of this node, in its namespace
	Problems  []Problem `json:"problems"`
}

// takeEgressFirewalls adds the EgressFirewalls of a plan to the report; problems are listed by row.
func (r *Report) takeEgressFirewalls(p *plan.NodePlan, problems map[string][]Problem) {
	r.FirewallPolicies = len(p.DataPlane.Policies)
	for i := range p.DataPlane.Policies {
		r.FirewallStretches = max(r.FirewallStretches, len(p.DataPlane.Policies[i].Stretches))
	}
	for o := range p.EgressFirewalls.All() {
		r.EgressFirewalls = append(r.EgressFirewalls, EgressFirewall{
			Namespace: o.Key.Namespace, Name: o.Key.Name, Rules: o.Rules, Pods: o.Pods,
			Problems: orEmpty(problems[cluster.KindEgressFirewall.ID(o.Key).String()]),
		})
	}
}

// egressFirewalls writes a row for each EgressFirewall.
func (w *textWriter) egressFirewalls(r Report) {
	if len(r.EgressFirewalls) == 0 {
		return
	}
	w.gap()
	w.titles("EGRESSFIREWALL", "RULES", "PODS HERE", "PROBLEM")
	for _, e := range r.EgressFirewalls {
		w.row(e.Namespace+"/"+e.Name, strconv.Itoa(e.Rules), strconv.Itoa(e.Pods), w.judged(reasonsIn(e.Problems), false))
	}
}

// firewallRuleOf returns the rule that decides about a connection of a pod's address, in words; empty: no rule matches it. denied
// reports whether the policy of the address denies the connection.
func firewallRuleOf(p *plan.NodePlan, from, to netip.Addr, port cluster.FirewallPort) (rule string, denied bool) {
	d := &p.DataPlane
	f, firewalled := d.Firewalled.Get(firewall.Firewalled{Addr: from})
	if !firewalled {
		return "", false
	}
	for _, inside := range d.Inside {
		if inside.Contains(to) {
			return "", false
		}
	}
	for i := range d.Policies {
		if d.Policies[i].ID == f.Policy {
			denied = d.Policies[i].Denies(to, port)
		}
	}
	o, _ := p.EgressFirewalls.Get(firewall.Object{Key: cluster.Key{Namespace: f.Namespace, Name: cluster.NameEgressFirewall}})
	if r := o.Deciding(to, port); r != nil {
		rule = "EgressFirewall " + o.Key.String() + ", rule " + strconv.Itoa(r.Number) + ": " + r.Text
	}
	return rule, denied
}
