package firewall

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/classes"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/sorted"
)

// Tracker plans a node's policies repeatedly. Rules are resolved again when their object changes, or the nodes that they select do.
// Without an EgressFirewall, a Tracker holds nothing. The zero Tracker has planned nothing yet.
type Tracker struct {
	on         bool
	namespaces map[string]*compiled
	policies   classes.Classes[[]Stretch]
	asking     map[PolicyID]bool // policies with names
	pods       map[string]int    // of the node, by namespace
}

// compiled holds the resolved rules of a namespace, by family.
type compiled struct {
	families [2]struct {
		key       classes.Key
		stretches []Stretch
	}
	rules int
	from  []cluster.FirewallRule
	given []Rule
	nodes bool // some rule selects nodes
}

// Pass is one round of planning.
type Pass struct {
	Objects *cluster.Objects
	Changed cluster.Changed // how Objects differ from those of the pass before
	Whole   bool            // anything may differ
	Moved   bool            // the addresses of nodes may differ
	// OfNode returns the addresses of a node.
	OfNode func(name string, n *cluster.Node) []netip.Addr
	// Pods holds the addresses of this node's Pods, and At the Pods that have an address. Touched holds the addresses whose Pods differ.
	Pods    map[cluster.Key][]netip.Addr
	At      map[netip.Addr][]cluster.Key
	Touched map[netip.Addr]bool
	*Tracker
}

// closed denies everything. It is the policy of an address while two Pods are said to have it, whose policies differ.
var closed = func() (c compiled) {
	c.compile([]cluster.FirewallRule{{Deny: true}}, nil)
	return c
}()

// Plan returns the policies after the changes to the former plan.
func (t *Tracker) Plan(p Pass, former Plan) Plan {
	if p.Objects.EgressFirewalls.Len() == 0 || !p.Objects.PodsKnown {
		*t = Tracker{}
		return Plan{Objects: idle(p.Objects)}
	}
	if p.Whole = p.Whole || !t.on; p.Whole {
		former = Plan{}
		*t = Tracker{on: true, namespaces: map[string]*compiled{}, policies: classes.New[[]Stretch](), pods: map[string]int{}}
	}
	p.Tracker = t
	touched := p.touched(p.compileAll())
	for a := range touched {
		p.assign(a)
	}
	var all []Policy
	if t.policies.Number(func(id uint32, s []Stretch) { all = append(all, Policy{ID: PolicyID(id), Stretches: s}) }) {
		former.Policies, t.asking = all, asking(all)
	}
	former.Firewalled = p.firewalled(former.Firewalled, touched)
	former.Objects = p.describe(former.Objects)
	return former
}

// asking returns the policies that have names.
func asking(all []Policy) map[PolicyID]bool {
	asking := map[PolicyID]bool{}
	for i := range all {
		if all[i].HasNames() {
			asking[all[i].ID] = true
		}
	}
	return asking
}

// idle lists the EgressFirewalls while no Pods are known.
func idle(o *cluster.Objects) sorted.List[Object] {
	var rows []Object
	for key, e := range o.EgressFirewalls.All() {
		rows = append(rows, Object{Key: key, Rules: e.Given})
	}
	return sorted.Of(rows...)
}

// compileAll resolves the rules that may differ, and returns the namespaces whose policy does.
func (p *Pass) compileAll() (differ map[string]bool) {
	keys := map[cluster.Key]bool{}
	switch {
	case p.Whole:
		for key := range p.Objects.EgressFirewalls.Keys() {
			keys[key] = true
		}
	default:
		maps.Copy(keys, p.Changed.Of[cluster.KindEgressFirewall])
		for namespace, c := range p.namespaces {
			if p.Moved && c.nodes {
				keys[objectOf(namespace)] = true
			}
		}
	}
	differ = map[string]bool{}
	for key := range keys {
		if p.compileOne(key) {
			differ[key.Namespace] = true
		}
	}
	return differ
}

// objectOf returns the key of the EgressFirewall of a namespace.
func objectOf(namespace string) cluster.Key {
	return cluster.Key{Namespace: namespace, Name: cluster.NameEgressFirewall}
}

// compileOne resolves the rules of an object, and reports whether the policy of its namespace differs.
func (p *Pass) compileOne(key cluster.Key) (differs bool) {
	was := p.namespaces[key.Namespace]
	e, exists := p.Objects.EgressFirewalls.Get(key)
	if !exists {
		delete(p.namespaces, key.Namespace)
		return was != nil
	}
	if was != nil && was.isOf(&e, p.Moved) {
		return false // its status alone differs
	}
	now := &compiled{rules: e.Given, from: e.Rules}
	now.compile(e.Rules, p.nodeAddresses)
	p.namespaces[key.Namespace] = now
	if was == nil {
		return true
	}
	for family := range now.families {
		differs = differs || was.families[family].key != now.families[family].key
	}
	return differs
}

// isOf reports whether the rules of an object resolve to these. moved: the addresses of nodes may differ.
func (c *compiled) isOf(e *cluster.EgressFirewall, moved bool) bool {
	return (!moved || !c.nodes) && c.rules == e.Given && reflect.DeepEqual(c.from, e.Rules)
}

// nodeAddresses returns the addresses of the nodes that a selector matches.
func (p *Pass) nodeAddresses(of labels.Selector) (all []netip.Addr) {
	for name, n := range p.Objects.Nodes.All() {
		if of.Matches(labels.Set(n.Labels)) {
			all = append(all, p.OfNode(name, &n)...)
		}
	}
	return all
}

// compile resolves rules.
func (c *compiled) compile(rules []cluster.FirewallRule, nodes func(labels.Selector) []netip.Addr) {
	var of [2][]rule
	c.given = make([]Rule, len(rules))
	for i := range rules {
		r := &rules[i]
		var to [2][]netip.Prefix
		switch {
		case r.Nodes != nil:
			c.nodes = true
			for _, a := range nodes(r.Nodes) {
				to[familyOf(a)] = append(to[familyOf(a)], netip.PrefixFrom(a, a.BitLen()))
			}
		case r.To.IsValid():
			to[familyOf(r.To.Addr())] = []netip.Prefix{r.To}
		case r.Name != "":
		default:
			to = [2][]netip.Prefix{ipv4: everywhere[ipv4 : ipv4+1], ipv6: everywhere[ipv6 : ipv6+1]}
		}
		c.given[i] = Rule{r.Number, slices.Concat(to[ipv4], to[ipv6]), r.Name, r.Ports, r.Text}
		for family := range of {
			if len(to[family]) > 0 || r.Name != "" {
				of[family] = append(of[family], rule{r.Deny, to[family], r.Name, r.Ports})
			}
		}
	}
	for family, stretches := range resolveBoth(of) {
		c.families[family].stretches, c.families[family].key = stretches, keyOf(stretches)
	}
}

// touched returns the addresses whose policy may differ: those whose Pods do, and those of Pods in the namespaces.
func (p *Pass) touched(namespaces map[string]bool) map[netip.Addr]bool {
	touched := maps.Clone(p.Touched)
	if touched == nil {
		touched = map[netip.Addr]bool{}
	}
	if !p.Whole && len(namespaces) == 0 {
		return touched
	}
	for pod, addresses := range p.Pods {
		if p.Whole || namespaces[pod.Namespace] {
			for _, a := range addresses {
				touched[a] = true
			}
		}
	}
	return touched
}

// assign finds the policy of an address.
func (p *Pass) assign(a netip.Addr) {
	var now *compiled
	family := familyOf(a)
	key := func(c *compiled) (k classes.Key) {
		if c != nil {
			k = c.families[family].key
		}
		return k
	}
	for i, pod := range p.At[a] {
		of := p.namespaces[pod.Namespace]
		if i > 0 && key(of) != key(now) { // one of the Pods has ended: the other must not get more than its own policy allows
			now = &closed
			break
		}
		now = of
	}
	if now == nil {
		p.policies.Set(a, classes.Key{}, nil)
		return
	}
	p.policies.Set(a, now.families[family].key, now.families[family].stretches)
}

// firewalled returns the addresses with policies. Of the former ones, those touched may differ, and those of policies with another id.
func (p *Pass) firewalled(former sorted.List[Firewalled], touched map[netip.Addr]bool) sorted.List[Firewalled] {
	var set, gone []Firewalled
	p.policies.IDs(touched, func(a netip.Addr, id uint32) {
		f := Firewalled{Addr: a, Policy: PolicyID(id)}
		if id == 0 {
			gone = append(gone, f)
			return
		}
		f.Asks, f.Namespace = p.asking[f.Policy], p.At[a][0].Namespace
		set = append(set, f)
	})
	return former.With(set, gone)
}

// describe returns the rows of the EgressFirewalls.
func (p *Pass) describe(former sorted.List[Object]) sorted.List[Object] {
	all := p.Whole || p.Moved
	if !all && len(p.Touched) == 0 && len(p.Changed.Of[cluster.KindEgressFirewall]) == 0 {
		return former
	}
	count := map[string]int{}
	for pod := range p.Pods {
		count[pod.Namespace]++
	}
	namespaces := maps.Clone(p.pods)
	maps.Copy(namespaces, count)
	var set, gone []Object
	row := func(namespace string) {
		o := Object{Key: objectOf(namespace), Pods: count[namespace]}
		if c := p.namespaces[namespace]; c != nil {
			o.Rules, o.Given = c.rules, c.given
			set = append(set, o)
		} else {
			gone = append(gone, o)
		}
	}
	for namespace := range namespaces {
		if p.pods[namespace] != count[namespace] {
			row(namespace)
		}
	}
	for key := range p.Changed.Of[cluster.KindEgressFirewall] {
		row(key.Namespace)
	}
	if all {
		for namespace := range p.namespaces {
			row(namespace)
		}
	}
	p.pods = count
	return former.With(set, gone)
}
