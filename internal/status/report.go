// Package status holds the state of this node: a report after each pass of the loop, served on a Unix socket together
// with health and metrics. It also reads and prints reports.
package status

import (
	"cmp"
	"errors"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// Report is the state of one node after a pass. It is not modified after it was published.
type Report struct {
	Node             string        `json:"node"`
	Version          string        `json:"version"`
	Started          time.Time     `json:"started"`               // of the daemon
	Applied          time.Time     `json:"applied,omitzero"`      // end of the last pass; zero: none yet
	Duration         time.Duration `json:"durationNanoseconds"`   // of the last pass
	Ready            bool          `json:"ready"`                 // the kernel is as planned, and the node has the networks that it serves
	Draining         bool          `json:"draining"`              // the node wants to serve no EgressService
	Unknowing        bool          `json:"unknowing,omitempty"`   // not all objects are known, so nothing is listed that the node serves
	ConfigStale      bool          `json:"configStale"`           // the configuration file has errors and the last good one is in force
	ConnectionsEnded uint          `json:"connectionsEnded"`      // connections that contradicted the plan, in the last pass
	Errors           []string      `json:"errors"`                // of the last pass
	Services         []Service     `json:"egressServices"`        // sorted by namespace and name
	EgressIPs        []Service     `json:"egressIPs,omitempty"`   // one for each address, sorted by name and address
	EgressQoSes      []EgressQoS   `json:"egressQoSes,omitempty"` // sorted by namespace
	QoSClasses       int           `json:"qosClasses,omitempty"`  // different sets of DSCP values that pods of this node have
	Sessions         []Session     `json:"sessions"`              // sorted by network and peer
	Networks         []Network     `json:"networks"`              // sorted by name
	VLANs            []VLAN        `json:"vlans,omitempty"`       // sub-interfaces that the daemon makes, sorted by name
	Watched          []Watched     `json:"watched"`               // by BFD, sorted by node
	Problems         []Problem     `json:"problems"`              // sorted; of the objects of one namespace not all, if there are many
	ProblemsOmitted  int           `json:"problemsOmitted,omitempty"`

	// EgressFirewalls are sorted by namespace. FirewallPolicies is the number of different sets of their rules that pods of this node
	// have, by family, and FirewallStretches the most lookups by destination that one of them takes.
	EgressFirewalls   []EgressFirewall `json:"egressFirewalls,omitempty"`
	FirewallPolicies  int              `json:"firewallPolicies,omitempty"`
	FirewallStretches int              `json:"firewallStretches,omitempty"`
	// DrainReported: the node drains, and the leader can read that.
	DrainReported bool `json:"drainReported,omitempty"`
	// Names holds the DNS names in rules of EgressFirewalls, sorted.
	Names []Name `json:"names,omitempty"`

	ProblemsByReason map[cluster.Reason]int `json:"problemsByReason"` // how many there are, listed or not
}

// problemsListed limits the problems of one namespace's objects that a report lists among all problems, and also those
// that it lists with its EgressServices beyond the first of each.
const problemsListed = 200

// budget counts the listed problems of each namespace.
type budget map[string]int

// takes reports whether one more problem of a namespace's object is listed.
func (b budget) takes(namespace string) bool {
	if b[namespace] == problemsListed {
		return false
	}
	b[namespace]++
	return true
}

// Service is the state of one EgressService, or of one address of an EgressIP, on this node.
type Service struct {
	Namespace  string             `json:"namespace,omitempty"` // empty: an EgressIP
	Name       string             `json:"name"`
	SourceIPBy cluster.SourceIPBy `json:"sourceIPBy,omitempty"`
	Network    string             `json:"network"`
	Host       string             `json:"host"`
	Standby    string             `json:"standby"`
	IngressIPs []netip.Addr       `json:"ingressIPs"`
	Endpoints  int                `json:"endpoints"`        // selected addresses in the cluster
	Local      int                `json:"local"`            // selected addresses on this node
	Announced  []netip.Addr       `json:"announced"`        // addresses that were announced to a peer of this node
	OnLink     string             `json:"onLink,omitempty"` // device on which this node answers ARP and NDP for the address
	Aside      bool               `json:"aside,omitempty"`  // this node is elected, but stands aside because it lacks the network
	Problems   []Problem          `json:"problems"`
}

// Title returns the object's name for people. EgressServices are named by namespace and name alone.
func (s *Service) Title() string {
	if s.Namespace == "" {
		return cluster.KindEgressIP.String() + " " + s.Name
	}
	return s.Namespace + "/" + s.Name
}

// Rows iterates over the EgressServices, and then over the addresses of EgressIPs.
func (r *Report) Rows() iter.Seq[*Service] {
	return func(yield func(*Service) bool) {
		for _, list := range [...][]Service{r.Services, r.EgressIPs} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// Hosted returns the services whose host this node is.
func (r Report) Hosted() []string {
	return r.named(func(s Service) bool { return s.Host == r.Node })
}

// Backed returns the services whose standby this node is, including those of which it was the host and still serves
// flows.
func (r Report) Backed() []string {
	return r.named(func(s Service) bool { return s.Standby == r.Node && s.Host != r.Node })
}

func (r Report) named(which func(Service) bool) (names []string) {
	for s := range r.Rows() {
		if which(*s) {
			names = append(names, s.Title())
		}
	}
	return names
}

// Session is a BGP session of this node.
type Session struct {
	Network string     `json:"network"`
	Peer    string     `json:"peer"` // the configured address or interface
	Address netip.Addr `json:"address,omitzero"`
	ASN     uint32     `json:"asn"`
	State   string     `json:"state"`
	Up      bool       `json:"up"`
	// Ended reports that we ended the session because the peer sent too much: until a parameter of it changes, or for a
	// while if it was for memory.
	Ended     bool            `json:"ended,omitempty"`
	Since     time.Time       `json:"since,omitzero"`
	Families  []config.Family `json:"families"`       // that both ends offered
	Sent      []config.Family `json:"sent,omitempty"` // those of Families that we announce; missing from earlier speakers
	Received  int             `json:"received"`
	Accepted  int             `json:"accepted"`
	Announced int             `json:"announced"`
	BFD       string          `json:"bfd,omitempty"`
	BFDSlowed int             `json:"bfdSlowed,omitempty"`
	Unheard   string          `json:"unheard,omitempty"` // why the speaker accepts no connections of the peer in spite of bgp.listenPort
	LastError string          `json:"lastError,omitempty"`
}

// Watched is another node that this one watches by BFD.
type Watched struct {
	Node  string `json:"node"`
	Alive bool   `json:"alive"`
}

// Network is the state of a network on this node.
type Network struct {
	Name       string `json:"name"`
	VRF        string `json:"vrf,omitempty"`
	Table      uint32 `json:"table"`               // 0: not usable
	Usable     bool   `json:"usable"`              // its VRF, its interfaces and its table exist
	Lacks      string `json:"lacks,omitempty"`     // why it is not usable
	Elsewhere  bool   `json:"elsewhere,omitempty"` // the configuration gives it to other nodes
	HeldDown   bool   `json:"heldDown,omitempty"`  // nothing is announced in it: this node's role there is not confirmed
	Learned    int    `json:"learned"`             // routes learned from peers
	Sessions   int    `json:"sessions"`
	SessionsUp int    `json:"sessionsUp"`
}

// VLAN is a VLAN sub-interface that the daemon makes, or that it found. If it cannot be made, a Problem of the network says why.
type VLAN struct {
	Name      string         `json:"name"`
	Network   string         `json:"network"`
	ID        uint16         `json:"id"`
	Parent    string         `json:"parent"`
	Addresses []netip.Prefix `json:"addresses"` // that the daemon adds
}

// Problem is a cluster.Problem.
type Problem struct {
	Kind    string         `json:"kind"`
	Object  string         `json:"object"`
	Field   string         `json:"field,omitempty"`
	Value   string         `json:"value,omitempty"`
	Reason  cluster.Reason `json:"reason"`
	Message string         `json:"message"`
	Where   string         `json:"where,omitempty"`
	Node    string         `json:"node,omitempty"`
	More    int            `json:"more,omitempty"`
}

// String returns the problem on one line.
func (p Problem) String() string { return cluster.Problem(p).Error() }

// Pass is the result of a pass.
type Pass struct {
	Began, Ended     time.Time
	Plan             *plan.NodePlan // nil: not published
	InForce          bool           // the kernel is as planned: devices, routes, rules and packet filter
	Unknowing        bool           // not all objects are known yet, so there is no plan
	ConnectionsEnded uint
	ConfigStale      bool
	Draining         bool
	DrainReported    bool
	Err              error
	Watched          map[string]bool // nodes, and whether they are alive
	// Announced holds the desired announcements of the speaker of each network. They lag behind the plan while the
	// kernel is not ready for incoming packets.
	Announced map[string][]netip.Prefix
}

// From makes the report of a pass, except for the fields that Publish adds. p is nil if there is no plan yet.
func From(p *plan.NodePlan, problems []cluster.Problem, sessions []bgp.Session, pass Pass) Report {
	if p == nil {
		p = &plan.NodePlan{}
	}
	r := Report{
		Applied: pass.Ended, Duration: pass.Ended.Sub(pass.Began),
		Ready: pass.InForce, ConfigStale: pass.ConfigStale, Draining: pass.Draining,
		DrainReported: pass.DrainReported, Unknowing: pass.Unknowing,
		ConnectionsEnded: pass.ConnectionsEnded, Errors: messages(pass.Err),
		Services: make([]Service, 0, p.Services.Len()), Sessions: make([]Session, 0, len(sessions)),
		Problems: make([]Problem, 0, len(problems)),
	}
	r.Watched = make([]Watched, 0, len(pass.Watched))
	for node, alive := range pass.Watched {
		r.Watched = append(r.Watched, Watched{node, alive})
	}
	slices.SortFunc(r.Watched, func(x, y Watched) int { return strings.Compare(x.Node, y.Node) })
	byService := r.takeProblems(problems)
	r.takeEgressQoSes(p, byService)
	r.takeEgressFirewalls(p, byService)
	for _, s := range sessions {
		s.Families = orEmpty(s.Families)
		r.Sessions = append(r.Sessions, Session(s))
	}
	sent := sentRoutes(p.Speakers, pass.Announced, sessions)
	for s := range p.Services.All() {
		announced := s.Announced
		if unsent := func(a netip.Addr) bool { return !sent[route{s.Network, a}] }; slices.ContainsFunc(announced, unsent) {
			announced = slices.DeleteFunc(slices.Clone(announced), unsent)
		}
		row := Service{
			Namespace: s.Key.Namespace, Name: s.Key.Name, SourceIPBy: sourceIPBy(s),
			Network: s.Network, Host: s.Host, Standby: s.Standby, IngressIPs: orEmpty(s.IngressIPs),
			Endpoints: s.Endpoints, Local: s.Local, Announced: orEmpty(announced), Aside: s.Aside, OnLink: s.OnLink,
			Problems: orEmpty(byService[s.Key.String()]),
		}
		if s.Kind == cluster.KindEgressIP {
			row.SourceIPBy = ""
			r.EgressIPs = append(r.EgressIPs, row)
			continue
		}
		r.Services = append(r.Services, row)
	}
	r.Networks, r.VLANs = networks(p, sessions), vlans(p)
	return r
}

// vlans returns the VLAN sub-interfaces of the plan.
func vlans(p *plan.NodePlan) (all []VLAN) {
	for _, v := range p.VLANs {
		uses := func(path plan.Path) bool { return slices.Contains(path.Devices, v.Name) }
		row := VLAN{Name: v.Name, ID: v.ID, Parent: v.Parent, Addresses: orEmpty(v.Addrs)}
		if i := slices.IndexFunc(p.DataPlane.Paths, uses); i >= 0 {
			row.Network = p.DataPlane.Paths[i].Key.Name
		}
		all = append(all, row)
	}
	return all
}

// takeProblems adds the problems to the report, and returns those of each row by the name of its object.
func (r *Report) takeProblems(problems []cluster.Problem) (byService map[string][]Problem) {
	byService, r.ProblemsByReason = map[string][]Problem{}, map[cluster.Reason]int{}
	all, own := budget{}, budget{}
	for _, p := range cluster.SortProblems(slices.Clone(problems)) {
		r.ProblemsByReason[p.Reason]++
		namespace := ""
		if row := rowOf(p); row != "" {
			namespace, _, _ = strings.Cut(p.Object, "/")
			if had := byService[row]; len(had) == 0 || own.takes(namespace) {
				byService[row] = append(had, Problem(p))
			}
		}
		if namespace != "" && !all.takes(namespace) {
			r.ProblemsOmitted++
			continue
		}
		r.Problems = append(r.Problems, Problem(p))
	}
	return byService
}

// unserved returns a network that this node lacks although it is elected host or standby in it; empty: there is none.
func (r *Report) unserved() string {
	lacks := map[string]string{}
	for _, n := range r.Networks {
		lacks[n.Name] = n.Lacks
	}
	for s := range r.Rows() {
		if (s.Aside || s.role(r.Node) != "") && lacks[s.Network] != "" {
			return s.Network + ": " + lacks[s.Network]
		}
	}
	return ""
}

// orEmpty returns an empty list instead of nil, which JSON would write as null.
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// messages splits joined errors.
func messages(err error) []string {
	list, ok := err.(interface{ Unwrap() []error }) // not errors.As: an error that wraps a list is one message
	switch {
	case err == nil:
		return []string{}
	case !ok || errors.Join(list.Unwrap()...).Error() != err.Error():
		return []string{err.Error()}
	}
	all := []string{}
	for _, e := range list.Unwrap() {
		all = append(all, messages(e)...)
	}
	return all
}

// rowOf names the row that a problem belongs to; empty: none.
func rowOf(p cluster.Problem) string {
	switch {
	case ofService(p.Kind):
		return p.Object
	case p.Kind == cluster.KindEgressQoS.String(), p.Kind == cluster.KindEgressFirewall.String():
		return p.Kind + " " + p.Object
	}
	return ""
}

// ofService reports whether objects of this kind have the name of the row that they belong to.
func ofService(kind string) bool {
	return kind == "EgressService" || kind == "Service" || kind == "EgressIP"
}

func sourceIPBy(s plan.Service) cluster.SourceIPBy {
	if s.Masquerade() {
		return cluster.SourceIPByNetwork
	}
	return cluster.SourceIPByLoadBalancer
}

// route is an address announced in a network.
type route struct {
	network string
	addr    netip.Addr
}

// carrier names a session as the carrier of routes.
type carrier struct {
	network, peer string
}

// sentRoutes returns the routes that were announced to a peer: those that the speakers announce and a session of their
// family carries.
func sentRoutes(speakers []plan.Speaker, announced map[string][]netip.Prefix, sessions []bgp.Session) map[route]bool {
	up := announcing(sessions)
	size := 0
	for _, prefixes := range announced {
		size += len(prefixes)
	}
	sent := make(map[route]bool, size)
	for i := range speakers {
		network, carried := speakers[i].Network, carriedFamilies(&speakers[i], up)
		for _, prefix := range announced[network] {
			if a := prefix.Addr(); a.Is4() && carried.IPv4 || a.Is6() && carried.IPv6 {
				sent[route{network, a}] = true
			}
		}
	}
	return sent
}

// announcing returns the sessions that announce routes.
func announcing(sessions []bgp.Session) map[carrier]bgp.Session {
	up := map[carrier]bgp.Session{}
	for _, s := range sessions {
		if s.Up && s.Announced > 0 {
			up[carrier{s.Network, s.Peer}] = s
		}
	}
	return up
}

// carriedFamilies returns the families of which some peer of a speaker gets routes, given the sessions that announce any.
func carriedFamilies(s *plan.Speaker, up map[carrier]bgp.Session) (carried plan.Families) {
	for _, p := range s.Peers {
		session := up[carrier{s.Network, p.PeerName()}]
		sent := session.Sent
		if sent == nil {
			sent = withNextHop(session.Families, &p)
		}
		carried.IPv4 = carried.IPv4 || slices.Contains(sent, config.IPv4Unicast)
		carried.IPv6 = carried.IPv6 || slices.Contains(sent, config.IPv6Unicast)
	}
	return carried
}

// withNextHop returns those of a session's families in which an announcement to the peer has a next hop, for a speaker that does not
// report the families that it sends. An unnumbered peer gets the link-local address as next hop of either family.
func withNextHop(families []config.Family, p *plan.Peer) []config.Family {
	return slices.DeleteFunc(slices.Clone(families), func(f config.Family) bool {
		hop := p.NextHop4
		if f == config.IPv6Unicast {
			hop = p.NextHop6
		}
		return p.Interface == "" && !hop.IsValid()
	})
}

// networks returns the networks of the plan, the usable ones with their table.
func networks(p *plan.NodePlan, sessions []bgp.Session) []Network {
	vrfs, learned := map[uint32]string{}, map[uint32]int{}
	for _, v := range p.VRFs {
		vrfs[v.Table] = v.Name
	}
	for r := range p.Routes.All() {
		if !r.Unreachable {
			learned[r.Table]++ // a network's table has no other routes of ours
		}
	}
	all, byName := []Network{}, map[string]int{}
	for _, path := range p.DataPlane.Paths {
		if path.Key.Kind == plan.PathNetwork {
			n := Network{
				Name: path.Key.Name, VRF: vrfs[path.Table], Table: path.Table,
				Lacks: p.AbsenceOf(path.Key.Name), Elsewhere: p.IsElsewhere(path.Key.Name),
				HeldDown: slices.Contains(p.HeldDown, path.Key.Name), Learned: learned[path.Table],
			}
			if n.Usable = n.Table != 0 && n.Lacks == ""; !n.Usable {
				n.Lacks = cmp.Or(n.Lacks, "it has no path")
			}
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b Network) int { return strings.Compare(a.Name, b.Name) })
	for i, n := range all {
		byName[n.Name] = i
	}
	for _, s := range sessions {
		if i, ok := byName[s.Network]; ok {
			all[i].Sessions++
			if s.Up {
				all[i].SessionsUp++
			}
		}
	}
	return all
}
