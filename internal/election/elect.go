package election

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/sorted"
)

// Policy limits the choice of hosts.
type Policy struct {
	// Hosts is the number of candidates among which hosts and standbys are chosen; 0: all of them. Each node that is a host or
	// standby costs others a path, a BGP path and a BFD session.
	Hosts int
	// Alone reports that every node elects for itself, and that nothing records the choices. Then a seat's choice depends on
	// its own object and on the nodes, and not on the number of seats that a node has: a change of one object moves no other.
	Alone bool
	// Networks are those of the configuration, by which an egress IP has its network.
	Networks []config.Network
}

// same reports whether two policies are equal; the networks are, if they are of one configuration.
func (p Policy) same(o Policy) bool {
	return p.Hosts == o.Hosts && p.Alone == o.Alone && sorted.OneSlice(p.Networks, o.Networks)
}

// PolicyOf returns the policy of a configuration.
func PolicyOf(c *config.Config) Policy {
	return Policy{Hosts: c.Election.Hosts, Alone: c.Source.Manifests != "", Networks: c.Networks}
}

// Elect chooses hosts as a policy without limits does.
func Elect(objects cluster.Objects, reports map[string]cluster.Report) map[Seat]Choice {
	return Policy{}.Elect(objects, reports)
}

// Elect chooses hosts for the seats of all objects. reports holds the nodes' reports: only a node that reports the network as
// usable may be host or standby, Ready or not. If nodes do not report, reports is nil and every Ready node may be.
//
// Of the candidates, Elect prefers nodes that are not reported dead, that have a route for every family that the object needs,
// that have reported recently, that are Ready, that are not draining and that are not cordoned, in this order of importance.
// The host and the standby in an object's status stay as long as no other candidate is preferred to them; if the host does not
// stay, the standby becomes the host. The remaining seats are assigned one by one, the oldest first, to the node with the
// fewest seats; a hash decides among nodes with equally few, so that seats spread. With Policy.Hosts they spread over that many
// of the candidates only: first those that are host or standby of any seat, then by a hash of their names. With Policy.Alone,
// hashes alone decide. Seats of one network that have an address in common share the host; see share for newcomers.
//
// A standby lacks nothing that the host has, and is neither dead nor draining. A host or standby whose report is old stays: a new leader
// presumes no node dead.
func (p Policy) Elect(objects cluster.Objects, reports map[string]cluster.Report) map[Seat]Choice {
	e := newElector(objects, reports, p)
	seats := bySeniority(&objects)
	for _, s := range seats {
		e.employ(s.host)
		e.employ(s.standby)
	}
	return e.choose(seats)
}

// bySeniority lists the seats of all objects by precedence: by kind, then the older object first, then by key.
func bySeniority(o *cluster.Objects) (all []seated) {
	for _, k := range kinds {
		if of := byAge(o, k); all == nil {
			all = of
		} else {
			all = append(all, of...)
		}
	}
	return all
}

// seated is a seat with its tenure.
type seated struct {
	Seat
	tenure
}

// byAge lists the seats of one kind, those of the older objects first, then by key.
func byAge(o *cluster.Objects, k kind) (all []seated) {
	count := 0
	for range k.seats(o) {
		count++
	}
	all = make([]seated, 0, count)
	for s := range k.seats(o) {
		t, _ := k.tenure(o, s)
		all = append(all, seated{s, t})
	}
	slices.SortFunc(all, func(a, b seated) int {
		return cmp.Or(a.created.Compare(b.created), a.Seat.Compare(b.ID))
	})
	return all
}

// elector holds the data that all choices share. It identifies nodes by numbers, because ten thousand seats may compare
// a thousand nodes each.
type elector struct {
	objects   cluster.Objects
	reports   map[string]cluster.Report // nil: nodes do not report
	nodes     []string                  // those that are Ready or report, sorted
	hashes    []uint64                  // of their names
	everyNode []int
	matching  map[match][]int
	nodeAddrs map[netip.Addr]bool
	policy    Policy
	load      []int  // seats by host
	employed  []bool // nodes that are host or standby of some seat
	few       map[preference][]int
	presumed  map[awaited]bool
	dead      map[string]bool
	seen      map[string]bool     // alive, by other nodes
	apart     map[string][]string // by node, living nodes that it reports dead or that report it dead
	lacks     map[demand][]lack
	beside    map[cluster.ID][]int // hosts of the addresses of an object that has a seat for each, in the present choice
}

// preference is the key under which preferred candidates are cached, until another node is employed.
type preference struct {
	candidates *int // the first one: lists of candidates are immutable
	count      int
	lacks      *lack
	lacking    lack
}

// match is the key under which matching nodes are cached.
type match struct {
	selector string
	network  string // empty: any
}

// none stands for no node.
const none = -1

func newElector(objects cluster.Objects, reports map[string]cluster.Report, policy Policy) *elector {
	e := &elector{
		objects: objects, reports: reports, policy: policy, matching: map[match][]int{}, nodeAddrs: map[netip.Addr]bool{},
		lacks: map[demand][]lack{}, apart: map[string][]string{}, few: map[preference][]int{},
	}
	e.dead, e.seen = judge(reports)
	e.readApart()
	e.readNodes()
	e.presume()
	return e
}

// presume adds to the reports that a host can serve by the network of its object, as long as it has not reported about the network that
// the object has by now. After a change of the network the host would move to the node that reports first.
func (e *elector) presume() {
	reported := e.reports
	for _, k := range kinds {
		for a := range k.awaited(&e.objects, e.policy.Networks, reported) {
			if len(e.presumed) == 0 {
				e.reports, e.presumed = maps.Clone(reported), map[awaited]bool{}
			}
			if r := e.reports[a.node]; !e.presumed[a] {
				networks := map[string]cluster.NetworkState{a.network: {Usable: true, IPv4: true, IPv6: true}}
				maps.Copy(networks, r.Networks)
				r.Networks, e.presumed[a] = networks, true
				e.reports[a.node] = r
			}
		}
	}
}

// awaited is a node that has a seat and has not reported yet about the network that the seat has by now.
type awaited struct{ node, network string }

// readApart finds the living nodes that do not hear each other.
func (e *elector) readApart() {
	for name, r := range e.reports {
		for _, other := range r.Dead {
			if !e.dead[name] && !e.dead[other] {
				e.apart[name], e.apart[other] = append(e.apart[name], other), append(e.apart[other], name)
			}
		}
	}
}

// readNodes numbers the nodes that are Ready or report, and collects the addresses of all nodes. A node is not Ready when its kubelet is
// stopped or does not reach the API server: if its daemon does, the node forwards as before.
func (e *elector) readNodes() {
	for name, n := range e.objects.Nodes.All() {
		for _, a := range n.Addresses {
			e.nodeAddrs[a] = true
		}
		if r, reports := e.reports[name]; cluster.Electable(n, r, reports) {
			e.nodes = append(e.nodes, name)
		}
	}
	slices.Sort(e.nodes)
	e.load, e.employed = make([]int, len(e.nodes)), make([]bool, len(e.nodes))
	for i, name := range e.nodes {
		e.everyNode = append(e.everyNode, i)
		e.hashes = append(e.hashes, hash(name))
	}
}

// choose returns the choices for seats, which are in order of precedence. No other seat has one of their addresses.
func (e *elector) choose(seats []seated) map[Seat]Choice {
	e.beside = nil
	choices := make(map[Seat]Choice, len(seats))
	var contenders []*contender
	for _, s := range seats {
		c, all, problem := kinds[s.Kind].contender(e, s.Seat)
		switch {
		case problem != nil:
			choices[s.Seat] = Choice{Problem: problem}
		case all:
			choices[s.Seat] = Choice{Host: cluster.AllHosts}
		default:
			contenders = append(contenders, c)
		}
	}
	groups := e.share(contenders, func(c *contender, problem *cluster.Problem) { choices[c.seat] = Choice{Problem: problem} })
	for _, g := range groups {
		e.conclude(g, choices)
	}
	for _, s := range seats {
		c := choices[s.Seat]
		c.Term = s.term
		choices[s.Seat] = c
	}
	return choices
}

// conclude adds the choices for the members of a unit that has its host.
func (e *elector) conclude(u *unit, choices map[Seat]Choice) {
	standby := e.standby(u)
	e.employ(e.name(standby))
	choice := Choice{Host: e.name(u.host), Standby: e.name(standby), Despite: e.despite(u)}
	dead := u.lacks[u.host]&lacksLife != 0
	for _, c := range u.members {
		moves := c.had.host != choice.Host
		if moves && dead {
			choices[c.seat] = Choice{Problem: noHost(c.seat.ID, "", "", cluster.ReasonNoEligibleNode, "%s", silent(choice.Host))}
			continue
		}
		choice.Why, choice.Serves, choice.Unrouted = "", e.serving(c, u), ""
		if r, reports := e.reports[choice.Host]; reports {
			choice.Unrouted = strings.Join(missing(r.Networks[c.network], c.need), " nor ")
		}
		if moves && c.had.host != "" {
			choice.Why = e.unfit(c, u)
		}
		choices[c.seat] = choice
	}
}

// name returns the name of a node.
func (e *elector) name(node int) string {
	if node == none {
		return ""
	}
	return e.nodes[node]
}

// selected lists the nodes, of those that are Ready or report, that the selector matches.
func (e *elector) selected(selector labels.Selector) []int {
	if selector.Empty() {
		return e.everyNode
	}
	return e.remembered(match{selector: selector.String()}, e.everyNode, func(name string) bool {
		return selector.Matches(labels.Set(e.objects.Nodes.At(name).Labels))
	})
}

// fit lists those nodes that are fit for the network. nodes are all that the selector matches.
func (e *elector) fit(selector labels.Selector, nodes []int, network string) []int {
	if e.reports == nil {
		return nodes
	}
	return e.remembered(match{selector.String(), network}, nodes, func(name string) bool {
		return e.reports[name].Networks[network].Fit()
	})
}

func (e *elector) remembered(m match, of []int, fits func(name string) bool) []int {
	nodes, known := e.matching[m]
	if !known {
		for _, i := range of {
			if fits(e.nodes[i]) {
				nodes = append(nodes, i)
			}
		}
		e.matching[m] = nodes
	}
	return nodes
}

// contender is a seat that needs one host.
type contender struct {
	seat       Seat
	network    string
	sharing    string // the key by which objects of several namespaces share an address; empty: they do not
	since      time.Time
	addresses  []netip.Addr // those who share one have the same host
	need       families
	had        tenure
	selector   labels.Selector
	candidates []int // nodes that may be the host, sorted, not empty
}

// current returns the present host of the members, that of the first member that has one that may stay.
func (e *elector) current(u *unit) int {
	return e.had(u, func(t tenure) string {
		if e.succeeded(t) {
			return t.standby
		}
		return t.host
	})
}

// succeeded reports whether the standby took over by itself although other nodes hear the host. It announces in a later
// term, so routers prefer it, and there are two hosts until one yields. The host that routers do not choose must yield.
func (e *elector) succeeded(t tenure) bool {
	return t.standby != "" && !e.dead[t.standby] && !e.dead[t.host] && slices.Contains(e.reports[t.standby].Dead, t.host)
}

// successor returns the present standby of the members, that of the first member that has one that may become the host.
func (e *elector) successor(u *unit) int {
	return e.had(u, func(t tenure) string { return t.standby })
}

// had returns the first node that which selects from the members' tenures and to which no candidate is preferred. A host whose kernel
// refuses plans stays: it serves as before, and would not stop, so its own pods would lose their way. So does one whose report is old.
func (e *elector) had(u *unit, which func(tenure) string) int {
	for _, c := range u.members {
		name, counts := which(c.had), everyLack
		if name == c.had.host {
			counts &^= lacksChange
		}
		if i := e.candidate(u, name); i != none && u.lacks[i]&counts <= u.least() {
			return i
		}
	}
	return none
}

// standby returns the node that takes over from the unit's host: the members' present standby, of the first member that has
// one, unless another node is preferred to it. A node that does not hear the host, or that the host does not hear, cannot be
// the standby, because it would take over at once. A standby that has become the host of another address of the object goes if a node
// that is none can be it: otherwise the addresses gather on one node, failure by failure.
func (e *elector) standby(u *unit) int {
	u = e.near(u)
	had := e.hadStandby(u)
	if had != none && u.lacks[had]&^lacksNews == 0 && !e.crowds(u, had) {
		return had
	}
	best := e.best(u, u.host, bearable(u.lacks[u.host]))
	if had != none && e.staysBefore(u, had, best) {
		return had
	}
	return best
}

// staysBefore reports whether the present standby stays although best, if it is a node, could be it. An old report is no lack of its own.
func (e *elector) staysBefore(u *unit, had, best int) bool {
	lacks := u.lacks[had] &^ lacksNews
	switch {
	case best == none:
		return lacks == 0
	case lacks == u.lacks[best]:
		return !e.crowds(u, had) || e.crowds(u, best)
	}
	return lacks == 0
}

// crowds reports whether a node is the host of another address of the unit's object. It is not the unit's own host.
func (e *elector) crowds(u *unit, node int) bool { return slices.Contains(e.besides(u), node) }

// near returns the unit without the candidates that do not hear its host or that the host does not hear.
func (e *elector) near(u *unit) *unit {
	apart := e.apart[e.name(u.host)]
	if len(apart) == 0 {
		return u
	}
	near := *u
	near.candidates = slices.DeleteFunc(slices.Clone(u.candidates), func(i int) bool { return slices.Contains(apart, e.nodes[i]) })
	return &near
}

// hadStandby returns the present standby of the members, of the first member that has one among the candidates.
func (e *elector) hadStandby(u *unit) int {
	for _, c := range u.members {
		if i := e.candidate(u, c.had.standby); i != none && i != u.host {
			return i
		}
	}
	return none
}

// employ records that a node is host or standby of some seat.
func (e *elector) employ(node string) {
	if i, ok := slices.BinarySearch(e.nodes, node); ok {
		e.assign(i, 0)
	}
}

// assign records the host of some seats, unless no other seat's choice may depend on it.
func (e *elector) assign(host, seats int) {
	if e.policy.Alone {
		return
	}
	e.load[host] += seats
	if !e.employed[host] {
		e.employed[host] = true
		clear(e.few)
	}
}

// preferred lists the candidates with these lacks among which the policy has a host chosen.
func (e *elector) preferred(u *unit, lacking lack) []int {
	most := e.policy.Hosts
	if most == 0 || len(u.candidates) <= most {
		return u.candidates
	}
	asked := preference{&u.candidates[0], len(u.candidates), &u.lacks[0], lacking}
	few, known := e.few[asked]
	if !known {
		few = e.first(u, lacking, most)
		e.few[asked] = few
	}
	return few
}

// first lists as many of the candidates with these lacks: first the employed ones, then by the hashes of their names.
func (e *elector) first(u *unit, lacking lack, most int) []int {
	few := make([]int, 0, most)
	for _, i := range u.candidates {
		if u.lacks[i] != lacking || len(few) == most && e.compare(few[most-1], i) < 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(few, i, e.compare)
		few = slices.Insert(few[:min(len(few), most-1)], min(at, most-1), i)
	}
	return few
}

// compare is negative where first lists node i before node j.
func (e *elector) compare(i, j int) int {
	switch {
	case e.employed[i] && !e.employed[j]:
		return -1
	case e.employed[j] && !e.employed[i]:
		return 1
	}
	return cmp.Compare(e.hashes[i], e.hashes[j])
}

// candidate returns the number of a named node if it is a candidate, else none.
func (e *elector) candidate(u *unit, name string) int {
	if i, ok := slices.BinarySearch(e.nodes, name); ok {
		if _, ok := slices.BinarySearch(u.candidates, i); ok {
			return i
		}
	}
	return none
}

// lacking describes why none of the nodes is fit for the network.
func (e *elector) lacking(nodes []int, network string) string {
	var silent, unusable, down []string
	for _, i := range nodes {
		name := e.nodes[i]
		r := e.reports[name]
		switch {
		case len(r.Networks) == 0:
			silent = append(silent, name)
		case !r.Networks[network].Usable:
			unusable = append(unusable, name)
		default:
			down = append(down, name)
		}
	}
	var parts []string
	for _, p := range []struct {
		nodes []string
		what  string
	}{
		{down, "no BGP session of network " + network + " is up on "},
		{unusable, "network " + network + " is not usable on "},
		{silent, "no daemon reports from "},
	} {
		if len(p.nodes) > 0 {
			parts = append(parts, p.what+some(p.nodes))
		}
	}
	return strings.Join(parts, "; ")
}

// some names a few of the nodes.
func some(nodes []string) string {
	const few = 3
	if len(nodes) > few {
		return fmt.Sprintf("%s and %d more", strings.Join(nodes[:few], ", "), len(nodes)-few)
	}
	return strings.Join(nodes, ", ")
}

// best returns the candidate that lacks least, of those other than except that lack nothing beyond may. Among equals it
// returns the node with the fewest seats; among equals again, a rendezvous hash decides, which gives every seat its own
// stable order of preference. It returns none if no candidate fits. A node that is host of another address of the same object
// is the best one only where the others lack more.
func (e *elector) best(u *unit, except int, may lack) int {
	lacking := u.leastOf(except, may)
	p := pool{e, u.lacks, e.preferred(u, lacking), lacking, except, e.besides(u)}
	own := hash(u.members[0].seat.hashed())
	if best := p.winner(p.leastLoad(), own); best != none {
		return best
	}
	p.avoid = nil
	return p.winner(p.leastLoad(), own)
}

// pool holds candidates among which only those with these lacks count, other than except and those to avoid.
type pool struct {
	*elector
	lacks      []lack // of every node
	candidates []int
	lacking    lack
	except     int
	avoid      []int
}

// leastLoad returns the smallest number of seats of a candidate.
func (p *pool) leastLoad() int {
	lacks, load := p.lacks, p.load[:len(p.lacks)]
	least := math.MaxInt
	for _, i := range p.candidates {
		if load[i] < least && lacks[i] == p.lacking && i != p.except && !slices.Contains(p.avoid, i) {
			least = load[i]
		}
	}
	return least
}

// winner returns the candidate with this number of seats that the rendezvous hash prefers; none: there is no such candidate.
func (p *pool) winner(load int, own uint64) int {
	best, bestScore := none, uint64(0)
	for _, i := range p.candidates {
		if p.load[i] != load || p.lacks[i] != p.lacking || i == p.except || slices.Contains(p.avoid, i) {
			continue
		}
		if score := mix(own ^ p.hashes[i]); best == none || score > bestScore {
			best, bestScore = i, score
		}
	}
	return best
}

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return mix(h.Sum64())
}

// mix spreads every bit over the whole number, which FNV does not do (Stafford's variant 13, as in SplitMix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func noHost(id cluster.ID, field, value string, reason cluster.Reason, format string, args ...any) *cluster.Problem {
	return &cluster.Problem{
		Kind: id.Kind.String(), Object: id.Key.String(), Field: field, Value: value, Reason: reason, Message: fmt.Sprintf(format, args...),
	}
}
