// Package conntrack reads and changes the kernel's connections: it ends those that contradict a plan, and lists, watches
// and makes egress flows for another node.
package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
)

// flowCheck finds connections that contradict the plan. NAT binds a connection's source address when the connection
// begins: a connection that began before its pod was selected, or with another ingress IP or path, can only be ended.
type flowCheck struct {
	plan.DataPlane
	networks map[plan.PathID]bool
	steering map[plan.PathID]bool
	own      map[plan.PathID]map[netip.Addr]bool // addresses of a network's devices, read when first needed
	policies map[firewall.PolicyID]*firewall.Policy
	holds    firewall.Reads
	held     func() firewall.Reads // reads the sets of names again
	over     HandOver              // nil: connections with SNAT are ended
	doubt    doubt
	lenient  bool  // any destination of the present connection may have been an address of an allowed name
	unknown  bool  // the policy of the present connection has a set of names that cannot be read
	unread   error // why the last such set cannot be read
}

func noNames() firewall.Reads { return firewall.NoNames }

func newFlowCheck(d plan.DataPlane) *flowCheck {
	f := &flowCheck{
		DataPlane: d, holds: firewall.NoNames, held: noNames, networks: map[plan.PathID]bool{}, steering: map[plan.PathID]bool{},
		own: map[plan.PathID]map[netip.Addr]bool{}, policies: make(map[firewall.PolicyID]*firewall.Policy, len(d.Policies)),
	}
	for i := range d.Policies {
		f.policies[d.Policies[i].ID] = &d.Policies[i]
	}
	for _, p := range d.Paths {
		f.networks[p.ID] = p.Key.Kind == plan.PathNetwork
		f.steering[p.ID] = p.Key.Steers()
	}
	return f
}

// contradicts reports whether a connection must end.
func (f *flowCheck) contradicts(c Connection) bool {
	mark := c.mark & f.Marks.Mask
	e, selected := f.Endpoints.Get(plan.Endpoint{Addr: c.source})
	switch {
	case c.zoned:
		return false
	case mark&f.Marks.EgressBit() != 0:
		way := plan.Way{Path: f.Marks.Path(mark), Source: c.leaves}
		return !selected || !f.accepts(&e, way) || f.inCluster(c.Target)
	case mark == f.Marks.Cluster(): // a policy denied it: see bar
		_, firewalled := f.Firewalled.Get(firewall.Firewalled{Addr: c.source})
		return !firewalled || len(f.policies) > 0 && !f.unknown
	case mark != 0:
		id := f.Marks.Path(mark)
		return !f.networks[id] || f.doubt.reused[id]
	}
	return selected && !f.inCluster(c.Target)
}

// denies reports whether the policy of the pod that began a connection denies it. It never denies connections that others began,
// whose source is outside or another pod, nor those that depend on a set of names that cannot be read.
func (f *flowCheck) denies(c Connection) bool {
	if f.unknown = false; len(f.policies) == 0 || c.zoned {
		return false
	}
	of, firewalled := f.Firewalled.Get(firewall.Firewalled{Addr: c.source})
	p := f.policies[of.Policy]
	f.lenient = !f.doubt.endpoints[c.source]
	return firewalled && p != nil && !cluster.Within(f.Inside, c.Target) && p.Denies(c.Target, c.port, f.had) && !f.unknown
}

// had is the firewall.Holds for connections, which outlive the addresses of the names that once allowed them.
func (f *flowCheck) had(of firewall.PolicyID, stretch int, a netip.Addr) bool {
	if f.lenient && f.policies[of].Stretches[stretch].Allows() {
		return true
	}
	holds, err := f.holds(of, stretch, a)
	if err != nil {
		f.unknown, f.unread = true, err
	}
	return holds
}

// accepts reports whether a flow of an endpoint may keep its path and source.
func (f *flowCheck) accepts(e *plan.Endpoint, way plan.Way) bool {
	if way == e.Kept || lets(e, way) {
		return true
	}
	return e.Path == way.Path && !e.Source.IsValid() && f.ownOf(way.Path)[way.Source]
}

// ownOf returns the addresses that masqueraded flows of a network leave with: those of its devices. Flows of the
// default network may leave by any device. Ingress IPs are left out: with IPVS one may be assigned to a device.
func (f *flowCheck) ownOf(id plan.PathID) map[netip.Addr]bool {
	if own, known := f.own[id]; known {
		return own
	}
	own := map[netip.Addr]bool{}
	f.own[id] = own
	for _, p := range f.Paths {
		if p.ID != id {
			continue
		}
		for _, a := range deviceAddresses(p) {
			if _, ingress := f.Ingress.Get(plan.IngressIP{Addr: a}); !ingress {
				own[a] = true
			}
		}
	}
	return own
}

// isVRF reports whether a device is a VRF.
func isVRF(name string) bool {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return false
	}
	defer h.Close()
	d, err := h.LinkByName(name)
	return err == nil && d.Type() == (&netlink.Vrf{}).Type()
}

// deviceAddresses reads the addresses of a path's devices. A device that is gone has no addresses. Those of a VRF device are left out:
// where flows leave with one of them, the plan names it as their source, and the guard passes it for no others.
func deviceAddresses(p plan.Path) (all []netip.Addr) {
	var addrs []net.Addr
	if p.Default() {
		addrs, _ = net.InterfaceAddrs()
	}
	for _, name := range p.Devices {
		if d, err := net.InterfaceByName(name); err == nil && !isVRF(name) {
			of, _ := d.Addrs()
			addrs = append(addrs, of...)
		}
	}
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, prefix.Addr())
		}
	}
	return all
}

func (f *flowCheck) inCluster(a netip.Addr) bool { return cluster.Within(f.Cluster, a) }

// Audit ends connections that contradict the plan. It keeps no plan: each plan that comes into force adds to the doubt
// what the plan before it permitted and it does not. A connection that began under any plan since the last check, and
// contradicts the present one, was given up by one of those steps.
type Audit struct {
	conn  *Conn         // nil: not open
	doubt doubt         // the connections that have not been compared with the plan in force
	whole time.Time     // when all connections were last checked
	cost  time.Duration // how long that took
}

// Due reports whether all connections are due for another check.
func (a *Audit) Due(now time.Time) bool {
	return now.Sub(a.whole) >= max(wholeEvery, restShare*a.cost)
}

// Reset puts all connections in doubt, for when packets may have passed under other rules.
func (a *Audit) Reset() { a.doubt.everyone() }

// Renumbered puts all connections that came in by a network in doubt, for when a plan's path ids may have meant other networks: another
// program deleted the table of an earlier run, which alone had them. After a boot there are no such connections.
func (a *Audit) Renumbered(d *plan.DataPlane) {
	a.doubt.everyone()
	ids := map[plan.PathID]bool{}
	for _, p := range d.Paths {
		if p.Key.Kind == plan.PathNetwork {
			ids[p.ID] = true
		}
	}
	a.doubt.reuse(ids)
}

// Applied records that the plan d came into force after held, and reports whether connections may contradict it. Of a
// plan after an unknown one, which is nil, all connections are in doubt.
func (a *Audit) Applied(held, d *plan.DataPlane) (doubted bool) {
	a.doubt.add(doubtOf(held, d))
	return !a.doubt.none()
}

// When new rules come into force, packets that passed the old rules may still be creating connections, which a check
// then misses. So all connections are checked again every wholeEvery, or less often where a check takes long.
const (
	wholeEvery = time.Minute
	restShare  = 1000 // how many times the duration of a check passes between two of them
	fewest     = 10   // up to this many addresses, the kernel may be asked for each one
)

// End ends the connections that contradict the plan in force, and moves those that are now steered to
// another node to that path. The rules already drop their packets; once the connection is gone, the next packet starts
// a new one under the new rules. End checks only the endpoints in doubt, and at times all.
//
// An endpoint whose policy is another now is compared with the addresses that names have by held. The checks of all connections let
// those be that a name may have allowed once: an address that runs out ends no connection. Where a set of names cannot be read, the
// connections that depend on it stay, and all doubts with them.
func (a *Audit) End(ctx context.Context, d plan.DataPlane, held func() firewall.Reads, clock func() time.Time) (ended uint, err error) {
	if !a.doubt.none() && !a.doubt.all {
		if ended, err = a.end(ctx, d, held, a.doubt); err != nil {
			return ended, err
		}
		a.doubt = doubt{}
	}
	began := clock()
	if !a.doubt.all && !a.Due(began) {
		return ended, nil
	}
	more, err := a.end(ctx, d, held, doubt{all: true, endpoints: a.doubt.endpoints, reused: a.doubt.reused})
	if ended += more; err != nil {
		return ended, err
	}
	a.doubt, a.whole, a.cost = doubt{}, began, clock().Sub(began)
	return ended, nil
}

// end moves and ends connections as End does, for the endpoints in doubt.
func (a *Audit) end(ctx context.Context, d plan.DataPlane, held func() firewall.Reads, of doubt) (ended uint, err error) {
	return a.run(ctx, newCheck(d, held, of))
}

func newCheck(d plan.DataPlane, held func() firewall.Reads, of doubt) *flowCheck {
	check := newFlowCheck(d)
	check.holds, check.held, check.doubt = held(), held, of
	return check
}

// run moves and ends the connections that a check finds.
func (a *Audit) run(ctx context.Context, check *flowCheck) (ended uint, err error) {
	if a.conn == nil {
		if a.conn, err = dialConntrack(); err != nil {
			return 0, err
		}
	}
	if ended, err = a.conn.endContradictions(ctx, check); err != nil {
		a.conn.Close() // unread parts of an answer may remain in it
		a.conn = nil
	}
	return ended, err
}

// EndAll ends every connection with our mark: none is planned any more.
func (a *Audit) EndAll(ctx context.Context, m plan.Marks) error {
	_, err := a.end(ctx, plan.DataPlane{Marks: m}, noNames, doubt{all: true})
	return err
}

// Close closes the socket that End opened.
func (a *Audit) Close() {
	if a.conn != nil {
		a.conn.Close()
		a.conn = nil
	}
}

// together reports whether one dump of all connections is faster than one per address. The kernel walks its whole table
// for every dump, which takes as long as sending the entries of a hundredth of the table's capacity
// (BenchmarkContradictions).
func together(addresses int) bool {
	if addresses <= 1 || addresses > fewest {
		return addresses > fewest
	}
	c, err := CountConnections()
	return err == nil && uint64(c.Entries)*100 <= uint64(addresses-1)*uint64(c.Limit)
}

func (c *Conn) endContradictions(ctx context.Context, check *flowCheck) (ended uint, err error) {
	led, end, over, err := c.contradictions(ctx, check)
	if err != nil {
		return 0, fmt.Errorf("look for connections that contradict the plan: %w", err)
	}
	if err := c.exchange(led); err != nil {
		return 0, fmt.Errorf("redirect egress flows to the host that they are steered to now: %w", err)
	}
	for _, l := range led { // connections that ended meanwhile need nothing
		if l.failed() {
			l.Message, l.err = l.instead, nil
			end = append(end, l)
		}
	}
	if err := c.exchange(end); err != nil {
		return 0, fmt.Errorf("end connections that contradict the plan: %w", err)
	}
	rest, err := c.handOver(ctx, check, over) // last, as it waits for other nodes
	if err != nil {
		return 0, fmt.Errorf("hand egress flows of this node's pods over to the host that these are steered to now: %w", err)
	}
	end = append(end, rest...)
	ended, err = countEnded(end)
	if check.unread != nil {
		err = errors.Join(err, fmt.Errorf("look for connections that a policy denies: %w", check.unread))
	}
	return ended, err
}

// countEnded counts the connections that requests ended.
func countEnded(end []entryChange) (ended uint, err error) {
	var errs []error
	for _, e := range end {
		if e.err == nil {
			ended++
		} else if e.failed() {
			errs = append(errs, fmt.Errorf("end connection that contradicts the plan: %w", e.err))
		}
	}
	return ended, nl.JoinErrors(errs)
}

// contradictions looks through the connections of the endpoints in doubt. It returns the requests that redirect those
// that are now steered to another node, the requests that end the others that contradict the plan, and the flows to hand over.
func (c *Conn) contradictions(ctx context.Context, check *flowCheck) (led, end []entryChange, over []Flow, err error) {
	var denied []deniedConnection
	err = c.doubted(check.doubt, func(body []byte) bool {
		if !check.doubt.covers(body) {
			return ctx.Err() == nil
		}
		if connection := DecodeConnection(body); len(check.policies) > 0 && check.denies(connection) {
			denied = append(denied, deniedConnection{connection, deletion(body), check.bar(connection, body)})
		} else if m, ok := check.lead(body); ok {
			led = append(led, m)
		} else if flow, ok := check.hands(body); ok {
			over = append(over, flow)
		} else if check.contradicts(DecodeConnection(body)) {
			end = append(end, entryChange{Message: deletion(body)})
		}
		return ctx.Err() == nil
	})
	if len(denied) > 0 {
		check.holds = check.held()
	}
	for _, x := range denied {
		switch barred := x.mark&check.Marks.Mask == check.Marks.Cluster(); {
		case barred, !check.denies(x.Connection):
		case x.bar.Body != nil:
			led = append(led, entryChange{Message: x.bar, instead: x.deletion})
		default:
			end = append(end, entryChange{Message: x.deletion})
		}
	}
	return led, end, over, cmp.Or(err, ctx.Err())
}

// deniedConnection is a connection that no rule allowed when it was listed. It may be newer than the sets of names that were read then, so
// these are read again after the list.
type deniedConnection struct {
	Connection
	deletion nl.Message
	bar      nl.Message // without a body: it can be deleted
}

// bar returns the request that marks a connection which a policy denies: its packets are dropped. Without a body: delete it instead.
// Without its entry, the next datagram of a server that goes on sending would begin the connection again in the other direction, in which
// no policy judges it. TCP does not need that, as only a SYN begins a connection. Nor do connections with SNAT, whose servers do not know
// the pod's address.
func (f *flowCheck) bar(c Connection, body []byte) (m nl.Message) {
	if c.port.Protocol == unix.IPPROTO_TCP || c.leaves != c.source || c.mark&f.Marks.Mask&^f.Marks.Cluster() != 0 {
		return m
	}
	return remarking(body, f.Marks.Cluster(), f.Marks.Mask)
}

// doubted calls each for the connections of the endpoints in doubt, until each returns false. Others may be among them.
func (c *Conn) doubted(of doubt, each func(body []byte) bool) (err error) {
	if of.all || together(of.addresses()) {
		return c.connections(netip.Addr{}, anywhere, each)
	}
	ipv6 := false
	for at, addresses := range map[end]map[netip.Addr]bool{atSource: of.endpoints, atDestination: of.strays} {
		for a := range addresses {
			if a.Is4() {
				err = errors.Join(err, c.connections(a, at, each))
			}
			ipv6 = ipv6 || a.Is6()
		}
	}
	if ipv6 { // the kernel lists all of them at once
		err = errors.Join(err, c.connections(netip.IPv6Unspecified(), anywhere, each))
	}
	return err
}
