// Package qos resolves EgressQoSes into the DSCP values of one node's pods, by destination. It is pure. The rules that select
// a pod become disjoint ranges of destinations, a class. Pods of any namespaces with equal ranges share a class.
package qos

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/sorted"
)

// Class holds the DSCP values that packets of a pod's address get, by destination.
type Class struct {
	ID     ClassID `json:"id"`
	Ranges []Range `json:"ranges,omitempty"` // of one family, disjoint, sorted
}

// ClassID identifies a class on a node. It derives from the class's ranges, so a class that comes or goes changes no other
// class.
type ClassID uint32

// IPv6 reports whether the class is for IPv6 addresses.
func (c *Class) IPv6() bool { return c.Ranges[0].First.Is6() }

// Range is a range of destinations.
type Range struct {
	First netip.Addr `json:"first,omitzero"`
	Last  netip.Addr `json:"last,omitzero"`
	DSCP  uint8      `json:"dscp"`
}

// Marked is an address of a pod whose packets get DSCP values.
type Marked struct {
	Addr  netip.Addr `json:"addr,omitzero"`
	Class ClassID    `json:"class"`
}

// Compare orders the addresses.
func (m Marked) Compare(o Marked) int { return m.Addr.Compare(o.Addr) }

// Equal reports whether two of them are the same.
func (m Marked) Equal(o Marked) bool { return m == o }

// Object describes an EgressQoS as it is on a node.
type Object struct {
	Key   cluster.Key `json:"key"`
	Rules int         `json:"rules"` // valid ones
	Pods  int         `json:"pods"`  // of the node that at least one of the rules selects

	Given []Rule `json:"-"` // for explanations: the valid rules, in order; none while no Pods are known
}

// Compare orders EgressQoSes by namespace.
func (q Object) Compare(o Object) int { return q.Key.Compare(o.Key) }

// Equal reports whether two of them are the same.
func (q Object) Equal(o Object) bool {
	return q.Key == o.Key && q.Rules == o.Rules && q.Pods == o.Pods && (sorted.OneSlice(q.Given, o.Given) || slices.Equal(q.Given, o.Given))
}

// Rule describes a rule for explanations.
type Rule struct {
	Number int // among the object's rules, from 1
	DSCP   uint8
	To     netip.Prefix // invalid: every destination of both families
	Pods   string       // the selector; empty: every pod of the namespace
}

// Text returns the rule in one line.
func (r *Rule) Text() string {
	to, pods := "all destinations", "all pods"
	if r.To.IsValid() {
		to = r.To.String()
	}
	if r.Pods != "" {
		pods = "pods with " + r.Pods
	}
	return fmt.Sprintf("rule %d: DSCP %d to %s from %s", r.Number, r.DSCP, to, pods)
}

// Pod is an address of a pod of the node, with the rules that select the pod.
type Pod struct {
	Addr  netip.Addr
	Key   cluster.Key
	Rules string // bit i%8 of byte i/8 stands for rule i of the namespace's EgressQoS
	Twice bool   // other rules select a second Pod that has the address: it gets no values
}

// Compare orders the addresses.
func (p Pod) Compare(o Pod) int { return p.Addr.Compare(o.Addr) }

// Equal reports whether two of them are the same.
func (p Pod) Equal(o Pod) bool { return p == o }

// Matching returns the rules that match packets of a pod to a destination. The first one counts.
func (q Object) Matching(p Pod, to netip.Addr) (all []*Rule) {
	for i := range q.Given {
		r := &q.Given[i]
		if has(p.Rules, i) && (!r.To.IsValid() || r.To.Contains(to)) {
			all = append(all, r)
		}
	}
	return all
}

// has reports whether a set of rules has a rule.
func has(rules string, i int) bool { return i/8 < len(rules) && rules[i/8]&(1<<(i%8)) != 0 }

// Plan holds the DSCP values of a node's pods.
type Plan struct {
	Classes []Class             // those of Marked, sorted by ID
	Marked  sorted.List[Marked] // addresses
	Objects sorted.List[Object] // for display: all EgressQoSes
	Pods    sorted.List[Pod]    // for explanations: those that rules select
}
