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
	names := map[string]string{}
	used := inUse{devices: map[string][]entry{v.c.Steering.Device: {{path: "steering.device"}}}, tables: map[string][]entry{}}
	for i, n := range v.c.Networks {
		path := fmt.Sprintf("networks[%d]", i)
		switch {
		case n.Name == "":
			v.bad(path+".name", "missing: the name that spec.network of an EgressService has")
		case !networkName.MatchString(n.Name):
			v.bad(path+".name", "not a network's name: letters, digits, '.', '_' and '-', at most 63 bytes")
		default:
			v.unique(names, n.Name, path+".name", "another network has this name")
		}
		v.outlet(path, n)
		v.devices(path, n, used)
		v.networkOverrides(path, n)
		v.selector(path+".namespaces", n.Namespaces)
		if n.OnNoPath != NoPathDefault {
			oneOf(v, path+".onNoPath", n.OnNoPath, NoPathDrop, NoPathAllow)
		}
		v.peers(path, n)
	}
}

// inUse holds the devices and tables of networks.
type inUse struct{ devices, tables map[string][]entry }

// devices checks that no other network has a network's VRF, table or interfaces.
func (v *validator) devices(path string, n Network, used inUse) {
	const taken = "this device is in use already"
	if n.VRF != "" && v.device(path+".vrf", n.VRF) {
		v.uniqueOnNodes(used.devices, n.VRF, entry{path + ".vrf", n.NodeSelectors, nil}, taken)
	}
	if n.Table != 0 {
		table := strconv.FormatUint(uint64(n.Table), 10)
		v.uniqueOnNodes(used.tables, table, entry{path + ".table", n.NodeSelectors, nil}, "another network has this table")
	}
	for j, one := range n.Interfaces {
		path := fmt.Sprintf("%s.interfaces[%d]", path, j)
		v.nodeSelectors(path, one.NodeSelectors)
		if _, keyed := v.places[path+".name"]; keyed || v.places[path].text == "" && len(one.NodeSelectors) > 0 {
			path += ".name"
		}
		if v.device(path, one.Name) {
			v.uniqueOnNodes(used.devices, one.Name, entry{path, n.NodeSelectors, one.NodeSelectors}, taken)
		}
	}
}

// outlet checks VRF, table and interfaces together.
func (v *validator) outlet(path string, n Network) {
	_, tableGiven := v.places[path+".table"]
	if n.Name == DefaultNetwork {
		const why = "the default network is the main table, with all interfaces of no other network: leave this out"
		if n.VRF != "" {
			v.bad(path+".vrf", why)
		}
		if tableGiven {
			v.bad(path+".table", why)
		}
		if len(n.Interfaces) > 0 {
			v.bad(path+".interfaces", why)
		}
		return
	}
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

func (v *validator) peers(path string, n Network) {
	seen := map[string][]entry{}
	for i, p := range n.Peers {
		path := fmt.Sprintf("%s.peers[%d]", path, i)
		if name := v.peerAddress(path, p); name != "" {
			v.uniqueOnNodes(seen, name, entry{path, nil, p.NodeSelectors}, "this network has this peer already")
		}
		v.peerAS(path, p)
		v.peerOverrides(path, p)
		v.timers(path, p)
		if p.Port == 0 {
			v.bad(path+".port", "not a TCP port: 1 to 65535")
		}
		v.reach(path, p)
		if p.PasswordFile != "" {
			if _, err := ReadPassword(p.PasswordFile); err != nil {
				v.bad(path+".passwordFile", "%s", err)
			}
		}
		v.families(path, p)
		if p.MaxPrefixes == 0 {
			v.bad(path+".maxPrefixes", "1 to %d", uint32(math.MaxUint32))
		}
		for j, r := range p.Receive {
			v.pattern(fmt.Sprintf("%s.receive[%d]", path, j), r, p.AddressFamilies)
		}
		v.advertise(path+".advertise", p)
	}
}

// peerAddress returns the peer's address or interface, by which peers of a network differ; empty after an error.
func (v *validator) peerAddress(path string, p Peer) string {
	switch {
	case p.Address.IsValid() && p.Interface != "":
		v.bad(path+".interface", "a peer has either an address or an interface")
	case p.Interface != "":
		if v.device(path+".interface", p.Interface) {
			return p.Interface
		}
	case p.Address.IsValid():
		if why := notPeer(p.Address); why != "" {
			v.bad(path+".address", "%s", why)
			return ""
		}
		return p.Address.String()
	default:
		v.bad(path+".address", "missing: the peer's address, or interface for an unnumbered session")
	}
	return ""
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
	case !a.IsGlobalUnicast() && !a.IsLinkLocalUnicast() || a.Is4() && (a.As4()[0] == 0 || a.As4()[0] >= 240):
		return "not a unicast address of another host"
	}
	return ""
}

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
	if !v.hasASN() {
		v.places["bgp.asn"] = place{file: v.file, line: v.places["bgp"].line, shown: "bgp.asn"} // reported once
		v.bad("bgp.asn", "missing: our own AS number, needed where there are peers")
	}
}

func (v *validator) timers(path string, p Peer) {
	// A hold time of 0 is allowed: such a session never ends for lack of messages.
	if p.HoldTime != 0 && v.seconds(path+".holdTime", p.HoldTime, 3, 65535) {
		if v.seconds(path+".keepaliveTime", p.KeepaliveTime, 1, 65535) && p.KeepaliveTime >= p.HoldTime {
			v.bad(path+".keepaliveTime", "less than the hold time, %s; a third of it is usual", time.Duration(p.HoldTime))
		}
	}
	v.seconds(path+".connectTime", p.ConnectTime, 1, 65535)
}

// reach checks the distance to the peer, and BFD, which reaches on-link peers only.
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
	if p.BFDProfile == "" {
		return
	}
	known := false
	for _, b := range v.c.BGP.BFDProfiles {
		known = known || b.Name == p.BFDProfile
	}
	switch {
	case !known:
		v.bad(path+".bfdProfile", "bgp.bfdProfiles has no profile of this name")
	case p.EBGPMultiHop > 1:
		v.bad(path+".bfdProfile", "BFD reaches on-link peers only: leave it or ebgpMultiHop out")
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
	least, most := r.Prefix.Bits(), r.Prefix.Addr().BitLen()
	if r.GE != 0 && (int(r.GE) < least || int(r.GE) > most) {
		v.bad(path+".ge", "a prefix length inside %s: %d to %d", r.Prefix, least, most)
	}
	if r.LE != 0 && (int(r.LE) < max(least, int(r.GE)) || int(r.LE) > most) {
		v.bad(path+".le", "a prefix length inside %s, at least ge: %d to %d", r.Prefix, max(least, int(r.GE)), most)
	}
}

func (v *validator) advertise(path string, p Peer) {
	for i, text := range p.Advertise.Communities {
		if _, err := ParseCommunity(text); err != nil {
			v.bad(fmt.Sprintf("%s.communities[%d]", path, i), "%s", err)
		}
	}
	for i, text := range p.Advertise.LargeCommunities {
		if _, err := ParseLargeCommunity(text); err != nil {
			v.bad(fmt.Sprintf("%s.largeCommunities[%d]", path, i), "%s", err)
		}
	}
	if p.Advertise.LocalPref != 0 && !v.mayBeInternal(p) {
		v.bad(path+".localPref", "internal peers only: external ones never see it")
	}
}
