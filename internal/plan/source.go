package plan

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
)

// source is an object that claims addresses and gives its members a way out of the cluster: the part of an object that its
// kind does not matter for, and the results of planning it.
type source struct {
	id       cluster.ID
	number   uint32 // its index in claims
	disputes int32  // addresses that it claims with others, or for several uses

	selects bool       // it selects members; a Service without an EgressService only claims addresses
	aside   bool       // this node is elected, but lacks the network
	former  bool       // the standby was the host before
	left    bool       // this node was host or standby a moment ago
	parted  string     // the former host that stood by for this node until a moment ago, or the host for which this node did; empty: none
	able    bool       // it can serve, as far as other claims allow it
	has     [2][2]bool // whether it has members, by family and by where
	sends   sends

	created       time.Time
	since         time.Time // when it got a host; without a host: created
	sharing       string    // the key by which objects of several namespaces share an address
	wanted        string    // the network that it names
	nodeSelector  *metav1.LabelSelector
	host, standby string
	term          int64

	network *network     // nil: it names no network that it may use
	claimed []netip.Addr // claimed as seats
	seats   []netip.Addr // those of claimed that it serves, in order
	members []endpoint   // selected pods, sorted
	lost    []netip.Addr // claimed as members, but not won; sorted
	outside []netip.Addr // members in no pod range, sorted

	// Only Services have these.
	clusterIPs   []netip.Addr // claimed
	plain        []netip.Addr // claimed as ingress IPs of a Service without an EgressService
	localTraffic bool
	sourceIPBy   cluster.SourceIPBy

	problems []cluster.Problem

	local int // members on this node
	leads leads
}

// kind reads the objects of one kind of source.
type kind interface {
	// sources iterates over the sources of all objects, in no order. One may occur twice.
	sources(o *cluster.Objects) iter.Seq[cluster.ID]
	// size estimates how many sources there are, and how many addresses they claim.
	size(o *cluster.Objects) (sources, addresses int)
	// changed iterates over the sources that a change concerns, among them those that no longer exist. r holds the objects
	// after the change.
	changed(r *pass, c cluster.Changed) iter.Seq[cluster.ID]
	// exists reports whether a source exists.
	exists(o *cluster.Objects, id cluster.ID) bool
	// read sets the fields of a source that its objects determine, and the raw addresses of the redone. If there is no such
	// object, the source claims nothing afterwards.
	read(r *redone, p *pass)
	// strange returns the Pod that has an address, where that Pod may not be a member of the object.
	strange(h *homes, key cluster.Key, a netip.Addr) stranger
	// words returns the words of problems.
	words() words
}

// words are the parts of problems that differ by kind.
type words struct {
	seats, members, network             string // the fields that name them
	seat                                string // an address that is announced
	seatInvalid, seatTaken, memberTaken cluster.Reason
}

// kinds holds all kinds of sources.
var kinds = [cluster.Claimants]kind{cluster.KindEgressService: egressServices{}, cluster.KindEgressIP: egressIPs{}}

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

var familyNames = [2]string{ipv4: "IPv4", ipv6: "IPv6"}

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

// sourceIP returns the source address of a family with which egress leaves the host: the first seat.
func (s *source) sourceIP(family int) netip.Addr {
	for _, a := range s.seats {
		if familyOf(a) == family {
			return a
		}
	}
	return netip.Addr{}
}

func (s *source) networkName() string {
	if s.network != nil {
		return s.network.name
	}
	return cmp.Or(s.wanted, config.DefaultNetwork)
}

// partner returns the node to which node hands strays: the former host or the standby if node is the host, and the host if it is the
// standby, or was a moment ago.
func (s *source) partner(node string) string {
	switch {
	case s.host == node:
		return cmp.Or(s.parted, s.standby)
	case s.standby == node || s.left:
		return s.host
	}
	return ""
}

// seatedAt reports whether a node is the host or the standby.
func (s *source) seatedAt(node string) bool {
	return s.host == node || s.host != "" && s.standby == node
}

// standsBy reports whether a node is the standby of another one.
func (s *source) standsBy(node string) bool { return s.standby == node && s.host != node }

// runsDaemon reports whether a node runs a daemon, as far as Snapshot.Heard holds that.
func runsDaemon(heard map[string]bool, node string) bool { return heard == nil || heard[node] }

// redone is a source that this pass reads again.
type redone struct {
	*source
	was        *source            // its former state
	addresses  []cluster.Ingress  // raw addresses of seats, in order
	raw        []cluster.Endpoint // raw members
	ordered    []cluster.Endpoint // raw, sorted; nil: not yet
	findings   findings
	election   *cluster.Problem
	candidates []endpoint // addresses that could be pods, sorted
	unfit      bool       // some members are no candidates, which is a problem
	barred     bool       // its objects do not allow it to serve
}

// read reads the objects of a source.
func (r *redone) read(p *pass) {
	r.addresses, r.raw, r.ordered, r.barred, r.findings = nil, nil, nil, false, findings{}
	r.network, r.aside = nil, false
	kinds[r.id.Kind].read(r, p)
	r.readMembers(p.ground)
}

// serve sets who has the seat of a source, and the network that it may use.
func (r *redone) serve(g *ground, choice election.Choice) {
	s := r.source
	r.election = s.seat(choice)
	s.network = g.networkOf(s.id, s.wanted, &r.findings)
	s.standAside(g)
}

// seat sets the nodes that have the seat of a source, and returns the problem of their election.
func (s *source) seat(c election.Choice) *cluster.Problem {
	s.host, s.standby, s.term, s.former = c.Host, c.Standby, c.Term, c.Former
	s.left, s.parted = c.Left, c.Parted
	return c.Problem
}

// standAside gives up the role of this node in a network that it lacks. A host leaves the source to the standby, as if it
// had died. Without a standby that is known to run a daemon, it stays the host and drops packets.
func (s *source) standAside(g *ground) {
	if s.network == nil || s.network.lacks == "" {
		return
	}
	s.aside = s.seatedAt(g.node)
	switch {
	case s.standby == g.node:
		s.standby = ""
	case s.host == g.node && s.standby != "" && runsDaemon(g.heard, s.standby):
		s.host, s.standby, s.former = s.standby, "", false
	}
}

// seatClaims lists the addresses that a source claims as seats; those of a Service without an EgressService are in plain.
func (r *redone) seatClaims(g *ground) (all, plain []netip.Addr) {
	for _, in := range r.addresses {
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

// isAble reports whether a source can serve if no other source claims the same: it has a host, a network that it may use,
// and a source address.
func (r *redone) isAble(g *ground) bool {
	switch {
	case !r.selects:
		return true
	case r.network == nil || r.host == "" || r.barred:
		return false
	}
	return r.sourceIPBy == cluster.SourceIPByNetwork ||
		slices.ContainsFunc(r.claimed, func(a netip.Addr) bool { return !cluster.Within(g.inside, a) })
}

// whose names the use of an address that cannot be an ingress IP because of that; empty: it can be one.
func (g *ground) whose(a netip.Addr) string {
	switch {
	case g.nodeIPs[a] != "":
		return "an address of node " + g.nodeIPs[a] + ": it must belong to no node"
	case g.peers[a] != "":
		return "a BGP peer in network " + g.peers[a]
	}
	return g.away[a]
}

// aloneKnows reports whether whose may name no use of an address on other nodes: no object has it.
func (g *ground) aloneKnows(a netip.Addr) bool {
	if g.nodeIPs[a] == "" {
		return g.peers[a] == "" && !g.apiEndpoints[a]
	}
	for _, n := range g.nodes.All() {
		if slices.Contains(n.Addresses, a) {
			return false
		}
	}
	return true
}

// howToShare explains in a problem how Services of two namespaces share an ingress IP.
const howToShare = "Services of several namespaces share one where each has the annotation metallb.io/allow-shared-ip with the same value"

// settleSeats keeps the addresses that the source can serve. The first source by rank that claims one decides its network
// and the sources that may share it.
func (r *redone) settleSeats(c *claims) {
	s := r.source
	s.seats = nil
	if s.selects {
		s.seats = r.wonSeats(c)
	}
	if slices.Equal(s.seats, s.claimed) {
		s.seats = s.claimed // nearly always equal: keep one slice
	}
}

// wonSeats returns the addresses that the source may serve, and reports why it may not serve the others.
func (r *redone) wonSeats(c *claims) (seats []netip.Addr) {
	for _, in := range r.addresses {
		if a, ok := r.parseSeat(c.ground, in.IP); ok && !slices.Contains(seats, a) && r.winsSeat(c, a, in.IP) {
			seats = append(seats, a)
		}
	}
	return seats
}

// parseSeat parses the address of a seat; false: no source can have it, which is reported.
func (r *redone) parseSeat(g *ground, text string) (a netip.Addr, ok bool) {
	a, err := netip.ParseAddr(text)
	switch why := cluster.Unfit(a); {
	case text == "": // a host name: the election reports it if there is no IP besides
	case err != nil:
		r.refuseSeat(text, ReasonInvalidAddress, "not an IP address")
	case why != "":
		r.refuseSeat(text, ReasonInvalidAddress, "%s cannot be announced nor be a source address", why)
	case g.whose(a) != "":
		had := len(r.findings.problems)
		r.refuseSeat(text, r.words().seatInvalid, "is %s", g.whose(a))
		if g.aloneKnows(a) {
			r.findings.onlyOn(g.node, had)
		}
	default:
		return a, true
	}
	return a, false
}

// winsSeat reports whether the source may serve an address, considering the other claims on it and the cluster's
// ranges. It reports what prevents that as a problem, in which text is the written form of the address.
func (r *redone) winsSeat(c *claims, a netip.Addr, text string) bool {
	s := r.source
	v := c.verdictFor(s, a)
	switch {
	case v.clusterIP:
		r.refuseSeat(text, r.words().seatInvalid, "is the ClusterIP of Service %s", v.cluster)
	case v.owner.over(s):
		r.refuseSeat(text, r.words().seatInvalid, "is an endpoint of %s, which keeps it", v.owner.id)
	case cluster.Within(c.ground.inside, a):
		r.refuseSeat(text, r.words().seatInvalid, "is inside the cluster's range of pod or Service addresses")
	default:
		return r.sharesSeat(v, text)
	}
	return false
}

// sharesSeat reports whether the other sources that claim an address as ingress IP leave it to this one. It reports a conflict.
func (r *redone) sharesSeat(v verdict, text string) bool {
	s := r.source
	switch {
	case s.id.Slot.IsValid():
		return r.ownsSeat(v, text)
	case v.plain.bars(s):
		r.refuseSeat(text, ReasonIngressConflict, "is an ingress IP of Service %s, which has no EgressService; "+howToShare, v.plain.id.Key)
	case v.seat.over(s) && v.network != s.networkName():
		r.refuseSeat(text, ReasonIngressConflict, "is served by %s in network %s; one ingress IP belongs to one network",
			v.seat.id, v.network)
	case v.seat.bars(s):
		r.refuseSeat(text, ReasonIngressConflict, "is served by %s; "+howToShare, v.seat.id)
	default:
		return true
	}
	return false
}

// ownsSeat is sharesSeat for a source that shares its address with none.
func (r *redone) ownsSeat(v verdict, text string) bool {
	for _, owner := range []rank{v.plain, v.seat} {
		if owner.bars(r.source) {
			id := owner.id.String()
			if owner == v.plain {
				id = "Service " + owner.id.Key.String()
			}
			r.refuseSeat(text, r.words().seatTaken, "is the %s of %s, which keeps it: choose another address",
				kinds[owner.id.Kind].words().seat, id)
			return false
		}
	}
	return true
}

func (r *redone) words() words { return kinds[r.id.Kind].words() }

func (r *redone) refuseSeat(value string, reason cluster.Reason, format string, args ...any) {
	r.findings.sample(r.id, r.words().seats, value, reason, format, args...)
}

// readMembers finds the candidates among the raw members.
func (r *redone) readMembers(g *ground) {
	r.candidates, r.unfit = make([]endpoint, 0, len(r.raw)), false
	for _, e := range r.raw {
		a, reject := g.candidate(e)
		if a.IsValid() {
			r.candidates = append(r.candidates, endpoint{a, e.Node})
		}
		r.unfit = r.unfit || reject != nil
	}
	r.rejectUnfit(g)
	if !slices.IsSortedFunc(r.candidates, endpoint.compare) {
		slices.SortFunc(r.candidates, endpoint.compare)
	}
	r.candidates = uniqueAddresses(r.candidates)
}

// rejectUnfit reports the defects of members.
func (r *redone) rejectUnfit(g *ground) {
	if !r.unfit {
		return
	}
	for _, e := range r.inOrder() {
		if _, reject := g.candidate(e); reject != nil {
			reject(r, e.Address)
		}
	}
}

// uniqueAddresses drops endpoints whose address a former one in the sorted slice has. It overwrites the slice.
func uniqueAddresses(all []endpoint) []endpoint {
	kept := all[:0]
	for _, e := range all {
		if last := len(kept) - 1; last < 0 || kept[last].addr != e.addr {
			kept = append(kept, e)
		} else if kept[last].node != e.node {
			kept[last].node = "" // several nodes are named, and any may be right
		}
	}
	return kept
}

// inOrder lists the members, as they are written, in an order that does not depend on the source of objects.
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
	r.findings.sample(r.id, r.words().members, value, reason, format, args...)
}

// settleMembers keeps the candidates that are pods of the source's namespace and that no source of a higher rank claims.
func (r *redone) settleMembers(c *claims) {
	s := r.source
	s.members, s.lost = r.candidates, nil
	if s.disputes == 0 && !r.someStrange(c) {
		return
	}
	s.members = nil
	for _, e := range r.candidates {
		if r.refusal(c, e.addr) == nil {
			s.members = append(s.members, e)
		} else {
			s.lost = append(s.lost, e.addr)
		}
	}
	r.reportLost(c)
}

// someStrange reports whether some candidate is the address of a BGP peer or of a Pod that may not be a member.
func (r *redone) someStrange(c *claims) bool {
	return slices.ContainsFunc(r.candidates, func(e endpoint) bool {
		return c.ground.peers[e.addr] != "" || c.strange(r.source, e.addr).is
	})
}

// reportLost reports why candidates are no members. Its problems name addresses as they are written.
func (r *redone) reportLost(c *claims) {
	if len(r.lost) == 0 {
		return
	}
	for _, e := range r.inOrder() {
		a, err := netip.ParseAddr(e.Address)
		if _, lost := slices.BinarySearchFunc(r.lost, a, netip.Addr.Compare); err == nil && lost {
			r.refusal(c, a)(e.Address)
		}
	}
}

// refusal returns a function that reports why a candidate is no member of this source, given the written form of its
// address; nil: it is one.
func (r *redone) refusal(c *claims, a netip.Addr) func(text string) {
	v := c.verdictFor(r.source, a)
	switch s, g := r.source, c.ground; {
	case v.clusterIP:
		return func(text string) {
			r.refuse(text, ReasonInvalidAddress, "is the ClusterIP of Service %s, not a pod's address", v.cluster)
		}
	case v.seat.is && v.seat.compare(s.rank()) <= 0:
		return func(text string) {
			r.refuse(text, ReasonInvalidAddress, "is an %s of %s, not a pod's address", kinds[v.seat.id.Kind].words().seat, v.seat.id)
		}
	case g.peers[a] != "":
		return func(text string) {
			r.refuse(text, ReasonInvalidAddress, "is a BGP peer in network %s, not a pod", g.peers[a])
		}
	case v.owner.over(s):
		return func(text string) {
			r.refuse(text, r.words().memberTaken, "is selected by %s, which keeps it", v.owner.id)
		}
	}
	if at := c.strange(r.source, a); at.is {
		return func(text string) {
			r.refuse(text, ReasonForeignEndpoint, "is the address of Pod %s: an EgressService selects Pods of its own namespace", at.pod)
		}
	}
	return nil
}

// settle decides which of its claims a source wins, and collects its problems.
func (r *redone) settle(c *claims) {
	s, g := r.source, c.ground
	start := len(r.findings.problems)
	r.settleSeats(c)
	badSeats := len(r.findings.problems) > start
	start = len(r.findings.problems)
	r.settleMembers(c)
	s.locate(g.node)
	r.findSourceless()
	badMembers := r.unfit || len(r.findings.problems) > start
	if p := r.election; p != nil && !explained(p.Reason, badSeats, badMembers) {
		r.findings.problems = append(r.findings.problems, *p)
	}
	r.findStrays(g)
	r.findings.summarize()
	s.problems = r.findings.problems
	s.leads = s.leading(g.node)
}

// explained reports whether problems of single addresses explain why the election found none.
func explained(reason cluster.Reason, badSeats, badMembers bool) bool {
	switch reason {
	case cluster.ReasonNoIngressIP, cluster.ReasonAddressConflict, cluster.ReasonEgressIPConflict:
		return badSeats
	}
	return reason == cluster.ReasonNoEndpoints && badMembers
}

// locate counts the members by family, and as seen from a node.
func (s *source) locate(node string) {
	s.has, s.local = [2][2]bool{}, 0
	for _, e := range s.members {
		s.has[familyOf(e.addr)][e.place(node)] = true
		if e.node == node {
			s.local++
		}
	}
}

// findSourceless reports families in which the members have no source address.
func (r *redone) findSourceless() {
	s := r.source
	if s.sourceIPBy == cluster.SourceIPByNetwork || s.host == "" || len(s.seats) == 0 {
		return
	}
	for family, name := range familyNames {
		if s.has[family] != [2]bool{} && !s.sourceIP(family).IsValid() {
			r.findings.of(s.id, "", "", cluster.ReasonNoIngressIP,
				"its Service has %[1]s endpoints but no %[1]s ingress IP: their %[1]s packets have no source address", name)
		}
	}
}

// findStrays finds members in no pod range. They are strays if pod ranges of their family are known: any user who may
// write EndpointSlices can list an address.
func (r *redone) findStrays(g *ground) {
	r.outside = g.outsideRanges(r.members)
	for _, a := range r.outside {
		if g.stray(a) {
			r.refuse(a.String(), ReasonOutsidePodRanges,
				"is in no node's podCIDRs: it is served, but other pods reach it as something outside of the cluster; "+
					"add its range to podCIDRs of the configuration if it is a pod")
		}
	}
}

// outsideRanges lists the addresses of endpoints that are in no range of pods.
func (g *ground) outsideRanges(members []endpoint) (outside []netip.Addr) {
	var last netip.Prefix // successive endpoints are often in one range
	for _, e := range members {
		if last.IsValid() && last.Contains(e.addr) {
			continue
		}
		if last = g.rangeOf(e.addr); !last.IsValid() {
			outside = append(outside, e.addr)
		}
	}
	return outside
}

// rangeOf returns the range of pods that contains an address; invalid: there is no such range.
func (g *ground) rangeOf(a netip.Addr) netip.Prefix {
	i, found := cluster.SearchPrefix(g.ranges, a)
	if !found {
		i--
	}
	if i >= 0 && g.ranges[i].Contains(a) {
		return g.ranges[i]
	}
	return netip.Prefix{}
}

// stray reports whether other pods' packets reach an endpoint outside all pod ranges as a destination outside the cluster.
func (g *ground) stray(a netip.Addr) bool {
	return g.ranged.has(a.Is4())
}

// row returns the source for display.
func (s *source) row(f *frame) Service {
	row := Service{
		Kind: s.id.Kind, Key: s.id.Key, Slot: s.id.Slot, SourceIPBy: s.sourceIPBy, Network: s.networkName(),
		Host: s.host, Standby: s.standby, IngressIPs: s.seats, Endpoints: len(s.members), Local: s.local, Aside: s.aside,
		Parted: s.parted,
	}
	if f.announced(s) {
		row.Announced = s.seats
	}
	row.OnLink = f.answersOn(s)
	return row
}

// fewProblems bounds the problems of one object that differ in their values only. A user who may write EndpointSlices can
// cause a hundred thousand of them. The first few are listed, and the last listed one carries the number of the others.
const fewProblems = 3

// findings are problems that one part of the plan finds.
type findings struct {
	problems []cluster.Problem
	seen     map[sameProblem]*samples // nil where nothing is counted
}

// sameProblem is the key under which problems are counted together.
type sameProblem struct {
	object cluster.ID
	field  string
	reason cluster.Reason
	format string
}

// samples counts problems and holds the index of the last listed one.
type samples struct{ count, last int }

func (f *findings) problem(kind, object, field, value string, reason cluster.Reason, format string, args ...any) {
	f.problems = append(f.problems, cluster.Problem{
		Kind: kind, Object: object, Field: field, Value: cluster.Clip(value), Reason: reason, Message: fmt.Sprintf(format, args...),
	})
}

// of adds a problem of an object.
func (f *findings) of(id cluster.ID, field, value string, reason cluster.Reason, format string, args ...any) {
	f.problem(id.Kind.String(), id.Key.String(), field, value, reason, format, args...)
}

// onlyOn says of the problems from an index on that other nodes may not have them.
func (f *findings) onlyOn(node string, from int) {
	for i := range f.problems[from:] {
		f.problems[from+i].Node = node
	}
}

// sample adds a problem of an object, or only counts it once fewProblems of its kind are listed. Callers should pass
// the values in an order that depends on the values only.
func (f *findings) sample(object cluster.ID, field, value string, reason cluster.Reason, format string, args ...any) {
	same := sameProblem{object, field, reason, format}
	of := f.seen[same]
	if of == nil {
		if f.seen == nil {
			f.seen = map[sameProblem]*samples{}
		}
		of = &samples{}
		f.seen[same] = of
	}
	if of.count++; of.count <= fewProblems {
		of.last = len(f.problems)
		f.of(object, field, value, reason, format, args...)
	}
}

// summarize stores in the last listed problem of each kind how many more there are.
func (f *findings) summarize() {
	for _, of := range f.seen {
		if more := of.count - fewProblems; more > 0 {
			f.problems[of.last].More = more
		}
	}
	f.seen = nil
}

// Reasons of problems that planning finds.
const (
	ReasonPathsExhausted    cluster.Reason = "PathsExhausted"
	ReasonNoARPFamily       cluster.Reason = "NoARPFamily"
	ReasonVRFMissing        cluster.Reason = "VRFMissing"
	ReasonInterfaceMissing  cluster.Reason = "InterfaceMissing"
	ReasonTableMismatch     cluster.Reason = "TableMismatch"
	ReasonVLANMismatch      cluster.Reason = "VLANMismatch"
	ReasonNetworkNotFound   cluster.Reason = "NetworkNotFound"
	ReasonNetworkNotAllowed cluster.Reason = "NetworkNotAllowed"
	ReasonInvalidAddress    cluster.Reason = "InvalidAddress"
	ReasonIngressConflict   cluster.Reason = "IngressConflict"
	ReasonForeignEndpoint   cluster.Reason = "ForeignEndpoint"
	ReasonEndpointConflict  cluster.Reason = "EndpointConflict"
	ReasonPodConflict       cluster.Reason = "PodConflict"
	ReasonUnknownNode       cluster.Reason = "UnknownNode"
	ReasonOutsidePodRanges  cluster.Reason = "OutsidePodRanges"
	ReasonNoRoute           cluster.Reason = "NoRoute"
	ReasonHostUnreachable   cluster.Reason = "HostUnreachable"
	ReasonSourceMissing     cluster.Reason = "SourceAddressMissing"
	ReasonManyAddresses     cluster.Reason = "ManyAddresses"
	ReasonNoResolver        cluster.Reason = "NoResolver"
)
