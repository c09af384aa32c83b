package ruleset

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// Parts that rules are made of. A part loads its operand into register 1, or into the 32-bit registers from reg32 on to
// build a longer key, so parts can be joined in any order.
const (
	reg   = unix.NFT_REG_1
	reg32 = unix.NFT_REG32_00
)

type part = []expr.Any

// join concatenates parts.
func join(parts ...part) (r []expr.Any) {
	for _, p := range parts {
		r = append(r, p...)
	}
	return r
}

// Native encodes a number in the machine's byte order, as marks are.
func Native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func notEqual(v []byte) part { return part{&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: v}} }

func equal(v []byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: v} }

// Family describes an address family for rules: where its addresses are in the header, and the suffix of its sets.
type Family struct {
	Proto    byte
	Suffix   string
	Src, Dst uint32 // offsets
	Len      uint32
	Hops     uint32 // offset of the hop limit
}

// Families of addresses.
var (
	IPv4     = Family{unix.NFPROTO_IPV4, "4", 12, 16, 4, 8}
	IPv6     = Family{unix.NFPROTO_IPV6, "6", 8, 24, 16, 7}
	Families = []Family{IPv4, IPv6}
)

func (f Family) is() part {
	return part{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg}, equal([]byte{f.Proto})}
}

// frame matches frames of the family, in the table of family netdev.
func (f Family) frame() part {
	protocol := uint16(unix.ETH_P_IP)
	if f.Proto == unix.NFPROTO_IPV6 {
		protocol = unix.ETH_P_IPV6
	}
	return part{&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: reg}, equal(binary.BigEndian.AppendUint16(nil, protocol))}
}

// etherDestination loads a frame's destination MAC.
func etherDestination() part {
	return part{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseLLHeader, Len: 6}}
}

// setEtherDestination sets a frame's destination MAC to the loaded one.
func setEtherDestination() part {
	return part{&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: reg, Base: expr.PayloadBaseLLHeader, Len: 6}}
}

func (f Family) load(offset, register uint32) part {
	return part{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.Len}}
}

func (f Family) source() part      { return join(f.is(), f.load(f.Src, reg)) }
func (f Family) destination() part { return join(f.is(), f.load(f.Dst, reg)) }

// handed matches packets from outside to an ingress IP of network default that no node has handed on yet.
func (f Family) handed() part {
	return join(f.destination(), in(SetHanded+f.Suffix), f.load(f.Src, reg), notIn(SetCluster+f.Suffix), f.hops(expr.CmpOpGt))
}

// hops compares the hop limit with that of strays.
func (f Family) hops(op expr.CmpOp) part {
	return part{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: f.Hops, Len: 1},
		&expr.Cmp{Op: op, Register: reg, Data: []byte{HandedHops}},
	}
}

// setHops sets the hop limit of a packet. In IPv6, where no checksum covers it, it is written alone: in Linux 7.2 a rule that also
// writes the next header, which precedes it, does not match, even if that keeps its value.
func (f Family) setHops(n byte) part {
	if f == IPv4 {
		return f.setHeader(f.Hops, uint16(n)<<8, 0xff00)
	}
	return part{
		&expr.Immediate{Register: reg, Data: []byte{n}},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: f.Hops, Len: 1},
	}
}

// setHeader sets some bits of two bytes of the IP header at an even offset, given as big-endian numbers, and corrects the checksum of an
// IPv4 header.
func (f Family) setHeader(at uint32, value, bits uint16) part {
	const length, checksumAt = 2, 10
	bytes := func(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
	write := &expr.Payload{
		OperationType: expr.PayloadWrite, SourceRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: length,
	}
	if f.Proto == unix.NFPROTO_IPV4 {
		write.CsumType, write.CsumOffset = expr.CsumTypeInet, checksumAt
	}
	return part{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: length},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: length, Mask: bytes(^bits), Xor: bytes(value)},
		write,
	}
}

// nextHop loads the next hop that the packet was routed to.
func (f Family) nextHop() part {
	key := expr.RtNexthop4
	if f == IPv6 {
		key = expr.RtNexthop6
	}
	return part{&expr.Rt{Key: key, Register: reg}}
}

// In matches if the loaded value is in the set.
func in(set string) part { return part{&expr.Lookup{SourceRegister: reg, SetName: set}} }

func notIn(set string) part {
	return part{&expr.Lookup{SourceRegister: reg, SetName: set, Invert: true}}
}

// verdictOf looks up the loaded value in a verdict map.
func verdictOf(set string) part {
	return part{&expr.Lookup{SourceRegister: reg, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: set}}
}

func inInterface() part { return part{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg}} }

func outInterface() part { return part{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg}} }

// MetaOutKind is NFT_META_OIFKIND: the kind of the outgoing device, as "ip link add type" names it.
const MetaOutKind = 27

// ownInVRF matches a packet of this node itself on its first pass, when its outgoing interface is the VRF device. The
// packet passes output and postrouting a second time with the interface that it leaves by (drivers/net/vrf.c,
// vrf_ip6_out).
func ownInVRF() part {
	return join(inInterface(), part{
		equal(DeviceKey("")),
		&expr.Meta{Key: MetaOutKind, Register: reg}, equal(DeviceKey("vrf")),
	})
}

// ownError matches an ICMP error of this node itself about the answer to a packet that began a connection. In that direction, the kernel
// otherwise relates only packets that a helper expects, which are not ICMP.
func ownError(protocol byte) part {
	return join(part{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, equal([]byte{protocol})},
		inInterface(), part{equal(DeviceKey(""))}, original, ctHas(expr.CtKeySTATE, stateRelated))
}

var (
	original = part{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg}, equal([]byte{0})}
	reply    = part{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg}, equal([]byte{1})}
)

// Bits of ct state and ct status (include/uapi/linux/netfilter/nf_tables.h and nf_conntrack_common.h).
const (
	stateInvalid     = 1 << 0
	StateEstablished = 1 << 1
	stateRelated     = 1 << 2
	StateNew         = 1 << 3
	stateUntracked   = 1 << 6
	stateLost        = stateInvalid | stateUntracked // of no connection that the kernel knows
	StatusDNAT       = 1 << 5
)

func ctHas(key expr.CtKey, bits uint32) part { return ctBits(key, bits, expr.CmpOpNeq) }

func ctLacks(key expr.CtKey, bits uint32) part { return ctBits(key, bits, expr.CmpOpEq) }

func ctBits(key expr.CtKey, bits uint32, op expr.CmpOp) part {
	return part{
		&expr.Ct{Key: key, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: Native(bits), Xor: Native(0)},
		&expr.Cmp{Op: op, Register: reg, Data: Native(0)},
	}
}

// ourCtMark loads our bits of the connection's mark.
func ourCtMark(m plan.Marks) part {
	return part{
		&expr.Ct{Key: expr.CtKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: Native(m.Mask), Xor: Native(0)},
	}
}

func ctMarkIs(m plan.Marks, v uint32) part { return append(ourCtMark(m), equal(Native(v))) }

// packetLeaves matches a packet with an egress mark. Another program may set the egress bit without a path id.
func packetLeaves(m plan.Marks) part {
	return join(packetMarkHas(m.EgressBit()), packetMarkHas(m.Cluster()))
}

func packetMarkHas(bits uint32) part {
	return part{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: Native(bits), Xor: Native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: Native(0)},
	}
}

func setPacketMark(m plan.Marks, v uint32) part {
	return part{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: Native(^m.Mask), Xor: Native(v)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg},
	}
}

func setCtMark(m plan.Marks, v uint32) part {
	return part{
		&expr.Ct{Key: expr.CtKeyMARK, Register: reg},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: Native(^m.Mask), Xor: Native(v)},
		&expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: reg},
	}
}

// notRouted matches a local, broadcast, anycast or multicast destination, by its type in the routing tables: RTN_LOCAL
// to RTN_MULTICAST of rtnetlink. The numbers are less than 256, so bytewise comparison is right on any machine. A
// destination without a route there may have one in a network's table; its type is unreachable for IPv6 and unicast for
// IPv4.
func notRouted() part {
	return part{
		&expr.Fib{Register: reg, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpGte, Register: reg, Data: Native(unix.RTN_LOCAL)},
		&expr.Cmp{Op: expr.CmpOpLte, Register: reg, Data: Native(unix.RTN_MULTICAST)},
	}
}

// sourceOfDevice matches if the source is an address of the outgoing interface.
func sourceOfDevice() part {
	return part{&expr.Fib{Register: reg, FlagSADDR: true, FlagOIF: true, ResultADDRTYPE: true}, equal(Native(unix.RTN_LOCAL))}
}

func jump(chain string) part { return part{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}} }
func goTo(chain string) part { return part{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}} }

var (
	accept       = part{&expr.Verdict{Kind: expr.VerdictAccept}}
	backToCaller = part{&expr.Verdict{Kind: expr.VerdictReturn}}
	masquerade   = part{&expr.Masq{}}
)

// sourceNAT rewrites the source to the address in register 1.
func (f Family) sourceNAT() part {
	return part{&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.Proto), RegAddrMin: reg, RegAddrMax: reg}}
}

// sameDestination binds the destination to its present value, so that no later chain rewrites it.
func (f Family) sameDestination() part {
	return append(f.load(f.Dst, reg), &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.Proto), RegAddrMin: reg, RegAddrMax: reg})
}

// mappedTo loads the map's value for the loaded key.
func mappedTo(set string) part {
	return part{&expr.Lookup{SourceRegister: reg, DestRegister: reg, IsDestRegSet: true, SetName: set}}
}

// clampMSS lowers the MSS option of a TCP SYN; the kernel never raises it (nft_exthdr_tcp_set_eval).
func clampMSS(mss uint16) part {
	const tcpMSS = 2
	return append(tcpSYN(expr.CmpOpNeq),
		&expr.Immediate{Register: reg, Data: binary.BigEndian.AppendUint16(nil, mss)},
		&expr.Exthdr{SourceRegister: reg, Type: tcpMSS, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt},
	)
}

// tcpSYN compares the SYN flag of a TCP segment with 0.
func tcpSYN(op expr.CmpOp) part {
	const synFlag = 0x02
	return part{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, equal([]byte{unix.IPPROTO_TCP}),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{synFlag}, Xor: []byte{0}},
		&expr.Cmp{Op: op, Register: reg, Data: []byte{0}},
	}
}

var (
	tcpWithoutSYN = tcpSYN(expr.CmpOpEq)
	notTCP        = part{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: []byte{unix.IPPROTO_TCP}},
	}
)

// NativeUint32 decodes a number in the machine's byte order.
func NativeUint32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
