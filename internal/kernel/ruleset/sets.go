package ruleset

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
)

// devicesMost is the capacity of sets of devices.
const devicesMost = 1024

// Set is the desired state of one set or map.
type Set struct {
	nftables.Set
	Elements []nftables.SetElement // without those of address sets, see element
	In       Table
}

// Sets returns all sets and maps. Elements of address sets are not included, see element.
func Sets(d plan.DataPlane) []*Set {
	var all []*Set
	add := func(name string, s nftables.Set) *Set {
		s.Name = name
		n := &Set{Set: s}
		all = append(all, n)
		return n
	}
	ifname := nftables.Set{KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian}
	mark := nftables.Set{KeyType: nftables.TypeMark, KeyByteOrder: binaryutil.NativeEndian}
	verdicts := func(s nftables.Set) nftables.Set {
		s.IsMap, s.DataType = true, nftables.TypeVerdict
		return s
	}
	// With a size, the kernel chooses a set type whose lookup takes half the time (nft_hash).
	ifname.Size, mark.Size = devicesMost, 2*uint32(d.Marks.MaxPath())
	uplinks, devices := add(SetUplinks, verdicts(ifname)), add(SetDevices, ifname)
	replies, guards := add(SetReplies, verdicts(mark)), add(SetGuards, verdicts(mark))
	paths, onward := add(SetPaths, mark), add(SetGoing, verdicts(mark))

	m := d.Marks
	for _, p := range d.Paths {
		paths.Elements = append(paths.Elements, nftables.SetElement{Key: Native(uint32(p.ID)), Comment: pathComment(p.Key)})
		guards.goTo(Native(m.Egress(p.ID)), Named("guard", p.ID))
		onward.goTo(Native(m.Egress(p.ID)), Named("going", p.ID))
		if p.Key.Steers() {
			guards.goTo(Native(m.Ingress(p.ID)), Named("guard-stray", p.ID))
		}
		if p.Key.Kind == plan.PathNetwork && !p.Default() {
			replies.goTo(Native(m.Ingress(p.ID)), Named("reply", p.ID))
			guards.goTo(Native(m.Ingress(p.ID)), Named("guard-reply", p.ID))
		}
		if len(p.Devices) > 0 {
			own := add(Named("devices", p.ID), ifname)
			for _, device := range p.Devices {
				own.element(DeviceKey(device))
			}
		}
	}
	for _, u := range d.Uplinks {
		if slices.Contains(d.Between, u.Device) {
			uplinks.goTo(DeviceKey(u.Device), Named(ChainBetween, u.Path))
		} else {
			chain := Named(ChainUplink, u.Path)
			if u.Nodes {
				chain = Named(chainFrom, u.Path)
			}
			uplinks.Elements = append(uplinks.Elements, nftables.SetElement{
				Key: DeviceKey(u.Device), VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: chain},
			})
		}
		devices.element(DeviceKey(u.Device))
	}
	for _, device := range d.Between {
		if !slices.ContainsFunc(d.Uplinks, func(u plan.Uplink) bool { return u.Device == device }) {
			uplinks.goTo(DeviceKey(device), ChainBetween)
		}
	}

	for _, f := range Families {
		all = append(all, f.sets(&d)...)
	}
	all = slices.Concat(all, qosSets(&d), firewallSets(&d), onLinkSets(&d))
	if SharedDevice(&d) != "" {
		all = append(all, sharedSets()...)
	}
	return all
}

// sets returns the sets of the family.
func (f Family) sets(d *plan.DataPlane) (all []*Set) {
	add := func(name string, s nftables.Set) *Set {
		s.Name = name
		n := &Set{Set: s}
		all = append(all, n)
		return n
	}
	addr := nftables.Set{KeyType: f.datatype(), KeyByteOrder: binaryutil.BigEndian}
	ranges, pairs, toAddr, toPath := addr, addr, addr, addr
	ranges.Interval = true
	pairs.Concatenation, pairs.KeyType = true, nftables.MustConcatSetType(f.datatype(), f.datatype())
	toAddr.IsMap, toAddr.DataType = true, f.datatype()
	toPath.IsMap, toPath.DataType = true, nftables.TypeMark
	timed := addr
	timed.HasTimeout, timed.Timeout = true, formerFor
	add(SetFormer+f.Suffix, timed)
	add(SetEgress+f.Suffix, toPath)
	add(SetSource+f.Suffix, toAddr)
	add(SetMasquerade+f.Suffix, addr)
	for _, p := range d.Paths {
		add(Named(SetSources+f.Suffix, p.ID), pairs)
	}
	add(SetCluster+f.Suffix, ranges).Elements = f.intervals(d.Cluster)
	add(SetGuests+f.Suffix, ranges).Elements = f.intervals(d.Guests)
	add(SetPods+f.Suffix, ranges).Elements = f.intervals(d.Pods)
	add(SetIngress+f.Suffix, addr)
	if d.Hold {
		add(SetLet+f.Suffix, addr)
	}
	add(SetStrays+f.Suffix, toPath)
	add(SetResumed+f.Suffix, addr)
	add(SetHanded+f.Suffix, addr)
	if d.CountSent {
		counted := addr
		counted.Counter = true
		add(SetCounted+f.Suffix, counted)
	}
	return all
}

// sharedSets returns the maps of PathShared, to MACs.
func sharedSets() (all []*Set) {
	for _, f := range Families {
		for _, name := range []string{SetHosts, SetPartners} {
			s := nftables.Set{
				Name: name + f.Suffix, KeyType: f.datatype(), KeyByteOrder: binaryutil.BigEndian,
				IsMap: true, DataType: nftables.TypeEtherAddr,
			}
			all = append(all, &Set{Set: s, In: TableNetdev})
		}
	}
	return all
}

func (s *Set) element(key []byte) { s.Elements = append(s.Elements, nftables.SetElement{Key: key}) }

func (s *Set) goTo(key []byte, chain string) {
	s.Elements = append(s.Elements, nftables.SetElement{Key: key, VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}})
}

func (f Family) datatype() nftables.SetDatatype {
	if f.Len == 4 {
		return nftables.TypeIPAddr
	}
	return nftables.TypeIP6Addr
}

func (f Family) has(a netip.Addr) bool { return a.BitLen() == int(f.Len)*8 }

// intervals converts sorted, disjoint prefixes to half-open ranges. Adjacent ones stay apart: a change of one replaces no other, see
// nft.Table.
func (f Family) intervals(prefixes []netip.Prefix) (elements []nftables.SetElement) {
	for _, p := range prefixes {
		if !f.has(p.Addr()) {
			continue
		}
		elements = appendEnd(append(elements, nftables.SetElement{Key: p.Addr().AsSlice()}), cluster.LastAddr(p).Next())
	}
	return elements
}

// appendEnd appends the end of a range, unless it reaches the end of the address space.
func appendEnd(elements []nftables.SetElement, end netip.Addr) []nftables.SetElement {
	if !end.IsValid() {
		return elements
	}
	return append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
}

// DeviceKey returns an interface name in the form that the kernel compares: padded to IFNAMSIZ.
func DeviceKey(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func pathComment(k plan.PathKey) string { return string(k.Kind) + " " + k.Name }

// ParsePath reads the key of a path from the comment of its element in SetPaths.
func ParsePath(comment string) (plan.PathKey, bool) {
	kind, name, ok := strings.Cut(comment, " ")
	return plan.PathKey{Kind: plan.PathKind(kind), Name: name}, ok
}
