// Package kernel makes the kernel of this node equal to a plan: VRF devices, the tunnel, routes, rules and the nftables
// table. Everything of ours bears a mark that the kernel shows (a route protocol, a link group, a table's name); nothing
// else is touched. Each applier lists what is ours, compares, and changes the difference.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
)

// Node is the kernel of this node.
type Node struct {
	links     *netlink.Handle
	flows     *netlink.Handle
	vrfs      vrfs
	nft       nft
	unsettled bool // connections may contradict the plan
	taken     taken
}

// Open opens the sockets that a Node needs.
func Open() (*Node, error) {
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink socket: %w", err)
	}
	flows, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		links.Close()
		return nil, fmt.Errorf("open netfilter netlink socket: %w", err)
	}
	return &Node{links: links, flows: flows, unsettled: true}, nil
}

// Close closes the sockets. What was applied stays. An nftables table that belongs to us is nobody's from then on.
func (n *Node) Close() {
	n.nft.close()
	n.links.Close()
	n.flows.Close()
}

// Facts reads what a plan depends on. Of tables it looks at those named, at every VRF device's and at the main one. Where
// the routes of the last Apply are gone, they are put back first if that can be: a plan made of what holds for a moment would
// end connections.
func (n *Node) Facts(ctx context.Context, tables ...uint32) (plan.Facts, error) {
	const tries = 3 // somebody may take them away again meanwhile
	f, err := n.facts(ctx, tables)
	for range tries {
		if err != nil || !n.taken.lost(f.Routed, tables) || n.restore(ctx, n.taken.before) != nil {
			break // what is wrong Apply will say
		}
		f, err = n.facts(ctx, tables)
	}
	return f, err
}

func (n *Node) facts(ctx context.Context, tables []uint32) (plan.Facts, error) {
	links, err := readLinks(n.links)
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
	links, routed, err := readFacts(ctx, n.links, tables)
	if err != nil {
		return plan.Facts{}, err
	}
	paths, err := n.nft.paths()
	if err != nil {
		return plan.Facts{}, err
	}
	return plan.Facts{Links: links, Routed: routed, Paths: paths}, nil
}

// Result is what an Apply left.
type Result struct {
	// InForce says that rules and packet filter are as planned: what they serve may be announced.
	InForce bool
	// Ended counts the connections that contradicted the plan.
	Ended uint
	// Restored names what was in force after the last Apply and was found to be gone or changed by somebody else. A link that
	// goes down takes its routes along.
	Restored []string
}

// Apply makes the kernel equal to the plan: what packets will need first, then what sends them there; what they no
// longer need goes last. One step's failure does not stop the others.
func (n *Node) Apply(ctx context.Context, p *plan.NodePlan) (Result, error) {
	var r Result
	var errs []error
	try := func(err error) bool {
		errs = append(errs, err)
		return err == nil
	}
	try(n.restore(ctx, p))
	rules := try(addRules(ctx, p.Rules, n.taken.rule))

	changed, err := n.nft.apply(ctx, p.DataPlane)
	packets := try(err)
	if n.nft.missed {
		n.taken.table()
	}
	n.unsettled = n.unsettled || changed
	if packets && n.unsettled {
		// The new rules already drop what contradicts them; without its connection a packet begins anew under them.
		r.Ended, err = endContradictions(ctx, n.flows, p.DataPlane)
		n.unsettled = !try(err)
	}
	r.InForce, r.Restored = rules && packets, n.taken.end(p)
	if r.InForce {
		try(pruneRules(ctx, p.Rules))
		try(pruneRoutes(ctx, p.Routes, p.Held...))
		if p.Tunnel == nil {
			try(applyTunnel(ctx, n.links, nil))
		}
		try(n.vrfs.prune(ctx, n.links, p.VRFs))
	}
	return r, errors.Join(errs...)
}

// restore makes devices and routes that a plan needs.
func (n *Node) restore(ctx context.Context, p *plan.NodePlan) error {
	n.vrfs.taken = &n.taken
	errs := []error{n.vrfs.apply(ctx, n.links, p.VRFs)}
	if p.Tunnel != nil {
		errs = append(errs, applyTunnel(ctx, n.links, p.Tunnel, n.taken.tunnel))
	}
	return errors.Join(append(errs, addRoutes(ctx, n.links, p.Routes, n.taken.route))...)
}

// Problems tells what on this node keeps packets from passing by these devices, or takes them past our rules. It is the
// operator's to change.
func (n *Node) Problems(node string, devices []string) ([]cluster.Problem, error) {
	bypassed, err := bypassProblems(n.links, node)
	problems := append(sysctlProblems(node, devices), bypassed...)
	return append(problems, n.nft.problems(node)...), err
}

// Cleanup removes everything of ours from this node, and nothing else. Connections whose mark says that they are ours end:
// their source would be wrong on any other way.
func (n *Node) Cleanup(ctx context.Context, m plan.Marks) error {
	table := n.nft.cleanup()
	if errors.As(table, &OwnedError{}) {
		return table // a daemon would make everything anew
	}
	_, flows := endContradictions(ctx, n.flows, plan.DataPlane{Marks: m})
	return errors.Join(table, flows, cleanup(ctx, n.links))
}
