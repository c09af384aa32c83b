package kernel

import (
	"encoding/binary"
	"math"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/link"
	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// The daemon reads the kernel again when events show that others changed it. In addition it re-reads everything every
// lookEvery, or less often where that takes long: it rests lookShare times the duration, so that this costs a
// thousandth of the time.
const (
	lookEvery = 10 * time.Second
	lookShare = 1000
)

// stir is the significance of an event.
type stir int

const (
	stirNothing stir = iota // irrelevant to us
	stirWake                // wakes the loop, but changes nothing that is read
	stirFacts               // links, addresses, or routes that are not ours
	stirAll                 // our objects, or objects that they depend on, as well
)

// stirs counts the changes that others made to the kernel.
type stirs struct {
	mu      sync.Mutex
	counts  counts
	concern concern
	wake    func()       // nil: no Watch is running
	tables  *tableEvents // of that Watch
	// Port ids of the sockets whose changes are our own: for routes and rules, and for the nftables table.
	routePort, tablePort uint32
}

// counts holds the number of changes since the start.
type counts struct {
	watching          bool
	facts, all, table uint64
	foreign           uint64 // changes of our rules and our table that another program made
}

func (s *stirs) now() counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// watch records that a Watch delivers events from now on, or with nil that none does any more.
func (s *stirs) watch(wake func(), tables *tableEvents) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wake, s.tables, s.counts.watching = wake, tables, wake != nil
	s.counts.facts++
	s.counts.all++
	s.counts.table++
}

// missed records that events were lost.
func (s *stirs) missed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.facts++
	s.counts.all++
	s.counts.table++
}

// pause has the kernel make no events about nftables tables until resume is called. Events that others cause meanwhile count
// as missed.
func (s *stirs) pause() (resume func(committed bool)) {
	s.mu.Lock()
	tables := s.tables
	s.mu.Unlock()
	if tables == nil {
		return nil
	}
	return tables.pause(func() {
		s.missed()
		s.wakeUp()
	})
}

func (s *stirs) take(what stir) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if what >= stirFacts {
		s.counts.facts++
	}
	if what >= stirAll {
		s.counts.all++
	}
}

// takeForeign counts a change of one of our rules by another program.
func (s *stirs) takeForeign() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.foreign++
}

// takeTable records an event about our table and reports whether another program caused it.
func (s *stirs) takeTable(m syscall.NetlinkMessage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tablePort != 0 && m.Header.Pid == s.tablePort {
		return false
	}
	s.counts.table++
	s.counts.foreign++
	return true
}

// wakeUp asks for a pass after effects of our own changes, which no event reports.
func (s *stirs) wakeUp() {
	s.mu.Lock()
	wake := s.wake
	s.mu.Unlock()
	if wake != nil {
		wake()
	}
}

// concern holds the devices and tables that our routes, rules and devices depend on.
type concern struct {
	any     bool // every event matters
	devices map[string]bool
	parents map[string]bool // of VLAN sub-interfaces: of their events, those about the link matter
	tables  map[uint32]bool
}

func (s *stirs) setConcern(c concern) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.concern = c
}

func (s *stirs) concerns() concern {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.concern
}

// sameConcern reports whether two plans depend on the same devices and tables.
func sameConcern(a, b *plan.NodePlan) bool {
	return a.Routes.Same(b.Routes) && sorted.OneSlice(a.VRFs, b.VRFs) && sorted.OneSlice(a.VLANs, b.VLANs) && a.Tunnel == b.Tunnel &&
		sorted.OneSlice(a.DataPlane.Uplinks, b.DataPlane.Uplinks) && a.DataPlane.OnLink.Same(b.DataPlane.OnLink)
}

// concernOf returns the devices and tables that a plan depends on.
func concernOf(p *plan.NodePlan) concern {
	c := concern{devices: map[string]bool{}, parents: map[string]bool{}, tables: map[uint32]bool{}}
	for _, v := range p.VRFs {
		c.devices[v.Name] = true
		c.tables[v.Table] = true
		for _, name := range v.Interfaces {
			c.devices[name] = true
		}
	}
	for _, v := range p.VLANs {
		c.devices[v.Name], c.parents[v.Parent] = true, true
	}
	if p.Tunnel != nil {
		c.devices[p.Tunnel.Device] = true
	}
	for _, u := range p.DataPlane.Uplinks {
		c.devices[u.Device] = true
	}
	for a := range p.DataPlane.OnLink.All() {
		c.devices[a.Device] = true
	}
	c.addRoutes(p.Routes)
	return c
}

// addRoutes adds the tables of routes and the devices of their next hops.
func (c *concern) addRoutes(routes sorted.List[plan.Route]) {
	device, table := "", uint32(0) // of the previous route: with very many, most are alike
	for r := range routes.All() {
		if r.Table != table {
			table = r.Table
			c.tables[table] = true
		}
		for j := range r.NextHops {
			switch d := r.NextHops[j].Device; {
			case d == "":
				c.any = true
			case d != device:
				device = d
				c.devices[d] = true
			}
		}
	}
}

// linkNames maps the index of a link to its name, kept up to date from events.
type linkNames map[uint32]string

// stir classifies a routing event.
func (s *stirs) stir(names linkNames, ours ourLinks, m syscall.NetlinkMessage) stir {
	matters, otherwise := false, stirNothing
	switch m.Header.Type {
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		matters = ours.neighbour(m)
	case unix.RTM_NEWNETCONF, unix.RTM_DELNETCONF:
		matters = s.concerns().setting(names, m)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return s.stirOfRule(m)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if s.own(m) {
			return stirNothing
		}
		matters, otherwise = s.concerns().route(names, m), stirFacts
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		matters, otherwise = s.concerns().link(names, ours, m), stirFacts
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		matters, otherwise = s.concerns().address(names, m), stirFacts
	default:
		return stirAll
	}
	if matters {
		return stirAll
	}
	return otherwise
}

// own reports whether an event is about a change of a route or rule that this Node made.
func (s *stirs) own(m syscall.NetlinkMessage) bool {
	return s.routePort != 0 && m.Header.Pid == s.routePort
}

// stirOfRule classifies an event about a rule.
func (s *stirs) stirOfRule(m syscall.NetlinkMessage) stir {
	if s.own(m) {
		return stirNothing
	}
	r, ours := route.DecodeRule(m.Data)
	if ours && m.Header.Pid != 0 && s.routePort != 0 {
		s.takeForeign()
	}
	if ours || r.Action == 0 {
		return stirAll
	}
	return stirWake
}

// everything reports whether every event matters: before the first plan, or with a next hop on an unknown device.
func (c concern) everything() bool { return c.any || c.devices == nil }

// index reports whether events about the device of an index matter. Those about an unknown one do.
func (c concern) index(names linkNames, index uint32) bool {
	name, known := names[index]
	return !known || c.devices[name]
}

// link reports whether an event about a link matters, by its former name or its present one, and records the present one.
func (c concern) link(names linkNames, ours ourLinks, m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return true
	}
	index := binary.NativeEndian.Uint32(m.Data[linkIndex:])
	former, known := names[index]
	names.take(m)
	name := linkName(m.Data)
	matters := func(name string) bool { return c.devices[name] || c.parents[name] }
	return c.everything() || known && matters(former) || ours[index] || name == "" || matters(name)
}

// address reports whether an event about an address matters.
func (c concern) address(names linkNames, m syscall.NetlinkMessage) bool {
	return c.everything() || len(m.Data) < unix.SizeofIfAddrmsg ||
		c.index(names, binary.NativeEndian.Uint32(m.Data[link.AddrIndex:]))
}

// route reports whether an event about a route matters: the route is ours, in a table of ours, or by a device that matters.
func (c concern) route(names linkNames, m syscall.NetlinkMessage) bool {
	if c.everything() {
		return true
	}
	r, ok := route.DecodeRoute(m.Data)
	return !ok || r.Protocol == route.Protocol || c.tables[r.Table] ||
		slices.ContainsFunc(r.Legs, func(l route.Leg) bool { return l.Device != 0 && c.index(names, uint32(l.Device)) })
}

// setting reports whether an event about a setting matters. A new link causes a link event as well.
func (c concern) setting(names linkNames, m syscall.NetlinkMessage) bool {
	return setting(m.Data, func(index uint32) bool {
		name, known := names[index]
		return known && (c.everything() || c.devices[name])
	})
}

// setting reports whether an event is about a setting that Sysctls looks at, of all devices or of one that matters.
func setting(netconf []byte, matters func(index uint32) bool) bool {
	const (
		family     = 4              // struct netconfmsg, aligned
		index      = 1              // NETCONFA_IFINDEX
		forwarding = 2              // NETCONFA_FORWARDING
		rpFilter   = 3              // NETCONFA_RP_FILTER
		everything = math.MaxUint32 // NETCONFA_IFINDEX_ALL
	)
	value := nl.Attr(netconf, family, index)
	if len(value) < 4 || nl.Attr(netconf, family, forwarding) == nil && nl.Attr(netconf, family, rpFilter) == nil {
		return false
	}
	device := binary.NativeEndian.Uint32(value)
	return device == everything || matters(device)
}

// take records the name of a link.
func (n linkNames) take(m syscall.NetlinkMessage) {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return
	}
	index := binary.NativeEndian.Uint32(m.Data[linkIndex:])
	switch m.Header.Type {
	case unix.RTM_NEWLINK:
		if name := linkName(m.Data); name != "" {
			n[index] = name
		}
	case unix.RTM_DELLINK:
		delete(n, index)
	}
}

func linkName(body []byte) string {
	return unix.ByteSliceToString(nl.Attr(body, unix.SizeofIfInfomsg, unix.IFLA_IFNAME))
}
