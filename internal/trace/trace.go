// Package trace explains why a packet goes where it goes: it words the kernel's decisions for an operator. It is pure
// except for Gather, which queries the kernel.
//
// Words of this package: a walk is the simulated way of a packet through this node; a step is one finding on it.
package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/walk"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/status"
)

// Request describes the packet to explain.
type Request struct {
	From  netip.Addr `json:"from"`
	To    netip.Addr `json:"to"`
	Proto string     `json:"proto"`          // tcp, udp or icmp
	Port  uint16     `json:"port,omitempty"` // destination port; 0: one that no rule names
	Reply bool       `json:"reply,omitempty"`
}

// Kind is the outcome for a packet.
type Kind string

// The kinds of verdicts.
const (
	Leaves     Kind = "leaves"     // out by a network of this node
	Handed     Kind = "handed"     // to another node, its host
	Cluster    Kind = "cluster"    // it stays in the cluster: nothing of ours
	Unselected Kind = "unselected" // as any pod of this node
	Elsewhere  Kind = "elsewhere"  // routers do not send it to this node
	Dropped    Kind = "dropped"
	Damaged    Kind = "damaged" // it goes the wrong way
)

// Step is one finding on the way.
type Step struct {
	What  string `json:"what"`
	Found string `json:"found"`
	Asked string `json:"asked,omitempty"` // place in the kernel
}

// Verdict is the outcome for the packet.
type Verdict struct {
	Kind    Kind       `json:"kind"`
	Text    string     `json:"text"`
	Network string     `json:"network,omitempty"`
	VRF     string     `json:"vrf,omitempty"`
	Table   uint32     `json:"table,omitempty"`
	Device  string     `json:"device,omitempty"`
	NextHop netip.Addr `json:"nextHop,omitzero"`
	Source  netip.Addr `json:"source,omitzero"` // that the destination sees; empty where other programs set it
	Host    string     `json:"host,omitempty"`
	DSCP    *uint8     `json:"dscp,omitempty"` // by an EgressQoS; nil: the packet keeps its own
}

// Result is a packet's walk.
type Result struct {
	Request
	Node     string   `json:"node,omitempty"`
	Daemon   string   `json:"daemon"` // "running", or why it is unknown
	Services []string `json:"egressServices"`
	Steps    []Step   `json:"steps"`
	Flows    []Flow   `json:"connections"`
	// Differences between the daemon's plan and the kernel.
	Differences []string `json:"differences"`
	Damage      []string `json:"damage"` // missing objects of ours in the kernel
	Verdict     Verdict  `json:"verdict"`
}

// Flow is an existing connection of the pair.
type Flow struct {
	Text string `json:"text"`
	Kind Kind   `json:"kind"` // of its next packet
}

// Fine reports whether the packet goes as it should: it is not dropped, and nothing is damaged.
func (r *Result) Fine() bool {
	return !r.Verdict.bad() && len(r.Damage) == 0
}

// bad reports whether the packet is dropped or goes the wrong way.
func (v *Verdict) bad() bool { return v.Kind == Dropped || v.Kind == Damaged }

// Input holds all data for a walk.
type Input struct {
	Request
	Live *walk.Live
	// In is the device that the packet comes in by.
	In     string
	Flight *walk.Flight
	// Ingress is the lookup of the destination in the set of ingress IPs.
	Ingress walk.Lookup
	// Routed maps the tables that the packet's rules name to the families for which they have any route.
	Routed map[uint32]plan.Families
	Flows  []KnownFlow
	// Inbound holds the walks of a connection from outside, one for each network that it may come in by.
	Inbound []Inbound

	Report *status.Report  // of the daemon; nil: no daemon answers
	Silent string          // why no daemon answers
	Wanted *status.Address // the daemon's plan for From; nil: unknown
	// IngressWanted is the daemon's plan for To, if that is an ingress IP; nil: it is not, or that is unknown.
	IngressWanted *status.Address
}

// KnownFlow is an existing connection of the pair, with the walk of its next packet.
type KnownFlow struct {
	walk.LiveFlow
	Flight *walk.Flight
}

// Inbound is the walk of a connection from outside through one network.
type Inbound struct {
	Path   walk.LivePath
	Device string
	Arrive *walk.Passage // of its first packet, as if a Service handled it
	Answer *walk.Flight  // of the reply; nil: no reply was simulated
	Known  bool          // such a connection exists
	// Handed and Stray look the ingress IP up among those whose strays come by any device, those of network default.
	Handed, Stray walk.Lookup
}

// Explain turns an Input into a Result.
func Explain(in *Input) *Result {
	r := &Result{
		Request: in.Request, Services: []string{}, Steps: []Step{}, Flows: []Flow{}, Differences: []string{},
		Damage: append([]string{}, in.Live.Damage...), Daemon: "running",
	}
	e := &explainer{Input: in, out: r}
	if in.Report != nil {
		r.Node = in.Report.Node
	} else {
		r.Daemon = "not running: " + in.Silent
	}
	e.table()
	if in.Inbound != nil || in.Flight == nil {
		e.inbound()
	} else {
		e.egress()
	}
	return r
}

type explainer struct {
	*Input
	out *Result
}

// step adds a step; asked may be empty.
func (e *explainer) step(what, asked, format string, args ...any) {
	e.out.Steps = append(e.out.Steps, Step{What: what, Asked: asked, Found: fmt.Sprintf(format, args...)})
}

func (e *explainer) verdict(k Kind, format string, args ...any) *Verdict {
	v := &e.out.Verdict
	*v = Verdict{Kind: k, Text: fmt.Sprintf(format, args...)}
	return v
}

func (e *explainer) differ(format string, args ...any) {
	e.out.Differences = append(e.out.Differences, fmt.Sprintf(format, args...))
}

// table explains the state of our nftables table, on which everything else depends.
func (e *explainer) table() {
	switch l := e.Live; {
	case !l.Table && e.Report != nil:
		e.differ("the daemon wants nftables table inet egressway but the kernel has none: recreated within 10 s, or see the daemon's log")
		e.step("rules", "nft table inet egressway", "missing: nothing is steered, dropped or given another source")
	case !l.Table:
		e.step("rules", "nft table inet egressway",
			"missing: no daemon has run here, or it was removed: nothing is steered, dropped or given another source")
	case l.Owner != 0:
		e.step("rules", "nft table inet egressway", "present, owned by the daemon")
	default:
		e.step("rules", "nft table inet egressway", "present, without an owner: no daemon runs, and the last one's rules stay in force")
	}
}

// pathName returns the name of a path's destination.
func pathName(k plan.PathKey) string {
	switch k.Kind {
	case plan.PathSteer:
		return "host " + k.Name
	case plan.PathShared:
		return "one of the hosts that share a path"
	}
	return "network " + k.Name
}

// partnerName returns the name of the node at the end of a stray's path.
func partnerName(k plan.PathKey) string {
	switch k.Kind {
	case plan.PathSteer:
		return "node " + k.Name // the standby, on the host
	case plan.PathShared:
		return "the other of host and standby"
	}
	return pathName(k)
}

// services returns the EgressServices that a selected pod may be behind; nil: unknown.
func services(r *status.Report, path plan.PathKey, source netip.Addr) (names []string) {
	if r == nil {
		return nil
	}
	for s := range r.Rows() {
		if sends(s, path, source) {
			names = append(names, s.Title())
		}
	}
	return slices.Compact(names)
}

// sends reports whether a service may be the one whose packets go by a path, with a source if that is known.
func sends(s *status.Service, path plan.PathKey, source netip.Addr) bool {
	switch {
	case path.Kind == plan.PathShared: // its name is not the host's
		return false
	case path.Kind == plan.PathSteer:
		return s.Host == path.Name && s.Local > 0
	case source.IsValid():
		return slices.Contains(s.IngressIPs, source)
	}
	return s.Network == path.Name && s.Host == "ALL" && s.Local > 0
}

// oneOf joins names for a sentence.
func oneOf(names []string) string {
	const few = 3
	switch n := len(names); {
	case n == 0:
		return ""
	case slices.ContainsFunc(names, isEgressIP):
		return oneOfKinds(names[:min(n, few)], n)
	case n == 1:
		return "EgressService " + names[0]
	case n <= few:
		return "EgressService " + strings.Join(names[:n-1], ", ") + " or " + names[n-1]
	default:
		return fmt.Sprintf("one of %d EgressServices, such as %s", n, names[0])
	}
}

// isEgressIP reports whether a title of a row is that of an EgressIP.
func isEgressIP(title string) bool {
	return strings.HasPrefix(title, cluster.KindEgressIP.String()+" ")
}

// oneOfKinds joins some of n names for a sentence, where an EgressIP is among them.
func oneOfKinds(names []string, n int) string {
	all := slices.Clone(names)
	for i, name := range all {
		if !isEgressIP(name) {
			all[i] = "EgressService " + name
		}
	}
	if n > len(names) {
		return fmt.Sprintf("one of %d objects, such as %s", n, all[0])
	}
	return strings.Join(all, " or ")
}

// way formats the device and gateway of a route.
func way(r *walk.Route) string {
	if r.Gateway.IsValid() {
		return r.Device + " via " + r.Gateway.String()
	}
	return r.Device
}
