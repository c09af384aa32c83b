package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodeSelectors checks the nodeSelectors of the entry at path.
func (v *validator) nodeSelectors(path string, all []metav1.LabelSelector) {
	seen := map[string]string{}
	for i := range all {
		path := fmt.Sprintf("%s.nodeSelectors[%d]", path, i)
		if _, given := v.places[path]; !given {
			v.bad(path, "missing: a label selector, or {} for every node")
			continue
		}
		if v.selector(path, &all[i]) {
			v.unique(seen, selectorText(&all[i]), path, "the list has this selector already")
		}
	}
}

// overrides checks the entries of a list of overrides: each has selectors and at least one other key, and entries with the
// same selector do not set the same key.
type overrides struct {
	*validator
	path string
	seen map[string]string // by key and selector
}

func (v *validator) overrides(path string) *overrides {
	return &overrides{v, path + ".overrides", map[string]string{}}
}

func (o *overrides) check(i int, selectors []metav1.LabelSelector, keys ...string) (path string) {
	path = fmt.Sprintf("%s[%d]", o.path, i)
	if len(selectors) == 0 {
		o.bad(path+".nodeSelectors", "missing: the nodes whose values this replaces")
	}
	o.nodeSelectors(path, selectors)
	given := func(key string) bool { _, ok := o.places[path+"."+key]; return ok }
	if !slices.ContainsFunc(keys, given) {
		o.bad(path, "replaces nothing: at least one of %s is needed", strings.Join(keys, ", "))
	}
	for _, key := range keys {
		for j := range selectors {
			if given(key) {
				o.unique(o.seen, key+" "+selectorText(&selectors[j]), path+"."+key, "another entry sets it for the same selector")
			}
		}
	}
	return path
}

// bgpOverrides checks bgp.overrides.
func (v *validator) bgpOverrides() {
	o := v.overrides("bgp")
	for i, b := range v.c.BGP.Overrides {
		path := o.check(i, b.NodeSelectors, "asn", "routerID")
		v.givenASN(path+".asn", b.ASN)
		v.routerID(path+".routerID", b.RouterID)
	}
}

// givenASN checks an AS number that the file may leave out.
func (v *validator) givenASN(path string, asn uint32) {
	if _, given := v.places[path]; given {
		v.asn(path, asn)
	}
}

func (v *validator) routerID(path string, a netip.Addr) {
	if a.IsValid() && (!a.Is4() || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback()) {
		v.bad(path, "an IPv4 address that no other router has is needed")
	}
}

// hasASN reports whether some node has an AS number.
func (v *validator) hasASN() bool {
	_, given := v.places["bgp.asn"]
	return given || slices.ContainsFunc(v.c.BGP.Overrides, func(o BGPOverride) bool { return o.ASN != 0 })
}

// mayBeInternal reports whether a peer has our AS number on some node.
func (v *validator) mayBeInternal(p Peer) bool {
	if p.DynamicASN != DynamicNone {
		return p.DynamicASN == DynamicInternal
	}
	return p.ASN != 0 && slices.Contains(v.localASNs(p), p.ASN)
}

// isInternal reports whether a peer has our AS number on all nodes.
func (v *validator) isInternal(p Peer) bool {
	if p.DynamicASN != DynamicNone {
		return p.DynamicASN == DynamicInternal
	}
	ours := v.localASNs(p)
	return p.ASN != 0 && len(ours) > 0 && !slices.ContainsFunc(ours, func(one uint32) bool { return one != p.ASN })
}

// localASNs returns our AS numbers towards a peer, on all nodes. Overrides that replace other keys add none.
func (v *validator) localASNs(p Peer) []uint32 {
	ours := []uint32{p.MyASN}
	if p.MyASN == 0 {
		ours = []uint32{v.c.BGP.ASN}
		for _, o := range v.c.BGP.Overrides {
			ours = append(ours, o.ASN)
		}
	}
	for _, o := range p.Overrides {
		ours = append(ours, o.MyASN)
	}
	return slices.DeleteFunc(ours, func(asn uint32) bool { return asn == 0 })
}

// networkOverrides checks nodeSelectors and overrides of a network.
func (v *validator) networkOverrides(path string, n Network) {
	v.nodeSelectors(path, n.NodeSelectors)
	o := v.overrides(path)
	for i, other := range n.Overrides {
		path := o.check(i, other.NodeSelectors, "vrf", "table")
		if _, given := v.places[path+".vrf"]; given {
			v.otherVRF(path+".vrf", n, other.VRF)
		}
		if _, given := v.places[path+".table"]; given {
			v.table(path+".table", other.Table)
		}
	}
}

// otherVRF checks a VRF that replaces the network's on some nodes.
func (v *validator) otherVRF(path string, n Network, vrf string) {
	switch {
	case !v.device(path, vrf): // reported
	case vrf == v.c.Steering.Device:
		v.bad(path, "steering.device has this name: choose another")
	case slices.Contains(n.Uplinks(), vrf):
		v.bad(path, "an interface of the network has this name: choose another")
	case n.VRF == "":
		v.bad(path, "the network has no vrf that this could replace: give it one, for all other nodes")
	}
}

// peerOverrides checks the keys of a peer that depend on nodes, and our end of its session.
func (v *validator) peerOverrides(path string, p Peer) {
	v.nodeSelectors(path, p.NodeSelectors)
	v.givenASN(path+".myASN", p.MyASN)
	v.sourceAddress(path+".sourceAddress", p, p.SourceAddress)
	o := v.overrides(path)
	for i, other := range p.Overrides {
		path := o.check(i, other.NodeSelectors, "myASN", "sourceAddress")
		v.givenASN(path+".myASN", other.MyASN)
		v.sourceAddress(path+".sourceAddress", p, other.SourceAddress)
	}
}

func (v *validator) sourceAddress(path string, p Peer, a netip.Addr) {
	switch {
	case !a.IsValid():
	case p.Interface != "":
		v.bad(path, "an unnumbered session uses the interface's link-local address: leave this out")
	case notPeer(a) != "":
		v.bad(path, "an address of this node is needed: %s", notPeer(a))
	case !p.Address.IsValid(): // reported already
	case a.Is4() != p.Address.Is4():
		v.bad(path, "of another family than the peer's address %s", p.Address)
	case a == p.Address:
		v.bad(path, "the peer's own address: an address of this node is needed")
	}
}

// entry is a value of the file with the nodeSelectors of its network and its own.
type entry struct {
	path         string
	network, own []metav1.LabelSelector
}

func (e entry) everywhere() bool { return len(e.network)+len(e.own) == 0 }

// meets reports whether a node has both entries for certain: one of them is every node's, or they have a selector in
// common. Contradictions that depend on the nodes' labels are Faults.
func (e entry) meets(o entry) bool {
	return e.everywhere() || o.everywhere() || shareSelector(e.network, o.network) && shareSelector(e.own, o.own)
}

// shareSelector reports whether two lists have a selector in common, or are both empty.
func shareSelector(a, b []metav1.LabelSelector) bool {
	if len(a)+len(b) == 0 {
		return true
	}
	return slices.ContainsFunc(a, func(x metav1.LabelSelector) bool {
		return slices.ContainsFunc(b, func(y metav1.LabelSelector) bool { return selectorText(&x) == selectorText(&y) })
	})
}

// uniqueOnNodes reports e, and returns false, if some node has an earlier entry with the same value for certain.
func (v *validator) uniqueOnNodes(seen map[string][]entry, value string, e entry, message string) bool {
	if i := slices.IndexFunc(seen[value], e.meets); i >= 0 {
		v.unique(map[string]string{value: seen[value][i].path}, value, e.path, message)
		return false
	}
	seen[value] = append(seen[value], e)
	return true
}
