package qos

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/classes"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/sorted"
)

// Tracker plans a node's DSCP values repeatedly. The cost of a pass depends on the changes since the pass before. Without an
// EgressQoS, a Tracker holds nothing. The zero Tracker has planned nothing yet.
type Tracker struct {
	on       bool
	pods     map[string]map[string]ofPod  // by namespace and name: those of the node
	owners   map[netip.Addr][]cluster.Key // sorted; several while the source has not reported the end of the first
	resolved map[cluster.Key]map[string]resolved
	given    map[cluster.Key][]Rule // by EgressQoS, for explanations
	classes  classes.Classes[[]Range]
}

// ofPod is a pod of the node.
type ofPod struct {
	addresses []netip.Addr
	rules     string // the rules that select it, as a set of bits; empty: none does
}

// resolved holds the ranges of the rules that select a pod, by family.
type resolved [2]struct {
	key    classes.Key
	ranges []Range
}

// Indices of resolved.
const ipv4, ipv6 = 0, 1

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

// Pass is one round of planning.
type Pass struct {
	Objects   *cluster.Objects
	Changed   cluster.Changed                // how Objects differ from those of the pass before
	Whole     bool                           // anything may differ
	Addresses func(cluster.Key) []netip.Addr // of a Pod, if it is a pod of the node
	*Tracker
	touched    map[netip.Addr]bool
	namespaces map[string]bool
}

// Plan returns the DSCP values after the changes to the former plan.
func (t *Tracker) Plan(p Pass, former Plan) Plan {
	if p.Objects.EgressQoSes.Len() == 0 || !p.Objects.PodsKnown {
		*t = Tracker{}
		return Plan{Objects: unmarked(p.Objects)}
	}
	if p.Whole = p.Whole || !t.on; p.Whole {
		former = Plan{}
		*t = Tracker{
			on: true, pods: map[string]map[string]ofPod{}, owners: map[netip.Addr][]cluster.Key{},
			resolved: map[cluster.Key]map[string]resolved{}, given: map[cluster.Key][]Rule{}, classes: classes.New[[]Range](),
		}
	}
	p.Tracker, p.touched, p.namespaces = t, map[netip.Addr]bool{}, map[string]bool{}
	p.follow()
	p.classify()
	var all []Class
	if t.classes.Number(func(id uint32, ranges []Range) { all = append(all, Class{ID: ClassID(id), Ranges: ranges}) }) {
		former.Classes = all
	}
	former.Marked = p.marked(former.Marked)
	former.Objects, former.Pods = p.describe(former.Objects), p.selected(former.Pods)
	return former
}

// unmarked lists the EgressQoSes while no Pods are known.
func unmarked(o *cluster.Objects) sorted.List[Object] {
	var rows []Object
	for key, q := range o.EgressQoSes.All() {
		rows = append(rows, Object{Key: key, Rules: len(q.Rules)})
	}
	return sorted.Of(rows...)
}

func (p *Pass) touch(all []netip.Addr) {
	for _, a := range all {
		p.touched[a] = true
	}
}

// follow reads the Pods and the EgressQoSes that changed. It touches their addresses and notes their namespaces.
func (p *Pass) follow() {
	pods := maps.Keys(p.Changed.Pods)
	if p.Whole {
		pods = p.Objects.Pods.Keys()
	}
	for key := range pods {
		p.take(key)
	}
	for key := range p.Changed.Of[cluster.KindEgressQoS] {
		p.namespaces[key.Namespace] = true
		delete(p.resolved, key)
		delete(p.given, key)
		for name, pod := range p.pods[key.Namespace] {
			pod.rules = p.rulesOf(cluster.Key{Namespace: key.Namespace, Name: name})
			p.pods[key.Namespace][name] = pod
			p.touch(pod.addresses)
		}
	}
}

// take replaces the former state of a Pod by its present one, and touches the addresses of either.
func (p *Pass) take(key cluster.Key) {
	if was, had := p.pods[key.Namespace][key.Name]; had {
		p.namespaces[key.Namespace] = true
		p.touch(was.addresses)
		for _, a := range was.addresses {
			p.leave(a, key)
		}
		delete(p.pods[key.Namespace], key.Name)
	}
	addresses := p.Addresses(key)
	if len(addresses) == 0 {
		return
	}
	if p.pods[key.Namespace] == nil {
		p.pods[key.Namespace] = map[string]ofPod{}
	}
	p.namespaces[key.Namespace] = true
	p.pods[key.Namespace][key.Name] = ofPod{addresses, p.rulesOf(key)}
	p.touch(addresses)
	for _, a := range addresses {
		if i, twice := slices.BinarySearchFunc(p.owners[a], key, cluster.Key.Compare); !twice {
			p.owners[a] = slices.Insert(p.owners[a], i, key)
		}
	}
}

// leave removes a Pod from an address.
func (t *Tracker) leave(a netip.Addr, key cluster.Key) {
	if t.owners[a] = slices.DeleteFunc(t.owners[a], func(k cluster.Key) bool { return k == key }); len(t.owners[a]) == 0 {
		delete(t.owners, a)
	}
}

// objectOf returns the key of the EgressQoS of a namespace.
func objectOf(namespace string) cluster.Key {
	return cluster.Key{Namespace: namespace, Name: cluster.NameEgressQoS}
}

// rulesOf returns the set of the rules that select a Pod.
func (p *Pass) rulesOf(pod cluster.Key) string {
	var set []byte
	with := labels.Set(p.Objects.Pods.At(pod).Labels)
	for i, rule := range p.Objects.EgressQoSes.At(objectOf(pod.Namespace)).Rules {
		if rule.Pods.Matches(with) {
			set = append(set, make([]byte, i/8+1-len(set))...)
			set[i/8] |= 1 << (i % 8)
		}
	}
	return string(set)
}

// classify finds the classes of the touched addresses.
func (p *Pass) classify() {
	for a := range p.touched {
		var now classes.Key
		var ranges []Range
		for i, pod := range p.owners[a] {
			of := p.resolve(pod)[familyOf(a)]
			if i > 0 && of.key != now { // one of the Pods has ended: the other must not get its values
				now, ranges = classes.Key{}, nil
				break
			}
			now, ranges = of.key, of.ranges
		}
		p.classes.Set(a, now, ranges)
	}
}

// resolve returns the ranges of the rules that select a Pod.
func (p *Pass) resolve(pod cluster.Key) resolved {
	key, set := objectOf(pod.Namespace), p.pods[pod.Namespace][pod.Name].rules
	of, known := p.resolved[key][set]
	if known || set == "" {
		return of
	}
	var rules []cluster.QoSRule
	for i, rule := range p.Objects.EgressQoSes.At(key).Rules {
		if has(set, i) {
			rules = append(rules, rule)
		}
	}
	for family := range of {
		of[family].ranges = firstMatches(rules, family)
		of[family].key = keyOfRanges(of[family].ranges)
	}
	if p.resolved[key] == nil {
		p.resolved[key] = map[string]resolved{}
	}
	p.resolved[key][set] = of
	return of
}

// keyOfRanges hashes ranges; zero: the slice is empty.
func keyOfRanges(ranges []Range) classes.Key {
	var b []byte
	for _, g := range ranges {
		b = append(append(append(b, g.First.AsSlice()...), g.Last.AsSlice()...), g.DSCP)
	}
	return classes.KeyOf(b)
}

// marked returns the addresses that get DSCP values. Of the former ones, those touched may differ, and those of classes with
// another id.
func (p *Pass) marked(former sorted.List[Marked]) sorted.List[Marked] {
	var set, gone []Marked
	p.classes.IDs(p.touched, func(a netip.Addr, id uint32) {
		if m := (Marked{a, ClassID(id)}); id != 0 {
			set = append(set, m)
		} else {
			gone = append(gone, m)
		}
	})
	return former.With(set, gone)
}

// selected returns the addresses of the pods that rules select. Of the former ones, those touched may differ.
func (p *Pass) selected(former sorted.List[Pod]) sorted.List[Pod] {
	var set, gone []Pod
	for a := range p.touched {
		row := Pod{Addr: a}
		var first classes.Key
		for i, pod := range p.owners[a] {
			of := p.resolve(pod)[familyOf(a)].key
			if i == 0 {
				first, row.Key = of, pod
			}
			row.Twice = row.Twice || of != first
			row.Rules = cmp.Or(row.Rules, p.pods[pod.Namespace][pod.Name].rules)
		}
		if row.Rules != "" {
			set = append(set, row)
		} else {
			gone = append(gone, row)
		}
	}
	return former.With(set, gone)
}

// rulesGiven returns the rules of an EgressQoS for explanations.
func (p *Pass) rulesGiven(key cluster.Key) []Rule {
	all, known := p.given[key]
	if !known {
		rules := p.Objects.EgressQoSes.At(key).Rules
		all = make([]Rule, len(rules))
		for i, r := range rules {
			all[i] = Rule{Number: r.Number, DSCP: r.DSCP, To: r.To, Pods: r.Pods.String()}
		}
		p.given[key] = all
	}
	return all
}

// describe returns the rows of the EgressQoSes. Of the former ones, those of the noted namespaces may differ.
func (p *Pass) describe(former sorted.List[Object]) sorted.List[Object] {
	if p.Whole {
		for key := range p.Objects.EgressQoSes.Keys() {
			p.namespaces[key.Namespace] = true
		}
	}
	var set, gone []Object
	for namespace := range p.namespaces {
		row := Object{Key: objectOf(namespace)}
		q, exists := p.Objects.EgressQoSes.Get(row.Key)
		if !exists {
			gone = append(gone, row)
			continue
		}
		for _, pod := range p.pods[namespace] {
			if pod.rules != "" {
				row.Pods++
			}
		}
		row.Rules, row.Given = len(q.Rules), p.rulesGiven(row.Key)
		set = append(set, row)
	}
	return former.With(set, gone)
}
