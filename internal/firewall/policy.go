// Package firewall resolves EgressFirewalls into the policies of one node's pods. It is pure. The rules of a policy become disjoint
// ranges of destinations, each with an outcome for connections there, so that one lookup replaces the rules. Pods of any namespaces
// with equal policies share one.
package firewall

import (
	"net/netip"
	"slices"
	"strings"

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

// Stretch is a series of consecutive rules: either as disjoint ranges of destinations, or as DNS names with one outcome, whose addresses
// the policy does not hold, since they change by themselves.
type Stretch struct {
	Ranges []Range `json:"ranges,omitempty"` // sorted; those elsewhere are not decided
	Ports  []Ports `json:"ports,omitempty"`

	Names []string `json:"names,omitempty"` // sorted, see cluster.DNSName
	Named Outcome  `json:"named,omitempty"` // for addresses of Names; others are not decided
	IPv6  bool     `json:"ipv6,omitempty"`  // the family of these addresses
}

// Holds reports whether an address is one of those that the kernel knows for the names of a policy's stretch.
type Holds func(of PolicyID, stretch int, a netip.Addr) bool

// Matches reports whether a name as rules have it, see cluster.DNSName, stands for a DNS name.
func Matches(pattern, name string) bool {
	if under, wild := strings.CutPrefix(pattern, "*."); wild {
		_, rest, _ := strings.Cut(name, ".")
		return rest == under
	}
	return pattern == name
}

// Reads is a Holds that asks the kernel, which may fail.
type Reads func(of PolicyID, stretch int, a netip.Addr) (bool, error)

// NoNames is the Reads of a kernel that knows no address.
func NoNames(PolicyID, int, netip.Addr) (bool, error) { return false, nil }

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
func (p *Policy) IPv6() bool {
	s := &p.Stretches[0]
	return s.IPv6 || len(s.Ranges) > 0 && s.Ranges[0].First.Is6()
}

// HasNames reports whether some rules are for DNS names.
func (p *Policy) HasNames() bool { return hasNames(p.Stretches) }

// Denies reports whether the policy denies connections to a destination. A protocol without ports has port number 0.
func (p *Policy) Denies(to netip.Addr, port cluster.FirewallPort, holds Holds) bool {
	for i := range p.Stretches {
		s := &p.Stretches[i]
		o := Undecided
		switch {
		case len(s.Names) == 0:
			o = s.decide(to, port)
		case holds(p.ID, i, to):
			o = s.outcome(s.Named, port)
		}
		if o != Undecided {
			return o == Deny
		}
	}
	return false
}

// Allows reports whether the stretch allows connections to addresses of its names.
func (s *Stretch) Allows() bool {
	return s.Named == Allow || s.Named == FirstPorts && len(s.Ports[0].Allow) > 0
}

// decide returns the outcome for a destination of a stretch of ranges.
func (s *Stretch) decide(to netip.Addr, port cluster.FirewallPort) Outcome {
	i, _ := slices.BinarySearchFunc(s.Ranges, to, func(r Range, to netip.Addr) int { return r.Last.Compare(to) })
	if i == len(s.Ranges) || to.Less(s.Ranges[i].First) {
		return Undecided
	}
	return s.outcome(s.Ranges[i].Outcome, port)
}

// outcome resolves an outcome that may depend on the port.
func (s *Stretch) outcome(o Outcome, port cluster.FirewallPort) Outcome {
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
		return a.Named == b.Named && a.IPv6 == b.IPv6 && slices.Equal(a.Names, b.Names) &&
			slices.Equal(a.Ranges, b.Ranges) && slices.EqualFunc(a.Ports, b.Ports, func(x, y Ports) bool {
			return x.Otherwise == y.Otherwise && slices.Equal(x.Allow, y.Allow) && slices.Equal(x.Deny, y.Deny)
		})
	}
	return p.ID == o.ID && (sorted.OneSlice(p.Stretches, o.Stretches) || slices.EqualFunc(p.Stretches, o.Stretches, same))
}

// Firewalled is an address of a pod whose connections a policy decides about.
type Firewalled struct {
	Addr      netip.Addr `json:"addr,omitzero"`
	Policy    PolicyID   `json:"policy"`
	Asks      bool       `json:"asks,omitempty"` // the policy has names: answers of DNS to it are read
	Namespace string     `json:"namespace"`      // for display: of its Pod
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
	Name   string                 // DNS name whose addresses are destinations; empty: none
	Ports  []cluster.FirewallPort // none: every protocol and port
	Text   string                 // the rule in one line
}

// Compare orders EgressFirewalls by namespace.
func (o Object) Compare(other Object) int { return o.Key.Compare(other.Key) }

// Equal reports whether two of them are the same.
func (o Object) Equal(other Object) bool {
	same := func(a, b Rule) bool {
		return a.Number == b.Number && a.Name == b.Name && a.Text == b.Text && slices.Equal(a.To, b.To) && slices.Equal(a.Ports, b.Ports)
	}
	return o.Rules == other.Rules && o.Pods == other.Pods &&
		(sorted.OneSlice(o.Given, other.Given) || slices.EqualFunc(o.Given, other.Given, same))
}

// Deciding returns the first rule that matches connections to a destination; nil: none does. has reports whether an address is known
// for a DNS name.
func (o Object) Deciding(to netip.Addr, port cluster.FirewallPort, has func(name string, a netip.Addr) bool) *Rule {
	for i := range o.Given {
		r := &o.Given[i]
		matches := slices.ContainsFunc(r.To, func(p netip.Prefix) bool { return p.Contains(to) }) || r.Name != "" && has(r.Name, to)
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
