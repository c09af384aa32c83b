package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
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
		if e.Set.Valued() {
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
		l.head = append(l.head, e.Set.Table().Family(), unix.NFNETLINK_V0, 0, 0)
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
	whole            bool                // write all elements, for a recreated table
	key, value       []byte              // buffers of compare
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
	gone := c.writeMissing(c.gone, former, now)
	c.writeMissing(c.add, now, former)
	if gone {
		c.formerly(former[0].Key)
	}
}

// writeMissing writes the elements of all that others lack, and reports whether one of them is remembered when it goes.
func (c *elementChanges) writeMissing(w *elementWriter, all, others []ruleset.Element) (remembered bool) {
	for i := range all {
		if !slices.Contains(others, all[i]) {
			w.write(&all[i])
			c.differs = true
			remembered = remembered || all[i].Set.Remembered()
		}
	}
	return remembered
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
	ofChanges(c, before.Endpoints, now.Endpoints, had.OfEndpoint, have.OfEndpoint)
	if moved := had.Differs(have); len(moved) > 0 {
		c.ofMoved(before, now, had, have, moved)
	}
	ofChanges(c, before.Let, now.Let, ruleset.OfLet, ruleset.OfLet)
	ofChanges(c, before.Marked, now.Marked, ruleset.OfMarked, ruleset.OfMarked)
	ofChanges(c, before.Firewalled, now.Firewalled, ruleset.OfFirewalled, ruleset.OfFirewalled)
	ofChanges(c, before.Ingress, now.Ingress, ruleset.OfIngress, ruleset.OfIngress)
	ofChanges(c, before.OnLink, now.OnLink, ruleset.OfOnLink, ruleset.OfOnLink)
	c.ofJudged(before, now)
	return c
}

// ofJudged remembers the addresses whose connections a policy denies from now on. Their servers' packets must not begin a connection
// in the other direction once the pod's own connection has ended. An address that was waiting until now has no connections.
func (c *elementChanges) ofJudged(before, now *plan.DataPlane) {
	for _, f := range before.Firewalled.Changes(now.Firewalled) {
		if f == nil {
			continue
		}
		if _, let := before.Let.Get(plan.Address{Addr: f.Addr}); let || !before.Hold {
			c.formerly(f.Addr)
		}
	}
}

// ofChanges records how the elements of objects change: had and have append those that an object had, or has now.
func ofChanges[T sorted.Item[T]](c *elementChanges, before, now sorted.List[T], had, have func([]ruleset.Element, *T) []ruleset.Element) {
	var a, b []ruleset.Element
	for x, y := range before.Changes(now) {
		a, b = a[:0], b[:0]
		if x != nil {
			a = had(a, x)
		}
		if y != nil {
			b = have(b, y)
		}
		c.from(a, b)
	}
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
	c.whole = whole
	ruleset.EachElement(d, func(all []ruleset.Element) {
		remember := false
		for i := range all {
			changed := c.compare(&all[i], has[all[i].Name()])
			remember = remember || changed && (all[i].Set.Remembered() || all[i].Set == ruleset.InFirewalled)
		}
		if remember {
			c.formerly(all[0].Key)
		}
	})
	for name, here := range has {
		c.drop(name, here)
	}
	return c
}

// compare records how the planned element changes a set that holds here, and deletes its key there. It reports whether
// the key had another value.
func (c *elementChanges) compare(e *ruleset.Element, here map[string]string) (changed bool) {
	c.key, c.value = e.AppendKey(c.key[:0]), e.AppendValue(c.value[:0])
	had, there := here[string(c.key)]
	delete(here, string(c.key))
	changed = there && had != string(c.value)
	c.differs = c.differs || changed || !there
	if changed && !c.whole {
		c.gone.write(e) // only the key counts
	}
	if changed || !there || c.whole {
		c.add.write(e)
	}
	return changed
}

// drop records that the plan lacks the elements that here has.
func (c *elementChanges) drop(name ruleset.SetName, here map[string]string) {
	for key := range here {
		c.differs = true
		e, ok := name.Element(key)
		if ok && !c.whole {
			c.gone.write(&e)
		}
		if ok && name.Set.Remembered() {
			c.formerly(e.Key)
		}
	}
}

// readElements reads the elements of an address set: keys, and for a map their values.
func readElements(set string, table ruleset.Table) (map[string]string, error) {
	c, err := nl.DialNetfilter()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	request := nl.NftRequest(unix.NFT_MSG_GETSETELEM,
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(ruleset.TableName + "\x00")},
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(set + "\x00")},
	)
	request.Body[0] = table.Family()
	all := map[string]string{}
	_, err = c.Dump(request, func(body []byte) bool {
		for _, e := range nl.Attrs(nl.Attr(body, nl.NfgenmsgLen, unix.NFTA_SET_ELEM_LIST_ELEMENTS), 0) {
			key, value := decodeElement(e)
			all[key] = value
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("list elements of set %s: %w", set, err)
	}
	return all, nil
}

// decodeElement decodes the key and, of a map's element, the value.
func decodeElement(element []byte) (key, value string) {
	for typ, data := range nl.Attrs(element, 0) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			key = dataValue(data)
		case unix.NFTA_SET_ELEM_DATA:
			value = dataValue(data)
		}
	}
	return key, value
}

// ReadHosts reads a map of PathShared: the MAC of the host of each address. Without the map it has none.
func ReadHosts(set string) (map[netip.Addr]plan.MAC, error) {
	elements, err := readElements(set, ruleset.TableNetdev)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	hosts := make(map[netip.Addr]plan.MAC, len(elements))
	for key, value := range elements {
		if a, ok := netip.AddrFromSlice([]byte(key)); ok && len(value) == len(plan.MAC{}) {
			hosts[a] = plan.MAC([]byte(value))
		}
	}
	return hosts, nil
}

// dataValue decodes a value. For a verdict it returns a placeholder.
func dataValue(data []byte) string {
	if value := nl.Attr(data, 0, unix.NFTA_DATA_VALUE); value != nil {
		return string(value)
	}
	return "verdict"
}
