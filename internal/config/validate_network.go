package config

import (
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// networkName matches names that fit into metrics, messages and EgressServices.
var networkName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

func (v *validator) networks() {
	names, egressIPs := map[string]string{}, map[string]string{}
	used := inUse{
		devices: map[string][]entry{v.c.Steering.Device: {{path: "steering.device"}}},
		tables:  map[string][]entry{}, vlans: map[string][]entry{}, peers: map[string][]entry{},
	}
	for i, n := range v.c.Networks {
		path := fmt.Sprintf("networks[%d]", i)
		v.networkName(path+".name", n.Name, names)
		if n.Name == DefaultNetwork {
			v.defaultNetwork(path, n)
		} else {
			v.outlet(path, n)
			v.networkOverrides(path, n)
		}
		v.devices(path, n, used)
		v.selector(path+".namespaces", n.Namespaces)
		v.egressIPs(path+".egressIPs", n.EgressIPs, egressIPs)
		if n.OnLink != OnLinkDefault {
			oneOf(v, path+".onLink", n.OnLink, OnLinkAuto, OnLinkOff)
		}
		if n.OnNoPath != NoPathDefault {
			oneOf(v, path+".onNoPath", n.OnNoPath, NoPathDrop, NoPathAllow)
		}
		v.peers(path, n, used)
	}
}

// egressIPs checks that no two networks list a prefix. Where one holds another, the longer counts.
func (v *validator) egressIPs(path string, prefixes []netip.Prefix, seen map[string]string) {
	for i, p := range prefixes {
		at := fmt.Sprintf("%s[%d]", path, i)
		if v.prefix(at, p) {
			v.unique(seen, p.String(), at, "this prefix is listed already, and its addresses belong to one network")
		}
	}
}

func (v *validator) networkName(path, name string, names map[string]string) {
	switch {
	case name == "":
		v.bad(path, "missing: the name that spec.network of an EgressService has")
	case !networkName.MatchString(name):
		v.bad(path, "not a network's name: letters, digits, '.', '_' and '-', at most 63 bytes")
	default:
		v.unique(names, name, path, "another network has this name")
	}
}

// defaultNetwork reports the keys that the default network cannot have.
func (v *validator) defaultNetwork(path string, n Network) {
	const (
		mainTable = "the default network is the main table, with all interfaces of no other network: leave this out"
		everyNode = "every node has the default network, the main table: leave this out"
	)
	_, tableGiven := v.places[path+".table"]
	for _, one := range []struct {
		key   string
		given bool
		why   string
	}{
		{"vrf", n.VRF != "", mainTable},
		{"table", tableGiven, mainTable},
		{"interfaces", len(n.Interfaces) > 0, mainTable},
		{"nodeSelectors", len(n.NodeSelectors) > 0, everyNode},
		{"overrides", len(n.Overrides) > 0, everyNode},
	} {
		if one.given {
			v.bad(path+"."+one.key, "%s", one.why)
		}
	}
}

// inUse holds the devices, tables and VLANs of networks, and the peers of those without a VRF.
type inUse struct{ devices, tables, vlans, peers map[string][]entry }

const deviceInUse = "this device is in use already"

// devices checks that no other network has a network's VRF, table or interfaces.
func (v *validator) devices(path string, n Network, used inUse) {
	if n.VRF != "" && v.device(path+".vrf", n.VRF) {
		v.uniqueOnNodes(used.devices, n.VRF, entry{path + ".vrf", n.NodeSelectors, nil}, deviceInUse)
	}
	if n.Table != 0 {
		table := strconv.FormatUint(uint64(n.Table), 10)
		v.uniqueOnNodes(used.tables, table, entry{path + ".table", n.NodeSelectors, nil}, "another network has this table")
	}
	for j, one := range n.Interfaces {
		v.uplink(fmt.Sprintf("%s.interfaces[%d]", path, j), n, one, used)
	}
}

func (v *validator) uplink(path string, n Network, one Interface, used inUse) {
	v.nodeSelectors(path, one.NodeSelectors)
	e := entry{path, n.NodeSelectors, one.NodeSelectors}
	if v.givesAny(path, "parent", "vlan", "mtu", "addresses") {
		v.vlan(e, one, used)
		return
	}
	if v.given(path+".name") || v.places[path].text == "" && len(one.NodeSelectors) > 0 {
		e.path += ".name"
	}
	if v.device(e.path, one.Name) {
		v.uniqueOnNodes(used.devices, one.Name, e, deviceInUse)
	}
}

// outlet checks VRF, table and interfaces of a network together.
func (v *validator) outlet(path string, n Network) {
	_, tableGiven := v.places[path+".table"]
	switch {
	case tableGiven:
		v.table(path+".table", n.Table)
	case n.VRF == "":
		v.bad(path, "a network needs a vrf, a table or both")
	case len(n.Interfaces) > 0:
		v.bad(path+".table", "missing: needed to create VRF %s, which interfaces asks for", n.VRF)
	}
}

// table checks that a network may have a table.
func (v *validator) table(path string, table uint32) {
	switch {
	case table == 0 || table >= 253 && table <= 255:
		v.bad(path, "a table of the kernel's own: choose any except 0 and 253 to 255")
	case ReservedTable(table):
		v.bad(path, "our steering uses %d to %d: choose another", SteeringTableBase, SteeringTableBase+SteeringTableCount-1)
	}
}

func (v *validator) peers(path string, n Network, used inUse) {
	seen := map[string][]entry{}
	for i, p := range n.Peers {
		path := fmt.Sprintf("%s.peers[%d]", path, i)
		if name := v.peerAddress(path, p); name != "" {
			if v.uniqueOnNodes(seen, name, entry{path, nil, p.NodeSelectors}, "this network has this peer already") && n.VRF == "" {
				v.dialledOnce(path, n, p, used)
			}
		}
		v.peer(path, p)
	}
}

// dialledOnce checks that no other network without a VRF has a peer of this one: both would dial it by the main table, from the same
// address, and the router keeps one session. Where overrides choose source addresses, the labels of nodes decide, as for Faults.
func (v *validator) dialledOnce(path string, n Network, p Peer, used inUse) {
	if slices.ContainsFunc(p.Overrides, func(o PeerOverride) bool { return o.SourceAddress.IsValid() }) {
		return
	}
	key, remedy := ".address", "put one of the networks into a VRF, or give one peer another sourceAddress"
	if p.Interface != "" {
		key, remedy = ".interface", "remove the peer of one network"
	}
	v.uniqueOnNodes(used.peers, p.ends(), entry{path + key, n.NodeSelectors, n.nodesOf(p)},
		"a router keeps one session with an address of ours: "+remedy+"; another network without a VRF has this peer already")
}

// peer checks the keys of a peer, except address and interface.
func (v *validator) peer(path string, p Peer) {
	v.peerAS(path, p)
	v.peerOverrides(path, p)
	v.timers(path, p)
	if p.Port == 0 {
		v.bad(path+".port", "not a TCP port: 1 to 65535")
	}
	v.reach(path, p)
	v.bfdProfile(path, p)
	if p.PasswordFile != "" && !v.noFiles {
		if _, err := ReadPassword(p.PasswordFile); err != nil {
			v.bad(path+".passwordFile", "%s", err)
		}
	}
	v.families(path, p)
	if p.MaxPrefixes == 0 {
		v.bad(path+".maxPrefixes", "1 to %d", uint32(math.MaxUint32))
	}
	for i, r := range p.Receive {
		v.pattern(fmt.Sprintf("%s.receive[%d]", path, i), r, p.AddressFamilies)
	}
	v.advertise(path+".advertise", p)
}

// peerAddress returns the peer's address or interface, by which peers of a network differ; empty after an error.
func (v *validator) peerAddress(path string, p Peer) string {
	switch {
	case p.Interface == "":
		return v.neighbour(path+".address", p.Address)
	case p.Address.IsValid():
		v.bad(path+".interface", "a peer has either an address or an interface")
	case v.device(path+".interface", p.Interface):
		return p.Interface
	}
	return ""
}

// neighbour returns the text of a peer's address; empty after an error.
func (v *validator) neighbour(path string, a netip.Addr) string {
	if !a.IsValid() {
		v.bad(path, "missing: the peer's address, or interface for an unnumbered session")
		return ""
	}
	if why := notPeer(a); why != "" {
		v.bad(path, "%s", why)
		return ""
	}
	return a.String()
}

// notPeer returns why a cannot be a peer's address.
func notPeer(a netip.Addr) string {
	switch {
	case a.Zone() != "":
		return "an address with a zone: give interface instead for an unnumbered session"
	case a.Is4In6():
		return "an IPv4-mapped IPv6 address: write it as IPv4"
	case a.Is6() && a.IsLinkLocalUnicast():
		return "a link-local address names no neighbour by itself: give interface instead"
	case !a.IsGlobalUnicast() && !a.IsLinkLocalUnicast(), reserved(a):
		return "not a unicast address of another host"
	}
	return ""
}

// reserved reports whether a is in 0.0.0.0/8 or 240.0.0.0/4.
func reserved(a netip.Addr) bool { return a.Is4() && (a.As4()[0] == 0 || a.As4()[0] >= 240) }

func (v *validator) peerAS(path string, p Peer) {
	_, given := v.places[path+".asn"]
	switch {
	case given && p.DynamicASN != DynamicNone:
		v.bad(path+".dynamicASN", "a peer has either asn or dynamicASN")
	case given:
		v.asn(path+".asn", p.ASN)
	case p.DynamicASN != DynamicNone:
		oneOf(v, path+".dynamicASN", p.DynamicASN, DynamicExternal, DynamicInternal)
	default:
		v.bad(path+".asn", "missing: the peer's AS number, or dynamicASN: external or internal")
	}
	v.needASN()
}

// needASN reports that no node has an AS number of ours, once.
func (v *validator) needASN() {
	if !v.hasASN() {
		v.places["bgp.asn"] = place{file: v.file, line: v.places["bgp"].line, shown: "bgp.asn"}
		v.bad("bgp.asn", "missing: our own AS number, needed where there are peers")
	}
}

func (v *validator) timers(path string, p Peer) {
	// To RFC 4271, a hold time of 0 means that a session never ends for lack of messages. To GoBGP, it means unset: 90 s.
	if v.seconds(path+".holdTime", p.HoldTime, 3, 65535) {
		if v.seconds(path+".keepaliveTime", p.KeepaliveTime, 1, 65535) && p.KeepaliveTime >= p.HoldTime {
			v.bad(path+".keepaliveTime", "less than the hold time, %s; a third of it is usual", time.Duration(p.HoldTime))
		}
	}
	v.seconds(path+".connectTime", p.ConnectTime, 1, 65535)
}

// reach checks the distance to the peer.
func (v *validator) reach(path string, p Peer) {
	if p.EBGPMultiHop != 0 && p.TTLSecurity != 0 {
		v.bad(path+".ttlSecurity", "excludes ebgpMultiHop: one admits packets from remote hosts, the other refuses them")
	}
	if p.EBGPMultiHop != 0 && p.Interface != "" {
		v.bad(path+".ebgpMultiHop", "an unnumbered peer is on-link: leave it out")
	}
	if p.TTLSecurity == 255 {
		v.bad(path+".ttlSecurity", "0, off, or 1 to 254 hops")
	}
}

// bfdProfile checks a peer's BFD, which reaches on-link peers only.
func (v *validator) bfdProfile(path string, p Peer) {
	named := func(b BFDProfile) bool { return b.Name == p.BFDProfile }
	switch {
	case p.BFDProfile == "":
	case !slices.ContainsFunc(v.c.BGP.BFDProfiles, named):
		v.bad(path+".bfdProfile", "bgp.bfdProfiles has no profile of this name")
	case p.EBGPMultiHop > 1:
		v.bad(path+".bfdProfile", "BFD reaches on-link peers only: leave it or ebgpMultiHop out")
	case p.TTLSecurity > 1:
		v.bad(path+".bfdProfile", "BFD reaches on-link peers only: leave it out, or set ttlSecurity to 1")
	}
}

func (v *validator) families(path string, p Peer) {
	if len(p.AddressFamilies) == 0 {
		v.bad(path+".addressFamilies", "at least one of %s, %s", IPv4Unicast, IPv6Unicast)
	}
	seen := map[string]string{}
	for i, f := range p.AddressFamilies {
		path := fmt.Sprintf("%s.addressFamilies[%d]", path, i)
		oneOf(v, path, f, IPv4Unicast, IPv6Unicast)
		v.unique(seen, string(f), path, "the session has this family already")
	}
}

func (v *validator) pattern(path string, r PrefixPattern, carried []Family) {
	if !v.prefix(path+".prefix", r.Prefix) {
		return
	}
	family := IPv6Unicast
	if r.Prefix.Addr().Is4() {
		family = IPv4Unicast
	}
	if len(carried) > 0 && !slices.Contains(carried, family) {
		v.bad(path+".prefix", "the session does not carry %s: nothing would be learned; add it to addressFamilies, or leave this out",
			family)
	}
	v.lengths(path, r)
}

// lengths checks ge and le of a pattern.
func (v *validator) lengths(path string, r PrefixPattern) {
	least, most := r.Prefix.Bits(), r.Prefix.Addr().BitLen()
	if excluded(r.GE, least, most) {
		v.bad(path+".ge", "a prefix length inside %s: %d to %d", r.Prefix, least, most)
	}
	least = max(least, int(r.GE))
	if excluded(r.LE, least, most) {
		v.bad(path+".le", "a prefix length inside %s, at least ge: %d to %d", r.Prefix, least, most)
	}
}

// excluded reports whether a prefix length is given, and not one from least to most.
func excluded(length uint8, least, most int) bool {
	return length != 0 && (int(length) < least || int(length) > most)
}

func (v *validator) advertise(path string, p Peer) {
	parseable(v, path+".communities", p.Advertise.Communities, ParseCommunity)
	parseable(v, path+".largeCommunities", p.Advertise.LargeCommunities, ParseLargeCommunity)
	if p.Advertise.LocalPref != 0 && !v.mayBeInternal(p) {
		v.bad(path+".localPref", "internal peers only: external ones never see it")
	}
	switch prepended := p.Advertise.ASPathPrepend; {
	case prepended != 0 && v.isInternal(p):
		v.bad(path+".asPathPrepend", "external peers only: internal ones refuse a path with their own AS number")
	case prepended > maxPrepend:
		v.bad(path+".asPathPrepend", "0 to %d: the standby prepends 5 times more, and the speaker can prepend 255 times", maxPrepend)
	}
}

// maxPrepend is how many times a host's announcement can have our AS number in addition. GoBGP counts with 8 bits, and a standby
// prepends it 5 times more.
const maxPrepend = 250

// parseable checks that parse accepts each text of the list at path.
func parseable[T any](v *validator, path string, texts []string, parse func(string) (T, error)) {
	for i, text := range texts {
		if _, err := parse(text); err != nil {
			v.bad(fmt.Sprintf("%s[%d]", path, i), "%s", err)
		}
	}
}
