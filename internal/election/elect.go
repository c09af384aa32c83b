package election

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
)

// Elect chooses hosts for all EgressServices. reports holds the nodes' reports: only a node that reports the network as
// usable may be host or standby. If nodes do not report, reports is nil and every Ready node may be.
//
// Of the candidates, Elect prefers nodes that are not reported dead, that have a route for every family that the service
// needs, that are not draining and that are not cordoned, in this order of importance. The host and the standby in an
// object's status stay as long as no other candidate is preferred to them; if the host does not stay, the standby becomes
// the host. The remaining services are assigned one by one, the oldest first, to the node with the fewest services; a hash
// decides among nodes with equally few, so that services spread. Services of one network that share an ingress IP share the
// host; see share for newcomers.
//
// A standby lacks nothing that the host has, and is neither dead nor draining.
func Elect(objects cluster.Objects, reports map[string]cluster.Report) map[cluster.Key]Choice {
	e := newElector(objects, reports)
	choices := make(map[cluster.Key]Choice, objects.EgressServices.Len())
	var contenders []*contender
	for _, key := range byAge(objects.EgressServices) {
		c, all, problem := e.contender(key)
		switch {
		case problem != nil:
			choices[key] = Choice{Problem: problem}
		case all:
			choices[key] = Choice{Host: cluster.AllHosts}
		default:
			contenders = append(contenders, c)
		}
	}
	groups := e.share(contenders, func(c *contender, problem *cluster.Problem) { choices[c.key] = Choice{Problem: problem} })
	for _, g := range groups {
		standby := e.standby(g)
		choice := Choice{Host: e.name(g.host), Standby: e.name(standby), Despite: e.despite(g)}
		for _, c := range g.members {
			if choice.Why = ""; c.status.Host != "" && c.status.Host != choice.Host {
				choice.Why = e.unfit(c, g)
			}
			choice.Serves = e.serving(c, g)
			choices[c.key] = choice
			if g.lacks[g.host]&lacksLife != 0 && c.status.Host != choice.Host {
				choices[c.key] = Choice{Problem: noHost(c.key, "", "", cluster.ReasonNoEligibleNode, "%s", silent(choice.Host))}
			}
		}
	}
	for key, c := range choices {
		c.Term = objects.EgressServices.At(key).Status.Term
		choices[key] = c
	}
	return choices
}

// byAge sorts the objects by precedence: the older first, then by key.
func byAge(objects cluster.Map[cluster.Key, cluster.EgressService]) []cluster.Key {
	keys := slices.Collect(objects.Keys())
	slices.SortFunc(keys, func(a, b cluster.Key) int {
		return cmp.Or(objects.At(a).Created.Compare(objects.At(b).Created), a.Compare(b))
	})
	return keys
}

// elector holds the data that all choices share. It identifies nodes by numbers, because ten thousand services may compare
// a thousand nodes each.
type elector struct {
	objects   cluster.Objects
	reports   map[string]cluster.Report // nil: nodes do not report
	nodes     []string                  // Ready ones, sorted
	hashes    []uint64                  // of their names
	everyNode []int
	matching  map[match][]int
	nodeAddrs map[netip.Addr]bool
	load      []int // services by host
	dead      map[string]bool
	seen      map[string]bool     // alive, by other nodes
	apart     map[string][]string // by node, living nodes that it reports dead or that report it dead
	lacks     map[demand][]lack
}

// match is the key under which matching nodes are cached.
type match struct {
	selector string
	network  string // empty: any
}

// none stands for no node.
const none = -1

func newElector(objects cluster.Objects, reports map[string]cluster.Report) *elector {
	e := &elector{
		objects: objects, reports: reports, matching: map[match][]int{}, nodeAddrs: map[netip.Addr]bool{},
		lacks: map[demand][]lack{}, apart: map[string][]string{},
	}
	e.dead, e.seen = judge(reports)
	for name, r := range reports {
		for _, other := range r.Dead {
			if !e.dead[name] && !e.dead[other] {
				e.apart[name], e.apart[other] = append(e.apart[name], other), append(e.apart[other], name)
			}
		}
	}
	for name, n := range objects.Nodes.All() {
		for _, a := range n.Addresses {
			e.nodeAddrs[a] = true
		}
		if n.Ready {
			e.nodes = append(e.nodes, name)
		}
	}
	slices.Sort(e.nodes)
	e.load = make([]int, len(e.nodes))
	for i, name := range e.nodes {
		e.everyNode = append(e.everyNode, i)
		e.hashes = append(e.hashes, hash(name))
	}
	return e
}

// name returns the name of a node.
func (e *elector) name(node int) string {
	if node == none {
		return ""
	}
	return e.nodes[node]
}

// selected lists the Ready nodes that the selector matches.
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

// contender is an EgressService that needs one host.
type contender struct {
	key        cluster.Key
	network    string
	sharing    string // the sharing key of its Service
	since      time.Time
	ingress    []netip.Addr
	need       families
	status     cluster.Status
	selector   labels.Selector
	candidates []int // nodes that may be the host, sorted, not empty
}

// contender checks one EgressService on its own. all reports that every node is its host.
func (e *elector) contender(key cluster.Key) (c *contender, all bool, problem *cluster.Problem) {
	spec := e.objects.EgressServices.At(key)
	service, exists := e.objects.Services.Get(key)
	switch {
	case !exists:
		return nil, false, noHost(key, "", "", cluster.ReasonServiceNotFound, "no Service of this namespace and name")
	case !service.LoadBalancer:
		return nil, false, noHost(key, "", "", cluster.ReasonNotLoadBalancer, "its Service is not of type LoadBalancer")
	}
	switch spec.SourceIPBy {
	case cluster.SourceIPByNetwork:
		return nil, true, nil
	case cluster.SourceIPByLoadBalancer, "":
	default:
		return nil, false, noHost(key, "spec.sourceIPBy", string(spec.SourceIPBy), cluster.ReasonInvalidValue,
			"one of %s, %s", cluster.SourceIPByLoadBalancer, cluster.SourceIPByNetwork)
	}
	selector, err := selectorOf(spec)
	if err != nil {
		return nil, false, noHost(key, "spec.nodeSelector", "", cluster.ReasonInvalidSelector, "not a label selector: %s", err)
	}
	c = &contender{
		key: key, network: networkOf(spec), sharing: service.SharingKey, since: Since(spec), status: spec.Status, selector: selector,
	}
	if c.ingress, problem = e.ingress(key, service); problem != nil {
		return nil, false, problem
	}
	endpoints := e.objects.Endpoints.At(key)
	var found bool
	if c.need, found = e.need(endpoints, c.ingress); !found {
		return nil, false, noHost(key, "", "", cluster.ReasonNoEndpoints, "its Service has no endpoint with an address of its own")
	}
	matching := e.selected(selector)
	fit := e.fit(selector, matching, c.network)
	c.candidates = fit
	if service.LocalTraffic {
		c.candidates = e.withEndpoint(fit, endpoints)
	}
	if len(c.candidates) == 0 {
		return nil, false, e.noCandidate(c, matching, fit)
	}
	return c, false, nil
}

// selectorOf parses the spec's nodeSelector; a spec without one selects every node.
func selectorOf(spec cluster.EgressService) (labels.Selector, error) {
	if spec.NodeSelector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(spec.NodeSelector)
}

// ingress lists the Service's ingress IPs that are no addresses of nodes. A Service without any has a problem.
func (e *elector) ingress(key cluster.Key, service cluster.Service) (ips []netip.Addr, problem *cluster.Problem) {
	hostname := ""
	for _, in := range service.Ingress {
		if a, err := cluster.ParseAddr(in.IP); err == nil && !e.nodeAddrs[a] {
			ips = append(ips, a)
		}
		hostname = cmp.Or(hostname, in.Hostname)
	}
	switch {
	case len(ips) > 0:
		return ips, nil
	case hostname != "":
		return nil, noHost(key, "", hostname, cluster.ReasonHostnameIngress, "its Service has a host name as ingress: an IP is needed")
	}
	return nil, noHost(key, "", "", cluster.ReasonNoIngressIP,
		"its Service has no usable ingress IP yet: something must assign one, such as MetalLB")
}

// withEndpoint lists those nodes that hold a pod of the endpoints.
func (e *elector) withEndpoint(nodes []int, endpoints []cluster.Endpoint) (holders []int) {
	holds := map[string]bool{}
	for _, p := range endpoints {
		holds[p.Node] = holds[p.Node] || p.Target == cluster.TargetPod
	}
	for _, i := range nodes {
		if holds[e.nodes[i]] {
			holders = append(holders, i)
		}
	}
	return holders
}

// noCandidate describes why no node may be the contender's host. Its selector matches the nodes in matching, of which those
// in fit are fit for its network.
func (e *elector) noCandidate(c *contender, matching, fit []int) *cluster.Problem {
	field, why := "", "no node is Ready"
	switch {
	case len(fit) > 0:
		why = "no eligible node holds an endpoint, as externalTrafficPolicy: Local asks"
	case len(matching) > 0:
		why = e.lacking(matching, c.network)
	case len(e.nodes) > 0:
		field, why = "spec.nodeSelector", "matches no Ready node"
	}
	return noHost(c.key, field, "", cluster.ReasonNoEligibleNode, "%s", why)
}

// current returns the present host of the members, that of the first member that has one that may stay.
func (e *elector) current(u *unit) int {
	return e.had(u, func(s cluster.Status) string {
		if e.succeeded(s) {
			return s.Standby
		}
		return s.Host
	})
}

// succeeded reports whether the standby took over by itself although other nodes hear the host. It announces in a later
// term, so routers prefer it, and there are two hosts until one yields. The host that routers do not choose must yield.
func (e *elector) succeeded(s cluster.Status) bool {
	return s.Standby != "" && !e.dead[s.Standby] && !e.dead[s.Host] && slices.Contains(e.reports[s.Standby].Dead, s.Host)
}

// successor returns the present standby of the members, that of the first member that has one that may become the host.
func (e *elector) successor(u *unit) int {
	return e.had(u, func(s cluster.Status) string { return s.Standby })
}

// had returns the first node that which selects from the members' statuses and to which no candidate is preferred.
func (e *elector) had(u *unit, which func(cluster.Status) string) int {
	for _, c := range u.members {
		if i := e.candidate(u, which(c.status)); i != none && (u.lacks[i] == 0 || u.lacks[i] == u.least()) {
			return i
		}
	}
	return none
}

// standby returns the node that takes over from the unit's host: the members' present standby, of the first member that has
// one, unless another node is preferred to it. A node that does not hear the host, or that the host does not hear, cannot be
// the standby, because it would take over at once.
func (e *elector) standby(u *unit) int {
	if apart := e.apart[e.name(u.host)]; len(apart) > 0 {
		near := *u
		near.candidates = slices.DeleteFunc(slices.Clone(u.candidates), func(i int) bool { return slices.Contains(apart, e.nodes[i]) })
		u = &near
	}
	had := none
	for _, c := range u.members {
		if i := e.candidate(u, c.status.Standby); i != none && i != u.host {
			had = i
			break
		}
	}
	if had != none && u.lacks[had] == 0 {
		return had
	}
	best := e.best(u, u.host, bearable(u.lacks[u.host]))
	if had != none && best != none && u.lacks[had] == u.lacks[best] {
		return had
	}
	return best
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
		r, reports := e.reports[name]
		switch {
		case !reports:
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
// returns the node with the fewest services; among equals again, a rendezvous hash decides, which gives every service its own
// stable order of preference. It returns none if no candidate fits.
func (e *elector) best(u *unit, except int, may lack) int {
	lacks, load := u.lacks, e.load[:len(u.lacks)]
	least, lacking := math.MaxInt, everyLack
	for _, i := range u.candidates {
		if l := lacks[i]; l <= lacking && l&^may == 0 && (load[i] < least || l < lacking) && i != except {
			least, lacking = load[i], l
		}
	}
	best, bestScore, own := none, uint64(0), hash(u.members[0].key.String())
	for _, i := range u.candidates {
		if load[i] != least || lacks[i] != lacking || i == except {
			continue
		}
		if score := mix(own ^ e.hashes[i]); best == none || score > bestScore {
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

func noHost(key cluster.Key, field, value string, reason cluster.Reason, format string, args ...any) *cluster.Problem {
	return &cluster.Problem{
		Kind: "EgressService", Object: key.String(), Field: field, Value: value, Reason: reason, Message: fmt.Sprintf(format, args...),
	}
}
