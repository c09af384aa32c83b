package kernel

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// devicesMost is the capacity of sets of devices.
const devicesMost = 1024

// set is the desired state of one set or map.
type set struct {
	nftables.Set
	elements []nftables.SetElement // without those of address sets, see element
}

// sets returns all sets and maps. Elements of address sets are not included, see element.
func sets(d plan.DataPlane) []*set {
	var all []*set
	add := func(name string, s nftables.Set) *set {
		s.Name = name
		n := &set{Set: s}
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
	uplinks, devices := add(setUplinks, verdicts(ifname)), add(setDevices, ifname)
	replies, guards := add(setReplies, verdicts(mark)), add(setGuards, verdicts(mark))
	paths, onward := add(setPaths, mark), add(setGoing, verdicts(mark))

	m := d.Marks
	for _, p := range d.Paths {
		paths.elements = append(paths.elements, nftables.SetElement{Key: native(uint32(p.ID)), Comment: pathComment(p.Key)})
		guards.goTo(native(m.Egress(p.ID)), named("guard", p.ID))
		onward.goTo(native(m.Egress(p.ID)), named("going", p.ID))
		if p.Key.Kind == plan.PathSteer {
			guards.goTo(native(m.Ingress(p.ID)), named("guard-stray", p.ID))
		}
		if p.Key.Kind == plan.PathNetwork && !isDefault(p) {
			replies.goTo(native(m.Ingress(p.ID)), named("reply", p.ID))
			guards.goTo(native(m.Ingress(p.ID)), named("guard-reply", p.ID))
		}
		if len(p.Devices) > 0 {
			own := add(named("devices", p.ID), ifname)
			for _, device := range p.Devices {
				own.element(deviceKey(device))
			}
		}
	}
	for _, u := range d.Uplinks {
		if slices.Contains(d.Between, u.Device) {
			uplinks.goTo(deviceKey(u.Device), named(chainBetween, u.Path))
		} else {
			uplinks.elements = append(uplinks.elements, nftables.SetElement{
				Key: deviceKey(u.Device), VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: named("from", u.Path)},
			})
		}
		devices.element(deviceKey(u.Device))
	}
	for _, device := range d.Between {
		if !slices.ContainsFunc(d.Uplinks, func(u plan.Uplink) bool { return u.Device == device }) {
			uplinks.goTo(deviceKey(device), chainBetween)
		}
	}

	for _, f := range families {
		addr := nftables.Set{KeyType: f.datatype(), KeyByteOrder: binaryutil.BigEndian}
		ranges, pairs, toAddr, toPath := addr, addr, addr, addr
		ranges.Interval = true
		pairs.Concatenation, pairs.KeyType = true, nftables.MustConcatSetType(f.datatype(), f.datatype())
		toAddr.IsMap, toAddr.DataType = true, f.datatype()
		toPath.IsMap, toPath.DataType = true, nftables.TypeMark
		timed := addr
		timed.HasTimeout, timed.Timeout = true, formerFor
		add(setFormer+f.suffix, timed)
		add(setEgress+f.suffix, toPath)
		add(setSource+f.suffix, toAddr)
		add(setMasquerade+f.suffix, addr)
		for _, p := range d.Paths {
			add(named(setSources+f.suffix, p.ID), pairs)
		}
		add(setCluster+f.suffix, ranges).elements = f.intervals(d.Cluster)
		add(setGuests+f.suffix, ranges).elements = f.intervals(d.Guests)
		add(setPods+f.suffix, ranges).elements = f.intervals(d.Pods)
		add(setIngress+f.suffix, addr)
		if d.Hold {
			add(setLet+f.suffix, addr)
		}
		add(setStrays+f.suffix, toPath)
		add(setResumed+f.suffix, addr)
		if d.CountSent {
			counted := addr
			counted.Counter = true
			add(setCounted+f.suffix, counted)
		}
	}
	return all
}

func (s *set) element(key []byte) { s.elements = append(s.elements, nftables.SetElement{Key: key}) }

func (s *set) goTo(key []byte, chain string) {
	s.elements = append(s.elements, nftables.SetElement{Key: key, VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}})
}

func (f family) datatype() nftables.SetDatatype {
	if f.len == 4 {
		return nftables.TypeIPAddr
	}
	return nftables.TypeIP6Addr
}

func (f family) has(a netip.Addr) bool { return a.BitLen() == int(f.len)*8 }

// intervals converts sorted, disjoint prefixes to half-open ranges, joining adjacent ones.
func (f family) intervals(prefixes []netip.Prefix) (elements []nftables.SetElement) {
	var end netip.Addr // of the range in progress; invalid: none, or it reaches the end of the address space
	for _, p := range prefixes {
		if !f.has(p.Addr()) {
			continue
		}
		if !end.IsValid() || end != p.Addr() {
			if end.IsValid() {
				elements = append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
			}
			elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice()})
		}
		end = lastAddr(p).Next()
	}
	if end.IsValid() {
		elements = append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
	}
	return elements
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// deviceKey returns an interface name in the form that the kernel compares: padded to IFNAMSIZ.
func deviceKey(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

func pathComment(k plan.PathKey) string { return string(k.Kind) + " " + k.Name }

func parsePath(comment string) (plan.PathKey, bool) {
	kind, name, ok := strings.Cut(comment, " ")
	return plan.PathKey{Kind: plan.PathKind(kind), Name: name}, ok
}

// identity encodes an element so that a planned element and the same one listed by the kernel are equal.
func identity(e nftables.SetElement) string {
	var b bytes.Buffer
	b.Write(e.Key)
	if e.IntervalEnd {
		b.WriteString("|end")
	}
	b.WriteByte('|')
	switch {
	case e.VerdictData != nil:
		b.Write(native(uint32(e.VerdictData.Kind)))
		b.WriteString(e.VerdictData.Chain)
	case e.Val != nil:
		b.Write(e.Val)
	}
	b.WriteByte('|')
	b.WriteString(e.Comment)
	return b.String()
}

// verdictFromKernel decodes the verdict attributes that the library leaves encoded: code and chain.
func verdictFromKernel(e *nftables.SetElement) {
	v := &expr.Verdict{}
	for b := e.Val; len(b) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			break
		}
		data := b[unix.SizeofRtAttr:size]
		switch binary.NativeEndian.Uint16(b[2:]) &^ unix.NLA_F_NESTED {
		case unix.NFTA_VERDICT_CODE:
			if len(data) == 4 {
				v.Kind = expr.VerdictKind(int32(binary.BigEndian.Uint32(data)))
			}
		case unix.NFTA_VERDICT_CHAIN:
			v.Chain = string(bytes.TrimRight(data, "\x00"))
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	e.Val, e.VerdictData = nil, v
}
