package plan

import (
	"slices"
	"strconv"

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
	devices  []string // uplinks: the VRF device, what is enslaved to it, the interfaces of a bare table
	create   bool
	usable   bool
	onNoPath config.NoPath
	listed   bool
}

// readNetworks resolves the listed networks and, where that is allowed, those that objects name without an entry.
func (b *builder) readNetworks() {
	b.byName = map[string]*network{}
	for _, c := range b.Config.Networks {
		b.addNetwork(c, true)
	}
	if b.byName[config.DefaultNetwork] == nil {
		b.addNetwork(config.Network{Name: config.DefaultNetwork}, true)
	}
	if b.Config.AllowUnlisted {
		names := map[string]bool{}
		for _, e := range b.Objects.EgressServices {
			if e.Network != "" && b.byName[e.Network] == nil {
				names[e.Network] = true
			}
		}
		for _, name := range sortedKeys(names) {
			c := config.Network{Name: name}
			if table, err := strconv.ParseUint(name, 10, 32); err == nil {
				if table == 0 || table >= 253 && table <= 255 {
					continue // reserved tables: reported where the object names it
				}
				c.Table = uint32(table)
			} else {
				c.VRF = name
			}
			b.addNetwork(c, false)
		}
	}
	slices.SortFunc(b.networks, func(x, y *network) int { return compareStrings(x.name, y.name) })
	for _, n := range b.networks {
		if n.VRF != "" && n.usable {
			b.plan.VRFs = append(b.plan.VRFs, VRF{Name: n.VRF, Table: n.table, Create: n.create, Interfaces: n.Interfaces})
		}
		if n.usable {
			b.plan.RouteTable = append(b.plan.RouteTable, n.table)
		}
	}
	slices.Sort(b.plan.RouteTable)
}

func (b *builder) addNetwork(c config.Network, listed bool) {
	n := &network{Network: c, name: c.Name, table: c.Table, onNoPath: c.OnNoPath, usable: true, listed: listed}
	b.networks = append(b.networks, n)
	b.byName[c.Name] = n
	if c.Name == config.DefaultNetwork {
		n.table = mainTable
		return
	}
	n.devices = append(n.devices, c.Interfaces...)
	if c.VRF != "" {
		b.findVRF(n)
	}
	slices.Sort(n.devices)
	n.devices = slices.Compact(n.devices)
}

// findVRF adopts the VRF device that exists, or plans its creation.
func (b *builder) findVRF(n *network) {
	n.devices = append(n.devices, n.VRF)
	i := slices.IndexFunc(b.Facts.Links, func(l Link) bool { return l.Name == n.VRF })
	if i < 0 {
		n.create = n.Table != 0 && len(n.Interfaces) > 0
		n.usable = n.create
		if !n.create {
			b.problem("Network", n.name, "vrf", n.VRF, ReasonVRFMissing,
				"no such VRF device on node %s; create it, or list interfaces and a table so that it is made", b.Node)
		}
		return
	}
	vrf := b.Facts.Links[i]
	switch {
	case vrf.VRFTable == 0:
		n.usable = false
		b.problem("Network", n.name, "vrf", n.VRF, ReasonVRFMissing, "the interface of that name is not a VRF device")
		return
	case n.Table != 0 && n.Table != vrf.VRFTable:
		n.usable = false
		b.problem("Network", n.name, "table", strconv.Itoa(int(n.Table)), ReasonTableMismatch,
			"VRF device %s has table %d: set that one, or leave table out", n.VRF, vrf.VRFTable)
		return
	}
	n.table = vrf.VRFTable
	// A VRF we made is recreated with its floor when it vanishes; the floor of an adopted one is its owner's.
	n.create = n.Table != 0 && len(n.Interfaces) > 0
	for _, l := range b.Facts.Links {
		if l.Master == n.VRF {
			n.devices = append(n.devices, l.Name)
		}
	}
}

// networkOf finds the network that an EgressService names and may use; nil with a problem otherwise.
func (b *builder) networkOf(key cluster.Key, name string) *network {
	if name == "" {
		name = config.DefaultNetwork
	}
	n := b.byName[name]
	if n == nil {
		known := make([]string, 0, len(b.networks))
		for _, n := range b.networks {
			if n.listed {
				known = append(known, n.name)
			}
		}
		b.problem("EgressService", key.String(), "spec.network", name, ReasonNetworkNotFound,
			"no such network; the configuration lists %v", known)
		return nil
	}
	if n.Namespaces != nil {
		selector, err := metav1.LabelSelectorAsSelector(n.Namespaces)
		if err != nil || !selector.Matches(labels.Set(b.Objects.Namespaces[key.Namespace].Labels)) {
			b.problem("EgressService", key.String(), "spec.network", name, ReasonNetworkNotAllowed,
				"namespace %s may not use network %s: its labels do not match the network's namespaces selector %q",
				key.Namespace, name, metav1.FormatLabelSelector(n.Namespaces))
			return nil
		}
	}
	return n
}

func compareStrings(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
