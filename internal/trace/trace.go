// Package trace tells why a packet goes where it goes: it puts what the kernel was found to do with it into an operator's
// words. It is pure but for Gather, which asks the kernel.
package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/status"
)

// Request is the packet that is asked about.
type Request struct {
	From  netip.Addr `json:"from"`
	To    netip.Addr `json:"to"`
	Proto string     `json:"proto"`          // tcp, udp or icmp
	Port  uint16     `json:"port,omitempty"` // destination port; 0: any
	Reply bool       `json:"reply,omitempty"`
}

// Kind is what becomes of a packet.
type Kind string

// The kinds of verdicts.
const (
	Leaves     Kind = "leaves"     // out by a network of this node
	Handed     Kind = "handed"     // to another node, its host
	Cluster    Kind = "cluster"    // it stays in the cluster: nothing of ours
	Unselected Kind = "unselected" // as any pod of this node
	Elsewhere  Kind = "elsewhere"  // it does not come to this node
	Dropped    Kind = "dropped"
	Damaged    Kind = "damaged" // as it should not go
)

// Step is one thing that was looked at on the way.
type Step struct {
	What  string `json:"what"`
	Found string `json:"found"`
	Asked string `json:"asked,omitempty"` // where that stands in the kernel
}

// Verdict is what becomes of the packet.
type Verdict struct {
	Kind    Kind       `json:"kind"`
	Text    string     `json:"text"`
	Network string     `json:"network,omitempty"`
	VRF     string     `json:"vrf,omitempty"`
	Table   uint32     `json:"table,omitempty"`
	Device  string     `json:"device,omitempty"`
	NextHop netip.Addr `json:"nextHop,omitzero"`
	Source  netip.Addr `json:"source,omitzero"` // as the destination sees it; not told where others give it
	Host    string     `json:"host,omitempty"`
}

// Result is a packet's walk.
type Result struct {
	Request
	Node     string   `json:"node,omitempty"`
	Daemon   string   `json:"daemon"` // running, or why nothing is known of it
	Services []string `json:"egressServices"`
	Steps    []Step   `json:"steps"`
	Flows    []Flow   `json:"connections"`
	// Differences are between what the daemon wants and what the kernel has.
	Differences []string `json:"differences"`
	Damage      []string `json:"damage"` // what the kernel lacks of ours
	Verdict     Verdict  `json:"verdict"`
}

// Flow is a connection of the pair that the kernel knows already.
type Flow struct {
	Text string `json:"text"`
	Kind Kind   `json:"kind"`
}

// Fine says that the packet goes as it should: dropped or damaged is all else.
func (r *Result) Fine() bool {
	return r.Verdict.Kind != Dropped && r.Verdict.Kind != Damaged && len(r.Damage) == 0
}

// Input is all that a walk is told from.
type Input struct {
	Request
	Live *kernel.Live
	// In is the device that the packet comes in by.
	In     string
	Flight *kernel.Flight
	// Ingress is what the set of ingress IPs says of the destination.
	Ingress kernel.Lookup
	// Routed says which tables lead anywhere at all, of those that the packet's rules name.
	Routed map[uint32]plan.Families
	Flows  []KnownFlow
	// Inbound are the walks of a connection from outside, one for each network that it may come in by.
	Inbound []Inbound

	Report *status.Report  // of the daemon; nil: none answers
	Silent string          // why not
	Wanted *status.Address // what the daemon makes of From; nil: not known
	// IngressWanted is what it makes of To, where that is an ingress IP; nil: it is none, or that is not known.
	IngressWanted *status.Address
}

// KnownFlow is a connection of the pair with the walk of its next packet.
type KnownFlow struct {
	kernel.LiveFlow
	Flight *kernel.Flight
}

// Inbound is a connection from outside by one network.
type Inbound struct {
	Path   kernel.LivePath
	Device string
	Arrive *kernel.Passage // of its first packet, taken by a Service
	Answer *kernel.Flight  // of what answers; nil: it does not come so far
	Known  bool            // such a connection is there
}

// Explain tells a walk.
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

// step adds a step. What was asked may be empty.
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

// table tells of our nftables table, without which nothing else holds.
func (e *explainer) table() {
	switch l := e.Live; {
	case !l.Table && e.Report != nil:
		e.differ("the daemon wants nftables table inet egressway but the kernel has none: made anew within 10 s, or see the daemon's log")
		e.step("rules", "nft table inet egressway", "missing: nothing is steered, dropped or given another source")
	case !l.Table:
		e.step("rules", "nft table inet egressway", "missing: no daemon has run here, or it was removed: nothing is steered, dropped or given another source")
	case l.Owner != 0:
		e.step("rules", "nft table inet egressway", "there, owned by the daemon")
	default:
		e.step("rules", "nft table inet egressway", "there, nobody's: no daemon runs, what the last one made goes on")
	}
}

// pathName says what a path leads to.
func pathName(k plan.PathKey) string {
	if k.Kind == plan.PathSteer {
		return "host " + k.Name
	}
	return "network " + k.Name
}

// services names EgressServices that a selected pod may be behind; nil: none is known.
func services(r *status.Report, path plan.PathKey, source netip.Addr) (names []string) {
	if r == nil {
		return nil
	}
	for i := range r.Services {
		s := &r.Services[i]
		var is bool
		switch {
		case path.Kind == plan.PathSteer:
			is = s.Host == path.Name && s.Local > 0
		case source.IsValid():
			is = slices.Contains(s.IngressIPs, source)
		default:
			is = s.Network == path.Name && s.Host == "ALL" && s.Local > 0
		}
		if is {
			names = append(names, s.Namespace+"/"+s.Name)
		}
	}
	return names
}

// oneOf joins names for a sentence.
func oneOf(names []string) string {
	const few = 3
	switch n := len(names); {
	case n == 0:
		return ""
	case n == 1:
		return "EgressService " + names[0]
	case n <= few:
		return "EgressService " + strings.Join(names[:n-1], ", ") + " or " + names[n-1]
	default:
		return fmt.Sprintf("one of %d EgressServices, such as %s", n, names[0])
	}
}

// way writes where a route leads.
func way(r *kernel.Route) string {
	if r.Gateway.IsValid() {
		return r.Device + " via " + r.Gateway.String()
	}
	return r.Device
}
