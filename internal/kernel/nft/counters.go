package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/ruleset"
)

// dropCounters returns the messages that create missing counters, for a table with these chains.
func dropCounters(chains []ruleset.Chain) (messages []netlink.Message) {
	zero := nl.EncodeAttrs(
		netlink.Attribute{Type: unix.NFTA_COUNTER_BYTES, Data: make([]byte, 8)},
		netlink.Attribute{Type: unix.NFTA_COUNTER_PACKETS, Data: make([]byte, 8)},
	)
	for _, why := range ruleset.Drops() {
		of, optional := ruleset.Optional[why]
		if optional && !slices.ContainsFunc(chains, func(c ruleset.Chain) bool { return c.Name == of }) {
			continue
		}
		messages = append(messages, nl.NftMessage(unix.NFT_MSG_NEWOBJ, netlink.Create, nl.EncodeAttrs(
			netlink.Attribute{Type: unix.NFTA_OBJ_TABLE, Data: []byte(ruleset.TableName + "\x00")},
			netlink.Attribute{Type: unix.NFTA_OBJ_NAME, Data: []byte(why.Counter() + "\x00")},
			netlink.Attribute{Type: unix.NFTA_OBJ_TYPE, Data: binary.BigEndian.AppendUint32(nil, unix.NFT_OBJECT_COUNTER)},
			netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_OBJ_DATA, Data: zero},
		)))
	}
	return messages
}

// noCounter returns the message that deletes a counter.
func noCounter(why ruleset.Drop) netlink.Message {
	return nl.NftMessage(unix.NFT_MSG_DELOBJ, 0, nl.EncodeAttrs(
		netlink.Attribute{Type: unix.NFTA_OBJ_TABLE, Data: []byte(ruleset.TableName + "\x00")},
		netlink.Attribute{Type: unix.NFTA_OBJ_NAME, Data: []byte(why.Counter() + "\x00")},
		netlink.Attribute{Type: unix.NFTA_OBJ_TYPE, Data: binary.BigEndian.AppendUint32(nil, unix.NFT_OBJECT_COUNTER)},
	))
}

// Count is the reading of a counter.
type Count struct{ Packets, Bytes uint64 }

// since returns the increase after reading o. A counter that shows less than o was recreated and starts from 0.
func (c Count) since(o Count) Count {
	if c.Packets < o.Packets || c.Bytes < o.Bytes {
		return c
	}
	return Count{c.Packets - o.Packets, c.Bytes - o.Bytes}
}

func (c Count) plus(o Count) Count { return Count{c.Packets + o.Packets, c.Bytes + o.Bytes} }

// Counts reads the counters of our nftables table. Its sums never fall, although the kernel's counters start from 0
// with a recreated table or a returning ingress IP. Counters of a previous daemon go on. Counts is not safe for
// concurrent use.
type Counts struct {
	drops map[ruleset.Drop]*tally
	sent  map[netip.Addr]*tally
}

// tally sums up the readings of one kernel counter.
type tally struct{ sum, last Count }

func (t *tally) take(shown Count) {
	t.sum, t.last = t.sum.plus(shown.since(t.last)), shown
}

// Dropped returns the packets that the rules dropped, by reason.
func (c *Counts) Dropped() (map[ruleset.Drop]Count, error) {
	if c.drops == nil {
		c.drops = map[ruleset.Drop]*tally{}
		for _, why := range ruleset.Drops() {
			c.drops[why] = &tally{}
		}
	}
	shown, err := readCounters()
	if err != nil {
		return nil, err
	}
	all := make(map[ruleset.Drop]Count, len(c.drops))
	for why, t := range c.drops {
		t.take(shown[why.Counter()])
		all[why] = t.sum
	}
	return all, nil
}

// Sent returns the traffic that left with each ingress IP while this node was its host or standby, if it counts that:
// see plan.DataPlane.CountSent. Traffic between the last reading and the moment when an ingress IP moved away is lost.
func (c *Counts) Sent() (map[netip.Addr]Count, error) {
	now := make(map[netip.Addr]*tally, len(c.sent))
	all := make(map[netip.Addr]Count, len(c.sent))
	whole := true
	for _, f := range ruleset.Families {
		complete, err := readSetCounters(ruleset.SetCounted+f.Suffix, func(a netip.Addr, shown Count) {
			t := c.sent[a]
			if t == nil {
				t = &tally{}
			}
			t.take(shown)
			now[a], all[a] = t, t.sum
		})
		if err != nil {
			return nil, err
		}
		whole = whole && complete
	}
	c.keep(now, all, whole)
	c.sent = now
	return all, nil
}

// keep puts the sums of ingress IPs that were not read into now. One that left may come back: its sum then goes on,
// while the kernel's counter starts from 0. With very many, sums are forgotten. If the reading was not whole, the
// ingress IP may still be there.
func (c *Counts) keep(now map[netip.Addr]*tally, all map[netip.Addr]Count, whole bool) {
	const former = 10_000
	for a, t := range c.sent {
		if now[a] != nil || len(now)-len(all) >= former {
			continue
		}
		if whole {
			t.last = Count{}
		} else {
			all[a] = t.sum
		}
		now[a] = t
	}
}

// readCounters reads the named counters.
func readCounters() (map[string]Count, error) {
	all := map[string]Count{}
	request := nl.NftRequest(unix.NFT_MSG_GETOBJ,
		netlink.Attribute{Type: unix.NFTA_OBJ_TABLE, Data: []byte(ruleset.TableName + "\x00")},
		netlink.Attribute{Type: unix.NFTA_OBJ_TYPE, Data: binary.BigEndian.AppendUint32(nil, unix.NFT_OBJECT_COUNTER)},
	)
	_, err := dumpTable(request, func(body []byte) {
		name := unix.ByteSliceToString(nl.Attr(body, nl.NfgenmsgLen, unix.NFTA_OBJ_NAME))
		all[name] = decodeCount(nl.Attr(body, nl.NfgenmsgLen, unix.NFTA_OBJ_DATA))
	})
	if err != nil {
		return nil, fmt.Errorf("list counters of nftables table %s: %w", ruleset.TableName, err)
	}
	return all, nil
}

// readSetCounters reads the counters of a set's elements. A missing set has none.
func readSetCounters(set string, each func(netip.Addr, Count)) (whole bool, err error) {
	request := nl.NftRequest(unix.NFT_MSG_GETSETELEM,
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(ruleset.TableName + "\x00")},
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(set + "\x00")},
	)
	whole, err = dumpTable(request, func(body []byte) {
		for _, e := range nl.Attrs(nl.Attr(body, nl.NfgenmsgLen, unix.NFTA_SET_ELEM_LIST_ELEMENTS), 0) {
			if a, c := decodeCounted(e); a.IsValid() {
				each(a, c)
			}
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("list counters of set %s: %w", set, err)
	}
	return whole, nil
}

// decodeCounted reads a set's element: an address and its counter.
func decodeCounted(element []byte) (a netip.Addr, c Count) {
	for typ, value := range nl.Attrs(element, 0) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			a, _ = netip.AddrFromSlice([]byte(dataValue(value)))
		case unix.NFTA_SET_ELEM_EXPR:
			c = decodeCount(nl.Attr(value, 0, unix.NFTA_EXPR_DATA))
		}
	}
	return a, c
}

// dumpTable requests a list of objects in our table. whole is false if the table changed during the dump: then an entry
// may be missing or come twice.
func dumpTable(request nl.Message, each func(body []byte)) (whole bool, err error) {
	c, err := nl.DialNetfilter()
	if err != nil {
		return false, err
	}
	defer c.Close()
	return c.Dump(request, func(body []byte) bool { each(body); return true })
}

// decodeCount reads the attributes of a counter.
func decodeCount(data []byte) (c Count) {
	for typ, value := range nl.Attrs(data, 0) {
		switch {
		case len(value) != 8:
		case typ == unix.NFTA_COUNTER_BYTES:
			c.Bytes = binary.BigEndian.Uint64(value)
		case typ == unix.NFTA_COUNTER_PACKETS:
			c.Packets = binary.BigEndian.Uint64(value)
		}
	}
	return c
}
