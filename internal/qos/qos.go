// Package qos resolves EgressQoSes into the DSCP values of one node's pods, by destination. It is pure. The rules that select
// a pod become disjoint ranges of destinations, a class. Pods of any namespaces with equal ranges share a class.
package qos

import (
	"net/netip"

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
}

// Compare orders EgressQoSes by namespace.
func (q Object) Compare(o Object) int { return q.Key.Compare(o.Key) }

// Equal reports whether two of them are the same.
func (q Object) Equal(o Object) bool { return q == o }

// Plan holds the DSCP values of a node's pods.
type Plan struct {
	Classes []Class             // those of Marked, sorted by ID
	Marked  sorted.List[Marked] // addresses
	Objects sorted.List[Object] // for display: all EgressQoSes
}
