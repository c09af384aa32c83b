// Package kernel makes the kernel of this node equal to a plan: VRF devices, the tunnel, routes, rules and the nftables
// table. Each of our objects bears a mark that the kernel shows (a route protocol, a link group, a table's name);
// nothing else is touched. Each applier lists our objects, compares them with the plan and changes the difference. As
// long as events show no change by others since the last plan was applied, an applier skips the listing and applies the
// difference between the two plans.
//
// The last plan is in the Record that each Apply returns. The caller keeps it and hands it to the next call; a Node keeps
// none. It keeps what it read of the kernel, with the event counts that say whether that still holds.
//
// Words of this package:
//
//   - drift: our objects that others removed or changed, and that Restore or Apply put back;
//   - stir: an event that others changed the kernel; concern: the devices and tables whose events matter to us;
//   - look: a full re-read of the kernel that no event asked for;
//   - audit, doubt: the check of connections against the plan;
//   - refused: planned routes that are left out;
//   - leg: a next hop; held table: one that keeps an earlier run's routes for now;
//   - walk, passage: the simulated way of a packet through our rules;
//   - stray: a packet at the host of a connection that the standby has, or the other way round;
//   - former: addresses that were selected, or ingress IPs here, until a moment ago.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/kernel/link"
	"github.com/egressway/egressway/internal/kernel/nft"
	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/preflight"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
)

// Node applies plans to the kernel of this node. Only one goroutine may use it, apart from those in Watch.
type Node struct {
	HandOver conntrack.HandOver // nil: flows of this node's pods end with its role

	links   *netlink.Handle
	route   route.Socket
	vrfs    link.VRFs
	nft     nft.Table
	stirs   stirs
	audit   conntrack.Audit
	facts   knownFacts
	trouble knownProblems
	hook    bool             // the kernel has the egress hook of devices
	arp     bool             // and nftables' family arp
	now     func() time.Time // nil: time.Now
}

// Open opens the sockets that a Node needs.
func Open() (*Node, error) {
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink socket: %w", err)
	}
	n := &Node{links: links}
	if n.route.Conn, err = nl.Dial(); err == nil {
		n.stirs.routePort, err = n.route.Port()
	}
	if err == nil {
		err = n.nft.OpenWriter()
	}
	if err == nil {
		n.hook, err = n.nft.HasEgressHook()
	}
	if err == nil {
		n.arp, err = n.nft.HasARP()
	}
	if err != nil {
		n.Close()
		return nil, err
	}
	n.stirs.tablePort = n.nft.Port()
	n.nft.Pause = n.stirs.pause
	return n, nil
}

// Close closes the sockets. The applied state stays in the kernel. An nftables table that this process owns becomes
// ownerless.
func (n *Node) Close() {
	n.nft.Close()
	if n.route.Conn != nil {
		n.route.Close()
	}
	n.audit.Close()
	n.links.Close()
}

func (n *Node) clock() time.Time {
	if n.now != nil {
		return n.now()
	}
	return time.Now()
}

// knownFacts caches what Facts read.
type knownFacts struct {
	plan.Facts
	tables []uint32 // that the caller asked for
	seen   counts   // event counts before the reading
	valid  bool
	cost   time.Duration
}

// stand reports whether the facts were read for these tables, and no event reported a change since.
func (k *knownFacts) stand(seen counts, tables []uint32) bool {
	return k.valid && seen.watching && seen.facts == k.seen.facts && slices.Equal(tables, k.tables)
}

// touched returns the tables whose routes differ; changes is nil if these are not known.
func (k *knownFacts) touched(changes *route.Changes) (tables []uint32) {
	for t := range k.Routed {
		if changes == nil || changes.Touch(t) {
			tables = append(tables, t)
		}
	}
	return tables
}

// Facts reads the kernel state that a plan depends on: the given tables, every VRF device's table and the main table. If
// no event reported a change since the last reading, it returns that one. lost is true if a new reading shows that a
// table lost its routes of the Record: a plan made from a momentary loss would end connections, so call Restore, and
// Facts again.
func (n *Node) Facts(ctx context.Context, held Record, tables ...uint32) (f plan.Facts, lost bool, err error) {
	began, seen := n.clock(), n.stirs.now()
	paths, err := n.pathsInForce(&held, seen)
	if err != nil {
		return plan.Facts{}, false, err
	}
	if !held.look && n.facts.stand(seen, tables) {
		n.facts.Paths = paths
		return n.facts.Facts, false, nil
	}
	n.facts = knownFacts{}
	if f, err = n.readFacts(ctx, tables); err != nil {
		return plan.Facts{}, false, err
	}
	f.Paths = paths
	n.facts = knownFacts{Facts: f, tables: slices.Clone(tables), seen: seen, valid: true, cost: n.clock().Sub(began)}
	return f, held.lost(f.Routed, tables), nil
}

// pathsInForce returns the path ids of our nftables table, by the Record if no event spoke against that, or if another program deleted the
// table: connections still carry these ids.
func (n *Node) pathsInForce(held *Record, seen counts) (map[plan.PathKey]plan.PathID, error) {
	if held.Table.Data != nil && held.trustsTable(seen) {
		return held.Table.Paths, nil
	}
	paths, err := n.nft.ReadPaths()
	if err == nil && len(paths) == 0 {
		return held.Table.Paths, nil
	}
	return paths, err
}

func (n *Node) readFacts(ctx context.Context, tables []uint32) (plan.Facts, error) {
	links, err := link.ReadLinks(n.links)
	if err != nil {
		return plan.Facts{}, err
	}
	tables = append(slices.Clone(tables), unix.RT_TABLE_MAIN)
	for _, l := range links {
		if l.VRFTable != 0 {
			tables = append(tables, l.VRFTable)
		}
	}
	slices.Sort(tables)
	tables = slices.DeleteFunc(slices.Compact(tables), func(t uint32) bool { return t == 0 })
	routed, err := route.ReadAllRouted(ctx, tables)
	if err != nil {
		return plan.Facts{}, err
	}
	gateways, err := route.ReadGateways(ctx)
	if err != nil {
		return plan.Facts{}, err
	}
	return plan.Facts{Links: links, Routed: routed, Gateways: gateways, EgressHook: n.hook, ARP: n.arp}, nil
}

// EndContradictions ends the connections that contradict the plan in force, see Audit.End.
func (n *Node) EndContradictions(ctx context.Context, d plan.DataPlane) (ended uint, err error) {
	return n.audit.End(ctx, d, nft.HeldNames, n.clock)
}

// OnNames sets the source of what a set of names holds when a plan makes it. Apply calls it.
func (n *Node) OnNames(contents func(ruleset.NameSet) []nft.NameElement) { n.nft.Names = contents }

// OnLeftOut has f called for each default route of a released interface that the main table does not get, because it has one of that
// family. Apply and Cleanup call it.
func (n *Node) OnLeftOut(f func(route string)) { n.vrfs.LeftOut = f }

// WriteNames writes addresses of DNS names into sets of the plan in force, see nft.Table. Any goroutine may call it.
func (n *Node) WriteNames(all []nft.NameElement) error { return n.nft.WriteNames(all) }

// Connections reads the fill level of this node's connection table.
func (*Node) Connections() (conntrack.Connections, error) { return conntrack.CountConnections() }

// Resumed reads from the nftables table of an earlier run the ingress IPs that another node is or was the host of.
func (n *Node) Resumed() (map[netip.Addr]bool, error) { return n.nft.Resumed() }

// SharedHosts reads the MACs of the nodes to which the shared path of an earlier run leads.
func (*Node) SharedHosts() (map[plan.MAC]bool, error) {
	all := map[plan.MAC]bool{}
	for _, set := range []string{ruleset.SetHosts, ruleset.SetPartners} {
		for _, f := range ruleset.Families {
			hosts, err := nft.ReadHosts(set + f.Suffix)
			if err != nil {
				return nil, err
			}
			for _, mac := range hosts {
				all[mac] = true
			}
		}
	}
	return all, nil
}

// CheckRival returns an error if another program serves EgressServices on this node.
func (*Node) CheckRival() error { return preflight.CheckRival() }

// ForeignHands counts changes to our rules and our table that are known to come from another program.
func (n *Node) ForeignHands() uint64 { return n.stirs.now().foreign }

// knownProblems caches the result of Problems.
type knownProblems struct {
	problems []cluster.Problem
	node     string
	devices  []string
	seen     counts
	err      error
	cost     time.Duration
}

// Problems reports settings and programs of this node that keep packets from passing these devices, or take packets
// past our rules. The operator must change them. It checks again after events about objects or settings that our routes
// depend on, and at every full re-read.
func (n *Node) Problems(held Record, node string, devices []string) ([]cluster.Problem, error) {
	seen, began := n.stirs.now(), n.clock()
	k := &n.trouble
	if !held.look && seen.watching && seen.all == k.seen.all && node == k.node && slices.Equal(devices, k.devices) {
		return slices.Concat(k.problems, n.nft.Problems(node)), k.err
	}
	bypassed, err := preflight.Bypasses(n.links, node)
	problems := append(preflight.Sysctls(node, devices), bypassed...)
	*k = knownProblems{problems, node, slices.Clone(devices), seen, err, n.clock().Sub(began)}
	return slices.Concat(problems, n.nft.Problems(node)), err
}

// Cleanup removes all our objects from this node, and nothing else. The nftables table goes last, and stays if another
// object could not be removed: without routes and rules it drops selected pods' packets. Connections with our mark end:
// on any other path their source would be wrong.
func (n *Node) Cleanup(ctx context.Context, m plan.Marks) error {
	if err := n.nft.Free(); err != nil {
		return err // a running daemon would recreate everything
	}
	if err := cleanup(ctx, n.links, &n.vrfs); err != nil {
		return err
	}
	if err := n.audit.EndAll(ctx, m); err != nil {
		return err
	}
	// Connections of the default network need no route of ours: some may have begun meanwhile.
	return errors.Join(n.nft.Cleanup(), n.audit.EndAll(ctx, m))
}
