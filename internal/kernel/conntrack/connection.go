package conntrack

import (
	"net/netip"
	"slices"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/nl"
)

// Connection holds the fields of a conntrack entry that are compared with a plan.
type Connection struct {
	source netip.Addr           // before NAT
	Target netip.Addr           // after DNAT
	leaves netip.Addr           // source after SNAT
	port   cluster.FirewallPort // the destination's, after DNAT
	mark   uint32
	zoned  bool // in a conntrack zone, as Open vSwitch uses them: not ours, even if its mark has our bits
}

// end is the address of a connection's original direction by which the kernel lists connections.
type end uint8

const (
	anywhere end = iota
	atSource
	atDestination
)

// Attributes and flags for dumps that x/sys does not define (linux/netfilter/nfnetlink_conntrack.h,
// nf_conntrack_netlink.c).
const (
	ctaFilter          = 25     // CTA_FILTER, since Linux 5.8
	ctaFilterOrigFlags = 1      // CTA_FILTER_ORIG_FLAGS
	filterSource       = 1 << 0 // CTA_FILTER_F_CTA_IP_SRC
	filterDestination  = 1 << 1 // CTA_FILTER_F_CTA_IP_DST
	ctaZone            = 18     // CTA_ZONE
	ctaTupleZone       = 3      // CTA_TUPLE_ZONE
)

// DumpConnections calls connections on a socket of its own.
func DumpConnections(source netip.Addr, each func(body []byte) bool) error {
	c, err := dialConntrack()
	if err != nil {
		return err
	}
	defer c.Close()
	return c.connections(source, atSource, each)
}

// connections calls each for every connection, of any protocol, until each returns false. With an address it lists only
// that address family. For IPv4 the kernel also filters by the address at one end, if it can, so each must still compare it. For
// IPv6 the kernel's filter would drop exactly the wanted entries: ctnetlink_filter_match_tuple uses ipv6_addr_cmp as if
// it tested equality, in 6.18 and 7.2.
func (c *Conn) connections(a netip.Addr, at end, each func(body []byte) bool) error {
	body := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0}
	if a.IsValid() {
		body = Flow{Src: netip.AddrPortFrom(a, 0)}.header() // selects its address family
	}
	if a.Is4() && at != anywhere {
		attr, filter := uint16(vnl.CTA_IP_V4_SRC), uint32(filterSource)
		if at == atDestination {
			attr, filter = vnl.CTA_IP_V4_DST, filterDestination
		}
		body = nl.AppendNested(body, vnl.CTA_TUPLE_ORIG, func(b []byte) []byte {
			return nl.AppendNested(b, vnl.CTA_TUPLE_IP, func(b []byte) []byte { return nl.AppendAddr(b, attr, a) })
		})
		body = nl.AppendNested(body, ctaFilter, func(b []byte) []byte {
			b = nl.AppendAttr32(b, ctaFilterOrigFlags, filter)
			return nl.AppendAttr32(b, ctaFilterOrigFlags+1, 0)
		})
	}
	_, err := c.Dump(nl.Message{Type: conntrackMessage(vnl.IPCTNL_MSG_CT_GET), Body: body}, each)
	return err
}

// tupleAddresses reads the addresses of a tuple.
func tupleAddresses(tuple []byte) (from, to netip.Addr) {
	for typ, value := range nl.Attrs(nl.Attr(tuple, 0, vnl.CTA_TUPLE_IP), 0) {
		switch typ {
		case vnl.CTA_IP_V4_SRC, vnl.CTA_IP_V6_SRC:
			from, _ = netip.AddrFromSlice(value)
		case vnl.CTA_IP_V4_DST, vnl.CTA_IP_V6_DST:
			to, _ = netip.AddrFromSlice(value)
		}
	}
	return from, to
}

// DecodeConnection decodes the body of a message about an entry.
func DecodeConnection(body []byte) (c Connection) {
	for typ, value := range nl.Attrs(body, vnl.SizeofNfgenmsg) {
		c.zoned = c.zoned || zones(typ, value)
		switch typ {
		case vnl.CTA_TUPLE_ORIG:
			c.source, _ = tupleAddresses(value)
		case vnl.CTA_TUPLE_REPLY:
			c.Target, c.leaves = tupleAddresses(value)
			c.port = tuplePort(value)
		case vnl.CTA_MARK:
			c.mark = nl.BE32(value)
		}
	}
	return c
}

// tuplePort reads the protocol of a tuple, and the source port if the protocol has ports that rules name.
func tuplePort(tuple []byte) (p cluster.FirewallPort) {
	for typ, value := range nl.Attrs(nl.Attr(tuple, 0, vnl.CTA_TUPLE_PROTO), 0) {
		switch typ {
		case vnl.CTA_PROTO_NUM:
			p.Protocol = nl.Byte(value)
		case vnl.CTA_PROTO_SRC_PORT:
			p.Number = nl.BE16(value)
		}
	}
	return p
}

// zones reports whether an attribute puts its entry, or the entry's original direction, in a zone.
func zones(typ uint16, value []byte) bool {
	return typ == ctaZone || typ == vnl.CTA_TUPLE_ORIG && nl.Attr(value, 0, ctaTupleZone) != nil
}

// deletion returns the request to delete exactly the entry that the kernel listed, not one that replaced it since.
func deletion(body []byte) nl.Message {
	b := slices.Clone(body[:vnl.SizeofNfgenmsg])
	for typ, value := range nl.Attrs(body, vnl.SizeofNfgenmsg) {
		switch typ {
		case vnl.CTA_TUPLE_ORIG:
			b = nl.AppendAttr(b, typ|unix.NLA_F_NESTED, value...)
		case vnl.CTA_ID:
			b = nl.AppendAttr(b, typ, value...)
		}
	}
	return nl.Message{Type: conntrackMessage(vnl.IPCTNL_MSG_CT_DELETE), Body: b}
}

// remarking returns the request to set bits of the mark of an entry that the kernel listed, of any protocol.
func remarking(body []byte, mark, mask uint32) nl.Message {
	m := deletion(body)
	m.Type, m.Body = conntrackMessage(vnl.IPCTNL_MSG_CT_NEW), appendMark(m.Body, mark, mask)
	return m
}
