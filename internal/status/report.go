// Package status tells what holds on this node: a report after each pass of the loop, served on a Unix socket, with
// health and metrics; and how to read and print it.
package status

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// Report is what holds on one node after a pass. It is not changed after it was published.
type Report struct {
	Node             string        `json:"node"`
	Version          string        `json:"version"`
	Started          time.Time     `json:"started"`             // of the daemon
	Applied          time.Time     `json:"applied,omitzero"`    // end of the last pass; zero: none yet
	Duration         time.Duration `json:"durationNanoseconds"` // of the last pass
	Ready            bool          `json:"ready"`               // the first pass is complete, the last one left the kernel as planned, and it has the networks that this node serves
	Draining         bool          `json:"draining"`            // the node wants to serve no EgressService
	ConfigStale      bool          `json:"configStale"`         // the configuration file has errors, the last good one is in force
	ConnectionsEnded uint          `json:"connectionsEnded"`    // connections that contradicted the plan, in the last pass
	Errors           []string      `json:"errors"`              // of the last pass
	Services         []Service     `json:"egressServices"`      // sorted by namespace and name
	Sessions         []Session     `json:"sessions"`            // sorted by network and peer
	Networks         []Network     `json:"networks"`            // sorted by name
	Watched          []Watched     `json:"watched"`             // by BFD, sorted by node
	Problems         []Problem     `json:"problems"`            // sorted; of objects of one namespace not all, where there are many
	ProblemsOmitted  int           `json:"problemsOmitted,omitempty"`

	ProblemsByReason map[cluster.Reason]int `json:"problemsByReason"` // how many there are, be they listed or not
}

// problemsListed bounds the problems of one namespace's objects that a report lists among all problems, and again those that it lists
// with its EgressServices beyond the first of each.
const problemsListed = 200

// budget is what is left of such a bound for each namespace.
type budget map[string]int

// takes reports whether one more problem of an object's namespace is listed.
func (b budget) takes(namespace string) bool {
	if b[namespace] == problemsListed {
		return false
	}
	b[namespace]++
	return true
}

// Service is what becomes of one EgressService on this node.
type Service struct {
	Namespace  string             `json:"namespace"`
	Name       string             `json:"name"`
	SourceIPBy cluster.SourceIPBy `json:"sourceIPBy"`
	Network    string             `json:"network"`
	Host       string             `json:"host"`
	Standby    string             `json:"standby"`
	IngressIPs []netip.Addr       `json:"ingressIPs"`
	Endpoints  int                `json:"endpoints"`       // selected addresses in the cluster
	Local      int                `json:"local"`           // of them on this node
	Announced  []netip.Addr       `json:"announced"`       // what a peer of this node has been told
	Aside      bool               `json:"aside,omitempty"` // this node is elected host or standby, and stands aside as it lacks the network
	Problems   []Problem          `json:"problems"`
}

// Hosted names the services whose host this node is.
func (r Report) Hosted() []string {
	return r.named(func(s Service) bool { return s.Host == r.Node })
}

// Backed names the services whose standby this node is, be it for flows of the time when it was the host.
func (r Report) Backed() []string {
	return r.named(func(s Service) bool { return s.Standby == r.Node && s.Host != r.Node })
}

func (r Report) named(which func(Service) bool) (names []string) {
	for _, s := range r.Services {
		if which(s) {
			names = append(names, s.Namespace+"/"+s.Name)
		}
	}
	return names
}

// Session is a BGP session of this node.
type Session struct {
	Network   string          `json:"network"`
	Peer      string          `json:"peer"` // the configured address or interface
	Address   netip.Addr      `json:"address,omitzero"`
	ASN       uint32          `json:"asn"`
	State     string          `json:"state"`
	Up        bool            `json:"up"`
	Ended     bool            `json:"ended,omitempty"` // by us, as the peer sent too much: it stays so until its configuration is another one, or for a while for memory
	Since     time.Time       `json:"since,omitzero"`
	Families  []config.Family `json:"families"`
	Received  int             `json:"received"`
	Accepted  int             `json:"accepted"`
	Announced int             `json:"announced"`
	BFD       string          `json:"bfd,omitempty"`
	BFDSlowed int             `json:"bfdSlowed,omitempty"`
	LastError string          `json:"lastError,omitempty"`
}

// Watched is another node whose silence this one notices.
type Watched struct {
	Node  string `json:"node"`
	Alive bool   `json:"alive"`
}

// Network is a network as this node has it.
type Network struct {
	Name       string `json:"name"`
	VRF        string `json:"vrf,omitempty"`
	Table      uint32 `json:"table"`           // 0: it is not usable
	Usable     bool   `json:"usable"`          // its VRF, its interfaces and its table are there
	Lacks      string `json:"lacks,omitempty"` // why it is not usable
	Learned    int    `json:"learned"`         // routes that peers tell
	Sessions   int    `json:"sessions"`
	SessionsUp int    `json:"sessionsUp"`
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
	More    int            `json:"more,omitempty"`
}

// String writes the problem on one line.
func (p Problem) String() string { return cluster.Problem(p).Error() }

// Pass is what the loop knows of a pass beside the plan.
type Pass struct {
	Began, Ended     time.Time
	Plan             *plan.NodePlan // what it wants; nil: not told
	InForce          bool           // the kernel is as planned: devices, routes, rules and packet filter
	Unknowing        bool           // not all objects are known yet, so nothing is planned
	ConnectionsEnded uint
	ConfigStale      bool
	Draining         bool
	Err              error
	Watched          map[string]bool // nodes, and whether they are alive
	// Announced is what the speaker of each network was told to announce. It lags behind the plan where the kernel is not
	// ready for packets to come.
	Announced map[string][]netip.Prefix
}

// From makes the report of a pass, but for what Publish adds. p is nil where there is no plan yet.
func From(p *plan.NodePlan, problems []cluster.Problem, sessions []bgp.Session, pass Pass) Report {
	if p == nil {
		p = &plan.NodePlan{}
	}
	r := Report{
		Applied: pass.Ended, Duration: pass.Ended.Sub(pass.Began), Ready: pass.InForce, ConfigStale: pass.ConfigStale, Draining: pass.Draining,
		ConnectionsEnded: pass.ConnectionsEnded, Errors: messages(pass.Err),
		Services: make([]Service, 0, p.Services.Len()), Sessions: make([]Session, 0, len(sessions)), Problems: make([]Problem, 0, len(problems)),
	}
	r.Watched = make([]Watched, 0, len(pass.Watched))
	for node, alive := range pass.Watched {
		r.Watched = append(r.Watched, Watched{node, alive})
	}
	slices.SortFunc(r.Watched, func(x, y Watched) int { return strings.Compare(x.Node, y.Node) })
	byService := r.takeProblems(problems)
	for _, s := range sessions {
		s.Families = orEmpty(s.Families)
		r.Sessions = append(r.Sessions, Session(s))
	}
	told := told(p.Speakers, pass.Announced, sessions)
	for s := range p.Services.All() {
		announced := s.Announced
		if untold := func(a netip.Addr) bool { return !told[route{s.Network, a}] }; slices.ContainsFunc(announced, untold) {
			announced = slices.DeleteFunc(slices.Clone(announced), untold)
		}
		r.Services = append(r.Services, Service{
			Namespace: s.Key.Namespace, Name: s.Key.Name, SourceIPBy: sourceIPBy(s),
			Network: s.Network, Host: s.Host, Standby: s.Standby, IngressIPs: orEmpty(s.IngressIPs),
			Endpoints: s.Endpoints, Local: s.Local, Announced: orEmpty(announced), Aside: s.Aside,
			Problems: orEmpty(byService[s.Key.String()]),
		})
	}
	r.Networks = networks(p, sessions)
	return r
}

// takeProblems lists problems, and gives those of each EgressService by its name.
func (r *Report) takeProblems(problems []cluster.Problem) (byService map[string][]Problem) {
	byService, r.ProblemsByReason = map[string][]Problem{}, map[cluster.Reason]int{}
	all, own := budget{}, budget{}
	for _, p := range cluster.SortProblems(slices.Clone(problems)) {
		r.ProblemsByReason[p.Reason]++
		namespace := ""
		if ofService(p.Kind) {
			namespace, _, _ = strings.Cut(p.Object, "/")
			if had := byService[p.Object]; len(had) == 0 || own.takes(namespace) {
				byService[p.Object] = append(had, Problem(p))
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

// unserved names a network that this node should serve, elected as host or standby, and does not have; empty: there is none.
func (r *Report) unserved() string {
	lacks := map[string]string{}
	for _, n := range r.Networks {
		lacks[n.Name] = n.Lacks
	}
	for i := range r.Services {
		if s := &r.Services[i]; (s.Aside || s.role(r.Node) != "") && lacks[s.Network] != "" {
			return s.Network + ": " + lacks[s.Network]
		}
	}
	return ""
}

// orEmpty makes a list that JSON writes as one.
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// messages takes joined errors apart.
func messages(err error) []string {
	list, ok := err.(interface{ Unwrap() []error }) // not errors.As: what wraps a list is a message of its own
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

// ofService says whether objects of this kind are named as the EgressService that they belong to.
func ofService(kind string) bool { return kind == "EgressService" || kind == "Service" }

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

// told is what some peer has been told: what the speakers announce and a session of that family carries.
func told(speakers []plan.Speaker, announced map[string][]netip.Prefix, sessions []bgp.Session) map[route]bool {
	type carrier struct {
		network, peer string
		family        config.Family
	}
	up := map[carrier]bool{}
	for _, s := range sessions {
		for _, f := range s.Families {
			up[carrier{s.Network, s.Peer, f}] = s.Up && s.Announced > 0
		}
	}
	size := 0
	for _, prefixes := range announced {
		size += len(prefixes)
	}
	told := make(map[route]bool, size)
	for _, s := range speakers {
		var carried plan.Families
		for _, p := range s.Peers {
			// An unnumbered peer takes the link-local address as next hop of either family.
			unnumbered := p.Interface != ""
			name := p.Interface
			if !unnumbered {
				name = p.Address.String()
			}
			carried.IPv4 = carried.IPv4 || up[carrier{s.Network, name, config.IPv4Unicast}] && (unnumbered || p.NextHop4.IsValid())
			carried.IPv6 = carried.IPv6 || up[carrier{s.Network, name, config.IPv6Unicast}] && (unnumbered || p.NextHop6.IsValid())
		}
		for _, prefix := range announced[s.Network] {
			if a := prefix.Addr(); a.Is4() && carried.IPv4 || a.Is6() && carried.IPv6 {
				told[route{s.Network, a}] = true
			}
		}
	}
	return told
}

// networks lists the networks of the plan, the usable ones with their table.
func networks(p *plan.NodePlan, sessions []bgp.Session) []Network {
	vrfs, learned := map[uint32]string{}, map[uint32]int{}
	for _, v := range p.VRFs {
		vrfs[v.Table] = v.Name
	}
	for _, r := range p.Routes {
		if !r.Unreachable {
			learned[r.Table]++ // in a network's table, we have no other routes
		}
	}
	all, byName := []Network{}, map[string]int{}
	for _, path := range p.DataPlane.Paths {
		if path.Key.Kind == plan.PathNetwork {
			n := Network{Name: path.Key.Name, VRF: vrfs[path.Table], Table: path.Table, Lacks: p.AbsenceOf(path.Key.Name), Learned: learned[path.Table]}
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
