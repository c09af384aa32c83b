package walk

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
)

// liveTable is our nftables table in the kernel. Its rules are read once, elements of sets are looked up one by one.
type liveTable struct {
	conn   *nl.Netfilter
	links  []plan.Link
	chains map[string][][]expression
	hooked map[string]bool // base chains
	kinds  map[string]setShape
}

// setShape is the format of a set's keys.
type setShape struct {
	key      int // bytes
	interval bool
}

func openLiveTable(links []plan.Link) (*liveTable, error) {
	conn, err := nl.DialNetfilter()
	if err != nil {
		return nil, err
	}
	return &liveTable{conn: conn, links: links, kinds: map[string]setShape{}}, nil
}

func (t *liveTable) close() { t.conn.Close() }

// ofTable returns the attribute that names our table: the first of every message about an object in a table
// (NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_TABLE, NFTA_SET_ELEM_LIST_TABLE).
func ofTable() netlink.Attribute {
	return netlink.Attribute{Type: unix.NFTA_RULE_TABLE, Data: []byte(ruleset.TableName + "\x00")}
}

// readRules reads all chains. Their number does not grow with the number of pods.
func (t *liveTable) readRules() error {
	t.chains, t.hooked = map[string][][]expression{}, map[string]bool{}
	_, err := t.conn.Dump(nl.NftRequest(unix.NFT_MSG_GETCHAIN, ofTable()), func(a []byte) bool {
		body := a[nl.NfgenmsgLen:]
		if text(attribute(body, unix.NFTA_CHAIN_TABLE)) != ruleset.TableName || a[0] != unix.NFPROTO_INET {
			return true // older kernels do not filter this dump
		}
		name := text(attribute(body, unix.NFTA_CHAIN_NAME))
		t.chains[name] = nil
		if attribute(body, unix.NFTA_CHAIN_HOOK) != nil {
			t.hooked[name] = true
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("list chains of nftables table %s: %w", ruleset.TableName, err)
	}
	_, err = t.conn.Dump(nl.NftRequest(unix.NFT_MSG_GETRULE, ofTable()), func(a []byte) bool {
		body := bytes.Clone(a[nl.NfgenmsgLen:])
		if text(attribute(body, unix.NFTA_RULE_TABLE)) != ruleset.TableName || a[0] != unix.NFPROTO_INET {
			return true
		}
		chain := text(attribute(body, unix.NFTA_RULE_CHAIN))
		t.chains[chain] = append(t.chains[chain], decodeExpressions(attribute(body, unix.NFTA_RULE_EXPRESSIONS)))
		return true
	})
	if err != nil {
		return fmt.Errorf("list rules of nftables table %s: %w", ruleset.TableName, err)
	}
	return nil
}

func text(b []byte) string { return string(bytes.TrimRight(b, "\x00")) }

func (t *liveTable) rules(chain string) [][]expression { return t.chains[chain] }

func (t *liveTable) shape(set string) (setShape, error) {
	if s, ok := t.kinds[set]; ok {
		return s, nil
	}
	answers, err := t.conn.Ask(nl.NftRequest(unix.NFT_MSG_GETSET,
		ofTable(), netlink.Attribute{Type: unix.NFTA_SET_NAME, Data: []byte(set + "\x00")},
	))
	if err != nil {
		return setShape{}, fmt.Errorf("read set %s: %w", set, err)
	}
	var s setShape
	for _, a := range answers {
		body := a[nl.NfgenmsgLen:]
		s.key = int(bigEndian(attribute(body, unix.NFTA_SET_KEY_LEN)))
		s.interval = bigEndian(attribute(body, unix.NFTA_SET_FLAGS))&unix.NFT_SET_INTERVAL != 0
	}
	t.kinds[set] = s
	return s, nil
}

func (t *liveTable) keyLength(set string) (int, error) {
	s, err := t.shape(set)
	return s.key, err
}

// liveElement is a set element as the kernel lists it.
type liveElement struct {
	key     []byte
	value   []byte
	verdict *expr.Verdict
	comment string
	end     bool
}

func decodeElements(body []byte) (all []liveElement) {
	for _, one := range nl.Attrs(attribute(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS), 0) {
		var e liveElement
		for typ, value := range nl.Attrs(one, 0) {
			switch typ {
			case unix.NFTA_SET_ELEM_KEY:
				e.key = bytes.Clone(attribute(value, unix.NFTA_DATA_VALUE))
			case unix.NFTA_SET_ELEM_DATA:
				if v, ok := verdictOfData(value); ok {
					e.verdict = &v
				} else {
					e.value = bytes.Clone(attribute(value, unix.NFTA_DATA_VALUE))
				}
			case unix.NFTA_SET_ELEM_FLAGS:
				e.end = bigEndian(value)&unix.NFT_SET_ELEM_INTERVAL_END != 0
			case unix.NFTA_SET_ELEM_USERDATA:
				e.comment = commentOf(value)
			}
		}
		all = append(all, e)
	}
	return all
}

// commentOf decodes the comment format of nft: a type of one byte, a length of one byte, the text.
func commentOf(data []byte) string {
	const comment = 0 // NFTNL_UDATA_SET_ELEM_COMMENT
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		if data[0] == comment {
			return text(data[2 : 2+int(data[1])])
		}
		data = data[2+int(data[1]):]
	}
	return ""
}

// list lists the elements of a small set.
func (t *liveTable) list(set string) (all []liveElement, err error) {
	_, err = t.conn.Dump(nl.NftRequest(unix.NFT_MSG_GETSETELEM,
		ofTable(), netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(set + "\x00")},
	), func(a []byte) bool {
		all = append(all, decodeElements(a[nl.NfgenmsgLen:])...)
		return true
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, unix.ENOENT
	}
	if err != nil {
		return nil, fmt.Errorf("list elements of set %s: %w", set, err)
	}
	return all, nil
}

// get looks up the element with a key. In a set of ranges it returns the first address of the range that contains the
// key, or with the flag NFT_SET_ELEM_INTERVAL_END the address after the last.
func (t *liveTable) get(set string, key []byte, flags uint32) (*liveElement, error) {
	attributes := []netlink.Attribute{{Type: unix.NLA_F_NESTED | unix.NFTA_SET_ELEM_KEY, Data: nl.EncodeAttrs(
		netlink.Attribute{Type: unix.NFTA_DATA_VALUE, Data: key},
	)}}
	if flags != 0 {
		attributes = append(attributes, netlink.Attribute{Type: unix.NFTA_SET_ELEM_FLAGS, Data: []byte{0, 0, 0, byte(flags)}})
	}
	answers, err := t.conn.Ask(nl.NftRequest(unix.NFT_MSG_GETSETELEM,
		ofTable(), netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(set + "\x00")},
		netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_SET_ELEM_LIST_ELEMENTS, Data: nl.EncodeAttrs(
			netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: nl.EncodeAttrs(attributes...)},
		)},
	))
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil //nolint:nilnil // no element is no error
	case err != nil:
		return nil, fmt.Errorf("look up %s in set %s: %w", keyText(set, key), set, err)
	}
	for _, a := range answers {
		for _, e := range decodeElements(a[nl.NfgenmsgLen:]) {
			return &e, nil
		}
	}
	return nil, nil //nolint:nilnil // no element is no error
}

func (t *liveTable) element(set string, key []byte) (*found, error) {
	shape, err := t.shape(set)
	if err != nil {
		return nil, err
	}
	e, err := t.get(set, key, 0)
	if err != nil || e == nil {
		return nil, err
	}
	f := &found{value: e.value, verdict: e.verdict}
	if shape.interval {
		end, err := t.get(set, key, unix.NFT_SET_ELEM_INTERVAL_END)
		if err != nil {
			return nil, err
		}
		f.span = spanText(e, end)
	}
	return f, nil
}

// spanText formats a range of addresses, as a prefix if it is one.
func spanText(first, after *liveElement) string {
	from, _ := netip.AddrFromSlice(first.key)
	to := ruleset.LastAddr(netip.PrefixFrom(from, 0))
	if after != nil {
		if end, ok := netip.AddrFromSlice(after.key); ok && end != from {
			to = end.Prev()
		}
	}
	for bits := range from.BitLen() + 1 {
		if p := netip.PrefixFrom(from, bits); p.Masked().Addr() == from && ruleset.LastAddr(p) == to {
			return p.String()
		}
	}
	return from.String() + "-" + to.String()
}

// addressType returns the address type that nft's fib expression finds: for IPv4 from the table of local addresses, for
// IPv6 from a route lookup.
func (t *liveTable) addressType(to netip.Addr) (uint32, error) {
	if to.IsMulticast() {
		return unix.RTN_MULTICAST, nil
	}
	answer, err := askRoute(routeQuestion(Packet{To: to, From: unspecified(to)}, 0, 0))
	switch {
	case err != nil && errors.As(err, new(unreachedError)):
		if to.Is4() {
			return unix.RTN_UNICAST, nil
		}
		return unix.RTN_UNREACHABLE, nil
	case err != nil:
		return 0, err
	}
	if to.Is6() || answer.Kind == unix.RTN_LOCAL || answer.Kind == unix.RTN_BROADCAST {
		return uint32(answer.Kind), nil
	}
	return unix.RTN_UNICAST, nil
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func (t *liveTable) ownAddress(a netip.Addr, device string) bool {
	return slices.ContainsFunc(t.links, func(l plan.Link) bool {
		return l.Name == device && slices.ContainsFunc(l.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
	})
}
