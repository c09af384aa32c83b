// Package nodewise resolves the configuration for one node by the labels of its Node object, and finds the faults of
// nodeSelectors that only the labels of all nodes show.
package nodewise

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// Nodes are the cluster's nodes by their names.
type Nodes = cluster.Map[string, cluster.Node]

// Reasons of problems with nodeSelectors.
const (
	ReasonContradict       cluster.Reason = "EntriesContradict"
	ReasonNoASN            cluster.Reason = "NoASN"
	ReasonNodeUnknown      cluster.Reason = "NodeUnknown"
	ReasonSelectsNoNode    cluster.Reason = "SelectsNoNode"
	ReasonRouterIDCollides cluster.Reason = "RouterIDCollides"
)

// Resolver resolves one node's configuration again and again. While neither the configuration nor the selection changes, it
// returns the same Config. The zero Resolver has resolved nothing yet.
type Resolver struct {
	base    *config.Config
	node    cluster.Node // as last known
	known   bool         // the node has been known once
	of      config.OfNode
	unknown *config.Config

	among     among
	unmatched []cluster.Problem
	collides  []cluster.Problem
}

// Resolve returns the configuration c for the node that it names. other reports that any Node may have changed since the
// last call; the node's own labels are always compared. known is false while the configuration depends on labels of the
// node that are not known yet: then the Config is the part that no label can change. Once known, labels and router ID stay as
// last known while the Node object is missing.
func (r *Resolver) Resolve(c *config.Config, nodes Nodes, other bool) (own *config.Config, problems []cluster.Problem, known bool) {
	renewed := r.base != c
	r.base = c
	moved := r.readNode(nodes)
	if !c.Nodewise() {
		r.of = config.OfNode{Config: c}
		return c, slices.Clip(r.collisions(nodes, renewed || other, c.BGP)), true
	}
	if !r.known {
		return r.unlabelled(renewed), []cluster.Problem{nodeUnknown(c.Node)}, false
	}
	if moved || renewed {
		r.adopt(c.For(r.node.Labels))
		other = true
	}
	if other {
		r.unmatched = unmatched(c, nodes, r.among.of(renewed))
	}
	return r.of.Config, slices.Concat(faults(r.of.Faults), r.unmatched, r.collisions(nodes, other, r.of.BGP)), true
}

// InternalIPv4 returns the node's first IPv4 InternalIP as last known; invalid: it had none, or the Node was never known.
func (r *Resolver) InternalIPv4() netip.Addr { return internalIPv4(r.node) }

func internalIPv4(n cluster.Node) netip.Addr {
	if i := slices.IndexFunc(n.Internal, netip.Addr.Is4); i >= 0 {
		return n.Internal[i]
	}
	return netip.Addr{}
}

// readNode reads this node, if its Node exists, and reports whether its labels differ from the last known ones.
func (r *Resolver) readNode(nodes Nodes) (moved bool) {
	n, exists := nodes.Get(r.base.Node)
	if !exists {
		return false
	}
	moved = !r.known || !maps.Equal(r.node.Labels, n.Labels)
	r.node, r.known = n, true
	return moved
}

// unlabelled returns the part of the configuration that no label can change.
func (r *Resolver) unlabelled(renewed bool) *config.Config {
	if r.unknown == nil || renewed {
		r.unknown = r.base.ForUnknown()
	}
	return r.unknown
}

func nodeUnknown(name string) cluster.Problem {
	return cluster.Problem{
		Kind: "Node", Object: name, Reason: ReasonNodeUnknown,
		Message: "no Node object of this name is known, and the configuration has nodeSelectors: " +
			"nothing changes on this node before its labels are known",
	}
}

// adopt keeps the former Config where the new one is equal.
func (r *Resolver) adopt(of config.OfNode) {
	if r.of.Config != nil && reflect.DeepEqual(r.of.Config, of.Config) {
		of.Config = r.of.Config
	}
	r.of = of
}

// faults returns the problems that a node's own labels show.
func faults(all []config.Fault) (problems []cluster.Problem) {
	for _, f := range all {
		reason := ReasonContradict
		if f.Reason == config.NoASN {
			reason = ReasonNoASN
		}
		problems = append(problems, problem(f.Error, reason))
	}
	return problems
}

func problem(e config.Error, reason cluster.Reason) cluster.Problem {
	p := cluster.Problem{Kind: "Config", Object: e.File, Field: e.Field, Value: e.Value, Reason: reason, Message: e.Message}
	if e.Line > 0 {
		p.Where = e.File + ":" + strconv.Itoa(e.Line)
	}
	return p
}

// among remembers for each selector a node that it matched: most stay.
type among map[string]string

func (a *among) of(renewed bool) among {
	if *a == nil || renewed {
		*a = among{}
	}
	return *a
}

// matches reports whether a selector matches a node, first the one that it matched before.
func (a among) matches(path string, s labels.Selector, nodes Nodes) bool {
	if n, exists := nodes.Get(a[path]); exists && s.Matches(labels.Set(n.Labels)) {
		return true
	}
	for name, n := range nodes.All() {
		if s.Matches(labels.Set(n.Labels)) {
			a[path] = name
			return true
		}
	}
	return false
}

// unmatched returns a problem for each selector that matches no node. Without any Node, no labels are known.
func unmatched(c *config.Config, nodes Nodes, witnesses among) (problems []cluster.Problem) {
	if nodes.Len() == 0 {
		return nil
	}
	matches := func(path string, s labels.Selector) bool { return witnesses.matches(path, s, nodes) }
	for _, e := range c.Unmatched(matches) {
		problems = append(problems, problem(e, ReasonSelectsNoNode))
	}
	return problems
}

// identity holds an AS number and a router ID, which routers of one AS must not share (RFC 6286).
type identity struct {
	asn uint32
	id  netip.Addr
}

// identityOf returns the identity of a node with these settings.
func identityOf(b config.BGP, name string, n cluster.Node) identity {
	return identity{b.ASN, cmp.Or(b.RouterID, internalIPv4(n), config.RouterIDOf(name))}
}

// collisions returns a problem for each other node that has this node's AS number and router ID. own holds this node's
// settings.
func (r *Resolver) collisions(nodes Nodes, other bool, own config.BGP) []cluster.Problem {
	if !other {
		return r.collides
	}
	r.collides = nil
	if c := r.base; mayCollide(c) {
		mine := identityOf(own, c.Node, r.node)
		for _, name := range othersWith(mine, c, nodes) {
			r.collides = append(r.collides, collision(c.Node, name, mine))
		}
	}
	return r.collides
}

// mayCollide reports whether the configuration sets the identities of several nodes, as far as it shows.
func mayCollide(c *config.Config) bool {
	return hasPeers(c) && (c.Nodewise() || !c.BGP.RouterID.IsValid()) // else it is a file of this node alone, perhaps
}

// othersWith lists the other nodes that have this node's identity, sorted.
func othersWith(mine identity, c *config.Config, nodes Nodes) (same []string) {
	for name, n := range nodes.All() {
		if name != c.Node && identityOf(c.BGPFor(n.Labels), name, n) == mine {
			same = append(same, name)
		}
	}
	slices.Sort(same)
	return same
}

func hasPeers(c *config.Config) bool {
	return slices.ContainsFunc(c.Networks, func(n config.Network) bool { return len(n.Peers) > 0 })
}

func collision(node, other string, i identity) cluster.Problem {
	return cluster.Problem{
		Kind: "Node", Object: node, Field: "bgp.routerID", Value: i.id.String(), Reason: ReasonRouterIDCollides,
		Message: fmt.Sprintf("node %s has this router ID too, in AS %d: a router may refuse one of the two sessions; "+
			"give one of the nodes another by bgp.overrides", other, i.asn),
	}
}

// Check returns the problems of all nodes, for commands that look at a whole cluster.
func Check(c *config.Config, nodes Nodes) (problems []cluster.Problem) {
	problems = unmatched(c, nodes, among{})
	seen := map[cluster.Problem]bool{}
	ids := map[identity]string{}
	collide := mayCollide(c)
	for _, name := range slices.Sorted(nodes.Keys()) {
		n := nodes.At(name)
		of := c.For(n.Labels)
		for _, p := range faults(of.Faults) {
			if p.Message += " (node " + name + ")"; !seen[p] {
				seen[p] = true
				problems = append(problems, p)
			}
		}
		id := identityOf(of.BGP, name, n)
		if other, twice := ids[id]; twice && collide {
			problems = append(problems, collision(name, other, id))
			continue
		}
		ids[id] = name
	}
	return problems
}
