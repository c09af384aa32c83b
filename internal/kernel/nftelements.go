package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// Address sets hold one or more elements for each endpoint and each ingress IP: hundreds of thousands in all. One
// function per kind of object returns its elements, for the whole content and for differences alike. The messages are
// encoded here: the library takes some microseconds and a dozen allocations for each element.

// addressSet is a kind of address set, of either family.
type addressSet uint8

const (
	inEgress addressSet = iota
	inSource
	inSources // one set per path
	inMasqueraded
	inIngress
	inStrays
	inResumed
	inCounted
	inLet
	inFormer
)

// element is an element of an address set.
type element struct {
	set  addressSet
	path plan.PathID // value in inEgress and inStrays; in inSources the path in the set's name
	key  netip.Addr
	with netip.Addr // second half of the key in inSources, value in inSource
}

// pathSet holds the path ids of a plan.
type pathSet map[plan.PathID]bool

func pathsOf(d *plan.DataPlane) pathSet {
	s := make(pathSet, len(d.Paths))
	for _, p := range d.Paths {
		s[p.ID] = true
	}
	return s
}

// ofEndpoint appends the elements of an endpoint. A flow may keep the path of the standby only while that path exists.
func (s pathSet) ofEndpoint(all []element, e *plan.Endpoint) []element {
	all = append(all, element{set: inEgress, path: e.Path, key: e.Addr})
	if e.Path == 0 {
		return all
	}
	if e.Source.IsValid() {
		all = append(all, element{set: inSource, key: e.Addr, with: e.Source})
	} else {
		all = append(all, element{set: inMasqueraded, key: e.Addr})
	}
	now := plan.Way{Path: e.Path, Source: e.Source}
	if s[now.Path] && now.Source.IsValid() {
		all = append(all, element{set: inSources, path: now.Path, key: e.Addr, with: now.Source})
	}
	if s[e.Kept.Path] && e.Kept.Source.IsValid() && e.Kept != now {
		all = append(all, element{set: inSources, path: e.Kept.Path, key: e.Addr, with: e.Kept.Source})
	}
	return all
}

// ofIngress appends the elements of an ingress IP.
func ofIngress(all []element, i *plan.IngressIP) []element {
	all = append(all, element{set: inIngress, key: i.Addr})
	if i.Stray != 0 {
		all = append(all, element{set: inStrays, path: i.Stray, key: i.Addr})
	}
	if i.Resumed {
		all = append(all, element{set: inResumed, key: i.Addr})
	}
	if i.Counted {
		all = append(all, element{set: inCounted, key: i.Addr})
	}
	return all
}

// ofLet appends the element of a pod address that need not be selected.
func ofLet(all []element, a *plan.Address) []element {
	return append(all, element{set: inLet, key: a.Addr})
}

// eachElement calls each with the elements of every object of a plan. The slice is valid only during the call.
func eachElement(d *plan.DataPlane, each func([]element)) {
	paths := pathsOf(d)
	var buf []element
	for e := range d.Endpoints.All() {
		buf = paths.ofEndpoint(buf[:0], &e)
		each(buf)
	}
	for i := range d.Ingress.All() {
		buf = ofIngress(buf[:0], &i)
		each(buf)
	}
	for a := range d.Let.All() {
		buf = ofLet(buf[:0], &a)
		each(buf)
	}
}

// remembered reports whether an address that leaves the set is kept for a while in the former set.
func (s addressSet) remembered() bool { return s == inEgress || s == inSource || s == inIngress }

// setName identifies an address set.
type setName struct {
	set  addressSet
	path plan.PathID // of inSources
	ipv6 bool
}

func (e *element) in() setName {
	n := setName{set: e.set, ipv6: !e.key.Is4()}
	if e.set == inSources {
		n.path = e.path
	}
	return n
}

func (n setName) String() string {
	suffix := ipv4.suffix
	if n.ipv6 {
		suffix = ipv6.suffix
	}
	name := [...]string{setEgress, setSource, setSources, setMasquerade, setIngress, setStrays, setResumed, setCounted, setLet, setFormer}[n.set] + suffix
	if n.set == inSources {
		return named(name, n.path)
	}
	return name
}

// addressSets maps the names of a plan's address sets, without the former ones, whose elements expire by themselves.
func addressSets(d *plan.DataPlane) map[string]setName {
	all := map[string]setName{}
	for _, v6 := range []bool{false, true} {
		for set := range inFormer {
			if set == inSources {
				for _, p := range d.Paths {
					n := setName{inSources, p.ID, v6}
					all[n.String()] = n
				}
				continue
			}
			n := setName{set: set, ipv6: v6}
			all[n.String()] = n
		}
	}
	return all
}

// appendKey appends the key in the form that the kernel compares.
func (e *element) appendKey(b []byte) []byte {
	b = appendRaw(b, e.key)
	if e.set == inSources {
		b = appendRaw(b, e.with)
	}
	return b
}

func appendRaw(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		raw := a.As4()
		return append(b, raw[:]...)
	}
	raw := a.As16()
	return append(b, raw[:]...)
}

// appendValue appends the map value of the element's key: a path id or an address.
func (e *element) appendValue(b []byte) []byte {
	switch e.set {
	case inEgress, inStrays:
		return binary.BigEndian.AppendUint32(b, uint32(e.path)) // see pathValue
	case inSource:
		return appendRaw(b, e.with)
	}
	return b
}

// appendTo appends the element to a list of elements.
func (e *element) appendTo(b []byte) []byte {
	value := func(b []byte, add func([]byte) []byte) []byte {
		start := len(b)
		return closed(add(append(b, 0, 0, 0, 0)), start, unix.NFTA_DATA_VALUE)
	}
	return nested(b, unix.NFTA_LIST_ELEM, func(b []byte) []byte {
		b = nested(b, unix.NFTA_SET_ELEM_KEY, func(b []byte) []byte { return value(b, e.appendKey) })
		if e.set == inEgress || e.set == inStrays || e.set == inSource {
			b = nested(b, unix.NFTA_SET_ELEM_DATA, func(b []byte) []byte { return value(b, e.appendValue) })
		}
		return b
	})
}

// listMost limits the bytes of a list of elements: its length field has 16 bits.
const listMost = 60_000

// elementWriter collects elements into messages of one kind, NFT_MSG_NEWSETELEM or NFT_MSG_DELSETELEM.
type elementWriter struct {
	kind  uint16
	count int
	lists map[setName]*elementList
	order []setName
}

type elementList struct {
	head     []byte // of each message, up to the list
	done     [][]byte
	building []byte
}

func newElementWriter(kind uint16) *elementWriter {
	return &elementWriter{kind: kind, lists: map[setName]*elementList{}}
}

func (w *elementWriter) write(e *element) {
	name := e.in()
	l := w.lists[name]
	if l == nil {
		l = &elementList{}
		l.head = append(l.head, unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0)
		l.head = appendAttr(l.head, unix.NFTA_SET_ELEM_LIST_TABLE, []byte(tableName+"\x00")...)
		l.head = appendAttr(l.head, unix.NFTA_SET_ELEM_LIST_SET, []byte(name.String()+"\x00")...)
		w.lists[name] = l
		w.order = append(w.order, name)
	}
	if len(l.building) == 0 {
		l.building = append(slices.Clone(l.head), 0, 0, 0, 0)
	}
	w.count++
	if l.building = e.appendTo(l.building); len(l.building) > listMost {
		l.end()
	}
}

// end finishes the message in progress.
func (l *elementList) end() {
	if len(l.building) > 0 {
		l.done = append(l.done, closed(l.building, len(l.head), unix.NLA_F_NESTED|unix.NFTA_SET_ELEM_LIST_ELEMENTS))
		l.building = nil
	}
}

// messages returns the collected messages. The writer must not be used afterwards.
func (w *elementWriter) messages() (all []netlink.Message) {
	flags := netlink.Request
	if w.kind == unix.NFT_MSG_NEWSETELEM {
		flags |= netlink.Create
	}
	for _, name := range w.order {
		l := w.lists[name]
		l.end()
		for _, data := range l.done {
			all = append(all, netlink.Message{
				Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | w.kind), Flags: flags}, Data: data,
			})
		}
	}
	return all
}

// elementChanges collects the messages that change address sets.
type elementChanges struct {
	gone, add        *elementWriter
	forget, remember *elementWriter
	former           map[netip.Addr]bool // addresses in forget and remember
	differs          bool                // at least one element changes
}

func newElementChanges() *elementChanges {
	gone, add := uint16(unix.NFT_MSG_DELSETELEM), uint16(unix.NFT_MSG_NEWSETELEM)
	return &elementChanges{
		gone: newElementWriter(gone), add: newElementWriter(add),
		forget: newElementWriter(gone), remember: newElementWriter(add), former: map[netip.Addr]bool{},
	}
}

// messages returns the collected messages: removals first, since an added element may have the same key.
func (c *elementChanges) messages() []netlink.Message {
	return slices.Concat(c.gone.messages(), c.add.messages(), c.forget.messages(), c.remember.messages())
}

// from records that an object's elements change from former to now. Removed addresses are remembered for a while.
func (c *elementChanges) from(former, now []element) {
	remember := false
	for i := range former {
		if !slices.Contains(now, former[i]) {
			c.gone.write(&former[i])
			c.differs = true
			remember = remember || former[i].set.remembered()
		}
	}
	for i := range now {
		if !slices.Contains(former, now[i]) {
			c.add.write(&now[i])
			c.differs = true
		}
	}
	if remember {
		c.formerly(former[0].key)
	}
}

// formerly puts an address into the former set, with its full timeout. Adding an existing element does not renew its
// timeout (before Linux 6.12 nothing does), and the kernel refuses to remove a missing one: so the address is added,
// removed and added again.
func (c *elementChanges) formerly(a netip.Addr) {
	if c.former[a] {
		return // already recorded for another set
	}
	c.former[a] = true
	e := element{set: inFormer, key: a}
	for _, w := range []*elementWriter{c.add, c.forget, c.remember} {
		w.write(&e)
	}
}

// between returns the changes from the sets of one plan to those of another.
func between(before, now *plan.DataPlane) *elementChanges {
	c := newElementChanges()
	had, have := pathsOf(before), pathsOf(now)
	var a, b []element
	for x, y := range before.Endpoints.Changes(now.Endpoints) {
		a, b = a[:0], b[:0]
		if x != nil {
			a = had.ofEndpoint(a, x)
		}
		if y != nil {
			b = have.ofEndpoint(b, y)
		}
		c.from(a, b)
	}
	if moved := had.differs(have); len(moved) > 0 {
		for e := range now.Endpoints.All() { // unchanged endpoints, if one of their paths appeared or vanished
			if !moved[e.Path] && !moved[e.Kept.Path] {
				continue
			}
			if former, ok := before.Endpoints.Get(e); ok && former.Equal(e) {
				a, b = had.ofEndpoint(a[:0], &e), have.ofEndpoint(b[:0], &e)
				c.from(a, b)
			}
		}
	}
	for x, y := range before.Let.Changes(now.Let) {
		a, b = a[:0], b[:0]
		if x != nil {
			a = ofLet(a, x)
		}
		if y != nil {
			b = ofLet(b, y)
		}
		c.from(a, b)
	}
	for x, y := range before.Ingress.Changes(now.Ingress) {
		a, b = a[:0], b[:0]
		if x != nil {
			a = ofIngress(a, x)
		}
		if y != nil {
			b = ofIngress(b, y)
		}
		c.from(a, b)
	}
	return c
}

// differs returns the ids that only one of the two sets has.
func (s pathSet) differs(o pathSet) pathSet {
	var all pathSet
	for _, pair := range [][2]pathSet{{s, o}, {o, s}} {
		for id := range pair[0] {
			if !pair[1][id] {
				if all == nil {
					all = pathSet{}
				}
				all[id] = true
			}
		}
	}
	return all
}

// reach returns the changes from sets that hold has to those of a plan; whole writes all elements, for a recreated
// table.
func reach(has map[setName]map[string]string, d *plan.DataPlane, whole bool) *elementChanges {
	c := newElementChanges()
	var key, value []byte
	eachElement(d, func(all []element) {
		remember := false
		for i := range all {
			e := &all[i]
			here := has[e.in()]
			key, value = e.appendKey(key[:0]), e.appendValue(value[:0])
			had, there := here[string(key)]
			delete(here, string(key))
			same := there && had == string(value)
			c.differs = c.differs || !same
			if there && !same {
				remember = remember || e.set.remembered()
				if !whole {
					c.gone.write(e) // only the key counts
				}
			}
			if !same || whole {
				c.add.write(e)
			}
		}
		if remember {
			c.formerly(all[0].key)
		}
	})
	for name, here := range has { // elements that the plan lacks
		for key := range here {
			c.differs = true
			if e, ok := name.element(key); ok {
				if !whole {
					c.gone.write(&e)
				}
				if name.set.remembered() {
					c.formerly(e.key)
				}
			}
		}
	}
	return c
}

// element returns an element with the given key as the kernel lists it, without a value.
func (n setName) element(key string) (e element, ok bool) {
	e = element{set: n.set, path: n.path}
	size := int(ipv4.len)
	if n.ipv6 {
		size = int(ipv6.len)
	}
	if n.set == inSources {
		if len(key) != 2*size {
			return e, false
		}
		e.with, _ = netip.AddrFromSlice([]byte(key[size:]))
		key = key[:size]
	}
	e.key, ok = netip.AddrFromSlice([]byte(key))
	return e, ok && len(key) == size
}

// readElements reads the elements of an address set: keys, and for a map their values.
func readElements(set string) (map[string]string, error) {
	c, err := dialNetfilter()
	if err != nil {
		return nil, err
	}
	defer c.close()
	request := nftRequest(unix.NFT_MSG_GETSETELEM,
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(tableName + "\x00")},
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(set + "\x00")},
	)
	all := map[string]string{}
	_, err = c.dump(request, func(body []byte) bool {
		for typ, list := range attrs(body, nfgenmsgLen) {
			if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			for _, e := range attrs(list, 0) {
				var key, value string
				for typ, data := range attrs(e, 0) {
					switch typ {
					case unix.NFTA_SET_ELEM_KEY:
						key = dataValue(data)
					case unix.NFTA_SET_ELEM_DATA:
						value = dataValue(data)
					}
				}
				all[key] = value
			}
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("list elements of set %s: %w", set, err)
	}
	return all, nil
}

// dataValue decodes a value. For a verdict it returns a placeholder.
func dataValue(data []byte) string {
	for typ, value := range attrs(data, 0) {
		if typ == unix.NFTA_DATA_VALUE {
			return string(value)
		}
	}
	return "verdict"
}
