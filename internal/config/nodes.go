package config

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// OfNode is the configuration of one node: the entries whose nodeSelectors match its labels.
type OfNode struct {
	*Config         // without nodeSelectors and overrides
	Given   []Given // values that may depend on nodes, in the order of networks
	Faults  []Fault // contradictions on this node
}

// Given is a value of a node's configuration with its origin.
type Given struct {
	Network string `json:"network,omitempty"` // empty: bgp
	Field   string `json:"field"`             // asn, routerID, vrf, table, interface, peer
	Value   string `json:"value,omitempty"`
	Line    int    `json:"line,omitempty"` // 0: not from the file
	// Selector is the node selector that matches the node, or with Left those that do not. Empty: every node has it.
	Selector string `json:"selector,omitempty"`
	Left     bool   `json:"left,omitempty"` // the node does not have it
}

// Fault is an error that only some nodes have.
type Fault struct {
	Error
	Reason FaultReason
}

// FaultReason is a kind of Fault.
type FaultReason uint8

// The kinds of Faults.
const (
	EntriesContradict FaultReason = iota // two entries for one node give it different values
	NoASN                                // there are peers, but no AS number of ours
)

// RouterIDOf returns the router ID of a node without one of its own and without an IPv4 address: a hash of its name. A
// router ID is any 32 bits except zero (RFC 6286). Some routers refuse loopback, multicast and reserved addresses.
func RouterIDOf(node string) netip.Addr {
	h := fnv.New32a()
	_, _ = h.Write([]byte(node))
	b := binary.BigEndian.AppendUint32(nil, h.Sum32())
	if b[0] = 1 + b[0]%223; b[0] == 127 {
		b[0] = 128
	}
	return netip.AddrFrom4([4]byte(b))
}

// nodeSelector is one entry of a list of nodeSelectors.
type nodeSelector struct {
	path     string
	text     string
	selector labels.Selector
}

// Nodewise reports whether the configuration has nodeSelectors, so that nodes with different labels may differ.
func (c *Config) Nodewise() bool { return len(c.selectors) > 0 }

// readSelectors parses all nodeSelectors of a valid configuration.
func (c *Config) readSelectors() {
	c.selectors = nil
	c.eachSelectors(func(path string, all []metav1.LabelSelector) {
		for i := range all {
			selector, err := metav1.LabelSelectorAsSelector(&all[i])
			if err != nil {
				continue // validate refuses it
			}
			if c.selectors == nil {
				c.selectors = map[string][]nodeSelector{}
			}
			c.selectors[path] = append(c.selectors[path], nodeSelector{
				path: fmt.Sprintf("%s.nodeSelectors[%d]", path, i), text: selectorText(&all[i]), selector: selector,
			})
		}
	})
}

// selectorText returns a selector as kubectl would accept it.
func selectorText(s *metav1.LabelSelector) string {
	if text := metav1.FormatLabelSelector(s); text != "<none>" {
		return text
	}
	return "every node"
}

// eachSelectors calls f with the path of each entry that may have nodeSelectors.
func (c *Config) eachSelectors(f func(path string, all []metav1.LabelSelector)) {
	for i, o := range c.BGP.Overrides {
		f(fmt.Sprintf("bgp.overrides[%d]", i), o.NodeSelectors)
	}
	for i, n := range c.Networks {
		n.eachSelectors(fmt.Sprintf("networks[%d]", i), f)
	}
}

// eachSelectors calls f with the path of each entry of the network at path that may have nodeSelectors.
func (n *Network) eachSelectors(path string, f func(path string, all []metav1.LabelSelector)) {
	f(path, n.NodeSelectors)
	for i, o := range n.Overrides {
		f(fmt.Sprintf("%s.overrides[%d]", path, i), o.NodeSelectors)
	}
	for i, o := range n.Interfaces {
		f(fmt.Sprintf("%s.interfaces[%d]", path, i), o.NodeSelectors)
	}
	for i, p := range n.Peers {
		peer := fmt.Sprintf("%s.peers[%d]", path, i)
		f(peer, p.NodeSelectors)
		for j, o := range p.Overrides {
			f(fmt.Sprintf("%s.overrides[%d]", peer, j), o.NodeSelectors)
		}
	}
}

// Unmatched returns an Error for each node selector that matches none of the nodes. matches reports whether a selector
// matches at least one.
func (c *Config) Unmatched(matches func(path string, s labels.Selector) bool) (errs []Error) {
	c.eachSelectors(func(path string, _ []metav1.LabelSelector) {
		for _, s := range c.selectors[path] {
			if !matches(s.path, s.selector) {
				errs = append(errs, c.errorAt(s.path, s.text,
					"no node has labels that this selector matches: label the nodes, or correct or remove it"))
			}
		}
	})
	return errs
}

// errorAt returns an Error about the value at a path.
func (c *Config) errorAt(path, value, format string, args ...any) Error {
	p := c.places[path]
	return Error{
		File: cmp.Or(p.file, c.file), Line: c.line(path), Field: cmp.Or(p.shown, path), Value: value, Message: fmt.Sprintf(format, args...),
	}
}

// line returns the line of the value at a path, or of the nearest entry around it; 0: the file has neither.
func (c *Config) line(path string) int {
	for end := len(path); end > 0; end = strings.LastIndexAny(path[:end], ".[") {
		if p, ok := c.places[path[:end]]; ok {
			return p.line
		}
	}
	return 0
}

// For returns the configuration of a node with these labels. It depends on nothing else.
func (c *Config) For(node map[string]string) OfNode {
	return c.resolve(func(s labels.Selector) bool { return s.Matches(labels.Set(node)) })
}

// ForUnknown returns the part of the configuration that no label of a node can change.
func (c *Config) ForUnknown() *Config {
	return c.resolve(func(labels.Selector) bool { return false }).Config
}

// BGPFor returns the AS number and router ID of another node with these labels. This node's environment does not count.
func (c *Config) BGPFor(node map[string]string) BGP {
	own := Config{BGP: c.BGP}
	if strings.HasPrefix(c.places["bgp.routerID"].file, "$") {
		own.BGP.RouterID = netip.Addr{}
	}
	r := &resolver{
		c:       c,
		matches: func(s labels.Selector) bool { return s.Matches(labels.Set(node)) },
		of:      OfNode{Config: &own},
	}
	r.bgp()
	return own.BGP
}

func (c *Config) resolve(matches func(labels.Selector) bool) OfNode {
	own := *c
	own.selectors, own.places, own.file = nil, nil, ""
	r := &resolver{c: c, matches: matches, of: OfNode{Config: &own}, dialled: map[string]string{}}
	r.bgp()
	r.networks()
	return r.of
}

// resolver makes an OfNode.
type resolver struct {
	c       *Config
	matches func(labels.Selector) bool
	of      OfNode
	dialled map[string]string // paths of the peers of networks without a VRF, by their ends
}

// chosen reports whether the node has the entry at path, and the text of the selector that gives it, or else of all.
func (r *resolver) chosen(path string) (selector string, ok bool) {
	all := r.c.selectors[path]
	if len(all) == 0 {
		return "", true
	}
	texts := make([]string, 0, len(all))
	for _, s := range all {
		if r.matches(s.selector) {
			return s.text, true
		}
		texts = append(texts, s.text)
	}
	return strings.Join(texts, " or "), false
}

func (r *resolver) give(g Given, path string) {
	g.Line = r.c.line(path)
	if _, ok := r.c.places[path]; !ok && !strings.HasSuffix(path, "]") {
		g.Line = 0 // a default
	}
	r.of.Given = append(r.of.Given, g)
}

func (r *resolver) fault(reason FaultReason, path, value, format string, args ...any) {
	r.of.Faults = append(r.of.Faults, Fault{r.c.errorAt(path, value, format, args...), reason})
}

// setting is a value that overrides may replace: the first that matches the node does.
type setting[T comparable] struct {
	value    T
	path     string // of the value in force
	selector string // that gives it; empty: it is no override's
}

// override replaces a setting by the value of an override that matches the node, unless an earlier one did.
func override[T comparable](r *resolver, s *setting[T], value T, path, selector string) {
	var none T
	switch {
	case value == none:
	case s.selector == "":
		s.value, s.path, s.selector = value, path, selector
	case s.value != value:
		r.fault(EntriesContradict, path, fmt.Sprint(value),
			"line %[1]d gives %[2]v for nodes that match %[3]q, this entry for those that match %[4]q, and this node matches both: "+
				"line %[1]d is in force; let the selectors exclude each other", r.c.line(s.path), s.value, s.selector, selector)
	}
}

func (r *resolver) bgp() {
	b := &r.of.BGP
	asn := setting[uint32]{value: b.ASN, path: "bgp.asn"}
	id := setting[netip.Addr]{value: b.RouterID, path: "bgp.routerID"}
	for i, o := range b.Overrides {
		path := fmt.Sprintf("bgp.overrides[%d]", i)
		if selector, ok := r.chosen(path); ok {
			override(r, &asn, o.ASN, path+".asn", selector)
			override(r, &id, o.RouterID, path+".routerID", selector)
		}
	}
	b.ASN, b.RouterID, b.Overrides = asn.value, id.value, nil
	if b.ASN != 0 {
		r.give(Given{Field: "asn", Value: fmt.Sprint(b.ASN), Selector: asn.selector}, asn.path)
	}
	if b.RouterID.IsValid() {
		r.give(Given{Field: "routerID", Value: b.RouterID.String(), Selector: id.selector}, id.path)
	}
}

func (r *resolver) networks() {
	all := r.c.Networks
	r.of.Networks = make([]Network, 0, len(all))
	used := map[string]string{r.of.Steering.Device: "steering.device"} // devices
	tables := map[uint32]string{}
	lackASN := false
	for i, n := range all {
		path := fmt.Sprintf("networks[%d]", i)
		if !r.outlet(path, &n, used, tables) {
			n = Network{
				Name: n.Name, Namespaces: n.Namespaces, EgressIPs: n.EgressIPs,
				OnLink: n.OnLink, OnNoPath: n.OnNoPath, Elsewhere: n.Elsewhere, PeersElsewhere: len(n.Peers) > 0,
			}
			r.of.Networks = append(r.of.Networks, n)
			continue
		}
		n.Peers = r.peers(path, all[i])
		if len(n.Peers) > 0 && r.of.BGP.ASN == 0 {
			lackASN, n.Peers = true, nil
		}
		n.NodeSelectors, n.Overrides, n.PeersElsewhere = nil, nil, len(n.Peers) == 0 && len(all[i].Peers) > 0
		r.of.Networks = append(r.of.Networks, n)
	}
	if lackASN {
		r.fault(NoASN, "bgp.asn", "",
			"missing, and no entry of bgp.overrides that matches this node has one: this node has no peers before it has an AS number")
	}
}

// outlet resolves a network's VRF, table and interfaces. It returns false if the network is not on the node, after
// setting Elsewhere.
func (r *resolver) outlet(path string, n *Network, used map[string]string, tables map[uint32]string) bool {
	selector, ok := r.chosen(path)
	if !ok {
		n.Elsewhere = fmt.Sprintf("the network is not on this node: its nodeSelectors on line %d match nodes with %s",
			r.c.line(path+".nodeSelectors"), selector)
		r.give(Given{Network: n.Name, Field: "network", Selector: selector, Left: true}, path)
		return false
	}
	vrf, table := r.vrfAndTable(path, n)
	if n.Elsewhere = r.claim(vrf, table, used, tables); n.Elsewhere != "" {
		return false
	}
	r.give(Given{Network: n.Name, Field: "network", Selector: selector}, path)
	if n.VRF != "" {
		r.give(Given{Network: n.Name, Field: "vrf", Value: n.VRF, Selector: vrf.selector}, vrf.path)
	}
	if n.Table != 0 {
		r.give(Given{Network: n.Name, Field: "table", Value: fmt.Sprint(n.Table), Selector: table.selector}, table.path)
	}
	return len(n.Interfaces) == 0 || r.uplinks(path, n, used)
}

// vrfAndTable replaces a network's VRF and table by those of its overrides that match the node.
func (r *resolver) vrfAndTable(path string, n *Network) (vrf setting[string], table setting[uint32]) {
	vrf = setting[string]{value: n.VRF, path: path + ".vrf"}
	table = setting[uint32]{value: n.Table, path: path + ".table"}
	for i, o := range n.Overrides {
		path := fmt.Sprintf("%s.overrides[%d]", path, i)
		if selector, ok := r.chosen(path); ok {
			override(r, &vrf, o.VRF, path+".vrf", selector)
			override(r, &table, o.Table, path+".table", selector)
		}
	}
	n.VRF, n.Table = vrf.value, table.value
	return vrf, table
}

// uplinks resolves a network's interfaces. It returns false if the node has none of them, after setting Elsewhere.
func (r *resolver) uplinks(path string, n *Network, used map[string]string) bool {
	n.Interfaces = r.interfaces(path, *n, used)
	if len(n.Interfaces) == 0 {
		n.Elsewhere = fmt.Sprintf("the network is not on this node: "+
			"the nodeSelectors of its interfaces on line %d match other nodes only", r.c.line(path+".interfaces"))
		return false
	}
	return true
}

// claim notes a network's VRF and table as in use. If an earlier network has one of them, it returns why this one is not on
// the node.
func (r *resolver) claim(vrf setting[string], table setting[uint32], used map[string]string, tables map[uint32]string) string {
	if first, twice := tables[table.value]; table.value != 0 && twice {
		return r.taken(table.path, fmt.Sprint(table.value), "table", first)
	}
	if first, twice := used[vrf.value]; vrf.value != "" && twice {
		return r.taken(vrf.path, vrf.value, "device", first)
	}
	tables[table.value], used[vrf.value] = table.path, vrf.path
	return ""
}

// taken adds the fault that an earlier network of the node has the device or table at path, and returns why the network
// at path is not on the node.
func (r *resolver) taken(path, value, what, first string) string {
	r.fault(EntriesContradict, path, value, "line %d gives this node's %s to another network, which keeps it: "+
		"let the nodeSelectors of the two exclude each other", r.c.line(first), what)
	return fmt.Sprintf("the network is not on this node: its %s %s is another network's, on line %d", what, value, r.c.line(first))
}

// interfaces returns the network's interfaces on the node.
func (r *resolver) interfaces(path string, n Network, used map[string]string) (kept []Interface) {
	for i, one := range n.Interfaces {
		path := fmt.Sprintf("%s.interfaces[%d]", path, i)
		selector, ok := r.chosen(path)
		if !ok {
			r.give(Given{Network: n.Name, Field: "interface", Value: one.String(), Selector: selector, Left: true}, path)
			continue
		}
		one.NodeSelectors = nil
		if r.interfaceTaken(path, one, kept, used) {
			continue
		}
		used[one.Name] = path
		if one.Made() {
			used[vlanKey(one)] = path
		}
		kept = append(kept, one)
		r.give(Given{Network: n.Name, Field: "interface", Value: one.String(), Selector: selector}, path)
	}
	return kept
}

// vlanKey identifies a VLAN among the names of devices in use: no device has a name with a space.
func vlanKey(one Interface) string { return "VLAN " + one.carrier() }

// interfaceTaken reports whether an earlier entry for this node has the interface at path or its VLAN. It adds a fault, unless
// that entry is of the same network and gives the same.
func (r *resolver) interfaceTaken(path string, one Interface, kept []Interface, used map[string]string) bool {
	const exclude = "let the nodeSelectors of the two exclude each other"
	first, twice := used[one.Name]
	if i := slices.IndexFunc(kept, func(o Interface) bool { return o.Name == one.Name }); i >= 0 {
		if !reflect.DeepEqual(kept[i], one) {
			r.fault(EntriesContradict, path, one.String(),
				"line %d gives this node the same interface with other settings, and is in force: "+exclude, r.c.line(first))
		}
		return true
	}
	if twice {
		r.taken(path, one.Name, "device", first)
		return true
	}
	if first, twice = used[vlanKey(one)]; one.Made() && twice {
		r.fault(EntriesContradict, path, one.String(),
			"line %d gives this node the sub-interface of this VLAN by another name, and is in force: "+exclude, r.c.line(first))
		return true
	}
	return false
}

// peers returns the peers of a network, as in the file, on the node.
func (r *resolver) peers(path string, n Network) (kept []Peer) {
	origins := map[string]int{} // the entry's index, by name
	for i, p := range n.Peers {
		at := fmt.Sprintf("%s.peers[%d]", path, i)
		selector, ok := r.chosen(at)
		if ok && p.followsInterface() {
			selector, ok = r.follows(path, n, p.Interface)
		}
		if !ok {
			r.give(Given{Network: n.Name, Field: "peer", Value: describePeer(&p), Selector: selector, Left: true}, at)
			continue
		}
		my, source := r.ourEnd(at, &p)
		if first, twice := origins[p.PeerName()]; twice {
			if !hasPeer(kept, p) {
				r.fault(EntriesContradict, at, p.PeerName(), "line %d gives this node the same peer with other settings, and is in force: "+
					"let the nodeSelectors of the two exclude each other", r.c.line(fmt.Sprintf("%s.peers[%d]", path, first)))
			}
			continue
		}
		if n.VRF == "" && r.dialledTwice(at, p) {
			continue
		}
		origins[p.PeerName()] = i
		kept = append(kept, p)
		r.give(Given{Network: n.Name, Field: "peer", Value: describePeer(&p), Selector: selector}, at)
		r.giveEnd(n.Name, my, source)
	}
	return kept
}

// dialledTwice reports whether an earlier network without a VRF has the peer at path, with the same address of ours. It adds a fault.
func (r *resolver) dialledTwice(path string, p Peer) bool {
	first, twice := r.dialled[p.ends()]
	if twice {
		r.fault(EntriesContradict, path, p.PeerName(),
			"line %d gives this node the same peer in another network without a VRF, and is in force: a router keeps one session with "+
				"an address of ours; let the nodeSelectors of the two exclude each other", r.c.line(first))
		return true
	}
	r.dialled[p.ends()] = path
	return false
}

// ends identifies the two ends of a peer's sessions, in the main table.
func (p *Peer) ends() string { return fmt.Sprint(p.PeerName(), " ", p.Port, " ", p.SourceAddress) }

// nodesOf returns the nodeSelectors of a peer; of one that follows its interface those of the interface.
func (n *Network) nodesOf(p Peer) (all []metav1.LabelSelector) {
	if !p.followsInterface() {
		return p.NodeSelectors
	}
	for _, one := range n.Interfaces {
		if one.Name == p.Interface {
			if len(one.NodeSelectors) == 0 {
				return nil
			}
			all = append(all, one.NodeSelectors...)
		}
	}
	return all
}

// followsInterface reports whether a peer is on the nodes that have its interface: it is unnumbered, and selects no nodes.
func (p *Peer) followsInterface() bool { return len(p.NodeSelectors) == 0 && p.Interface != "" }

func hasPeer(all []Peer, p Peer) bool {
	return slices.ContainsFunc(all, func(o Peer) bool { return o.PeerName() == p.PeerName() && reflect.DeepEqual(o, p) })
}

// ourEnd replaces our AS number and address of the session by those of the peer's overrides that match the node.
func (r *resolver) ourEnd(path string, p *Peer) (my setting[uint32], source setting[netip.Addr]) {
	my = setting[uint32]{value: p.MyASN, path: path + ".myASN"}
	source = setting[netip.Addr]{value: p.SourceAddress, path: path + ".sourceAddress"}
	for i, o := range p.Overrides {
		path := fmt.Sprintf("%s.overrides[%d]", path, i)
		if selector, ok := r.chosen(path); ok {
			override(r, &my, o.MyASN, path+".myASN", selector)
			override(r, &source, o.SourceAddress, path+".sourceAddress", selector)
		}
	}
	p.MyASN, p.SourceAddress, p.NodeSelectors, p.Overrides = my.value, source.value, nil, nil
	return my, source
}

// giveEnd gives our AS number and address of a session, where the file sets them.
func (r *resolver) giveEnd(network string, my setting[uint32], source setting[netip.Addr]) {
	if my.value != 0 {
		r.give(Given{Network: network, Field: "myASN", Value: fmt.Sprint(my.value), Selector: my.selector}, my.path)
	}
	if source.value.IsValid() {
		r.give(Given{Network: network, Field: "sourceAddress", Value: source.value.String(), Selector: source.selector}, source.path)
	}
}

// follows reports whether the node has the interface of an unnumbered peer: if entries of the network's interfaces name it,
// one of them must be this node's.
func (r *resolver) follows(path string, n Network, device string) (selector string, ok bool) {
	ok = true
	var others []string
	for i, one := range n.Interfaces {
		if one.Name != device {
			continue
		}
		by, mine := r.chosen(fmt.Sprintf("%s.interfaces[%d]", path, i))
		if mine {
			return by, true
		}
		ok, others = false, append(others, by)
	}
	return strings.Join(others, " or "), ok
}

func describePeer(p *Peer) string {
	as := fmt.Sprintf("AS %d", p.ASN)
	if p.DynamicASN != DynamicNone {
		as = string(p.DynamicASN)
	}
	return p.PeerName() + ", " + as
}
