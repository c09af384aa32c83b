// Package walk follows a simulated packet through the rules that the kernel has, damage by others included.
package walk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/kernel/link"
	"github.com/egressway/egressway/internal/kernel/nft"
	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
)

// Packet is a packet to simulate on its way through this node.
type Packet struct {
	From, To         netip.Addr
	Proto            uint8 // unix.IPPROTO_*
	SourcePort, Port uint16
	In               string // device that it comes in by
	Mark             uint32
	Connection       Connection
}

// Connection is the conntrack state of a packet.
type Connection struct {
	Known  bool // an earlier packet began it
	Reply  bool // this packet is a reply
	DNAT   bool // its destination was rewritten
	Mark   uint32
	Source netip.Addr // original source; invalid: the packet's
}

func (c Connection) source(p Packet) netip.Addr {
	if c.Source.IsValid() {
		return c.Source
	}
	return p.From
}

func (c Connection) state() uint32 {
	if c.Known {
		return ruleset.StateEstablished
	}
	return ruleset.StateNew
}

func (c Connection) direction() uint8 {
	if c.Reply {
		return 1
	}
	return 0
}

func (c Connection) status() uint32 {
	if c.DNAT {
		return ruleset.StatusDNAT
	}
	return 0
}

func (p Packet) family() ruleset.Family {
	if p.From.Is4() {
		return ruleset.IPv4
	}
	return ruleset.IPv6
}

// Lookup is a lookup in a set, with its result.
type Lookup struct {
	Chain string `json:"chain"`
	Set   string `json:"set"`
	Key   string `json:"key"`
	Found bool   `json:"found"`
	// Value is a map's value for the key: a path id, an address or a chain; for a set of ranges, the range.
	Value string `json:"value,omitempty"`
	// Range is the range of a map of ranges that has the key.
	Range string `json:"range,omitempty"`
}

// Kind returns the set's name without family and path.
func (l Lookup) Kind() string { return setKind(l.Set) }

// Passage is the way of a packet through one of our base chains.
type Passage struct {
	Chain   string   `json:"chain"`
	Chains  []string `json:"chains,omitempty"` // that it jumped to
	Lookups []Lookup `json:"lookups,omitempty"`
	Empty   bool     `json:"empty,omitempty"` // the chain does not exist, or has no rules
	Dropped bool     `json:"dropped,omitempty"`
	Decided string   `json:"decided,omitempty"` // chain whose rule decided; empty: no rule did, and the packet passed
	Rule    int      `json:"rule,omitempty"`    // that rule, from 1
	Why     string   `json:"why,omitempty"`     // of a drop: the rule's counter
	Unknown []string `json:"unknown,omitempty"` // expressions that our rules never have, which the walk skipped

	// The state after the chain.
	Mark           uint32     `json:"mark"`
	ConnectionMark uint32     `json:"connectionMark"`
	Source         netip.Addr `json:"source,omitzero"`      // bound by NAT
	Masquerade     bool       `json:"masquerade,omitempty"` // bound by NAT to the device's address
	DSCP           *uint8     `json:"dscp,omitempty"`       // that a rule set; nil: none did
}

// LookedUp returns the last lookup in a set of this kind; ok reports whether there was one.
func (p *Passage) LookedUp(kind string) (l Lookup, ok bool) {
	if p == nil {
		return l, false
	}
	for _, l := range slices.Backward(p.Lookups) {
		if l.Kind() == kind {
			return l, true
		}
	}
	return l, false
}

// Drops reports whether the packet met the chain and was dropped there.
func (p *Passage) Drops() bool { return p != nil && p.Dropped }

// LiveRule is a routing rule of ours.
type LiveRule struct {
	plan.Rule
	IPv6 bool
}

// Matches reports whether the rule applies to packets with a mark.
func (r LiveRule) Matches(mark uint32) bool { return mark&r.Mask == r.Mark }

// LivePath is the meaning of a path id.
type LivePath struct {
	ID      plan.PathID
	Key     plan.PathKey
	Devices []string // by which its packets may leave; none: any but other networks' uplinks
}

// Uplink is a device for packets from outside, or from other nodes.
type Uplink struct {
	Device string
	Path   plan.PathID // 0: it leads to other nodes only
}

// Live is the state of our objects in this node's kernel. Objects of constant number are read at once; the others are
// looked up on demand.
type Live struct {
	Table   bool   // the nftables table is there
	Owner   uint32 // port id of the socket that owns it; 0: none
	Marks   plan.Marks
	Paths   []LivePath // sorted by id
	Rules   []LiveRule // sorted by family and priority
	Links   []plan.Link
	Uplinks []Uplink
	Damage  []string // missing parts of the table and rules, in words
	kernel  *liveTable
	links   *netlink.Handle
}

// ReadLive reads the state. The caller must Close it.
func ReadLive(_ context.Context) (l *Live, err error) {
	l = &Live{}
	if l.links, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("open route netlink socket: %w", err)
	}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if l.Links, err = link.ReadLinks(l.links); err != nil {
		return nil, err
	}
	if l.Rules, err = readLiveRules(); err != nil {
		return nil, err
	}
	state, err := nft.ReadState()
	if err != nil {
		return nil, err
	}
	l.Table, l.Owner = state.Exists, state.Owner
	if l.kernel, err = openLiveTable(l.Links); err != nil {
		return nil, err
	}
	if err := l.readTable(); err != nil {
		return nil, err
	}
	l.Marks = l.marks()
	l.damage()
	return l, nil
}

// readLiveRules lists our routing rules by family and priority.
func readLiveRules() ([]LiveRule, error) {
	rules, err := route.ListRules()
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(rules, func(a, b route.Rule) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Priority, b.Priority))
	})
	var all []LiveRule
	for _, r := range rules {
		all = append(all, LiveRule{r.Rule, r.Family == unix.AF_INET6})
	}
	return all, nil
}

// Close closes the sockets.
func (l *Live) Close() {
	if l.kernel != nil {
		l.kernel.close()
	}
	if l.links != nil {
		l.links.Close()
	}
}

// Path returns the meaning of a path id; ok is false if the id is not in force.
func (l *Live) Path(id plan.PathID) (p LivePath, ok bool) {
	for _, p := range l.Paths {
		if p.ID == id {
			return p, true
		}
	}
	return p, false
}

// Link returns an interface by name.
func (l *Live) Link(name string) (found plan.Link, ok bool) {
	for _, found := range l.Links {
		if found.Name == name {
			return found, true
		}
	}
	return found, false
}

// Local returns the interface that has an address.
func (l *Live) Local(a netip.Addr) (found plan.Link, ok bool) {
	for _, found := range l.Links {
		if slices.ContainsFunc(found.Addrs, func(p netip.Prefix) bool { return p.Addr() == a }) {
			return found, true
		}
	}
	return found, false
}

// VRF returns the name of the VRF device of a table.
func (l *Live) VRF(table uint32) (name string) {
	for _, device := range l.Links {
		if device.VRFTable == table && table != 0 {
			return device.Name
		}
	}
	return ""
}

// Lookup looks an address up in the address set of a kind.
func (l *Live) Lookup(kind string, a netip.Addr) (Lookup, error) {
	f := ruleset.IPv4
	if a.Is6() {
		f = ruleset.IPv6
	}
	asked := Lookup{Set: kind + f.Suffix, Key: a.String()}
	if !l.Table {
		return asked, nil
	}
	answer, err := l.kernel.element(asked.Set, a.AsSlice())
	if err != nil || answer == nil {
		return asked, err
	}
	asked.Found, asked.Value = true, answer.text(asked.Set)
	return asked, nil
}

// Filled reports whether the address set of a kind has any element of the family of an address.
func (l *Live) Filled(kind string, like netip.Addr) (bool, error) {
	if !l.Table {
		return false, nil
	}
	f := ruleset.IPv4
	if like.Is6() {
		f = ruleset.IPv6
	}
	elements, err := l.kernel.list(kind + f.Suffix)
	return slices.ContainsFunc(elements, func(e liveElement) bool { return !e.end }), err
}

// readTable reads the chains, the paths and the uplinks, if the table is there.
func (l *Live) readTable() error {
	if !l.Table {
		return nil
	}
	for _, read := range []func() error{l.kernel.readRules, l.readPaths, l.readUplinks} {
		if err := read(); err != nil {
			return err
		}
	}
	return nil
}

// readPaths reads the path ids, their meanings and their devices.
func (l *Live) readPaths() error {
	elements, err := l.kernel.list(ruleset.SetPaths)
	if err != nil {
		return err
	}
	for _, e := range elements {
		key, ok := ruleset.ParsePath(e.comment)
		if !ok || len(e.key) != 4 {
			continue
		}
		p := LivePath{ID: plan.PathID(ruleset.NativeUint32(e.key)), Key: key}
		if p.Devices, err = l.readDevices(p.ID); err != nil {
			return err
		}
		l.Paths = append(l.Paths, p)
	}
	slices.SortFunc(l.Paths, func(a, b LivePath) int { return int(a.ID) - int(b.ID) })
	return nil
}

// readDevices lists the devices by which packets of a path may leave.
func (l *Live) readDevices(id plan.PathID) (names []string, err error) {
	devices, err := l.kernel.list(ruleset.Named(ruleset.SetDevices, id))
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	for _, d := range devices {
		names = append(names, keyText(ruleset.SetDevices, d.key))
	}
	slices.Sort(names)
	return names, nil
}

// readUplinks reads the uplinks. It needs the paths.
func (l *Live) readUplinks() error {
	elements, err := l.kernel.list(ruleset.SetUplinks)
	if err != nil {
		return err
	}
	for _, e := range elements {
		u := Uplink{Device: keyText(ruleset.SetUplinks, e.key)}
		for _, p := range l.Paths {
			if p.Key.Kind == plan.PathNetwork && slices.Contains(p.Devices, u.Device) {
				u.Path = p.ID
			}
		}
		l.Uplinks = append(l.Uplinks, u)
	}
	slices.SortFunc(l.Uplinks, func(a, b Uplink) int { return cmp.Compare(a.Device, b.Device) })
	return nil
}

// marks returns the marks in use, as the routing rules or the packet filter show them; without either, the defaults.
func (l *Live) marks() plan.Marks {
	for _, r := range l.Rules {
		if r.ofCluster() {
			return plan.Marks{Mask: r.Mask, Priority: r.Priority}
		}
	}
	m := plan.Marks{Mask: config.Defaults().Marks.Mask, Priority: config.Defaults().Marks.RulePriority}
	if mask, ok := l.kernel.guardedBits(); ok {
		m.Mask = mask
	}
	return m
}

// ofCluster reports whether the rule is the one for incoming traffic for the cluster.
func (r LiveRule) ofCluster() bool {
	return !r.Unreachable && r.Table == link.MainTable && r.Mark != 0 && r.Mark == (plan.Marks{Mask: r.Mask}).Cluster()
}

// guardedBits returns the bits of the mark that the guard's first rule tests: ours.
func (t *liveTable) guardedBits() (mask uint32, ok bool) {
	rules := t.chains[ruleset.ChainGuard]
	if len(rules) == 0 {
		return 0, false
	}
	for _, e := range rules[0] {
		if ours := e.value(unix.NFTA_BITWISE_MASK); e.name == "bitwise" && len(ours) == 4 {
			mask, ok = ruleset.NativeUint32(ours), true
		}
	}
	return mask, ok
}

// damage finds missing chains and rules that every plan has.
func (l *Live) damage() {
	switch {
	case l.Table:
		l.chainDamage()
		l.ruleDamage()
	case len(l.Rules) > 0:
		l.damaged("nftables table inet %s is missing although our routing rules exist", ruleset.TableName)
	}
}

func (l *Live) damaged(format string, args ...any) {
	l.Damage = append(l.Damage, fmt.Sprintf(format, args...))
}

// chainDamage finds missing chains, and chains without the rules that every plan has.
func (l *Live) chainDamage() {
	for _, c := range ruleset.Chains(l.dataPlane()) {
		needsRules := len(c.Rules) > 0 || c.OwnOf != 0
		switch {
		case c.Hook != nil && !l.kernel.hooked[c.Name]:
			l.damaged("chain %s of table %s %s is missing", c.Name, c.In, ruleset.TableName)
		case needsRules && len(l.kernel.chains[c.Name]) == 0:
			l.damaged("chain %s of table %s %s has no rules", c.Name, c.In, ruleset.TableName)
		}
	}
}

// dataPlane returns a data plane with the paths in force.
func (l *Live) dataPlane() plan.DataPlane {
	_, hold := l.kernel.chains[ruleset.ChainHeld]
	d := plan.DataPlane{Marks: l.Marks, Hold: hold}
	for _, p := range l.Paths {
		d.Paths = append(d.Paths, plan.Path{ID: p.ID, Key: p.Key, Devices: p.Devices})
	}
	return d
}

// ruleDamage finds missing routing rules. The rules of a network that is not usable here are not expected.
func (l *Live) ruleDamage() {
	if len(l.Paths) == 0 {
		return
	}
	for _, family := range nl.Families() {
		name := map[uint8]string{unix.AF_INET: "IPv4", unix.AF_INET6: "IPv6"}[family]
		rules := l.RulesFor(l.Marks.Cluster(), family == unix.AF_INET6)
		if !slices.ContainsFunc(rules, func(r LiveRule) bool { return !r.Unreachable }) {
			l.damaged("the %s rule for mark %#x/%#x (incoming traffic for the cluster: main table) is missing",
				name, l.Marks.Cluster(), l.Marks.Mask)
		}
		for _, mark := range l.Marks.Floors() {
			rules = l.RulesFor(mark, family == unix.AF_INET6)
			if !slices.ContainsFunc(rules, func(r LiveRule) bool { return r.Unreachable }) {
				l.damaged("the %s rule for mark %#x/%#x (egress without a route: unreachable) is missing", name, mark, mark)
			}
		}
	}
}

// RulesFor returns our rules that a packet with this mark meets, in order.
func (l *Live) RulesFor(mark uint32, ipv6 bool) (all []LiveRule) {
	for _, r := range l.Rules {
		if r.IPv6 == ipv6 && r.Matches(mark) {
			all = append(all, r)
		}
	}
	return all
}

// Flight is the way of a packet through this node.
type Flight struct {
	Packet Packet
	Judged *Passage // the firewall; empty without a policy
	Arrive *Passage // prerouting; empty if the firewall dropped the packet
	Marked *Passage // EgressQoS; nil: the packet was dropped before
	Route  *Route   // nil: it was dropped before routing
	// The rest is nil if the packet does not get that far.
	NAT    *Passage // of a connection's first packet only
	Leave  *Passage // the guard
	Source netip.Addr
	Shared *SharedHost // nil: the packet does not leave by PathShared
}

// Dropped returns the passage that dropped the packet, or nil.
func (f *Flight) Dropped() *Passage {
	for _, p := range []*Passage{f.Judged, f.Arrive, f.NAT, f.Leave} {
		if p.Drops() {
			return p
		}
	}
	return nil
}

// Unrouted reports whether the kernel has no route for the packet.
func (f *Flight) Unrouted() bool { return f.Route != nil && f.Route.Err != nil }

// Fly simulates the packet's way through our chains as they are, with the kernel's own routing decision. It ignores
// other tables, such as a CNI's masquerade or a Service's DNAT; leavesAs is the source that NAT gave the packet's
// connection, if known.
func (l *Live) Fly(p Packet, leavesAs netip.Addr) (*Flight, error) {
	f := &Flight{Packet: p}
	fly := &flyer{Packet: p}
	if on, err := l.arrive(f, fly); err != nil || !on {
		return f, err
	}
	if on, err := l.translate(f, fly, leavesAs); err != nil || !on {
		return f, err
	}
	return f, l.leave(f, fly)
}

// arrive simulates the way up to the routing decision, and reports whether the packet leaves the node again.
func (l *Live) arrive(f *Flight, fly *flyer) (on bool, err error) {
	f.Arrive = &Passage{Chain: "prerouting"}
	if f.Judged, err = cross(l.kernel, fly, ruleset.ChainFirewall); err != nil || f.Judged.Dropped {
		return false, err
	}
	if f.Arrive, err = cross(l.kernel, fly, "prerouting"); err != nil || f.Arrive.Dropped {
		return false, err
	}
	if f.Marked, err = cross(l.kernel, fly, ruleset.ChainQoS); err != nil {
		return false, err
	}
	if f.Route, err = l.Route(fly.Packet); err != nil || f.Route.Err != nil || f.Route.Local {
		return false, err
	}
	fly.out, fly.nextHop = f.Route.Device, f.Route.towards(fly.To)
	return true, nil
}

// translate finds the source that NAT gives the packet, and reports whether the packet passes.
func (l *Live) translate(f *Flight, fly *flyer, leavesAs netip.Addr) (on bool, err error) {
	if leavesAs.IsValid() || fly.Connection.Known {
		f.Source = cmp.Or(leavesAs, fly.From)
		return true, nil
	}
	if f.NAT, err = cross(l.kernel, fly, "nat"); err != nil || f.NAT.Dropped {
		return false, err
	}
	f.Source = cmp.Or(f.NAT.Source, fly.From)
	if f.NAT.Masquerade && !f.NAT.Source.IsValid() {
		f.Source = l.masqueradeAs(f.Route, fly.To)
		f.NAT.Dropped = !f.Source.IsValid() // nf_nat_masquerade_ipv4
	}
	return !f.NAT.Dropped, nil
}

// leave simulates the way through the guard.
func (l *Live) leave(f *Flight, fly *flyer) (err error) {
	fly.Connection.Source = cmp.Or(fly.Connection.Source, fly.From)
	fly.From = f.Source
	if f.Leave, err = cross(l.kernel, fly, "guard"); err != nil || f.Leave.Dropped {
		return err
	}
	f.Shared, err = l.sharedHost(f.Source, f.Arrive.Mark)
	return err
}

// Arrive simulates the packet's way through the chains before routing.
func (l *Live) Arrive(p Packet) (*Passage, error) {
	return cross(l.kernel, &flyer{Packet: p}, "prerouting")
}

// IsVRF reports whether a device is a VRF device.
func (l *Live) IsVRF(device string) bool {
	found, ok := l.Link(device)
	return ok && found.VRFTable != 0
}

// Loopback is the name of the loopback device.
const Loopback = "lo"

// masqueradeAs returns the address that a masquerade uses: the one towards the next hop. If the device has none, it is one of the VRF
// device, or else of the first device in the same VRF, or in none, which is the loopback device (inet_select_addr). Invalid: none has one.
func (l *Live) masqueradeAs(r *Route, to netip.Addr) netip.Addr {
	out, _ := l.Link(r.Device)
	candidates := slices.DeleteFunc(slices.Clone(l.Links), func(d plan.Link) bool { return l.vrfOf(d) != l.vrfOf(out) })
	rank := func(d plan.Link) int {
		switch {
		case d.Name == out.Name:
			return 0
		case d.VRFTable != 0:
			return 1
		}
		return 2
	}
	slices.SortFunc(candidates, func(x, y plan.Link) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x.Index, y.Index))
	})
	for _, d := range candidates {
		if a := addressTowards(d, r.towards(to), to); a.IsValid() {
			return a
		}
	}
	return netip.Addr{}
}

// vrfOf returns the VRF device that a device is or is enslaved to; empty: neither.
func (l *Live) vrfOf(d plan.Link) string {
	if d.VRFTable != 0 {
		return d.Name
	}
	if l.IsVRF(d.Master) {
		return d.Master
	}
	return ""
}

// addressTowards returns the address of a device towards a next hop, or else its first one for packets to an address.
func addressTowards(device plan.Link, hop, to netip.Addr) (first netip.Addr) {
	for _, p := range device.Addrs {
		switch a := p.Addr(); {
		case !masquerades(a, to):
		case p.Contains(hop):
			return a
		case !first.IsValid():
			first = a
		}
	}
	return first
}

// masquerades reports whether packets to an address may leave with this source.
func masquerades(source, to netip.Addr) bool {
	return source.Is4() == to.Is4() && source.IsGlobalUnicast()
}
