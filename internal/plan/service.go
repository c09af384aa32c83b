package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
)

// service is a Service, with its EgressService if it has one, and the results of planning it.
type service struct {
	key      cluster.Key
	id       uint32
	disputes int32 // addresses that it claims with others, or for several things

	selects      bool // there is an EgressService
	localTraffic bool
	former       bool       // the standby was the host before
	aside        bool       // this node is elected, but lacks the network
	has          [2][2]bool // whether it has endpoints, by family and by where
	sends        sends

	created       time.Time
	since         time.Time // when it got a host; without an EgressService: when the Service was created
	able          bool      // it can serve, as far as other claims allow it
	sharing       string    // the sharing key of its Service
	sourceIPBy    cluster.SourceIPBy
	wanted        string // the network that it names
	nodeSelector  *metav1.LabelSelector
	host, standby string
	term          int64

	network    *network     // nil: it names no network that it may use
	clusterIPs []netip.Addr // claimed
	addresses  []netip.Addr // claimed as ingress IPs
	plain      []netip.Addr // claimed as ingress IPs of a Service without an EgressService
	ingress    []netip.Addr // those of addresses that it serves, in order
	endpoints  []endpoint   // selected pods, sorted
	lost       []netip.Addr // claimed as endpoints, but not won; sorted
	outside    []netip.Addr // endpoints in no pod range, sorted
	problems   []cluster.Problem

	local int // endpoints on this node
	leads leads
}

type endpoint struct {
	addr netip.Addr
	node string // empty: unknown
}

func (e endpoint) compare(o endpoint) int { return e.addr.Compare(o.addr) }

// on reports whether the endpoint is or may be on a node.
func (e endpoint) on(node string) bool { return e.node == node || e.node == "" }

// Indices of has and of ways.
const (
	ipv4, ipv6      = 0, 1
	elsewhere, here = 0, 1
)

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

func (e endpoint) place(node string) int {
	if e.on(node) {
		return here
	}
	return elsewhere
}

// source returns the source address of a family with which egress leaves the host: the first ingress IP.
func (s *service) source(family int) netip.Addr {
	for _, a := range s.ingress {
		if familyOf(a) == family {
			return a
		}
	}
	return netip.Addr{}
}

func (s *service) networkName() string {
	if s.network != nil {
		return s.network.name
	}
	if s.wanted != "" {
		return s.wanted
	}
	return config.DefaultNetwork
}

// partner returns the standby if node is the host, and the host if node is the standby.
func (s *service) partner(node string) string {
	switch node {
	case s.host:
		return s.standby
	case s.standby:
		return s.host
	}
	return ""
}

// redone is a service that this pass reads again.
type redone struct {
	*service
	was        *service // its former state
	spec       cluster.Service
	raw        []cluster.Endpoint
	ordered    []cluster.Endpoint // raw, sorted; nil: not yet
	findings   findings
	election   *cluster.Problem
	candidates []endpoint // addresses that could be pods, sorted
	unfit      bool       // some endpoints are no candidates, which is a problem
}

// read copies a service's fields from its objects.
func (r *redone) read(g *ground, o *cluster.Objects, choice election.Choice) {
	s := r.service
	spec, selects := o.EgressServices.Get(s.key)
	r.spec = o.Services.At(s.key)
	r.raw, r.ordered = nil, nil
	s.clusterIPs = r.spec.ClusterIPs
	s.selects = selects
	s.created, s.sourceIPBy, s.wanted, s.nodeSelector = spec.Created, spec.SourceIPBy, spec.Network, spec.NodeSelector
	s.localTraffic, s.sharing = r.spec.LocalTraffic, r.spec.SharingKey
	s.since = election.Since(spec)
	s.host, s.standby, s.term, r.election = choice.Host, choice.Standby, choice.Term, choice.Problem
	s.former = choice.Former
	s.network, r.findings, s.aside = nil, findings{}, false
	if !selects {
		s.host, s.standby, s.term, r.election = "", "", 0, nil
		s.former = false
		s.created, s.since = r.spec.Created, r.spec.Created
		return
	}
	r.raw = o.Endpoints.At(s.key)
	s.network = g.networkOf(s.key, s.wanted, &r.findings)
	s.standAside(g)
}

// standAside gives up the role of this node in a network that it lacks. A host leaves the service to the standby, as if it
// had died. Without a standby that is known to run a daemon, it stays the host and drops packets.
func (s *service) standAside(g *ground) {
	if s.network == nil || s.network.lacks == "" {
		return
	}
	s.aside = s.host == g.node || s.host != "" && s.standby == g.node
	switch {
	case s.standby == g.node:
		s.standby = ""
	case s.host == g.node && s.standby != "" && (g.heard == nil || g.heard[s.standby]):
		s.host, s.standby, s.former = s.standby, "", false
	}
}

// ingressClaims lists the addresses that a service claims as ingress IPs; those of a Service without an EgressService are
// in plain.
func (r *redone) ingressClaims(g *ground) (all, plain []netip.Addr) {
	if !r.spec.LoadBalancer {
		return nil, nil
	}
	for _, in := range r.spec.Ingress {
		a, err := netip.ParseAddr(in.IP)
		if err == nil && cluster.Unfit(a) == "" && g.whose(a) == "" && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	if !r.selects {
		return nil, all
	}
	return all, nil
}

// isAble reports whether a service can serve if no other service claims the same: it has a host, a network that it may use,
// and a source address.
func (r *redone) isAble(g *ground) bool {
	switch {
	case !r.selects:
		return true
	case r.network == nil || r.host == "" || !r.spec.LoadBalancer:
		return false
	}
	return r.sourceIPBy == cluster.SourceIPByNetwork ||
		slices.ContainsFunc(r.addresses, func(a netip.Addr) bool { return !within(g.inside, a) })
}

// whose names the use of an address that cannot be an ingress IP because of that; empty: it can be one.
func (g *ground) whose(a netip.Addr) string {
	switch {
	case g.nodeIPs[a] != "":
		return "an address of node " + g.nodeIPs[a] + ": an ingress IP must belong to no node"
	case g.peers[a] != "":
		return "a BGP peer in network " + g.peers[a]
	}
	return g.away[a]
}

// howToShare explains in a problem how Services of two namespaces share an ingress IP.
const howToShare = "Services of several namespaces share one where each has the annotation metallb.io/allow-shared-ip with the same value"

// settleIngress keeps the ingress IPs that the service can serve. The first service by rank that claims an IP decides its
// network and the services that may share it.
func (r *redone) settleIngress(c *claims) {
	s := r.service
	s.ingress = nil
	if !s.selects || !r.spec.LoadBalancer {
		return
	}
	for _, in := range r.spec.Ingress {
		if in.IP == "" {
			continue // a host name: the election reports it if there is no IP besides
		}
		if a, ok := r.ingressIP(c.ground, in.IP); ok && !slices.Contains(s.ingress, a) && r.winsIngress(c, a, in.IP) {
			s.ingress = append(s.ingress, a)
		}
	}
	if slices.Equal(s.ingress, s.addresses) {
		s.ingress = s.addresses // nearly always equal: keep one slice
	}
}

// ingressIP parses an ingress IP; false: no Service can have it, which is reported.
func (r *redone) ingressIP(g *ground, text string) (a netip.Addr, ok bool) {
	a, err := netip.ParseAddr(text)
	switch why := cluster.Unfit(a); {
	case err != nil:
		r.refuseIngress(text, ReasonInvalidAddress, "not an IP address")
	case why != "":
		r.refuseIngress(text, ReasonInvalidAddress, "%s cannot be announced nor be a source address", why)
	case g.whose(a) != "":
		r.refuseIngress(text, ReasonInvalidAddress, "is %s", g.whose(a))
	default:
		return a, true
	}
	return a, false
}

// winsIngress reports whether the service may serve an ingress IP, considering the other claims on it and the cluster's
// ranges. It reports what prevents that as a problem, in which text is the written form of the address.
func (r *redone) winsIngress(c *claims, a netip.Addr, text string) bool {
	s := r.service
	var v verdict
	if s.disputes > 0 {
		v = c.verdict(a)
	}
	switch {
	case v.clusterIP:
		r.refuseIngress(text, ReasonInvalidAddress, "is the ClusterIP of Service %s", v.cluster)
	case v.owner.over(s):
		r.refuseIngress(text, ReasonInvalidAddress, "is an endpoint of EgressService %s, which keeps it", v.owner.key)
	case within(c.ground.inside, a):
		r.refuseIngress(text, ReasonInvalidAddress, "is inside the cluster's range of pod or Service addresses")
	case v.plain.over(s) && !v.plain.shares(s):
		r.refuseIngress(text, ReasonIngressConflict, "is an ingress IP of Service %s, which has no EgressService; "+howToShare, v.plain.key)
	case v.ingress.over(s) && v.network != s.networkName():
		r.refuseIngress(text, ReasonIngressConflict, "is served by EgressService %s in network %s; one ingress IP belongs to one network",
			v.ingress.key, v.network)
	case v.ingress.over(s) && !v.ingress.shares(s):
		r.refuseIngress(text, ReasonIngressConflict, "is served by EgressService %s; "+howToShare, v.ingress.key)
	default:
		return true
	}
	return false
}

func (r *redone) refuseIngress(value string, reason cluster.Reason, format string, args ...any) {
	r.findings.sample(r.key, "status.loadBalancer.ingress", value, reason, format, args...)
}

// readEndpoints finds the candidates among the endpoints.
func (r *redone) readEndpoints(g *ground) {
	r.candidates, r.unfit = make([]endpoint, 0, len(r.raw)), false
	for _, e := range r.raw {
		a, reject := g.candidate(e)
		if a.IsValid() {
			r.candidates = append(r.candidates, endpoint{a, e.Node})
		}
		r.unfit = r.unfit || reject != nil
	}
	if r.unfit {
		for _, e := range r.inOrder() {
			if _, reject := g.candidate(e); reject != nil {
				reject(r, e.Address)
			}
		}
	}
	if !slices.IsSortedFunc(r.candidates, endpoint.compare) {
		slices.SortFunc(r.candidates, endpoint.compare)
	}
	kept := r.candidates[:0]
	for _, e := range r.candidates {
		if last := len(kept) - 1; last < 0 || kept[last].addr != e.addr {
			kept = append(kept, e)
		} else if kept[last].node != e.node {
			kept[last].node = "" // several nodes are named, and any may be right
		}
	}
	r.candidates = kept
}

// inOrder lists the endpoints, as they are written, in an order that does not depend on the source of objects.
func (r *redone) inOrder() []cluster.Endpoint {
	if r.ordered == nil {
		r.ordered = slices.Clone(r.raw)
		slices.SortFunc(r.ordered, func(x, y cluster.Endpoint) int {
			return cmp.Or(strings.Compare(x.Address, y.Address), strings.Compare(x.Node, y.Node), cmp.Compare(x.Target, y.Target))
		})
		r.ordered = slices.Compact(r.ordered)
	}
	return r.ordered
}

func (r *redone) refuse(value string, reason cluster.Reason, format string, args ...any) {
	r.findings.sample(r.key, "endpoints", value, reason, format, args...)
}

// settleEndpoints keeps the candidates that are pods of the service's namespace and that no service of a higher rank claims.
func (r *redone) settleEndpoints(c *claims) {
	s, g := r.service, c.ground
	s.endpoints, s.lost = r.candidates, nil
	strange := func(e endpoint) bool { return g.peers[e.addr] != "" || c.homes.strange(e.addr, s.key.Namespace).is }
	if s.disputes == 0 && !slices.ContainsFunc(r.candidates, strange) {
		return
	}
	s.endpoints = nil
	for _, e := range r.candidates {
		if r.refusal(c, e.addr) == nil {
			s.endpoints = append(s.endpoints, e)
		} else {
			s.lost = append(s.lost, e.addr)
		}
	}
	if len(s.lost) == 0 {
		return
	}
	for _, e := range r.inOrder() { // the problems name addresses as they are written
		a, err := netip.ParseAddr(e.Address)
		if _, lost := slices.BinarySearchFunc(s.lost, a, netip.Addr.Compare); err == nil && lost {
			r.refusal(c, a)(e.Address)
		}
	}
}

// refusal returns a function that reports why a candidate is no endpoint of this service, given the written form of its
// address; nil: it is one.
func (r *redone) refusal(c *claims, a netip.Addr) func(text string) {
	var v verdict
	if r.disputes > 0 && c.several[a] != nil {
		v = c.verdict(a)
	}
	switch s, g := r.service, c.ground; {
	case v.clusterIP:
		return func(text string) {
			r.refuse(text, ReasonInvalidAddress, "is the ClusterIP of Service %s, not a pod's address", v.cluster)
		}
	case v.ingress.is && v.ingress.compare(s.rank()) <= 0:
		return func(text string) {
			r.refuse(text, ReasonInvalidAddress, "is an ingress IP of EgressService %s, not a pod's address", v.ingress.key)
		}
	case g.peers[a] != "":
		return func(text string) {
			r.refuse(text, ReasonInvalidAddress, "is a BGP peer in network %s, not a pod", g.peers[a])
		}
	case v.owner.over(s):
		return func(text string) {
			r.refuse(text, ReasonEndpointConflict, "is selected by EgressService %s, which keeps it", v.owner.key)
		}
	}
	if at := c.homes.strange(a, r.key.Namespace); at.is {
		return func(text string) {
			r.refuse(text, ReasonForeignEndpoint, "is the address of Pod %s: an EgressService selects Pods of its own namespace", at.pod)
		}
	}
	return nil
}

// settle decides which of its claims a service wins, and collects its problems.
func (r *redone) settle(c *claims) {
	s, g := r.service, c.ground
	start := len(r.findings.problems)
	r.settleIngress(c)
	badIngress := len(r.findings.problems) > start
	start = len(r.findings.problems)
	r.settleEndpoints(c)
	r.look(g)
	badEndpoints := r.unfit || len(r.findings.problems) > start
	if p := r.election; p != nil {
		explained := p.Reason == cluster.ReasonNoIngressIP && badIngress || p.Reason == cluster.ReasonNoEndpoints && badEndpoints
		if !explained { // otherwise the problems of single addresses explain why none is left
			r.findings.problems = append(r.findings.problems, *p)
		}
	}
	r.findStrays(g)
	r.findings.summarize()
	s.problems = r.findings.problems
	s.leads = s.leading(g.node)
}

// look counts where the endpoints are, and reports families in which they have no source.
func (r *redone) look(g *ground) {
	s := r.service
	s.has, s.local = [2][2]bool{}, 0
	for _, e := range s.endpoints {
		s.has[familyOf(e.addr)][e.place(g.node)] = true
		if e.node == g.node {
			s.local++
		}
	}
	if s.sourceIPBy == cluster.SourceIPByNetwork || s.host == "" || len(s.ingress) == 0 {
		return
	}
	for family, name := range [...]string{"IPv4", "IPv6"} {
		if s.has[family] != [2]bool{} && !s.source(family).IsValid() {
			r.findings.problem("EgressService", s.key.String(), "", "", cluster.ReasonNoIngressIP,
				"its Service has %[1]s endpoints but no %[1]s ingress IP: their %[1]s packets have no source address", name)
		}
	}
}

// findStrays finds endpoints in no pod range. They are strays if pod ranges of their family are known: any user who may
// write EndpointSlices can list an address.
func (r *redone) findStrays(g *ground) {
	s := r.service
	s.outside = nil
	var last netip.Prefix // successive endpoints are often in one range
	for _, e := range s.endpoints {
		if last.IsValid() && last.Contains(e.addr) {
			continue
		}
		i, found := searchPrefixes(g.ranges, e.addr)
		if !found {
			i--
		}
		if i >= 0 && g.ranges[i].Contains(e.addr) {
			last = g.ranges[i]
			continue
		}
		s.outside = append(s.outside, e.addr)
		if g.stray(e.addr) {
			r.findings.sample(s.key, "endpoints", e.addr.String(), ReasonOutsidePodRanges,
				"is in no node's podCIDRs: it is served, but other pods reach it as something outside of the cluster; "+
					"add its range to clusterCIDRs if it is a pod")
		}
	}
}

// stray reports whether other pods' packets reach an endpoint outside all pod ranges as a destination outside the cluster.
func (g *ground) stray(a netip.Addr) bool {
	if a.Is4() {
		return g.ranged.IPv4
	}
	return g.ranged.IPv6
}

// row returns the service for display.
func (s *service) row(announced bool) Service {
	row := Service{
		Key: s.key, SourceIPBy: s.sourceIPBy, Network: s.networkName(), Host: s.host, Standby: s.standby,
		IngressIPs: s.ingress, Endpoints: len(s.endpoints), Local: s.local, Aside: s.aside,
	}
	if announced {
		row.Announced = s.ingress
	}
	return row
}
