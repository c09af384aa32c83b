// Package firewall resolves EgressFirewalls into the policies of one node's pods. It is pure. The rules of a policy become disjoint
// ranges of destinations, each with an outcome for connections there, so that one lookup replaces the rules. Pods of any namespaces
// with equal policies share one.
package firewall

import (
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/sorted"
)

// Policy decides which connections of a pod's address are denied. It is of one family.
type Policy struct {
	ID        PolicyID  `json:"id"`
	Stretches []Stretch `json:"stretches,omitempty"` // in order: the first that decides counts; without a decision, connections are allowed
}

// PolicyID identifies a policy on a node. It derives from the content, so a policy that comes or goes changes no other one.
type PolicyID uint32

// Stretch is a series of consecutive rules, as disjoint ranges of destinations.
type Stretch struct {
	Ranges []Range `json:"ranges,omitempty"` // sorted; those elsewhere are not decided
	Ports  []Ports `json:"ports,omitempty"`
}

// Range is a range of destinations.
type Range struct {
	First   netip.Addr `json:"first,omitzero"`
	Last    netip.Addr `json:"last,omitzero"`
	Outcome Outcome    `json:"outcome"`
}

// Outcome is the decision of a stretch about a destination.
type Outcome uint32

// Outcomes. From FirstPorts on, the ports of the stretch with the index Outcome-FirstPorts decide.
const (
	Undecided Outcome = iota
	Allow
	Deny
	FirstPorts
)

// Ports decides by the protocol and port.
type Ports struct {
	Allow     []cluster.FirewallPort `json:"allow,omitempty"` // sorted
	Deny      []cluster.FirewallPort `json:"deny,omitempty"`  // sorted
	Otherwise Outcome                `json:"otherwise"`       // Undecided, Allow or Deny
}

// IPv6 reports whether the policy is for IPv6 addresses.
func (p *Policy) IPv6() bool { return p.Stretches[0].Ranges[0].First.Is6() }

// Denies reports whether the policy denies connections to a destination. A protocol without ports has port number 0.
func (p *Policy) Denies(to netip.Addr, port cluster.FirewallPort) bool {
	for i := range p.Stretches {
		if o := p.Stretches[i].decide(to, port); o != Undecided {
			return o == Deny
		}
	}
	return false
}

func (s *Stretch) decide(to netip.Addr, port cluster.FirewallPort) Outcome {
	i, _ := slices.BinarySearchFunc(s.Ranges, to, func(r Range, to netip.Addr) int { return r.Last.Compare(to) })
	if i == len(s.Ranges) || to.Less(s.Ranges[i].First) {
		return Undecided
	}
	o := s.Ranges[i].Outcome
	if o < FirstPorts {
		return o
	}
	return s.Ports[o-FirstPorts].decide(port)
}

func (p *Ports) decide(port cluster.FirewallPort) Outcome {
	if _, is := slices.BinarySearchFunc(p.Allow, port, comparePorts); is {
		return Allow
	}
	if _, is := slices.BinarySearchFunc(p.Deny, port, comparePorts); is {
		return Deny
	}
	return p.Otherwise
}

func comparePorts(a, b cluster.FirewallPort) int {
	return (int(a.Protocol)-int(b.Protocol))<<16 + int(a.Number) - int(b.Number)
}

// Equal reports whether two policies are the same.
func (p *Policy) Equal(o *Policy) bool {
	same := func(a, b Stretch) bool {
		return slices.Equal(a.Ranges, b.Ranges) && slices.EqualFunc(a.Ports, b.Ports, func(x, y Ports) bool {
			return x.Otherwise == y.Otherwise && slices.Equal(x.Allow, y.Allow) && slices.Equal(x.Deny, y.Deny)
		})
	}
	return p.ID == o.ID && (sorted.OneSlice(p.Stretches, o.Stretches) || slices.EqualFunc(p.Stretches, o.Stretches, same))
}

// Firewalled is an address of a pod whose connections a policy decides about.
type Firewalled struct {
	Addr      netip.Addr `json:"addr,omitzero"`
	Policy    PolicyID   `json:"policy"`
	Namespace string     `json:"namespace"` // for display: of its Pod
}

// Compare orders the addresses.
func (f Firewalled) Compare(o Firewalled) int { return f.Addr.Compare(o.Addr) }

// Equal reports whether two of them are the same.
func (f Firewalled) Equal(o Firewalled) bool { return f == o }

// Object describes an EgressFirewall as it is on a node.
type Object struct {
	Key   cluster.Key `json:"key"`
	Rules int         `json:"rules"` // that the object has
	Pods  int         `json:"pods"`  // of the node, in its namespace
	Given []Rule      `json:"-"`     // for explanations: those that have an effect, in order
}

// Rule describes a rule in force.
type Rule struct {
	Number int                    // among the object's rules, from 1
	To     []netip.Prefix         // destinations, those of nodes among them
	Ports  []cluster.FirewallPort // none: every protocol and port
	Text   string                 // the rule in one line
}

// Compare orders EgressFirewalls by namespace.
func (o Object) Compare(other Object) int { return o.Key.Compare(other.Key) }

// Equal reports whether two of them are the same.
func (o Object) Equal(other Object) bool {
	same := func(a, b Rule) bool {
		return a.Number == b.Number && a.Text == b.Text && slices.Equal(a.To, b.To) && slices.Equal(a.Ports, b.Ports)
	}
	return o.Rules == other.Rules && o.Pods == other.Pods &&
		(sorted.OneSlice(o.Given, other.Given) || slices.EqualFunc(o.Given, other.Given, same))
}

// Deciding returns the first rule that matches connections to a destination; nil: none does.
func (o Object) Deciding(to netip.Addr, port cluster.FirewallPort) *Rule {
	for i := range o.Given {
		r := &o.Given[i]
		matches := slices.ContainsFunc(r.To, func(p netip.Prefix) bool { return p.Contains(to) })
		if matches && (len(r.Ports) == 0 || slices.Contains(r.Ports, port)) {
			return r
		}
	}
	return nil
}

// Plan holds the policies of a node's pods.
type Plan struct {
	Policies   []Policy                // those of Firewalled, sorted by ID
	Firewalled sorted.List[Firewalled] // addresses
	Objects    sorted.List[Object]     // for display: all EgressFirewalls
}
