package status

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/firewall"
	dnsnames "github.com/egressway/egressway/internal/names"
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

// Name is a DNS name that rules of EgressFirewalls match, with the addresses that pods may reach by it.
type Name struct {
	Name      string        `json:"name"`
	Addresses []NameAddress `json:"addresses"` // sorted
}

// NameAddress is an address of a DNS name, in force until it expires.
type NameAddress struct {
	Address netip.Addr `json:"address"`
	Expires time.Time  `json:"expires"`
}

// names are the DNS names with known addresses.
type names []Name

// having returns the first name with an address for which a name of a rule stands; empty: there is none.
func (all names) having(pattern string, a netip.Addr) string {
	for _, n := range all {
		if firewall.Matches(pattern, n.Name) && slices.ContainsFunc(n.Addresses, func(x NameAddress) bool { return x.Address == a }) {
			return n.Name
		}
	}
	return ""
}

// write writes a row for each name, with the time until each of its addresses expires.
func (all names) write(w *textWriter, now time.Time) {
	if len(all) == 0 {
		return
	}
	w.gap()
	w.titles("DNS NAME", "ADDRESSES")
	for _, n := range all {
		var texts []string
		for i, a := range n.Addresses {
			if i == mostNameAddresses {
				texts = append(texts, fmt.Sprintf("and %d more", len(n.Addresses)-i))
				break
			}
			texts = append(texts, fmt.Sprintf("%s for %s", a.Address, a.Expires.Sub(now).Round(time.Second)))
		}
		w.row(n.Name, strings.Join(texts, ", "))
	}
}

// mostNameAddresses bounds the addresses in a row.
const mostNameAddresses = 4

// firewallRuleOf returns the rule that decides about a connection of a pod's address, in words; empty: no rule matches it. denied
// reports whether the policy of the address denies the connection.
func firewallRuleOf(p *plan.NodePlan, known names, from, to netip.Addr, port cluster.FirewallPort) (rule string, denied bool) {
	d := &p.DataPlane
	f, firewalled := d.Firewalled.Get(firewall.Firewalled{Addr: from})
	if !firewalled || slices.ContainsFunc(d.Inside, func(inside netip.Prefix) bool { return inside.Contains(to) }) {
		return "", false
	}
	if i := slices.IndexFunc(d.Policies, func(p firewall.Policy) bool { return p.ID == f.Policy }); i >= 0 {
		denied = d.Policies[i].Denies(to, port, func(_ firewall.PolicyID, stretch int, a netip.Addr) bool {
			return slices.ContainsFunc(d.Policies[i].Stretches[stretch].Names, func(n string) bool { return known.having(n, a) != "" })
		})
	}
	o, _ := p.EgressFirewalls.Get(firewall.Object{Key: cluster.Key{Namespace: f.Namespace, Name: cluster.NameEgressFirewall}})
	r := o.Deciding(to, port, func(name string, a netip.Addr) bool { return known.having(name, a) != "" })
	if r == nil {
		return "", denied
	}
	rule = "EgressFirewall " + o.Key.String() + ", rule " + strconv.Itoa(r.Number) + ": " + r.Text
	if r.Name != "" {
		rule += "; " + known.having(r.Name, to) + " has the address"
	}
	return rule, denied
}

// OnAnswers makes f count the answers of DNS that were read. Call it before Serve.
func (s *Status) OnAnswers(f func() dnsnames.Counts) { s.registry.MustRegister(answerCollector{f}) }

var (
	descNames   = desc("firewall_names", "DNS names in rules of EgressFirewalls that have known addresses.")
	descAnswers = desc("firewall_answers_total", "Answers of DNS to pods whose rules have names, by result.", "result")
	descWait    = desc("firewall_answer_wait_seconds", "How long answers of DNS waited until the kernel had their addresses.")
)

// answerCollector collects the counts of answers.
type answerCollector struct{ read func() dnsnames.Counts }

// Describe implements prometheus.Collector.
func (answerCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descNames, descAnswers, descWait} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c answerCollector) Collect(out chan<- prometheus.Metric) {
	n := c.read()
	out <- prometheus.MustNewConstMetric(descNames, prometheus.GaugeValue, float64(n.Names))
	for result, count := range map[string]uint64{
		"known": n.Known, "written": n.Written, "late": n.Late, "ignored": n.Ignored, "failed": n.Failed,
	} {
		out <- prometheus.MustNewConstMetric(descAnswers, prometheus.CounterValue, float64(count), result)
	}
	out <- prometheus.MustNewConstHistogram(descWait, n.Waits.Count, n.Waits.Sum.Seconds(), n.Waits.BySecond())
}
