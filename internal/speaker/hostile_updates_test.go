package speaker

import (
	"encoding/binary"
	"net/netip"
)

// capability is one capability, in a parameter of its own.
func capability(code byte, value ...byte) []byte {
	return append([]byte{2, byte(2 + len(value)), code, byte(len(value))}, value...)
}

// goodParameters are the parameters of an OPEN with nothing wrong in it: both families, AS of four bytes, ROUTE-REFRESH.
func goodParameters() []byte {
	b := append(capability(1, 0, 1, 0, 1), capability(1, 0, 2, 0, 1)...)
	b = append(b, capability(65, binary.BigEndian.AppendUint32(nil, wireASN)...)...)
	return append(b, capability(2)...)
}

// opening makes the body of an OPEN.
func opening(version byte, asn, hold uint16, id [4]byte, parameters []byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte{version}, asn)
	b = append(binary.BigEndian.AppendUint16(b, hold), id[:]...)
	return append(append(b, byte(len(parameters))), parameters...)
}

var wireID = [4]byte{192, 0, 2, 1}

func goodOpen() []byte { return opening(4, wireASN, 90, wireID, goodParameters()) }

// attribute makes a path attribute, with a length of two bytes where the flags say so.
func attribute(flags, kind byte, value ...byte) []byte {
	if flags&0x10 != 0 {
		return append(binary.BigEndian.AppendUint16([]byte{flags, kind}, uint16(len(value))), value...)
	}
	return append([]byte{flags, kind, byte(len(value))}, value...)
}

func join(all ...[]byte) (b []byte) {
	for _, one := range all {
		b = append(b, one...)
	}
	return b
}

// updateMessage makes an UPDATE.
func updateMessage(withdrawn, attributes, nlri []byte) []byte {
	b := append(binary.BigEndian.AppendUint16(nil, uint16(len(withdrawn))), withdrawn...)
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(attributes))), attributes...)
	return bgpMessage(updateType, append(b, nlri...))
}

const (
	oldHop, newHop   = "192.0.2.9", "192.0.2.10"
	oldHop6, newHop6 = "2001:db8::9", "2001:db8::10"
)

var (
	originIGP = attribute(0x40, 1, 0)
	asPath    = attribute(0x40, 2, 2, 1, 0, 0, byte(wireASN>>8), byte(wireASN&255))
)

func nextHop(addr string) []byte {
	return attribute(0x40, 3, netip.MustParseAddr(addr).AsSlice()...)
}

func nlri(prefix netip.Prefix) []byte {
	return append([]byte{byte(prefix.Bits())}, prefix.Addr().AsSlice()[:(prefix.Bits()+7)/8]...)
}

// reach makes the value of an MP_REACH_NLRI for IPv6.
func reach(hop string, prefix netip.Prefix) []byte {
	return join([]byte{0, 2, 1, 16}, netip.MustParseAddr(hop).AsSlice(), []byte{0}, nlri(prefix))
}

// extendedNextHop tells an IPv4 prefix with an IPv6 next hop (RFC 8950).
func extendedNextHop(hop string) func(netip.Prefix) []byte {
	return func(p netip.Prefix) []byte {
		return updateMessage(nil, join(originIGP, asPath, attribute(0x80, 14, join([]byte{0, 1, 1, 16}, netip.MustParseAddr(hop).AsSlice(), []byte{0}, nlri(p))...)), nil)
	}
}

// good tells a prefix as it should be told.
func good(hop string, prefix netip.Prefix) []byte {
	if prefix.Addr().Is6() {
		return updateMessage(nil, join(originIGP, asPath, attribute(0x80, 14, reach(hop, prefix)...)), nil)
	}
	return updateMessage(nil, join(originIGP, asPath, nextHop(hop)), nlri(prefix))
}

// with tells an IPv4 prefix with one attribute more.
func with(attributes ...[]byte) func(netip.Prefix) []byte {
	return func(p netip.Prefix) []byte {
		return updateMessage(nil, join(originIGP, asPath, nextHop(newHop), join(attributes...)), nlri(p))
	}
}

// of tells an IPv4 prefix with these attributes alone.
func of(attributes ...[]byte) func(netip.Prefix) []byte {
	return func(p netip.Prefix) []byte { return updateMessage(nil, join(attributes...), nlri(p)) }
}

// raw is a message that has nothing to do with the prefix.
func raw(message []byte) func(netip.Prefix) []byte {
	return func(netip.Prefix) []byte { return message }
}

// reached6 announces an IPv6 prefix in an MP_REACH_NLRI that is written by hand.
func reached6(flags byte, value func(netip.Prefix) []byte) func(netip.Prefix) []byte {
	return func(p netip.Prefix) []byte {
		return updateMessage(nil, join(originIGP, asPath, attribute(flags, 14, value(p)...)), nil)
	}
}

// What may become of a message.
const (
	used      = "used"      // its route is learned
	withdrawn = "withdrawn" // it is read as the withdrawal of its route (RFC 7606, 2)
	ignored   = "ignored"   // as if it had not been sent
	reset     = "reset"     // the session ends with a NOTIFICATION
	closed    = "closed"    // the session ends without one
)

func many(n int, b byte) []byte {
	all := make([]byte, n)
	for i := range all {
		all[i] = b
	}
	return all
}

// hostileUpdates are messages of a session that is established, and what becomes of them.
var hostileUpdates = []struct {
	name    string
	ipv6    bool
	message func(netip.Prefix) []byte
	want    string
	rfc     string // what the RFCs want, where that is something else; empty: that
	noCode  bool   // the NOTIFICATION has code 0, which is none (RFC 4271, 4.5)
}{
	{name: "nothing wrong", message: with(), want: used},
	{name: "nothing wrong, IPv6", ipv6: true, message: reached6(0x80, func(p netip.Prefix) []byte { return reach(newHop6, p) }), want: used},

	// Attributes: RFC 7606, 3 and 7.
	{name: "ORIGIN optional", message: of(attribute(0xc0, 1, 0), asPath, nextHop(newHop)), want: withdrawn},
	{name: "ORIGIN not transitive", message: of(attribute(0x00, 1, 0), asPath, nextHop(newHop)), want: withdrawn},
	{name: "ORIGIN partial", message: of(attribute(0x60, 1, 0), asPath, nextHop(newHop)), want: withdrawn},
	{name: "ORIGIN of 3", message: of(attribute(0x40, 1, 3), asPath, nextHop(newHop)), want: withdrawn},
	{name: "ORIGIN empty", message: of(attribute(0x40, 1), asPath, nextHop(newHop)), want: withdrawn},
	{name: "ORIGIN of two bytes", message: of(attribute(0x40, 1, 0, 0), asPath, nextHop(newHop)), want: withdrawn},
	{name: "ORIGIN missing", message: of(asPath, nextHop(newHop)), want: withdrawn},
	{name: "ORIGIN twice", message: of(originIGP, originIGP, asPath, nextHop(newHop)), want: used},
	{name: "AS_PATH missing", message: of(originIGP, nextHop(newHop)), want: withdrawn},
	{name: "AS_PATH empty", message: of(originIGP, attribute(0x40, 2), nextHop(newHop)), want: used, rfc: withdrawn},
	{name: "AS_PATH optional", message: of(originIGP, attribute(0xc0, 2, 2, 1, 0, 0, 252, 89), nextHop(newHop)), want: withdrawn},
	{name: "AS_PATH with an unknown segment", message: of(originIGP, attribute(0x40, 2, 9, 1, 0, 0, 252, 89), nextHop(newHop)), want: withdrawn},
	{name: "AS_PATH cut short", message: of(originIGP, attribute(0x40, 2, 2, 2, 0, 0, 252, 89), nextHop(newHop)), want: withdrawn},
	{name: "AS_PATH with one byte left", message: of(originIGP, attribute(0x40, 2, 2, 1, 0, 0, 252, 89, 2), nextHop(newHop)), want: withdrawn},
	{name: "AS_PATH with a segment of none", message: of(originIGP, attribute(0x40, 2, 2, 0), nextHop(newHop)), want: withdrawn},
	{name: "AS_PATH by another AS", message: of(originIGP, attribute(0x40, 2, 2, 1, 0, 0, 0, 7), nextHop(newHop)), want: used, rfc: withdrawn},
	{name: "AS_PATH with AS 0", message: of(originIGP, attribute(0x40, 2, 2, 2, 0, 0, 252, 89, 0, 0, 0, 0), nextHop(newHop)), want: used, rfc: withdrawn},
	{name: "AS_PATH with a confederation", message: of(originIGP, attribute(0x40, 2, 3, 1, 0, 0, 252, 89), nextHop(newHop)), want: withdrawn},
	{name: "AS_PATH of ours", message: of(originIGP, attribute(0x40, 2, 2, 2, 0, 0, 252, 89, 0, 0, 252, 0), nextHop(newHop)), want: withdrawn},
	{name: "AS_PATH of 255 ASes", message: of(originIGP, attribute(0x50, 2, append([]byte{2, 255, 0, 0, 252, 89}, many(4*254, 1)...)...), nextHop(newHop)), want: used},
	{name: "AS_PATH of sets", message: of(originIGP, attribute(0x50, 2, append([]byte{2, 1, 0, 0, 252, 89}, many(600, 1)...)...), nextHop(newHop)), want: used},
	{name: "NEXT_HOP missing", message: of(originIGP, asPath), want: withdrawn},
	{name: "NEXT_HOP of three bytes", message: of(originIGP, asPath, attribute(0x40, 3, 192, 0, 2)), want: withdrawn},
	{name: "NEXT_HOP of 16 bytes", message: of(originIGP, asPath, nextHop(newHop6)), want: withdrawn},
	{name: "NEXT_HOP empty", message: of(originIGP, asPath, attribute(0x40, 3)), want: withdrawn},
	{name: "NEXT_HOP 0.0.0.0", message: of(originIGP, asPath, nextHop("0.0.0.0")), want: withdrawn},
	{name: "NEXT_HOP loopback", message: of(originIGP, asPath, nextHop("127.0.0.1")), want: withdrawn},
	{name: "NEXT_HOP multicast", message: of(originIGP, asPath, nextHop("224.0.0.1")), want: withdrawn},
	{name: "NEXT_HOP broadcast", message: of(originIGP, asPath, nextHop("255.255.255.255")), want: withdrawn},
	{name: "NEXT_HOP optional", message: of(originIGP, asPath, attribute(0xc0, 3, 192, 0, 2, 10)), want: withdrawn},
	{name: "MED of three bytes", message: with(attribute(0x80, 4, 0, 0, 1)), want: withdrawn},
	{name: "MED transitive", message: with(attribute(0xc0, 4, 0, 0, 0, 1)), want: withdrawn},
	{name: "MED well-known", message: with(attribute(0x40, 4, 0, 0, 0, 1)), want: withdrawn},
	{name: "LOCAL_PREF from outside", message: with(attribute(0x40, 5, 0, 0, 1, 0)), want: used},
	{name: "LOCAL_PREF of three bytes, from outside", message: with(attribute(0x40, 5, 0, 0, 1)), want: withdrawn, rfc: used},
	{name: "ATOMIC_AGGREGATE of a byte", message: with(attribute(0x40, 6, 1)), want: used},
	{name: "AGGREGATOR of six bytes", message: with(attribute(0xc0, 7, 0, 1, 192, 0, 2, 1)), want: used},
	{name: "AGGREGATOR of seven bytes", message: with(attribute(0xc0, 7, 0, 1, 192, 0, 2, 1, 1)), want: used},
	{name: "AGGREGATOR of AS 0", message: with(attribute(0xc0, 7, 0, 0, 0, 0, 192, 0, 2, 1)), want: used},
	{name: "COMMUNITIES of three bytes", message: with(attribute(0xc0, 8, 1, 2, 3)), want: withdrawn},
	{name: "COMMUNITIES empty", message: with(attribute(0xc0, 8)), want: used, rfc: withdrawn},
	{name: "COMMUNITIES well-known", message: with(attribute(0x40, 8, 1, 2, 3, 4)), want: withdrawn},
	{name: "COMMUNITIES, a thousand", message: with(attribute(0xd0, 8, many(3800, 7)...)), want: used},
	{name: "ORIGINATOR_ID from outside", message: with(attribute(0x80, 9, 1, 2, 3, 4)), want: used},
	{name: "ORIGINATOR_ID of three bytes", message: with(attribute(0x80, 9, 1, 2, 3)), want: withdrawn, rfc: used},
	{name: "CLUSTER_LIST from outside", message: with(attribute(0x80, 10, 1, 2, 3, 4)), want: used},
	{name: "CLUSTER_LIST of five bytes", message: with(attribute(0x80, 10, 1, 2, 3, 4, 5)), want: withdrawn, rfc: used},
	{name: "EXTENDED COMMUNITIES of seven bytes", message: with(attribute(0xc0, 16, 1, 2, 3, 4, 5, 6, 7)), want: withdrawn},
	{name: "AS4_PATH from one who knows AS of four bytes", message: with(attribute(0xc0, 17, 2, 1, 0, 0, 0, 7)), want: used},
	{name: "AS4_PATH cut short", message: with(attribute(0xc0, 17, 2, 9, 0, 0, 0, 7)), want: withdrawn, rfc: used},
	{name: "AS4_AGGREGATOR of three bytes", message: with(attribute(0xc0, 18, 1, 2, 3)), want: reset, rfc: used},
	{name: "PMSI_TUNNEL of one byte", message: with(attribute(0xc0, 22, 1)), want: withdrawn},
	{name: "TUNNEL_ENCAP cut short", message: with(attribute(0xc0, 23, 0, 8, 0, 9, 1)), want: used},
	{name: "IPv6 EXTENDED COMMUNITIES of 19 bytes", message: with(attribute(0xc0, 25, many(19, 1)...)), want: withdrawn},
	{name: "AIGP cut short", message: with(attribute(0x80, 26, 1, 0, 11, 1)), want: used},
	{name: "LINK_STATE of rubbish", message: with(attribute(0x80, 29, many(40, 0xff)...)), want: used},
	{name: "LARGE_COMMUNITY of eleven bytes", message: with(attribute(0xc0, 32, many(11, 1)...)), want: withdrawn},
	{name: "LARGE_COMMUNITY empty", message: with(attribute(0xc0, 32)), want: used, rfc: withdrawn},
	{name: "ONLY_TO_CUSTOMER of three bytes", message: with(attribute(0xc0, 35, 1, 2, 3)), want: used},
	{name: "PREFIX_SID cut short", message: with(attribute(0xc0, 40, 5, 0, 5, 0, 1, 0, 1, 0)), want: used},
	{name: "PREFIX_SID of rubbish", message: with(attribute(0xc0, 40, many(60, 0xff)...)), want: used},
	{name: "PREFIX_SID of zeros", message: with(attribute(0xc0, 40, many(60, 0)...)), want: used},
	{name: "ATTR_SET of rubbish", message: with(attribute(0xc0, 128, many(60, 0xff)...)), want: used},
	{name: "unknown, optional", message: with(attribute(0x80, 200, 1, 2, 3)), want: used},
	{name: "unknown, optional, transitive", message: with(attribute(0xc0, 200, 1, 2, 3)), want: used},
	{name: "unknown, optional, transitive, of 3,000 bytes", message: with(attribute(0xd0, 201, many(3000, 1)...)), want: used},
	{name: "unknown, well-known", message: with(attribute(0x40, 202, 1, 2, 3)), want: reset},
	{name: "type 0", message: with(attribute(0xc0, 0, 1)), want: used},
	{name: "type 255", message: with(attribute(0xc0, 255, many(50, 9)...)), want: used},
	{name: "all flags", message: with(attribute(0xff, 203, 1)), want: used},
	{name: "400 unknown ones", message: with(manyAttributes(400)), want: used},
	{name: "MED twice", message: with(attribute(0x80, 4, 0, 0, 0, 1), attribute(0x80, 4, 0, 0, 0, 2)), want: used},
	{name: "NEXT_HOP twice", message: with(nextHop(oldHop)), want: used},
	{name: "flags alone", message: with([]byte{0xc0}), want: withdrawn},
	{name: "longer than the attributes", message: with([]byte{0xc0, 8, 200, 1, 2, 3, 4}), want: ignored, rfc: withdrawn},
	{name: "extended length cut short", message: with([]byte{0xd0, 8, 1}), want: ignored, rfc: withdrawn},

	// What is told, and the message: RFC 7606, 5 and RFC 4271, 6.3.
	{name: "prefix of 33 bits", message: func(netip.Prefix) []byte {
		return updateMessage(nil, join(originIGP, asPath, nextHop(newHop)), []byte{33, 1, 2, 3, 4, 5})
	}, want: reset},
	{name: "prefix cut short", message: func(netip.Prefix) []byte {
		return updateMessage(nil, join(originIGP, asPath, nextHop(newHop)), []byte{32, 20, 0})
	}, want: reset},
	{name: "prefix with bits beyond its length", message: func(p netip.Prefix) []byte {
		a := p.Addr().As4()
		return updateMessage(nil, join(originIGP, asPath, nextHop(newHop)), []byte{23, a[0], a[1], a[2] | 1})
	}, want: ignored},
	{name: "withdrawn prefix of 33 bits", message: raw(updateMessage([]byte{33, 1, 2, 3, 4, 5}, nil, nil)), want: reset},
	{name: "withdrawn prefix cut short", message: raw(updateMessage([]byte{32, 1}, nil, nil)), want: reset},
	{name: "prefix told and withdrawn in one", message: func(p netip.Prefix) []byte {
		return updateMessage(nlri(p), join(originIGP, asPath, nextHop(newHop)), nlri(p))
	}, want: withdrawn, rfc: used},
	{name: "withdrawn longer than the message", message: raw(bgpMessage(updateType, []byte{0xff, 0xff, 0, 0})), want: reset},
	{name: "attributes longer than the message", message: raw(bgpMessage(updateType, []byte{0, 0, 0xff, 0xff})), want: reset},
	{name: "UPDATE of no byte", message: raw(bgpMessage(updateType, nil)), want: reset},
	{name: "UPDATE of three bytes", message: raw(bgpMessage(updateType, []byte{0, 0, 0})), want: reset},
	{name: "UPDATE with nothing", message: raw(updateMessage(nil, nil, nil)), want: ignored},
	{name: "attributes, nothing told", message: raw(updateMessage(nil, join(originIGP, asPath, nextHop(newHop)), nil)), want: ignored},
	{name: "of 4,096 bytes", message: with(attribute(0xd0, 201, many(4096-19-4-14-4-9-4, 1)...)), want: used},
	{name: "of 4,097 bytes", message: raw(updateMessage(nil, attribute(0xd0, 201, many(4097-19-4-4, 1)...), nil)), want: reset},

	// MP_REACH_NLRI, MP_UNREACH_NLRI: RFC 4760, RFC 7606, 5.3 and 7.11.
	{name: "MP_REACH well-known", ipv6: true, message: reached6(0x40, func(p netip.Prefix) []byte { return reach(newHop6, p) }), want: ignored, rfc: withdrawn},
	{name: "MP_REACH transitive", ipv6: true, message: reached6(0xc0, func(p netip.Prefix) []byte { return reach(newHop6, p) }), want: ignored, rfc: withdrawn},
	{name: "MP_REACH of no byte", ipv6: true, message: reached6(0x80, func(netip.Prefix) []byte { return nil }), want: reset},
	{name: "MP_REACH of three bytes", ipv6: true, message: reached6(0x80, func(netip.Prefix) []byte { return []byte{0, 2, 1} }), want: reset},
	{name: "MP_REACH without next hop", ipv6: true, message: reached6(0x80, func(p netip.Prefix) []byte { return join([]byte{0, 2, 1, 0, 0}, nlri(p)) }), want: reset},
	{name: "MP_REACH, next hop longer than it", ipv6: true, message: reached6(0x80, func(netip.Prefix) []byte { return []byte{0, 2, 1, 255, 1, 2, 3} }), want: reset},
	{name: "MP_REACH, next hop of five bytes", ipv6: true, message: reached6(0x80, func(p netip.Prefix) []byte { return join([]byte{0, 2, 1, 5, 1, 2, 3, 4, 5, 0}, nlri(p)) }), want: reset},
	{name: "MP_REACH, next hop ::", ipv6: true, message: reached6(0x80, func(p netip.Prefix) []byte { return reach("::", p) }), want: withdrawn},
	{name: "MP_REACH, next hop ::1", ipv6: true, message: reached6(0x80, func(p netip.Prefix) []byte { return reach("::1", p) }), want: withdrawn},
	{name: "MP_REACH, next hop multicast", ipv6: true, message: reached6(0x80, func(p netip.Prefix) []byte { return reach("ff02::1", p) }), want: withdrawn},
	{name: "MP_REACH, next hop IPv4", ipv6: true, message: reached6(0x80, func(p netip.Prefix) []byte { return reach("::ffff:192.0.2.10", p) }), want: withdrawn},
	{name: "MP_REACH, 129 bits", ipv6: true, message: reached6(0x80, func(netip.Prefix) []byte {
		return append(reach(newHop6, netip.MustParsePrefix("::/0")), append([]byte{129}, many(17, 1)...)...)
	}), want: reset},
	{name: "MP_REACH, prefix cut short", ipv6: true, message: reached6(0x80, func(netip.Prefix) []byte { return append(reach(newHop6, netip.MustParsePrefix("::/0")), 128, 1) }), want: reset},
	{name: "MP_REACH of a family that was not agreed", ipv6: true, message: reached6(0x80, func(netip.Prefix) []byte { return join([]byte{0, 25, 70, 4, 192, 0, 2, 1, 0, 1, 1, 1}) }), want: reset, rfc: ignored},
	{name: "MP_REACH of a known family that was not agreed", ipv6: true, message: reached6(0x80, func(p netip.Prefix) []byte {
		return join([]byte{0, 2, 2, 16}, netip.MustParseAddr(newHop6).AsSlice(), []byte{0}, nlri(p))
	}), want: reset, rfc: ignored, noCode: true},
	{name: "MP_UNREACH of a known family that was not agreed", ipv6: true, message: raw(updateMessage(nil, attribute(0x80, 15, 0, 2, 2, 32, 32, 1, 13, 184), nil)), want: reset, rfc: ignored, noCode: true},
	{name: "MP_REACH of an unknown family", ipv6: true, message: reached6(0x80, func(netip.Prefix) []byte { return join([]byte{0x40, 77, 99, 4, 192, 0, 2, 1, 0, 24, 1, 1, 1}) }), want: reset, rfc: ignored},
	{name: "MP_REACH twice", ipv6: true, message: func(p netip.Prefix) []byte {
		return updateMessage(nil, join(originIGP, asPath, attribute(0x80, 14, reach(newHop6, p)...), attribute(0x80, 14, reach(newHop6, p)...)), nil)
	}, want: reset},
	{name: "MP_REACH without AS_PATH", ipv6: true, message: func(p netip.Prefix) []byte {
		return updateMessage(nil, join(originIGP, attribute(0x80, 14, reach(newHop6, p)...)), nil)
	}, want: withdrawn},
	{name: "MP_REACH for IPv4 with a next hop of IPv6", message: extendedNextHop(newHop6), want: withdrawn},
	{name: "MP_REACH for IPv4 with a link-local next hop", message: extendedNextHop("fe80::9"), want: withdrawn},
	{name: "MP_UNREACH of two bytes", ipv6: true, message: raw(updateMessage(nil, attribute(0x80, 15, 0, 2), nil)), want: reset},
	{name: "MP_UNREACH of no byte", ipv6: true, message: raw(updateMessage(nil, attribute(0x80, 15), nil)), want: reset},
	{name: "MP_UNREACH, prefix cut short", ipv6: true, message: raw(updateMessage(nil, attribute(0x80, 15, 0, 2, 1, 128, 1), nil)), want: reset},
	{name: "MP_UNREACH of an unknown family", ipv6: true, message: raw(updateMessage(nil, attribute(0x80, 15, 0x40, 77, 99, 24, 1, 1, 1), nil)), want: reset, rfc: ignored},
	{name: "MP_UNREACH of nothing", ipv6: true, message: raw(updateMessage(nil, attribute(0x80, 15, 0, 2, 1), nil)), want: ignored},

	// Messages: RFC 4271, 6.1.
	{name: "marker", message: raw(append(append(many(15, 0xff), 0), good(newHop, netip.MustParsePrefix("20.0.0.0/24"))[16:]...)), want: reset},
	{name: "length 0", message: raw(header(0, keepaliveType)), want: reset},
	{name: "length 18", message: raw(header(18, keepaliveType)), want: reset},
	{name: "length 65,535", message: raw(header(65535, updateType)), want: reset},
	{name: "type 0 of message", message: raw(header(19, 0)), want: reset},
	{name: "type 6 of message", message: raw(header(19, 6)), want: reset},
	{name: "type 255 of message", message: raw(bgpMessage(255, many(100, 7))), want: reset},
	{name: "type 9 of message, a byte", message: raw(bgpMessage(9, []byte{1})), want: reset},
	{name: "KEEPALIVE with a body", message: raw(bgpMessage(keepaliveType, []byte{1, 2, 3})), want: ignored, rfc: reset},
	{name: "OPEN once more", message: raw(bgpMessage(openType, goodOpen())), want: ignored, rfc: reset},
	{name: "ROUTE-REFRESH of no byte", message: raw(bgpMessage(refreshType, nil)), want: reset},
	{name: "ROUTE-REFRESH of three bytes", message: raw(bgpMessage(refreshType, []byte{0, 1, 0})), want: reset},
	{name: "ROUTE-REFRESH of five bytes", message: raw(bgpMessage(refreshType, []byte{0, 1, 0, 1, 9})), want: ignored, rfc: reset},
	{name: "ROUTE-REFRESH of an unknown family", message: raw(bgpMessage(refreshType, []byte{9, 9, 0, 99})), want: ignored},
	{name: "ROUTE-REFRESH, a thousand", message: raw(join(repeat(1000, bgpMessage(refreshType, []byte{0, 1, 0, 1}))...)), want: ignored},
	{name: "ROUTE-REFRESH with rubbish for a filter", message: raw(bgpMessage(refreshType, append([]byte{0, 1, 0, 1}, many(60, 0xff)...))), want: ignored, rfc: reset},
	{name: "NOTIFICATION of no byte", message: raw(bgpMessage(notificationType, nil)), want: reset},
	{name: "NOTIFICATION of a byte", message: raw(bgpMessage(notificationType, []byte{6})), want: reset},
	{name: "NOTIFICATION of rubbish", message: raw(bgpMessage(notificationType, many(4000, 0xfe))), want: closed},
	{name: "NOTIFICATION of code 0", message: raw(bgpMessage(notificationType, []byte{0, 0})), want: closed},
	{name: "NOTIFICATION with words cut short", message: raw(bgpMessage(notificationType, []byte{6, 2, 200, 'a'})), want: closed},
	{name: "NOTIFICATION with words that are none", message: raw(bgpMessage(notificationType, []byte{6, 2, 4, 0xff, 0xfe, 0x1b, '\n'})), want: closed},
	{name: "NOTIFICATION of bad capabilities", message: raw(bgpMessage(notificationType, []byte{2, 7, 1, 200, 1})), want: closed},
	{name: "NOTIFICATION for a hard reset of nothing", message: raw(bgpMessage(notificationType, []byte{6, 9})), want: closed},
	{name: "HTTP", message: raw([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")), want: reset},
}

func header(length uint16, kind byte) []byte {
	m := bgpMessage(kind, nil)
	binary.BigEndian.PutUint16(m[16:], length)
	return m
}

func repeat(n int, b []byte) (all [][]byte) {
	for range n {
		all = append(all, b)
	}
	return all
}

func manyAttributes(n int) (b []byte) {
	for i := range n {
		b = append(b, attribute(0xc0, byte(100+i%100), byte(i), byte(i>>8))...)
	}
	return b
}
