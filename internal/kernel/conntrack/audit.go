// Package conntrack reads and changes the kernel's connections: it ends those that contradict a plan, and lists, watches
// and makes egress flows for another node.
package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
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

// Connection holds the fields of a conntrack entry that are compared with a plan.
type Connection struct {
	source netip.Addr           // before NAT
	Target netip.Addr           // after DNAT
	leaves netip.Addr           // source after SNAT
	port   cluster.FirewallPort // the destination's, after DNAT
	mark   uint32
	zoned  bool // in a conntrack zone, as Open vSwitch uses them: not ours, even if its mark has our bits
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

// OwnOf returns the addresses that masqueraded flows of a network leave with: those of its devices. Flows of the
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

// deviceAddresses reads the addresses of a path's devices. A device that is gone has no addresses.
func deviceAddresses(p plan.Path) (all []netip.Addr) {
	var addrs []net.Addr
	if p.Default() {
		addrs, _ = net.InterfaceAddrs()
	}
	for _, name := range p.Devices {
		if d, err := net.InterfaceByName(name); err == nil {
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

// doubt names the endpoints whose connections may contradict the plan in force, although they agreed with an earlier one. If all are in
// doubt, endpoints has those alone whose policy is another.
type doubt struct {
	all       bool
	endpoints map[netip.Addr]bool  // true: its policy is another
	strays    map[netip.Addr]bool  // ingress IPs whose strays no longer go where they went
	reused    map[plan.PathID]bool // ids of networks that mean another network now, or may do so
}

func (d *doubt) none() bool { return !d.all && d.addresses() == 0 }

// addresses returns the number of addresses whose connections are in doubt.
func (d *doubt) addresses() int { return len(d.endpoints) + len(d.strays) }

// add puts the endpoints of another doubt in doubt, too.
func (d *doubt) add(more doubt) {
	if more.all || d.addresses()+more.addresses() > doubtMost {
		d.everyone()
	}
	for a, policy := range more.endpoints {
		d.put(a, policy)
	}
	for a := range more.strays {
		d.putStrays(a)
	}
	d.reuse(more.reused)
}

// reuse puts all connections that came in by these paths in doubt.
func (d *doubt) reuse(ids map[plan.PathID]bool) {
	if d.reused == nil && len(ids) > 0 {
		d.reused = map[plan.PathID]bool{}
	}
	maps.Copy(d.reused, ids)
}

// everyone puts all endpoints in doubt.
func (d *doubt) everyone() {
	had := d.endpoints
	d.all, d.endpoints, d.strays = true, nil, nil
	for a, policy := range had {
		d.put(a, policy)
	}
}

// doubtOf returns the endpoints whose connections agreed with the plan before and may contradict the plan now. It is
// empty if now permits all that before did.
func doubtOf(before, now *plan.DataPlane) (d doubt) {
	if d.all = allDoubtful(before, now); before == nil {
		return d
	}
	d.putRenumbered(renumbered(before, now), now)
	if ids := reusedIDs(before, now); len(ids) > 0 {
		d.all, d.reused = true, ids
	}
	for x, y := range before.Ingress.Changes(now.Ingress) {
		if divertsStrays(y, x) {
			d.putStrays(x.Addr)
		}
	}
	for x, y := range before.Endpoints.Changes(now.Endpoints) {
		if !permitsAll(y, x) {
			d.put(cmp.Or(x, y).Addr, false)
		}
	}
	d.putFirewalled(before, now)
	return d
}

// putRenumbered puts all endpoints in doubt if ids of policies mean others now, and notes those that have such a policy.
func (d *doubt) putRenumbered(others map[firewall.PolicyID]bool, now *plan.DataPlane) {
	if len(others) == 0 {
		return
	}
	d.all = true
	for y := range now.Firewalled.All() {
		if others[y.Policy] {
			d.put(y.Addr, true)
		}
	}
}

// putFirewalled puts the endpoints in doubt whose policy has another id now.
func (d *doubt) putFirewalled(before, now *plan.DataPlane) {
	for x, y := range before.Firewalled.Changes(now.Firewalled) {
		if y != nil {
			d.put(y.Addr, true)
		} else { // without a policy, all is allowed: what was barred may begin again
			d.put(x.Addr, false)
		}
	}
}

// put puts an endpoint in doubt, also whether names allowed its connections if its policy is another.
func (d *doubt) put(a netip.Addr, policy bool) {
	if d.all && !policy {
		return
	}
	if d.endpoints == nil {
		d.endpoints = map[netip.Addr]bool{}
	}
	d.endpoints[a] = d.endpoints[a] || policy
}

// putStrays puts the strays of an ingress IP in doubt.
func (d *doubt) putStrays(a netip.Addr) {
	if d.all {
		return
	}
	if d.strays == nil {
		d.strays = map[netip.Addr]bool{}
	}
	d.strays[a] = true
}

// allDoubtful reports whether connections of any endpoint may contradict the plan now.
func allDoubtful(before, now *plan.DataPlane) bool {
	return before == nil || before.Marks != now.Marks || losesNetwork(before, now) ||
		losesDestination(before.Cluster, now.Cluster) ||
		len(now.Policies) > 0 && losesDestination(before.Inside, now.Inside)
}

// renumbered returns the ids of policies that mean another one now.
func renumbered(before, now *plan.DataPlane) map[firewall.PolicyID]bool {
	if sorted.OneSlice(before.Policies, now.Policies) {
		return nil
	}
	had, others := newFlowCheck(*before).policies, map[firewall.PolicyID]bool{}
	for _, p := range now.Policies {
		if had[p.ID] != nil && !had[p.ID].Equal(&p) {
			others[p.ID] = true
		}
	}
	return others
}

// losesNetwork reports whether a path id that meant a network before no longer does.
func losesNetwork(before, now *plan.DataPlane) bool {
	if sorted.OneSlice(before.Paths, now.Paths) {
		return false
	}
	f := newFlowCheck(*now)
	return slices.ContainsFunc(before.Paths, func(p plan.Path) bool { return p.Key.Kind == plan.PathNetwork && !f.networks[p.ID] })
}

// reusedIDs returns the path ids of networks that mean another network now, as where no other id was left for it.
func reusedIDs(before, now *plan.DataPlane) map[plan.PathID]bool {
	if sorted.OneSlice(before.Paths, now.Paths) {
		return nil
	}
	ids, had := map[plan.PathID]bool{}, map[plan.PathID]plan.PathKey{}
	for _, p := range before.Paths {
		had[p.ID] = p.Key
	}
	for _, p := range now.Paths {
		if key, is := had[p.ID]; is && key != p.Key && key.Kind == plan.PathNetwork && p.Key.Kind == plan.PathNetwork {
			ids[p.ID] = true
		}
	}
	return ids
}

// losesDestination reports whether a destination left a list of prefixes: no prefix of now contains one of before.
func losesDestination(before, now []netip.Prefix) bool {
	if sorted.SameSlice(before, now) {
		return false
	}
	return slices.ContainsFunc(before, func(p netip.Prefix) bool {
		i, found := cluster.SearchPrefix(now, p.Addr())
		if found {
			return now[i].Bits() > p.Bits()
		}
		return i == 0 || !now[i-1].Contains(p.Addr())
	})
}

// divertsStrays reports whether strays of an ingress IP had a way before, and do not have it now.
func divertsStrays(now, before *plan.IngressIP) bool {
	return before != nil && before.Stray != 0 && (now == nil || now.Stray != before.Stray)
}

// permitsAll reports whether an endpoint permits all flows that it permitted before. One that is new or gone does not.
func permitsAll(e, before *plan.Endpoint) bool {
	if e == nil || before == nil {
		return false
	}
	return (before.Path == 0 || lets(e, before.Way())) &&
		(before.Kept == plan.Way{} || before.Kept == e.Kept || lets(e, before.Kept))
}

// lets reports whether an endpoint permits flows with this path and source.
func lets(e *plan.Endpoint, way plan.Way) bool { return e.Way() == way }

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

// doubtMost limits the endpoints in doubt. With more of them, all connections are checked.
const doubtMost = 1 << 17

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
	if a.conn == nil {
		if a.conn, err = dialConntrack(); err != nil {
			return 0, err
		}
	}
	check := newFlowCheck(d)
	check.holds, check.held, check.doubt = held(), held, of
	if ended, err = a.conn.endContradictions(ctx, check, of); err != nil {
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

func (c *Conn) endContradictions(ctx context.Context, check *flowCheck, of doubt) (ended uint, err error) {
	led, end, err := c.contradictions(ctx, check, of)
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
// that are now steered to another node, and the requests that end the others that contradict the plan.
func (c *Conn) contradictions(ctx context.Context, check *flowCheck, of doubt) (led, end []entryChange, err error) {
	var denied []deniedConnection
	err = c.doubted(of, func(body []byte) bool {
		if !of.covers(body) {
			return ctx.Err() == nil
		}
		if connection := DecodeConnection(body); len(check.policies) > 0 && check.denies(connection) {
			denied = append(denied, deniedConnection{connection, deletion(body), check.bar(connection, body)})
		} else if m, ok := check.lead(body); ok {
			led = append(led, m)
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
	return led, end, cmp.Or(err, ctx.Err())
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
	m = deletion(body)
	m.Type, m.Body = conntrackMessage(vnl.IPCTNL_MSG_CT_NEW), appendMark(m.Body, f.Marks.Cluster(), f.Marks.Mask)
	return m
}

// covers reports whether a connection is in doubt.
func (d *doubt) covers(body []byte) bool {
	source, destination := tupleAddresses(nl.Attr(body, vnl.SizeofNfgenmsg, vnl.CTA_TUPLE_ORIG))
	_, doubted := d.endpoints[source]
	return source.IsValid() && (d.all || doubted || d.strays[destination])
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

// end is the address of a connection's original direction by which the kernel lists connections.
type end uint8

const (
	anywhere end = iota
	atSource
	atDestination
)

// Attributes and flags for dumps that x/sys does not define (linux/netfilter/nfnetlink_conntrack.h,
// nf_conntrack_netlink.c).
const (
	ctaFilter          = 25     // CTA_FILTER, since Linux 5.8
	ctaFilterOrigFlags = 1      // CTA_FILTER_ORIG_FLAGS
	filterSource       = 1 << 0 // CTA_FILTER_F_CTA_IP_SRC
	filterDestination  = 1 << 1 // CTA_FILTER_F_CTA_IP_DST
	ctaZone            = 18     // CTA_ZONE
	ctaTupleZone       = 3      // CTA_TUPLE_ZONE
)

// DumpConnections calls connections on a socket of its own.
func DumpConnections(source netip.Addr, each func(body []byte) bool) error {
	c, err := dialConntrack()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.connections(source, atSource, each)
}

// connections calls each for every connection, of any protocol, until each returns false. With an address it lists only
// that address family. For IPv4 the kernel also filters by the address at one end, if it can, so each must still compare it. For
// IPv6 the kernel's filter would drop exactly the wanted entries: ctnetlink_filter_match_tuple uses ipv6_addr_cmp as if
// it tested equality, in 6.18 and 7.2.
func (c *Conn) connections(a netip.Addr, at end, each func(body []byte) bool) error {
	body := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}
	if a.IsValid() {
		body = Flow{Src: netip.AddrPortFrom(a, 0)}.header() // selects its address family
	}
	if a.Is4() && at != anywhere {
		attr, filter := uint16(vnl.CTA_IP_V4_SRC), uint32(filterSource)
		if at == atDestination {
			attr, filter = vnl.CTA_IP_V4_DST, filterDestination
		}
		body = nl.AppendNested(body, vnl.CTA_TUPLE_ORIG, func(b []byte) []byte {
			return nl.AppendNested(b, vnl.CTA_TUPLE_IP, func(b []byte) []byte { return nl.AppendAddr(b, attr, a) })
		})
		body = nl.AppendNested(body, ctaFilter, func(b []byte) []byte {
			b = nl.AppendAttr32(b, ctaFilterOrigFlags, filter)
			return nl.AppendAttr32(b, ctaFilterOrigFlags+1, 0)
		})
	}
	_, err := c.Dump(nl.Message{Type: conntrackMessage(vnl.IPCTNL_MSG_CT_GET), Body: body}, each)
	return err
}

// tupleAddresses reads the addresses of a tuple.
func tupleAddresses(tuple []byte) (from, to netip.Addr) {
	for typ, value := range nl.Attrs(nl.Attr(tuple, 0, vnl.CTA_TUPLE_IP), 0) {
		switch typ {
		case vnl.CTA_IP_V4_SRC, vnl.CTA_IP_V6_SRC:
			from, _ = netip.AddrFromSlice(value)
		case vnl.CTA_IP_V4_DST, vnl.CTA_IP_V6_DST:
			to, _ = netip.AddrFromSlice(value)
		}
	}
	return from, to
}

// DecodeConnection decodes the body of a message about an entry.
func DecodeConnection(body []byte) (c Connection) {
	for typ, value := range nl.Attrs(body, vnl.SizeofNfgenmsg) {
		c.zoned = c.zoned || zones(typ, value)
		switch typ {
		case vnl.CTA_TUPLE_ORIG:
			c.source, _ = tupleAddresses(value)
		case vnl.CTA_TUPLE_REPLY:
			c.Target, c.leaves = tupleAddresses(value)
			c.port = tuplePort(value)
		case vnl.CTA_MARK:
			c.mark = nl.BE32(value)
		}
	}
	return c
}

// tuplePort reads the protocol of a tuple, and the source port if the protocol has ports that rules name.
func tuplePort(tuple []byte) (p cluster.FirewallPort) {
	for typ, value := range nl.Attrs(nl.Attr(tuple, 0, vnl.CTA_TUPLE_PROTO), 0) {
		switch typ {
		case vnl.CTA_PROTO_NUM:
			p.Protocol = nl.Byte(value)
		case vnl.CTA_PROTO_SRC_PORT:
			p.Number = nl.BE16(value)
		}
	}
	return p
}

// zones reports whether an attribute puts its entry, or the entry's original direction, in a zone.
func zones(typ uint16, value []byte) bool {
	return typ == ctaZone || typ == vnl.CTA_TUPLE_ORIG && nl.Attr(value, 0, ctaTupleZone) != nil
}

// deletion returns the request to delete exactly the entry that the kernel listed, not one that replaced it since.
func deletion(body []byte) nl.Message {
	b := slices.Clone(body[:vnl.SizeofNfgenmsg])
	for typ, value := range nl.Attrs(body, vnl.SizeofNfgenmsg) {
		switch typ {
		case vnl.CTA_TUPLE_ORIG:
			b = nl.AppendAttr(b, typ|unix.NLA_F_NESTED, value...)
		case vnl.CTA_ID:
			b = nl.AppendAttr(b, typ, value...)
		}
	}
	return nl.Message{Type: conntrackMessage(vnl.IPCTNL_MSG_CT_DELETE), Body: b}
}
