package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// flowCheck says which connections contradict the plan. The address a connection leaves with was bound when it began:
// one that began before its pod was selected, or with another ingress IP or path, can only be ended.
type flowCheck struct {
	plan.DataPlane
	networks map[plan.PathID]bool
	steering map[plan.PathID]bool
	own      map[plan.PathID]map[netip.Addr]bool // the addresses of a network's devices; those asked for
}

func newFlowCheck(d plan.DataPlane) *flowCheck {
	f := &flowCheck{DataPlane: d, networks: map[plan.PathID]bool{}, steering: map[plan.PathID]bool{}, own: map[plan.PathID]map[netip.Addr]bool{}}
	for _, p := range d.Paths {
		f.networks[p.ID] = p.Key.Kind == plan.PathNetwork
		f.steering[p.ID] = p.Key.Kind == plan.PathSteer
	}
	return f
}

// connection is what is compared with a plan.
type connection struct {
	source netip.Addr // that it began with
	target netip.Addr // after DNAT
	leaves netip.Addr // source after SNAT
	mark   uint32
	zoned  bool // of a conntrack zone, as of Open vSwitch: not ours, whatever its mark says
}

// contradicts says that a connection must end.
func (f *flowCheck) contradicts(c connection) bool {
	if c.zoned {
		return false
	}
	mark := c.mark & f.Marks.Mask
	e, selected := f.Endpoints.Get(plan.Endpoint{Addr: c.source})
	switch {
	case mark&f.Marks.EgressBit() != 0:
		way := plan.Way{Path: f.Marks.Path(mark), Source: c.leaves}
		return !selected || !f.accepts(&e, way)
	case mark != 0:
		return !f.networks[f.Marks.Path(mark)]
	}
	return selected && !f.inCluster(c.target)
}

// accepts says whether a flow of an endpoint may go on its way.
func (f *flowCheck) accepts(e *plan.Endpoint, way plan.Way) bool {
	if way == e.Kept || lets(e, way) {
		return true
	}
	return e.Path == way.Path && !e.Source.IsValid() && f.ownOf(way.Path)[way.Source]
}

// ownOf gives the addresses that flows of a network leave with where they are masqueraded: those of its devices. By the default
// network a flow may leave by any device; an ingress IP may stand on one, with IPVS.
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

// deviceAddresses reads the addresses of a path's devices; what is gone has none.
func deviceAddresses(p plan.Path) (all []netip.Addr) {
	var addrs []net.Addr
	if isDefault(p) {
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

func (f *flowCheck) inCluster(a netip.Addr) bool {
	i, found := slices.BinarySearchFunc(f.Cluster, a, func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
	return found || i > 0 && f.Cluster[i-1].Contains(a)
}

// doubt says whose connections may contradict a plan that did not contradict the one before.
type doubt struct {
	all       bool
	endpoints map[netip.Addr]bool
}

func (d *doubt) none() bool { return !d.all && len(d.endpoints) == 0 }

// doubtOf finds out whose connections may contradict a plan. Where nothing shrank that let them pass, none can. With first
// it looks no further than for whether there are some.
func doubtOf(before, now *plan.DataPlane, first bool) (d doubt) {
	if before == nil || before.Marks != now.Marks {
		return doubt{all: true}
	}
	if !sorted.OneSlice(before.Paths, now.Paths) {
		f := newFlowCheck(*now)
		for _, p := range before.Paths {
			d.all = d.all || p.Key.Kind == plan.PathNetwork && !f.networks[p.ID]
		}
	}
	if !sorted.SameSlice(before.Cluster, now.Cluster) {
		f := flowCheck{DataPlane: *now}
		for _, p := range before.Cluster { // those of before are inside those of now, or what was inside the cluster is outside
			i, found := slices.BinarySearchFunc(f.Cluster, p.Addr(), func(p netip.Prefix, a netip.Addr) int { return p.Addr().Compare(a) })
			holds := found && f.Cluster[i].Bits() <= p.Bits() || !found && i > 0 && f.Cluster[i-1].Contains(p.Addr())
			d.all = d.all || !holds
		}
	}
	if d.all {
		return d
	}
	for x, y := range before.Endpoints.Changes(now.Endpoints) {
		a := x
		if a == nil {
			a = y
		} else if y != nil && (x.Path == 0 || lets(y, plan.Way{Path: x.Path, Source: x.Source})) && (x.Kept == plan.Way{} || x.Kept == y.Kept || lets(y, x.Kept)) {
			continue
		}
		if d.endpoints == nil {
			d.endpoints = map[netip.Addr]bool{}
		}
		if d.endpoints[a.Addr] = true; first {
			return d
		}
	}
	return d
}

// lets says whether an endpoint lets pass all that one with another way did.
func lets(e *plan.Endpoint, way plan.Way) bool { return e.Path == way.Path && e.Source == way.Source }

// settled is the plan that no connection contradicted.
type settled struct {
	plan  *plan.DataPlane   // nil: it is not known
	since []*plan.DataPlane // that were in force since, the present one included: connections began by each
	whole time.Time         // when all connections were looked at
	cost  time.Duration     // of that
}

// old says that all connections are to be looked at again.
func (s *settled) old(now time.Time) bool {
	return now.Sub(s.whole) >= max(wholeEvery, lookShare*s.cost)
}

// sinceMost is how many plans are remembered that no connections were compared with.
const sinceMost = 64

// takes takes in that a plan is in force, and says whether connections may contradict it.
func (s *settled) takes(d *plan.DataPlane) (doubted bool) {
	if len(s.since) == 0 {
		if of := doubtOf(s.plan, d, true); of.none() {
			s.plan = d // this one lets pass what the one before did, and more
			return false
		}
	}
	if s.since = append(s.since, d); len(s.since) > sinceMost {
		s.plan, s.since = nil, s.since[len(s.since)-1:]
	}
	return true
}

// doubt says whose connections may contradict a plan.
func (s *settled) doubt(d *plan.DataPlane) doubt {
	of := doubtOf(s.plan, d, false)
	for _, p := range s.since {
		if of.all {
			break
		}
		more := doubtOf(p, d, false)
		if of.all = more.all; len(more.endpoints) > 0 && of.endpoints == nil {
			of.endpoints = map[netip.Addr]bool{}
		}
		maps.Copy(of.endpoints, more.endpoints)
	}
	return of
}

// Connections that the packets of before had begun when the new rules came in force may not have been there yet when they were
// looked for. So all are looked at again, at times.
const (
	wholeEvery = time.Minute
	fewest     = 10 // addresses up to which the kernel may be asked for each
)

// EndContradictions ends the connections that contradict the plan that is in force. Those that are steered elsewhere now are
// led there instead. The rules drop what contradicts them already; without its connection a packet begins anew under them.
// It looks at the connections of those whose plan has changed since it last succeeded.
func (n *Node) EndContradictions(ctx context.Context, d plan.DataPlane) (ended uint, err error) {
	began := n.clock()
	of := n.settled.doubt(&d)
	if n.settled.old(began) {
		of = doubt{all: true}
	}
	if of.none() {
		n.settled.plan, n.settled.since = &d, nil
		return 0, nil
	}
	if ended, err = n.endContradictions(ctx, d, of); err != nil {
		return ended, err
	}
	n.settled.plan, n.settled.since = &d, nil
	if of.all {
		n.settled.whole, n.settled.cost = began, n.clock().Sub(began)
	}
	return ended, nil
}

// endContradictions leads flows on, and ends the connections that contradict the plan, as far as they are in doubt.
func (n *Node) endContradictions(ctx context.Context, d plan.DataPlane, of doubt) (ended uint, err error) {
	if n.flows == nil {
		if n.flows, err = dialConntrack(); err != nil {
			return 0, err
		}
	}
	if ended, err = n.flows.endContradictions(ctx, d, of); err != nil {
		n.flows.close() // the rest of an answer may be in it
		n.flows = nil
	}
	return ended, err
}

// together says whether the connections of so many addresses are found sooner among all than by asking for those of each. The kernel goes
// through its whole table every time, which takes as long as it does to tell of a hundredth of what has room there (BenchmarkContradictions).
func together(addresses int) bool {
	if addresses <= 1 || addresses > fewest {
		return addresses > fewest
	}
	c, err := (*Node)(nil).Connections()
	return err == nil && uint64(c.Entries)*100 <= uint64(addresses-1)*uint64(c.Limit)
}

func (c *ctConn) endContradictions(ctx context.Context, d plan.DataPlane, of doubt) (ended uint, err error) {
	check := newFlowCheck(d)
	var led, end []entryChange
	take := func(body []byte) bool {
		source, ok := originalSource(body)
		if !ok || !of.all && !of.endpoints[source] {
			return ctx.Err() == nil
		}
		if m, ok := check.lead(body); ok {
			led = append(led, m)
		} else if check.contradicts(decodeConnection(body)) {
			end = append(end, entryChange{message: deletion(body)})
		}
		return ctx.Err() == nil
	}
	if of.all || together(len(of.endpoints)) {
		err = c.connections(netip.Addr{}, take)
	} else {
		six := false
		for a := range of.endpoints {
			if six = six || a.Is6(); a.Is4() {
				err = errors.Join(err, c.connections(a, take))
			}
		}
		if six {
			err = errors.Join(err, c.connections(netip.IPv6Unspecified(), take))
		}
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return 0, fmt.Errorf("look for connections that contradict the plan: %w", err)
	}
	if err := c.exchange(led); err != nil {
		return 0, fmt.Errorf("lead egress flows to where they are steered now: %w", err)
	}
	for _, l := range led { // what ended meanwhile needs nothing
		if l.err != nil && !errors.Is(l.err, errNoFlow) {
			l.message, l.err = l.instead, nil
			end = append(end, l)
		}
	}
	if err := c.exchange(end); err != nil {
		return 0, fmt.Errorf("end connections that contradict the plan: %w", err)
	}
	var errs []error
	for _, e := range end {
		switch {
		case e.err == nil:
			ended++
		case !errors.Is(e.err, errNoFlow):
			errs = append(errs, fmt.Errorf("end connection that contradicts the plan: %w", e.err))
		}
	}
	return ended, joined(errs)
}

// Of dumps, what x/sys does not name (linux/netfilter/nfnetlink_conntrack.h, nf_conntrack_netlink.c).
const (
	ctaFilter          = 25     // CTA_FILTER, since Linux 5.8
	ctaFilterOrigFlags = 1      // CTA_FILTER_ORIG_FLAGS
	filterSource       = 1 << 0 // CTA_FILTER_F_CTA_IP_SRC
	ctaZone            = 18     // CTA_ZONE
	ctaTupleZone       = 3      // CTA_TUPLE_ZONE
)

// dumpConnections is connections by a socket of its own.
func dumpConnections(source netip.Addr, each func(body []byte) bool) error {
	c, err := dialConntrack()
	if err != nil {
		return err
	}
	defer c.close()
	return c.connections(source, each)
}

// connections calls each for every connection, of any protocol, until it returns false. With a source it is for those of its
// family, and of IPv4 the kernel leaves out what has another one, if it can: each must look itself. Of IPv6 the kernel
// would leave out just those that are wanted (ctnetlink_filter_match_tuple takes ipv6_addr_cmp for an equality, in 6.18 and 7.2).
func (c *ctConn) connections(source netip.Addr, each func(body []byte) bool) error {
	body := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}
	if source.IsValid() {
		body = Flow{Src: netip.AddrPortFrom(source, 0)}.header() // of its family
	}
	if source.Is4() {
		body = nested(body, nl.CTA_TUPLE_ORIG, func(b []byte) []byte {
			return nested(b, nl.CTA_TUPLE_IP, func(b []byte) []byte { return appendAddr(b, nl.CTA_IP_V4_SRC, source) })
		})
		body = nested(body, ctaFilter, func(b []byte) []byte {
			b = appendAttr32(b, ctaFilterOrigFlags, filterSource)
			return appendAttr32(b, ctaFilterOrigFlags+1, 0)
		})
	}
	return c.dump(message{typ: conntrackMessage(nl.IPCTNL_MSG_CT_GET), body: body}, each)
}

// originalSource reads the source that a connection began with, and nothing else.
func originalSource(body []byte) (netip.Addr, bool) {
	for typ, value := range attrs(body, nl.SizeofNfgenmsg) {
		if typ == nl.CTA_TUPLE_ORIG {
			source, _ := tupleAddresses(value)
			return source, source.IsValid()
		}
	}
	return netip.Addr{}, false
}

// tupleAddresses reads the addresses of a tuple.
func tupleAddresses(tuple []byte) (from, to netip.Addr) {
	for typ, value := range attrs(tuple, 0) {
		if typ != nl.CTA_TUPLE_IP {
			continue
		}
		for typ, value := range attrs(value, 0) {
			switch typ {
			case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
				from, _ = netip.AddrFromSlice(value)
			case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
				to, _ = netip.AddrFromSlice(value)
			}
		}
	}
	return from, to
}

func decodeConnection(body []byte) (c connection) {
	for typ, value := range attrs(body, nl.SizeofNfgenmsg) {
		switch {
		case typ == nl.CTA_TUPLE_ORIG:
			c.source, _ = tupleAddresses(value)
			c.zoned = c.zoned || zonedTuple(value)
		case typ == nl.CTA_TUPLE_REPLY:
			c.target, c.leaves = tupleAddresses(value)
		case typ == nl.CTA_MARK && len(value) >= 4:
			c.mark = binary.BigEndian.Uint32(value)
		case typ == ctaZone:
			c.zoned = true
		}
	}
	return c
}

// zonedTuple says whether a tuple is of a zone that only its direction has.
func zonedTuple(tuple []byte) bool {
	for typ := range attrs(tuple, 0) {
		if typ == ctaTupleZone {
			return true
		}
	}
	return false
}

// deletion is the request to delete an entry as the kernel showed it, and no other that took its place.
func deletion(body []byte) message {
	b := slices.Clone(body[:nl.SizeofNfgenmsg])
	for typ, value := range attrs(body, nl.SizeofNfgenmsg) {
		switch typ {
		case nl.CTA_TUPLE_ORIG:
			b = appendAttr(b, typ|unix.NLA_F_NESTED, value...)
		case nl.CTA_ID:
			b = appendAttr(b, typ, value...)
		}
	}
	return message{typ: conntrackMessage(nl.IPCTNL_MSG_CT_DELETE), body: b}
}
