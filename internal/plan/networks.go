package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// network is a configured network as this node has it.
type network struct {
	config.Network
	name     string
	table    uint32
	devices  []string // uplinks: the VRF device, interfaces enslaved to it, the interfaces of a bare table
	create   bool
	usable   bool
	lacks    string // why this node cannot serve it even with all planned devices; empty: it can
	clash    string // the network that has its table on this node, and keeps it; empty: none has
	onNoPath config.NoPath
	listed   bool
	uplinks  []string // the names of its configured interfaces
	made     []string // those of them that are planned VLAN sub-interfaces
	refused  []string // those that are sub-interfaces and cannot be on this node
	// sources are the addresses that packets leave with whose source is the network's, by family; the zero Addr: that of the device.
	sources [2]netip.Addr
}

// readNetworks resolves the listed networks and, with allowUnlisted, those that objects name without an entry.
func (g *ground) readNetworks(names map[string]int, unsettled, unmade []string) {
	g.byName = map[string]*network{}
	g.addNetworks(names)
	slices.SortFunc(g.networks, func(x, y *network) int { return compareStrings(x.name, y.name) })
	for _, n := range g.networks {
		g.planVLANs(n)
	}
	g.readDevices()
	for _, n := range g.networks {
		g.planNetwork(n, unmade)
		if n.usable && slices.Contains(unsettled, n.name) {
			g.held = append(g.held, n.table)
		}
	}
	g.listed = strings.Join(g.listedNames(), ", ")
	slices.Sort(g.held)
}

// listedNames returns the names of the networks that the configuration lists.
func (g *ground) listedNames() (names []string) {
	for _, n := range g.networks {
		if n.listed {
			names = append(names, n.name)
		}
	}
	return names
}

// planNetwork plans the VRF device of a network, and finds whether this node lacks the network. unmade holds devices that the
// kernel did not make.
func (g *ground) planNetwork(n *network, unmade []string) {
	present := g.present(n)
	if n.VRF != "" && n.usable {
		g.vrfs = append(g.vrfs, VRF{Name: n.VRF, Table: n.table, Create: n.create, Interfaces: present})
	}
	why, comes := g.absence(n, present)
	if why == "" {
		return
	}
	g.absent = append(g.absent, Absence{n.name, why, n.Elsewhere != ""})
	if !comes || slices.Contains(unmade, n.VRF) || allIn(present, unmade) {
		n.lacks, g.lacking = why, true
	}
}

// allIn reports whether there are names, and all of them are among the others.
func allIn(names, others []string) bool {
	return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(others, name) })
}

// addNetworks adds the networks of the configuration, and with allowUnlisted those that objects name without an entry.
func (g *ground) addNetworks(names map[string]int) {
	for _, c := range g.config.Networks {
		g.addNetwork(c, true)
	}
	if g.byName[config.DefaultNetwork] == nil {
		g.addNetwork(config.Network{Name: config.DefaultNetwork}, true)
	}
	g.separateTables()
	if g.config.AllowUnlisted {
		g.addUnlisted(names)
	}
}

func (g *ground) addNetwork(c config.Network, listed bool) {
	n := &network{
		Network: c, name: c.Name, table: c.Table, onNoPath: c.OnNoPath, usable: c.Elsewhere == "", listed: listed, uplinks: c.Uplinks(),
	}
	g.networks = append(g.networks, n)
	g.byName[c.Name] = n
	g.readPeers(c)
	switch {
	case c.Name == config.DefaultNetwork:
		n.table = mainTable
	case c.VRF != "":
		g.findVRF(n)
	}
}

// separateTables refuses the networks whose table another listed one has on this node: only the kernel has the table of an adopted VRF
// device. The ranks, and among equals the names, decide which one keeps it, whatever came first.
func (g *ground) separateTables() {
	all := slices.SortedFunc(slices.Values(g.networks), func(x, y *network) int {
		return cmp.Or(cmp.Compare(x.tableRank(), y.tableRank()), compareStrings(x.name, y.name))
	})
	owners := map[uint32]*network{}
	for _, n := range all {
		switch owner := owners[n.table]; {
		case !n.usable || n.table == 0:
		case owner == nil:
			owners[n.table] = n
		default:
			g.refuseTable(n, owner)
		}
	}
}

// tableRank returns the rank of a network among those with one table, the lowest of which keeps it. The table of a VRF leads its
// interfaces' packets in any case, and a VRF of ours would be deleted with its network.
func (n *network) tableRank() int {
	switch {
	case n.name == config.DefaultNetwork:
		return 0
	case n.VRF != "" && n.Table != 0:
		return 1
	case n.VRF != "":
		return 2
	}
	return 3
}

// refuseTable makes a network unusable whose table another one has: packets of both would leave by the uplinks of one, and the guard
// would drop those of the other.
func (g *ground) refuseTable(n, owner *network) {
	field, value, device := "table", strconv.FormatUint(uint64(n.table), 10), ""
	if n.Table == 0 {
		field, value = "vrf", n.VRF
	}
	if owner.VRF != "" {
		device = ", that of VRF device " + owner.VRF + ","
	}
	g.refuseVRF(n, field, value, ReasonTableMismatch,
		"on node %s, network %s has table %d%s and keeps it: give each network a table of its own", g.node, owner.name, n.table, device)
	n.clash, n.table, n.create = owner.name, 0, false
}

// readPeers records the peers of a network. An address that is a peer in several belongs to the first by name.
func (g *ground) readPeers(c config.Network) {
	for _, p := range c.Peers {
		if first, known := g.peers[p.Address]; !known || c.Name < first {
			g.peers[p.Address] = c.Name
		}
	}
}

// addUnlisted adds the networks that objects name without an entry, except those that are a listed network by a second
// name: namespaces that may not use that network would use it by the second name, and its packets have one path only.
func (g *ground) addUnlisted(named map[string]int) {
	vrfs, tables := g.withoutEntry(named)
	for _, c := range slices.Concat(vrfs, tables) { // tables last: those of all VRFs are known then
		if g.sameAs(c) == nil {
			g.addNetwork(c, false)
		}
	}
}

// withoutEntry returns the networks that the names without an entry stand for, sorted by name.
func (g *ground) withoutEntry(named map[string]int) (vrfs, tables []config.Network) {
	for _, name := range sortedKeys(named) {
		switch c := unlisted(name); {
		case g.byName[name] != nil:
		case c.Table != 0:
			tables = append(tables, c)
		case c.VRF != "":
			vrfs = append(vrfs, c)
		}
	}
	return vrfs, tables
}

// unlisted returns the network that a name without an entry stands for: a number is a routing table, any other name a VRF
// device. Neither is set if the name can be neither.
func unlisted(name string) config.Network {
	c := config.Network{Name: name}
	table, err := strconv.ParseUint(name, 10, 32)
	switch {
	case err != nil && config.DeviceName(name):
		c.VRF = name
	case err == nil && strconv.FormatUint(table, 10) == name && !config.ReservedTable(uint32(table)):
		c.Table = uint32(table)
	}
	return c
}

// sameAs finds the network that has an unlisted network's device or table; nil: none does.
func (g *ground) sameAs(c config.Network) *network {
	table := c.Table
	for _, l := range g.links {
		if c.VRF != "" && l.Name == c.VRF {
			table = l.VRFTable
		}
	}
	for _, n := range g.networks {
		if n.name != c.Name && (c.VRF != "" && n.VRF == c.VRF || slices.Contains(n.uplinks, c.VRF) || table != 0 && n.table == table) {
			return n
		}
	}
	return nil
}

// readDevices assigns every uplink to one network: the network that lists it, else the network whose VRF contains it now.
func (g *ground) readDevices() {
	taken := map[string]bool{}
	add := func(n *network, devices []string) {
		for _, device := range devices {
			if !taken[device] {
				taken[device] = true
				n.devices = append(n.devices, device)
			}
		}
	}
	for _, n := range g.networks {
		add(n, g.configuredDevices(n))
	}
	for _, n := range g.networks {
		add(n, g.enslaved(n))
		slices.Sort(n.devices)
		for family := range n.sources {
			n.sources[family] = g.sourceOf(n, family)
		}
	}
}

// sourceOf returns the address of a network's VRF device, if no interface of the network has one of that family: where routers are reached
// by link-local addresses, the VRF device has the node's address. Without a VRF, the loopback device has it. The kernel would choose it,
// too (inet_select_addr, ipv6_dev_get_saddr), but the guard passes no address that the outgoing interface lacks. Of network default, no
// fact says by which interface its packets leave.
func (g *ground) sourceOf(n *network, family int) (source netip.Addr) {
	present := false
	for _, name := range n.devices {
		present = present || g.link(name) != nil
		a := g.globalOn(name, family)
		if !a.IsValid() {
			continue
		}
		if name != n.VRF {
			return netip.Addr{}
		}
		source = a
	}
	if n.VRF == "" && n.name != config.DefaultNetwork && present {
		return g.globalOn(loopback, family)
	}
	return source
}

// globalOn returns the first global address of a family on an interface; invalid: there is none.
func (g *ground) globalOn(device string, family int) netip.Addr {
	link := g.link(device)
	if link == nil {
		return netip.Addr{}
	}
	for _, p := range link.Addrs {
		if a := p.Addr(); familyOf(a) == family && a.IsGlobalUnicast() {
			return a
		}
	}
	return netip.Addr{}
}

// configuredDevices lists the devices that the network's configuration names, except those of other programs that have the
// name of a sub-interface.
func (g *ground) configuredDevices(n *network) (devices []string) {
	if n.VRF != "" && (n.listed || n.usable) { // an object may name any device: see findVRF
		devices = append(devices, n.VRF)
	}
	foreign := func(name string) bool { return slices.Contains(n.refused, name) && g.link(name) != nil }
	return append(devices, slices.DeleteFunc(slices.Clone(n.uplinks), foreign)...)
}

// enslaved lists the interfaces that are in a network's VRF device now.
func (g *ground) enslaved(n *network) (devices []string) {
	if n.VRF == "" || !n.usable {
		return nil
	}
	for _, l := range g.links {
		if l.Master == n.VRF {
			devices = append(devices, l.Name)
		}
	}
	return devices
}

// present lists the interfaces of a network that this node has, or that this plan makes. Each missing one is a problem of the
// network, which works with the others.
func (g *ground) present(n *network) (names []string) {
	for _, name := range n.uplinks {
		if slices.Contains(n.refused, name) {
			continue // planVLANs reports it
		}
		if g.link(name) != nil || slices.Contains(n.made, name) {
			names = append(names, name)
			continue
		}
		g.problem("Network", n.name, "interfaces", name, ReasonInterfaceMissing,
			"node %s has no interface of that name; plug it in or rename it, or leave it out", g.node)
	}
	return names
}

// absence finds why the kernel does not have a network. comes reports whether the kernel will have it once this plan is
// applied.
func (g *ground) absence(n *network, present []string) (why string, comes bool) {
	switch {
	case n.Elsewhere != "":
		return n.Elsewhere, false
	case n.clash != "":
		return "network " + n.clash + " has its table", false
	case n.VRF != "":
		why, comes = g.absenceOfVRF(n, present)
	}
	if why == "" && len(n.uplinks) > 0 {
		why, comes = g.absenceOfUplinks(n, present)
	}
	return why, comes
}

// absenceOfVRF is absence as far as it concerns a network's VRF device.
func (g *ground) absenceOfVRF(n *network, present []string) (why string, comes bool) {
	switch vrf := g.link(n.VRF); {
	case !n.usable:
		return "its VRF device is missing, or is not the configured one", false
	case vrf == nil:
		return "VRF device " + n.VRF + " does not exist", n.create && len(present) > 0
	case !vrf.Up:
		return "VRF device " + n.VRF + " is down", n.create
	}
	return "", false
}

// absenceOfUplinks is absence as far as it concerns a network's interfaces.
func (g *ground) absenceOfUplinks(n *network, present []string) (why string, comes bool) {
	exists := func(name string) bool { return g.link(name) != nil }
	inVRF := func(name string) bool { return exists(name) && g.link(name).Master == n.VRF }
	switch {
	case len(present) == 0:
		return "none of its interfaces exists: " + strings.Join(n.uplinks, ", "), false
	case n.VRF != "" && !slices.ContainsFunc(present, inVRF):
		return "none of its interfaces is in VRF device " + n.VRF, true
	case !slices.ContainsFunc(present, exists):
		return "none of its interfaces is made yet: " + strings.Join(present, ", "), true
	}
	return "", false
}

// link finds a link by its name, or returns nil.
func (g *ground) link(name string) *Link {
	for i := range g.links {
		if g.links[i].Name == name {
			return &g.links[i]
		}
	}
	return nil
}

// findVRF adopts the VRF device that exists, or plans its creation.
func (g *ground) findVRF(n *network) {
	switch vrf := g.link(n.VRF); {
	case vrf != nil:
		g.adoptVRF(n, vrf)
	case n.creatable():
		n.create = true
	default:
		g.refuseVRF(n, "vrf", n.VRF, ReasonVRFMissing,
			"no such VRF device on node %s; create it, or list interfaces and a table so that it is made", g.node)
	}
}

// adoptVRF uses the interface of that name, if it is a VRF device with the table of the network.
func (g *ground) adoptVRF(n *network, vrf *Link) {
	switch {
	case vrf.VRFTable == 0:
		g.refuseVRF(n, "vrf", n.VRF, ReasonVRFMissing, "the interface of that name is not a VRF device")
	case n.Table != 0 && n.Table != vrf.VRFTable:
		g.refuseVRF(n, "table", strconv.Itoa(int(n.Table)), ReasonTableMismatch,
			"VRF device %s has table %d: set that one, or leave table out", n.VRF, vrf.VRFTable)
	default:
		n.table, n.create = vrf.VRFTable, n.creatable()
	}
}

// creatable reports whether a missing VRF device is made. A VRF that we made is made again, with its floor, when it vanishes.
// The floor of an adopted VRF is its owner's business.
func (n *network) creatable() bool { return n.Table != 0 && len(n.uplinks) > 0 }

// refuseVRF makes a network unusable, and reports why. networkOf reports an unlisted one for each EgressService that names it.
func (g *ground) refuseVRF(n *network, field, value string, reason cluster.Reason, format string, args ...any) {
	n.usable = false
	if n.listed {
		g.problem("Network", n.name, field, value, reason, format, args...)
	}
}

// allowance is the question whether a namespace may use a network.
type allowance struct {
	network   *network
	namespace string
}

func (g *ground) allows(n *network, namespace string) bool {
	if n.Namespaces == nil {
		return true
	}
	asked := allowance{n, namespace}
	may, known := g.allowed[asked]
	if !known {
		selector, err := metav1.LabelSelectorAsSelector(n.Namespaces)
		may = err == nil && selector.Matches(labels.Set(g.namespaces.At(namespace).Labels))
		g.allowed[asked] = may
	}
	return may
}

// networkOf finds the network that an object names and may use. Otherwise it returns nil and adds a problem.
func (g *ground) networkOf(id cluster.ID, name string, f *findings) *network {
	name = cmp.Or(name, config.DefaultNetwork)
	refuse := func(reason cluster.Reason, format string, args ...any) {
		f.of(id, "spec.network", name, reason, format, args...)
	}
	n := g.byName[name]
	if n == nil {
		g.refuseUnknown(name, refuse)
		return nil
	}
	if !n.listed && !n.usable {
		refuse(ReasonVRFMissing, "the configuration has no such network, nor node %s a VRF device of that name", g.node)
		f.onlyOn(g.node, len(f.problems)-1)
	}
	if !g.allows(n, id.Namespace) {
		refuse(ReasonNetworkNotAllowed, "namespace %s may not use network %s: its labels do not match the network's namespaces selector %q",
			id.Namespace, name, metav1.FormatLabelSelector(n.Namespaces))
		return nil
	}
	return n
}

// refuseUnknown reports why an object cannot use a network that does not exist.
func (g *ground) refuseUnknown(name string, refuse func(reason cluster.Reason, format string, args ...any)) {
	c := unlisted(name)
	same := g.sameAs(c)
	switch {
	case !g.config.AllowUnlisted:
		refuse(ReasonNetworkNotFound, "no such network; the configuration lists %s", g.listed)
	case c.VRF == "" && c.Table == 0:
		refuse(ReasonNetworkNotFound, "no such network, nor can it be a VRF device or the number of a free routing table")
	case same != nil:
		refuse(ReasonNetworkNotFound, "belongs to network %s: name that one", same.name)
	}
}

// VLAN is a VLAN sub-interface that the daemon makes. An existing device of the same name, parent and ID that another program
// made is used as it is.
type VLAN struct {
	Name   string         `json:"name"`
	Parent string         `json:"parent"`
	ID     uint16         `json:"id"`
	MTU    int            `json:"mtu,omitempty"` // 0: as the kernel sets it, the parent's
	Addrs  []netip.Prefix `json:"addrs,omitempty"`
}

// planVLANs plans the sub-interfaces of a network, and notes those that this node cannot have.
func (g *ground) planVLANs(n *network) {
	for i := range n.Interfaces {
		c := &n.Interfaces[i]
		if !c.Made() {
			continue
		}
		if !g.fitsVLAN(n, c) {
			n.refused = append(n.refused, c.Name)
			continue
		}
		if !n.usable {
			continue
		}
		v := VLAN{Name: c.Name, Parent: c.Parent, ID: uint16(c.VLAN), MTU: c.MTU, Addrs: c.Addresses}
		if most := g.link(c.Parent).MTU; v.MTU > most {
			g.vlanProblem(n, c, ReasonVLANMismatch, "its parent has an MTU of %d, and a sub-interface at most that: "+
				"it gets %[1]d until the parent has more; raise the parent's, or lower mtu", most)
			v.MTU = most
		}
		n.made, g.vlans = append(n.made, c.Name), append(g.vlans, v)
	}
	slices.SortFunc(g.vlans, func(x, y VLAN) int { return compareStrings(x.Name, y.Name) })
}

// fitsVLAN reports whether this node has or can have a sub-interface. If it cannot, a problem says why.
func (g *ground) fitsVLAN(n *network, c *config.Interface) bool {
	here, other := g.link(c.Name), g.otherVLAN(c)
	switch {
	case g.link(c.Parent) == nil:
		g.vlanProblem(n, c, ReasonInterfaceMissing,
			"node %s has no interface %s to make it on; plug that in or rename it, or correct parent", g.node, c.Parent)
	case here != nil && !here.Ours && !here.isVLAN(c):
		g.vlanProblem(n, c, ReasonVLANMismatch,
			"node %s has another device of that name, %s, which stays as it is; rename one of them, or correct parent and vlan",
			g.node, here.kind())
	case other != nil && !other.Ours:
		g.vlanProblem(n, c, ReasonVLANMismatch,
			"node %s has this VLAN by the name %[2]s, made by another program; set name: %[2]s to use it, or remove it", g.node, other.Name)
	default:
		if here != nil && !here.Ours {
			g.checkAdopted(n, c, here)
		}
		return true
	}
	return false
}

// otherVLAN finds the sub-interface of the same parent and ID by another name; nil: there is none.
func (g *ground) otherVLAN(c *config.Interface) *Link {
	i := slices.IndexFunc(g.links, func(l Link) bool { return l.Name != c.Name && l.isVLAN(c) })
	if i < 0 {
		return nil
	}
	return &g.links[i]
}

// checkAdopted reports settings that the sub-interface of another program lacks: it is used as it is.
func (g *ground) checkAdopted(n *network, c *config.Interface, here *Link) {
	if lacks := here.lacking(c); len(lacks) > 0 {
		g.vlanProblem(n, c, ReasonVLANMismatch, "another program made it on node %s, without %s, and it is used as it is; "+
			"add that there, or delete the device so that Egressway makes it", g.node, strings.Join(lacks, " and "))
	}
}

// lacking names the settings of an entry that a link does not have.
func (l *Link) lacking(c *config.Interface) (lacks []string) {
	if c.MTU != 0 && l.MTU != c.MTU {
		lacks = append(lacks, "the MTU "+strconv.Itoa(c.MTU))
	}
	for _, a := range c.Addresses {
		if !slices.Contains(l.Addrs, a) {
			lacks = append(lacks, "address "+a.String())
		}
	}
	return lacks
}

func (g *ground) vlanProblem(n *network, c *config.Interface, reason cluster.Reason, format string, args ...any) {
	g.problem("Network", n.name, "interfaces", c.Name, reason, "VLAN %d on %s: %s", c.VLAN, c.Parent, fmt.Sprintf(format, args...))
}

// isVLAN reports whether a link is the sub-interface that an entry describes.
func (l *Link) isVLAN(c *config.Interface) bool {
	return l.VLAN == uint16(c.VLAN) && l.Parent == c.Parent
}

// kind describes a link that is not the sub-interface expected.
func (l *Link) kind() string {
	if l.VLAN == 0 {
		return "no VLAN sub-interface"
	}
	return fmt.Sprintf("VLAN %d on %s", l.VLAN, l.Parent)
}
