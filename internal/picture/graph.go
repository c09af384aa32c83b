// Package picture draws a status report: nodes, the networks through which EgressServices leave, and the routers of
// these networks. It turns a report into a Graph, and a Graph into DOT text, an SVG or a page for a browser. The same
// report gives the same bytes.
//
// A graph is bounded: of long lists it has broken items first, then those that concern this node, and a count of the
// rest.
package picture

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/internal/text"
)

// Limits of a picture.
const (
	mostNodes    = 12
	mostNetworks = 12
	mostServices = 24 // of all networks together
	mostRouters  = 24 // of all networks together
	mostBroken   = 8  // reasons at the bottom

	least = 2 // services and routers of each network
)

// Graph is the content of a picture.
type Graph struct {
	Node     string // that made the report
	State    string // of that node, in words
	When     string // the last pass ended; empty: there was none
	Nodes    []Node // the node that made the report first, then by name
	Networks []Network
	Broken   []string // all that is broken, in words
	Services int      // their number, drawn or not

	EgressIPs int // number of their addresses, drawn or not

	MoreNodes, MoreNetworks, MoreBroken int // not drawn
}

// Node is a node of the report, or stands for all nodes.
type Node struct {
	Name   string // cluster.AllHosts: every node
	Asked  bool   // it made the report
	Notes  []string
	Broken string // why; empty: it is not broken
}

// Network is a network with its routers and with the EgressServices that leave through it.
type Network struct {
	Name     string
	Notes    string
	Broken   string
	Services []Service
	Routers  []Router

	MoreServices, MoreBrokenServices int // not drawn; MoreServices includes the broken ones
	MoreRouters, MoreRoutersDown     int
}

// Service is an EgressService, or an address of an EgressIP. In the table of the page it also stands for a policy.
type Service struct {
	Name          string // with its namespace, or with its kind
	Host, Standby string // nodes; empty: none
	IngressIPs    []string
	Notes         string
	Broken        string
	Policy        bool   // an EgressQoS or an EgressFirewall: it has no network, no host and no address
	Network       string // only set in the rows of the page
}

// Router is a peer, and the session with it.
type Router struct {
	Peer   string
	Notes  []string
	Up     bool
	Broken string // also set if the session is up but its BFD is not
}

// Of returns the graph of a report.
func Of(r status.Report) Graph {
	g := Graph{Node: r.Node, State: stateOf(r), Services: len(r.Services), EgressIPs: len(r.EgressIPs)}
	if !r.Applied.IsZero() {
		g.When = r.Applied.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	g.networks(r)
	g.nodes(r)
	g.broken(r)
	return g
}

func stateOf(r status.Report) string {
	words := []string{"not ready"}
	if r.Ready {
		words[0] = "ready"
	}
	if r.Draining {
		words = append(words, "draining")
	}
	if r.Version != "" {
		words = append(words, "egressway "+r.Version)
	}
	return strings.Join(words, ", ")
}

func (g *Graph) networks(r status.Report) {
	byName := map[string]*Network{}
	of := func(name string) *Network {
		n := byName[name]
		if n == nil {
			n = &Network{Name: cmp.Or(name, "no network"), Notes: "not on this node"}
			byName[name] = n
		}
		return n
	}
	wrong := map[string][]string{}
	for _, p := range r.Problems {
		if p.Kind == "Network" {
			wrong[p.Object] = append(wrong[p.Object], reason(p))
		}
	}
	for _, known := range r.Networks {
		n := of(known.Name)
		n.Notes, n.Broken = networkNotes(known), strings.Join(wrong[known.Name], "; ")
		switch {
		case n.Broken != "":
		case known.Elsewhere:
			n.Notes = "not on this node"
		case !known.Usable:
			n.Broken = cmp.Or(known.Lacks, "its VRF or table is missing")
		case known.Sessions > 0 && known.SessionsUp == 0:
			n.Broken = "no session is up"
		}
	}
	for _, s := range r.Sessions {
		n := of(s.Network)
		n.Routers = append(n.Routers, routerOf(s))
	}
	fit := r.Fit()
	for s := range r.Rows() {
		n := of(s.Network)
		n.Services = append(n.Services, serviceOf(r.Node, fit, *s))
	}
	all := make([]*Network, 0, len(byName))
	for _, n := range byName {
		all = append(all, n)
	}
	slices.SortFunc(all, func(a, b *Network) int {
		return cmp.Or(brokenFirst(a.Broken, b.Broken), cmp.Compare(b.brokenServices(), a.brokenServices()),
			cmp.Compare(b.routersDown(), a.routersDown()), cmp.Compare(a.Name, b.Name))
	})
	all, g.MoreNetworks = bound(all, mostNetworks)
	// By name, so that a network keeps its place when it breaks.
	slices.SortFunc(all, func(a, b *Network) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range all {
		n.bound(r.Node, max(least, mostServices/len(all)), max(least, mostRouters/len(all)))
		g.Networks = append(g.Networks, *n)
	}
}

func networkNotes(n status.Network) string {
	var notes []string
	if n.VRF != "" {
		notes = append(notes, n.VRF)
	}
	if n.Table != 0 {
		notes = append(notes, "table "+strconv.FormatUint(uint64(n.Table), 10))
	}
	if n.Learned > 0 {
		notes = append(notes, count(n.Learned, "route"))
	}
	if n.Sessions > 0 {
		notes = append(notes, fmt.Sprintf("%d/%d sessions up", n.SessionsUp, n.Sessions))
	} else {
		notes = append(notes, "no peers")
	}
	return strings.Join(notes, ", ")
}

// bound keeps the given number of services and routers.
func (n *Network) bound(node string, services, routers int) {
	slices.SortStableFunc(n.Services, func(a, b Service) int {
		return cmp.Or(brokenFirst(a.Broken, b.Broken), cmp.Compare(rank(node, a), rank(node, b))) // then by name, as in the report
	})
	broken := n.brokenServices()
	n.Services, n.MoreServices = bound(n.Services, services)
	n.MoreBrokenServices = broken - n.brokenServices()

	down := n.routersDown()
	slices.SortStableFunc(n.Routers, func(a, b Router) int {
		return cmp.Or(cmp.Compare(ofBool(a.Up), ofBool(b.Up)), brokenFirst(a.Broken, b.Broken))
	})
	n.Routers, n.MoreRouters = bound(n.Routers, routers)
	n.MoreRoutersDown = down - n.routersDown()
}

func (n *Network) brokenServices() (c int) {
	for _, s := range n.Services {
		c += ofBool(s.Broken != "")
	}
	return c
}

func (n *Network) routersDown() (c int) {
	for _, r := range n.Routers {
		c += ofBool(!r.Up)
	}
	return c
}

// rank is lower for services that concern the node more.
func rank(node string, s Service) int {
	switch node {
	case s.Host:
		return 0
	case s.Standby:
		return 1
	}
	return 2
}

func serviceOf(node string, fit map[string]bool, s status.Service) Service {
	v := Service{Name: s.Title(), Host: s.Host, Standby: s.Standby, Notes: notes(node, s)}
	for _, a := range s.IngressIPs {
		v.IngressIPs = append(v.IngressIPs, a.String())
	}
	var wrong []string
	for _, p := range s.Problems {
		wrong = append(wrong, reason(p))
	}
	if s.Host == "" && len(wrong) == 0 {
		wrong = append(wrong, "no host")
	}
	if why := s.Fails(node, fit); why != "" {
		wrong = append(wrong, why)
	}
	v.Broken = strings.Join(wrong, "; ")
	return v
}

// notes describes a service's endpoints, announcements and source.
func notes(node string, s status.Service) string {
	all := []string{count(s.Endpoints, "endpoint")}
	if s.Local > 0 {
		all[0] += fmt.Sprintf(", %s here", thousands(s.Local))
	}
	if here := s.Host == node || s.Standby == node || s.Host == cluster.AllHosts; here && len(s.IngressIPs) > 0 {
		all = append(all, announced(s))
	}
	if s.SourceIPBy == cluster.SourceIPByNetwork {
		all = append(all, "source: the node's own")
	}
	return strings.Join(all, ", ")
}

// announced describes how many of a service's ingress IPs the node announces.
func announced(s status.Service) string {
	switch {
	case len(s.Announced) == 0:
		return "not announced"
	case len(s.Announced) < len(s.IngressIPs):
		return fmt.Sprintf("%d/%d announced", len(s.Announced), len(s.IngressIPs))
	default:
		return "announced"
	}
}

func routerOf(s status.Session) Router {
	v := Router{Peer: s.Peer, Up: s.Up}
	first := cmp.Or(s.State, "unknown")
	if s.ASN != 0 {
		first = "AS " + strconv.FormatUint(uint64(s.ASN), 10) + ", " + first
	}
	v.Notes = []string{first}
	if a := s.Address; a.IsValid() && a.String() != s.Peer {
		v.Notes = append(v.Notes, a.String())
	}
	sessions := fmt.Sprintf("%s learned, %s sent", thousands(s.Accepted), thousands(s.Announced))
	if s.BFD != "" {
		sessions += ", BFD " + s.BFD
	}
	v.Notes = append(v.Notes, sessions)
	switch {
	case !s.Up:
		v.Broken = cmp.Or(s.LastError, "not established, but "+cmp.Or(s.State, "of no known state"))
	case s.BFD == "down" || s.BFD == "init":
		v.Broken = "BFD is " + s.BFD
	}
	return v
}

// nodes selects the nodes of the drawn services, and the silent ones.
func (g *Graph) nodes(r status.Report) {
	hosts, standbys := map[string]int{}, map[string]int{}
	for s := range r.Rows() {
		hosts[s.Host]++
		standbys[s.Standby]++
	}
	known, broken := reported(r)
	drawn := map[string]bool{}
	for _, n := range g.Networks {
		for _, s := range n.Services {
			drawn[s.Host], drawn[s.Standby] = true, true
		}
	}
	all := make([]Node, 0, len(known))
	for name := range known {
		n := Node{Name: name, Asked: name == r.Node, Broken: broken[name]}
		if n.Asked {
			n.Broken = brokenHere(r, n.Broken)
			if r.Draining {
				n.Notes = append(n.Notes, "draining")
			}
		}
		if c := hosts[name]; c > 0 {
			n.Notes = append(n.Notes, "host of "+thousands(c))
		}
		if c := standbys[name]; c > 0 {
			n.Notes = append(n.Notes, "standby of "+thousands(c))
		}
		all = append(all, n)
	}
	name := func(a, b Node) int { return cmp.Compare(a.Name, b.Name) }
	asked := leads(func(n Node) bool { return n.Asked })
	faulty := leads(func(n Node) bool { return n.Broken != "" })
	wanted := leads(func(n Node) bool { return drawn[n.Name] })
	every := leads(func(n Node) bool { return n.Name != cluster.AllHosts })
	slices.SortFunc(all, func(a, b Node) int { return cmp.Or(asked(a, b), faulty(a, b), wanted(a, b), name(a, b)) })
	g.Nodes, g.MoreNodes = bound(all, mostNodes)
	slices.SortFunc(g.Nodes, func(a, b Node) int { return cmp.Or(asked(a, b), every(a, b), name(a, b)) })
	g.nameUndrawn()
}

// reported lists the nodes that a report names. broken holds, by node, the reason why one is.
func reported(r status.Report) (known map[string]bool, broken map[string]string) {
	known, broken = named(r), map[string]string{}
	silent := map[string]string{}
	for _, w := range r.Watched {
		if !w.Alive {
			silent[w.Node] = "silent: BFD hears nothing of it"
		}
	}
	wrong := map[string][]string{}
	for _, p := range r.Problems {
		if p.Kind == "Node" && known[p.Object] {
			wrong[p.Object] = append(wrong[p.Object], reason(p))
		}
	}
	for name := range known {
		broken[name] = cmp.Or(silent[name], strings.Join(wrong[name], "; "))
	}
	return known, broken
}

// named returns the nodes that made a report, serve a service in it, or are watched.
func named(r status.Report) map[string]bool {
	known := map[string]bool{r.Node: true}
	for _, w := range r.Watched {
		known[w.Node] = true
	}
	for s := range r.Rows() {
		for _, name := range []string{s.Host, s.Standby} {
			if name != "" {
				known[name] = true
			}
		}
	}
	return known
}

// leads returns the order in which the nodes of a kind come before the others.
func leads(is func(Node) bool) func(a, b Node) int {
	return func(a, b Node) int { return cmp.Compare(ofBool(is(b)), ofBool(is(a))) }
}

// nameUndrawn adds the names of nodes that are not drawn to the notes of their services.
func (g *Graph) nameUndrawn() {
	for i := range g.Networks {
		for j := range g.Networks[i].Services {
			s := &g.Networks[i].Services[j]
			if s.Host != "" && !g.has(s.Host) {
				s.Notes += ", host " + s.Host
			}
			if s.Standby != "" && !g.has(s.Standby) {
				s.Notes += ", standby " + s.Standby
			}
		}
	}
}

// has reports whether a node is drawn.
func (g *Graph) has(node string) bool {
	return slices.ContainsFunc(g.Nodes, func(n Node) bool { return n.Name == node })
}

// brokenHere returns why the node that made the report is broken.
func brokenHere(r status.Report, otherwise string) string {
	switch {
	case len(r.Errors) > 0:
		return r.Errors[0]
	case !r.Ready && r.Applied.IsZero():
		return "no pass yet"
	case !r.Ready:
		return "not ready"
	case r.ConfigStale:
		return "the configuration file has errors"
	}
	return otherwise
}

// broken lists all problems: first of the pass, then of nodes and sessions, then of objects.
func (g *Graph) broken(r status.Report) {
	all := slices.Clone(r.Errors)
	if r.ConfigStale {
		all = append(all, "the configuration file has errors: the last good configuration is in force")
	}
	if r.Unknowing {
		all = append(all, "not all objects are known yet: the former state stays in force")
	}
	all = append(all, silentNodes(r)...)
	all = append(all, brokenSessions(r)...)
	for _, p := range r.Problems {
		all = append(all, fmt.Sprintf("%s: %s", p.Reason, p))
	}
	all = append(all, brokenNetworks(r)...)
	all = append(all, brokenRows(r)...)
	g.Broken, g.MoreBroken = bound(all, mostBroken)
}

// withKind returns the kind and the name of the object of a row.
func withKind(s *status.Service) string {
	if s.Namespace == "" {
		return s.Title()
	}
	return "EgressService " + s.Title()
}

func silentNodes(r status.Report) (all []string) {
	for _, w := range r.Watched {
		if !w.Alive {
			all = append(all, fmt.Sprintf("node %s is silent: BFD hears nothing of it", w.Node))
		}
	}
	return all
}

func brokenSessions(r status.Report) (all []string) {
	for _, s := range r.Sessions {
		if v := routerOf(s); v.Broken != "" {
			all = append(all, fmt.Sprintf("network %s, peer %s: %s", s.Network, s.Peer, v.Broken))
		}
	}
	return all
}

func brokenNetworks(r status.Report) (all []string) {
	for _, n := range r.Networks {
		if !n.Usable && !n.Elsewhere {
			all = append(all, fmt.Sprintf("network %s: %s", n.Name, cmp.Or(n.Lacks, "its VRF or table is missing")))
		}
	}
	return all
}

// brokenRows names the objects that no node serves, and those of which this node fails to serve its part.
func brokenRows(r status.Report) (all []string) {
	fit := r.Fit()
	for s := range r.Rows() {
		if s.Host == "" && len(s.Problems) == 0 {
			all = append(all, withKind(s)+": no host")
		}
		if why := s.Fails(r.Node, fit); why != "" {
			all = append(all, withKind(s)+": "+why)
		}
	}
	return all
}

// reason returns a problem without its object.
func reason(p status.Problem) string {
	if p.Message == "" {
		return string(p.Reason)
	}
	return string(p.Reason) + ": " + p.Message
}

// bound keeps the first most items of a list and counts the others. It never omits a single item: the count would need
// its room.
func bound[T any](all []T, most int) (kept []T, more int) {
	if len(all) <= most+1 {
		return all, 0
	}
	return all[:most], len(all) - most
}

func brokenFirst(a, b string) int { return cmp.Compare(ofBool(b != ""), ofBool(a != "")) }

func ofBool(b bool) int {
	if b {
		return 1
	}
	return 0
}

// count writes a number of things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return thousands(n) + " " + thing + "s"
}

// thousands formats a number with thousands separators.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// more describes how many items are not drawn, and how many of these are broken or down.
func more(n, wrong int, how string) string {
	s := "and " + thousands(n) + " more"
	if wrong > 0 {
		s += ", " + thousands(wrong) + " of them " + how
	}
	return s
}

// title returns a node's name for display.
func (n Node) title() string {
	if n.Name == cluster.AllHosts {
		return "every node"
	}
	return cmp.Or(n.Name, "unnamed node")
}

// summary describes the picture in one or two sentences.
func (g *Graph) summary() string {
	s := fmt.Sprintf("Node %s: %s. ", g.Node, g.State)
	if g.When != "" {
		s = fmt.Sprintf("Node %s: %s, last pass %s. ", g.Node, g.State, g.When)
	}
	s += count(g.Services, "EgressService")
	if g.EgressIPs > 0 {
		s += ", " + count(g.EgressIPs, "egress IP")
	}
	s += fmt.Sprintf(" in %s.", count(len(g.Networks)+g.MoreNetworks, "network"))
	if len(g.Broken) == 0 {
		return s + " Nothing is broken."
	}
	s += " Broken: " + strings.Join(g.Broken, "; ")
	if g.MoreBroken > 0 {
		s += "; " + more(g.MoreBroken, 0, "")
	}
	return s + "."
}

// line returns untrusted text on one line, as valid UTF-8.
func line(s string) string { return text.Line(strings.ToValidUTF8(s, "\uFFFD")) }
