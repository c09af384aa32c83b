package nft

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
)

// The messages about elements are encoded here: the library takes some microseconds and a dozen allocations for each.

// appendElement appends the element to a list of elements.
func appendElement(b []byte, e *ruleset.Element) []byte {
	value := func(b []byte, add func([]byte) []byte) []byte {
		start := len(b)
		return nl.CloseAttr(add(append(b, 0, 0, 0, 0)), start, unix.NFTA_DATA_VALUE)
	}
	return nl.AppendNested(b, unix.NFTA_LIST_ELEM, func(b []byte) []byte {
		b = nl.AppendNested(b, unix.NFTA_SET_ELEM_KEY, func(b []byte) []byte { return value(b, e.AppendKey) })
		if e.Set == ruleset.InEgress || e.Set == ruleset.InStrays || e.Set == ruleset.InSource {
			b = nl.AppendNested(b, unix.NFTA_SET_ELEM_DATA, func(b []byte) []byte { return value(b, e.AppendValue) })
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
	lists map[ruleset.SetName]*elementList
	order []ruleset.SetName
}

type elementList struct {
	head     []byte // of each message, up to the list
	done     [][]byte
	building []byte
}

func newElementWriter(kind uint16) *elementWriter {
	return &elementWriter{kind: kind, lists: map[ruleset.SetName]*elementList{}}
}

func (w *elementWriter) write(e *ruleset.Element) {
	name := e.Name()
	l := w.lists[name]
	if l == nil {
		l = &elementList{}
		l.head = append(l.head, unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0)
		l.head = nl.AppendAttr(l.head, unix.NFTA_SET_ELEM_LIST_TABLE, []byte(ruleset.TableName+"\x00")...)
		l.head = nl.AppendAttr(l.head, unix.NFTA_SET_ELEM_LIST_SET, []byte(name.String()+"\x00")...)
		w.lists[name] = l
		w.order = append(w.order, name)
	}
	if len(l.building) == 0 {
		l.building = append(slices.Clone(l.head), 0, 0, 0, 0)
	}
	w.count++
	if l.building = appendElement(l.building, e); len(l.building) > listMost {
		l.end()
	}
}

// end finishes the message in progress.
func (l *elementList) end() {
	if len(l.building) > 0 {
		l.done = append(l.done, nl.CloseAttr(l.building, len(l.head), unix.NLA_F_NESTED|unix.NFTA_SET_ELEM_LIST_ELEMENTS))
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
func (c *elementChanges) from(former, now []ruleset.Element) {
	remember := false
	for i := range former {
		if !slices.Contains(now, former[i]) {
			c.gone.write(&former[i])
			c.differs = true
			remember = remember || former[i].Set.Remembered()
		}
	}
	for i := range now {
		if !slices.Contains(former, now[i]) {
			c.add.write(&now[i])
			c.differs = true
		}
	}
	if remember {
		c.formerly(former[0].Key)
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
	e := ruleset.Element{Set: ruleset.InFormer, Key: a}
	for _, w := range []*elementWriter{c.add, c.forget, c.remember} {
		w.write(&e)
	}
}

// between returns the changes from the sets of one plan to those of another.
func between(before, now *plan.DataPlane) *elementChanges {
	c := newElementChanges()
	had, have := ruleset.PathsOf(before), ruleset.PathsOf(now)
	var a, b []ruleset.Element
	for x, y := range before.Endpoints.Changes(now.Endpoints) {
		a, b = a[:0], b[:0]
		if x != nil {
			a = had.OfEndpoint(a, x)
		}
		if y != nil {
			b = have.OfEndpoint(b, y)
		}
		c.from(a, b)
	}
	if moved := had.Differs(have); len(moved) > 0 {
		c.ofMoved(before, now, had, have, moved)
	}
	for x, y := range before.Let.Changes(now.Let) {
		a, b = a[:0], b[:0]
		if x != nil {
			a = ruleset.OfLet(a, x)
		}
		if y != nil {
			b = ruleset.OfLet(b, y)
		}
		c.from(a, b)
	}
	for x, y := range before.Ingress.Changes(now.Ingress) {
		a, b = a[:0], b[:0]
		if x != nil {
			a = ruleset.OfIngress(a, x)
		}
		if y != nil {
			b = ruleset.OfIngress(b, y)
		}
		c.from(a, b)
	}
	return c
}

// ofMoved records how the elements of unchanged endpoints change because one of their paths appeared or vanished. moved
// has the ids of these paths.
func (c *elementChanges) ofMoved(before, now *plan.DataPlane, had, have, moved ruleset.PathSet) {
	var a, b []ruleset.Element
	for e := range now.Endpoints.All() {
		if !moved[e.Path] && !moved[e.Kept.Path] {
			continue
		}
		if former, ok := before.Endpoints.Get(e); ok && former.Equal(e) {
			a, b = had.OfEndpoint(a[:0], &e), have.OfEndpoint(b[:0], &e)
			c.from(a, b)
		}
	}
}

// reach returns the changes from sets that hold has to those of a plan; whole writes all elements, for a recreated
// table.
func reach(has map[ruleset.SetName]map[string]string, d *plan.DataPlane, whole bool) *elementChanges {
	c := newElementChanges()
	var key, value []byte
	ruleset.EachElement(d, func(all []ruleset.Element) {
		remember := false
		for i := range all {
			e := &all[i]
			here := has[e.Name()]
			key, value = e.AppendKey(key[:0]), e.AppendValue(value[:0])
			had, there := here[string(key)]
			delete(here, string(key))
			same := there && had == string(value)
			c.differs = c.differs || !same
			if there && !same {
				remember = remember || e.Set.Remembered()
				if !whole {
					c.gone.write(e) // only the key counts
				}
			}
			if !same || whole {
				c.add.write(e)
			}
		}
		if remember {
			c.formerly(all[0].Key)
		}
	})
	c.drop(has, whole)
	return c
}

// drop records that the plan lacks the elements that has holds; whole as in reach.
func (c *elementChanges) drop(has map[ruleset.SetName]map[string]string, whole bool) {
	for name, here := range has {
		for key := range here {
			c.differs = true
			e, ok := name.Element(key)
			if !ok {
				continue
			}
			if !whole {
				c.gone.write(&e)
			}
			if name.Set.Remembered() {
				c.formerly(e.Key)
			}
		}
	}
}

// readElements reads the elements of an address set: keys, and for a map their values.
func readElements(set string) (map[string]string, error) {
	c, err := nl.DialNetfilter()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	request := nl.NftRequest(unix.NFT_MSG_GETSETELEM,
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(ruleset.TableName + "\x00")},
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(set + "\x00")},
	)
	all := map[string]string{}
	_, err = c.Dump(request, func(body []byte) bool {
		for typ, list := range nl.Attrs(body, nl.NfgenmsgLen) {
			if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			for _, e := range nl.Attrs(list, 0) {
				var key, value string
				for typ, data := range nl.Attrs(e, 0) {
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
	for typ, value := range nl.Attrs(data, 0) {
		if typ == unix.NFTA_DATA_VALUE {
			return string(value)
		}
	}
	return "verdict"
}
