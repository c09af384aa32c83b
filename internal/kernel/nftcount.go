package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Rules that drop packets count the reason in a named counter, an object of the table. Such a counter survives when the
// rules are rewritten, one request reads all of them, and packets that pass never touch them.

// Drop is the reason why a rule drops a packet.
type Drop string

// Every drop is intended: it keeps a packet from leaving with the wrong source or by the wrong path.
const (
	DropNoPath    Drop = "no-path"    // from a selected pod without a host, a usable network, or an ingress IP of its family
	DropOtherPath Drop = "other-path" // from a selected pod, in a flow that began on another path, or on none
	DropUntracked Drop = "untracked"  // from a selected pod, without a connection known to the kernel: invalid or untracked
	DropUnclaimed Drop = "unclaimed"  // to an ingress IP, on a port that no Service has, or before any Service handles it
	DropOutside   Drop = "outside"    // from outside, straight to a pod's address
	DropFormer    Drop = "former"     // of a connection that ended with a change, or to an ingress IP that left this node
	DropGuest     Drop = "guest"      // from another node's pod that is not selected here, on its way out of the cluster
	DropGuard     Drop = "guard"      // about to leave with a source, or by a device, that its path does not have
	DropPodSource Drop = "pod-source" // about to leave by an uplink with a pod's own address
	DropHeld      Drop = "held"       // from a pod that may leave as an endpoint only, or that is not known yet
)

// drops lists all reasons.
var drops = []Drop{DropNoPath, DropOtherPath, DropUntracked, DropUnclaimed, DropOutside, DropFormer, DropGuest, DropGuard, DropPodSource, DropHeld}

// Drops returns all values of Drop.
func Drops() []Drop { return slices.Clone(drops) }

const dropPrefix = "drop-" // of the counters' names

// Counter returns the name of the counter in our table.
func (d Drop) Counter() string { return dropPrefix + string(d) }

// dropFor counts a packet and drops it.
func dropFor(why Drop) part {
	return part{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: dropPrefix + string(why)}, &expr.Verdict{Kind: expr.VerdictDrop}}
}

// dropCounters returns the messages that create missing counters.
func dropCounters(hold bool) (messages []netlink.Message) {
	zero := encode(
		netlink.Attribute{Type: unix.NFTA_COUNTER_BYTES, Data: make([]byte, 8)},
		netlink.Attribute{Type: unix.NFTA_COUNTER_PACKETS, Data: make([]byte, 8)},
	)
	for _, why := range drops {
		if why == DropHeld && !hold {
			continue
		}
		messages = append(messages, nftMessage(unix.NFT_MSG_NEWOBJ, netlink.Create, encode(
			netlink.Attribute{Type: unix.NFTA_OBJ_TABLE, Data: []byte(tableName + "\x00")},
			netlink.Attribute{Type: unix.NFTA_OBJ_NAME, Data: []byte(dropPrefix + string(why) + "\x00")},
			netlink.Attribute{Type: unix.NFTA_OBJ_TYPE, Data: binary.BigEndian.AppendUint32(nil, unix.NFT_OBJECT_COUNTER)},
			netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_OBJ_DATA, Data: zero},
		)))
	}
	return messages
}

// noCounter returns the message that deletes a counter.
func noCounter(why Drop) netlink.Message {
	return nftMessage(unix.NFT_MSG_DELOBJ, 0, encode(
		netlink.Attribute{Type: unix.NFTA_OBJ_TABLE, Data: []byte(tableName + "\x00")},
		netlink.Attribute{Type: unix.NFTA_OBJ_NAME, Data: []byte(dropPrefix + string(why) + "\x00")},
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
	drops map[Drop]*tally
	sent  map[netip.Addr]*tally
}

// tally sums up the readings of one kernel counter.
type tally struct{ sum, last Count }

func (t *tally) take(shown Count) {
	t.sum, t.last = t.sum.plus(shown.since(t.last)), shown
}

// Dropped returns the packets that the rules dropped, by reason.
func (c *Counts) Dropped() (map[Drop]Count, error) {
	if c.drops == nil {
		c.drops = map[Drop]*tally{}
		for _, why := range drops {
			c.drops[why] = &tally{}
		}
	}
	shown, err := readCounters()
	if err != nil {
		return nil, err
	}
	all := make(map[Drop]Count, len(drops))
	for why, t := range c.drops {
		t.take(shown[dropPrefix+string(why)])
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
	for _, f := range families {
		complete, err := readSetCounters(setCounted+f.suffix, func(a netip.Addr, shown Count) {
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
	// An ingress IP that left may come back: its sum then goes on, while the kernel's counter starts from 0. With very
	// many, sums are forgotten.
	const former = 10_000
	for a, t := range c.sent {
		if now[a] == nil && len(now)-len(all) < former {
			if whole {
				t.last = Count{}
			} else {
				all[a] = t.sum
			}
			now[a] = t
		}
	}
	c.sent = now
	return all, nil
}

// readCounters reads the named counters.
func readCounters() (map[string]Count, error) {
	all := map[string]Count{}
	request := nftRequest(unix.NFT_MSG_GETOBJ,
		netlink.Attribute{Type: unix.NFTA_OBJ_TABLE, Data: []byte(tableName + "\x00")},
		netlink.Attribute{Type: unix.NFTA_OBJ_TYPE, Data: binary.BigEndian.AppendUint32(nil, unix.NFT_OBJECT_COUNTER)},
	)
	_, err := dumpTable(request, func(body []byte) {
		var name string
		var c Count
		for typ, value := range attrs(body, nfgenmsgLen) {
			switch typ {
			case unix.NFTA_OBJ_NAME:
				name = unix.ByteSliceToString(value)
			case unix.NFTA_OBJ_DATA:
				c = decodeCount(value)
			}
		}
		all[name] = c
	})
	if err != nil {
		return nil, fmt.Errorf("list counters of nftables table %s: %w", tableName, err)
	}
	return all, nil
}

// readSetCounters reads the counters of a set's elements. A missing set has none.
func readSetCounters(set string, each func(netip.Addr, Count)) (whole bool, err error) {
	request := nftRequest(unix.NFT_MSG_GETSETELEM,
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(tableName + "\x00")},
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(set + "\x00")},
	)
	whole, err = dumpTable(request, func(body []byte) {
		for typ, list := range attrs(body, nfgenmsgLen) {
			if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			for _, e := range attrs(list, 0) {
				var a netip.Addr
				var c Count
				for typ, value := range attrs(e, 0) {
					switch typ {
					case unix.NFTA_SET_ELEM_KEY:
						a, _ = netip.AddrFromSlice([]byte(dataValue(value)))
					case unix.NFTA_SET_ELEM_EXPR:
						for typ, value := range attrs(value, 0) {
							if typ == unix.NFTA_EXPR_DATA {
								c = decodeCount(value)
							}
						}
					}
				}
				if a.IsValid() {
					each(a, c)
				}
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

// dumpTable requests a list of objects in our table. whole is false if the table changed during the dump: then an entry
// may be missing or come twice.
func dumpTable(request message, each func(body []byte)) (whole bool, err error) {
	c, err := dialNetfilter()
	if err != nil {
		return false, err
	}
	defer c.close()
	return c.dump(request, func(body []byte) bool { each(body); return true })
}

// decodeCount reads the attributes of a counter.
func decodeCount(data []byte) (c Count) {
	for typ, value := range attrs(data, 0) {
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
