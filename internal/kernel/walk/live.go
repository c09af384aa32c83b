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

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
)

// liveTable holds our nftables tables in the kernel, of family inet and netdev: no two chains share a name. Rules are read
// once, elements of sets are looked up one by one.
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
	err := t.dump(unix.NFT_MSG_GETCHAIN, func(body []byte) {
		name := text(attribute(body, unix.NFTA_CHAIN_NAME))
		t.chains[name] = nil
		if attribute(body, unix.NFTA_CHAIN_HOOK) != nil {
			t.hooked[name] = true
		}
	})
	if err != nil {
		return fmt.Errorf("list chains of nftables table %s: %w", ruleset.TableName, err)
	}
	err = t.dump(unix.NFT_MSG_GETRULE, func(body []byte) {
		chain := text(attribute(body, unix.NFTA_RULE_CHAIN))
		expressions := bytes.Clone(attribute(body, unix.NFTA_RULE_EXPRESSIONS))
		t.chains[chain] = append(t.chains[chain], decodeExpressions(expressions))
	})
	if err != nil {
		return fmt.Errorf("list rules of nftables table %s: %w", ruleset.TableName, err)
	}
	return nil
}

// dump calls each for every object of our tables that a request lists.
func (t *liveTable) dump(kind uint16, each func(body []byte)) error {
	for _, family := range []byte{unix.NFPROTO_INET, unix.NFPROTO_NETDEV} {
		if err := t.dumpFamily(family, kind, each); err != nil {
			return err
		}
	}
	return nil
}

// dumpFamily is dump for the table of one family. Older kernels do not filter these dumps.
func (t *liveTable) dumpFamily(family byte, kind uint16, each func(body []byte)) error {
	request := nl.NftRequest(kind, ofTable())
	request.Body[0] = family
	_, err := t.conn.Dump(request, func(a []byte) bool {
		body := a[nl.NfgenmsgLen:]
		if text(attribute(body, unix.NFTA_RULE_TABLE)) == ruleset.TableName && a[0] == family {
			each(body)
		}
		return true
	})
	return err
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
			e.set(typ, value)
		}
		all = append(all, e)
	}
	return all
}

// set sets the field of an attribute.
func (e *liveElement) set(typ uint16, value []byte) {
	switch typ {
	case unix.NFTA_SET_ELEM_KEY:
		e.key = bytes.Clone(attribute(value, unix.NFTA_DATA_VALUE))
	case unix.NFTA_SET_ELEM_DATA:
		e.setData(value)
	case unix.NFTA_SET_ELEM_FLAGS:
		e.end = bigEndian(value)&unix.NFT_SET_ELEM_INTERVAL_END != 0
	case unix.NFTA_SET_ELEM_USERDATA:
		e.comment = commentOf(value)
	}
}

// setData sets the verdict or the value of a map's element.
func (e *liveElement) setData(data []byte) {
	if v, ok := verdictOfData(data); ok {
		e.verdict = &v
		return
	}
	e.value = bytes.Clone(attribute(data, unix.NFTA_DATA_VALUE))
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
		f.span, err = t.span(set, key, e)
	}
	return f, err
}

// span returns the range that contains a key; first is the element of its first address.
func (t *liveTable) span(set string, key []byte, first *liveElement) (string, error) {
	end, err := t.get(set, key, unix.NFT_SET_ELEM_INTERVAL_END)
	if errors.Is(err, unix.EAGAIN) { // the kernel does not answer for a range that ends with the last address
		end, err = nil, nil
	}
	if err != nil {
		return "", err
	}
	return spanText(first, end), nil
}

// spanText formats a range of addresses, as a prefix if it is one.
func spanText(first, after *liveElement) string {
	from, _ := netip.AddrFromSlice(first.key)
	to := cluster.LastAddr(netip.PrefixFrom(from, 0))
	if after != nil {
		if end, ok := netip.AddrFromSlice(after.key); ok && end != from {
			to = end.Prev()
		}
	}
	if p, ok := prefixOf(from, to); ok {
		return p.String()
	}
	return from.String() + "-" + to.String()
}

// prefixOf returns the prefix that has the addresses of a range; ok is false if there is none.
func prefixOf(from, to netip.Addr) (p netip.Prefix, ok bool) {
	for bits := range from.BitLen() + 1 {
		if p := netip.PrefixFrom(from, bits); p.Masked().Addr() == from && cluster.LastAddr(p) == to {
			return p, true
		}
	}
	return p, false
}

// addressType returns the address type that nft's fib expression finds: for IPv4 from the table of local addresses, for
// IPv6 from a route lookup.
func (t *liveTable) addressType(to netip.Addr) (uint32, error) {
	if to.IsMulticast() {
		return unix.RTN_MULTICAST, nil
	}
	kind, err := routeKind(to)
	if err != nil {
		return 0, err
	}
	if to.Is6() || kind == unix.RTN_LOCAL || kind == unix.RTN_BROADCAST {
		return uint32(kind), nil
	}
	return unix.RTN_UNICAST, nil
}

// routeKind returns the type of the route that the kernel takes to an address.
func routeKind(to netip.Addr) (uint8, error) {
	answer, err := askRoute(routeQuestion(Packet{To: to, From: unspecified(to)}, 0, 0))
	if errors.As(err, new(unreachedError)) {
		return unix.RTN_UNREACHABLE, nil
	}
	if err != nil {
		return 0, err
	}
	return answer.Kind, nil
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
