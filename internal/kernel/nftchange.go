package kernel

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"

	"github.com/egressway/egressway/internal/plan"
)

// contents is the content of the table.
type contents struct {
	sets      map[string]*nftables.Set
	elements  map[string][]nftables.SetElement // by set; without the address sets
	addresses map[setName]map[string]string    // of the address sets: key and value, as readElements returns them
	chains    map[string]bool
	showed    [sha256.Size]byte // fingerprint of the rules
}

// read reads the contents from the kernel. Sets that d lacks do not matter: they will be deleted.
func (n *nft) read(table *nftables.Table, d *plan.DataPlane) (has contents, err error) {
	c, err := n.open()
	if err != nil {
		return has, err
	}
	defer func() { _ = c.CloseLasting() }()
	all, err := c.GetSets(table)
	if err != nil {
		return has, fmt.Errorf("list sets of nftables table %s: %w", tableName, err)
	}
	has = contents{
		sets: make(map[string]*nftables.Set, len(all)), elements: make(map[string][]nftables.SetElement, len(all)),
		addresses: map[setName]map[string]string{}, chains: map[string]bool{},
	}
	ofAddresses := addressSets(d)
	for _, s := range all {
		s.Table = table
		has.sets[s.Name] = s
		if name, ok := ofAddresses[s.Name]; ok {
			if has.addresses[name], err = readElements(s.Name); err != nil {
				return has, err
			}
		} else if has.elements[s.Name], err = n.elements(c, s); err != nil {
			return has, err
		}
	}
	list, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return has, fmt.Errorf("list chains of nftables table %s: %w", tableName, err)
	}
	for _, ch := range list {
		if ch.Table.Name == tableName {
			has.chains[ch.Name] = true
		}
	}
	has.showed, err = n.shown()
	return has, err
}

// contentsOf returns the contents of a table that was written for d, without addresses.
func contentsOf(d plan.DataPlane) contents {
	has := contents{sets: map[string]*nftables.Set{}, elements: map[string][]nftables.SetElement{}, chains: map[string]bool{}}
	for _, s := range sets(d) {
		has.sets[s.Name] = &s.Set
		has.elements[s.Name] = s.elements
	}
	for _, ch := range chains(d) {
		has.chains[ch.name] = true
	}
	return has
}

// tableChange holds the data for one change of the table.
type tableChange struct {
	table     *nftables.Table
	sets      []*set
	chains    []chain
	has       contents
	addresses *elementChanges
	marks     plan.Marks
	hold      bool // a counter for held packets is needed
	rewrite   bool // write the rules again
	replace   bool // replace the whole table

	// keep reports whether a chain's rules are already right; nil: no chain's are. Writing a rule that looks into a map
	// costs the kernel a walk through the whole map (nf_tables_bind_set).
	keep func(chain) bool
}

// queue adds the change to a transaction and reports whether it changes any elements.
func (c *tableChange) queue(t *transaction) (changed bool, err error) {
	stale := c.has.chains
	if c.replace {
		t.DelTable(c.table)
		stale = nil
	}
	made := map[string]*nftables.Chain{}
	if c.rewrite {
		t.AddTable(c.table)
		if err := t.raw(dropCounters(c.hold)...); err != nil {
			return false, err
		}
		for _, w := range c.chains {
			if c.keep != nil && c.keep(w) {
				continue
			}
			made[w.name] = t.AddChain(w.in(c.table))
			t.FlushChain(made[w.name])
		}
	}
	for _, w := range c.chains {
		delete(stale, w.name)
	}
	for name := range stale { // they may jump to each other
		t.FlushChain(&nftables.Chain{Name: name, Table: c.table})
	}
	for _, w := range c.sets {
		differs, err := c.queueSet(t, w)
		if err != nil {
			return false, fmt.Errorf("change set %s: %w", w.Name, err)
		}
		changed = changed || differs
	}
	changed = changed || c.addresses.differs
	if err := t.raw(c.addresses.messages()...); err != nil {
		return false, err
	}
	for _, w := range c.chains {
		ch := made[w.name]
		if ch == nil {
			continue
		}
		for _, r := range w.rules {
			t.AddRule(&nftables.Rule{Table: c.table, Chain: ch, Exprs: r})
		}
		if w.ownOf != 0 {
			own, err := ownSourceRules(c.marks, w.ownOf)
			if err != nil {
				return false, err
			}
			if err := t.raw(own...); err != nil {
				return false, err
			}
		}
	}
	for _, s := range c.has.sets {
		if s.Table = c.table; !c.replace && !containsSet(c.sets, s.Name) {
			t.DelSet(s)
		}
	}
	for name := range stale {
		t.DelChain(&nftables.Chain{Name: name, Table: c.table})
	}
	if stale[chainHeld] { // its counter was created along with it
		return changed, t.raw(noCounter(DropHeld))
	}
	return changed, nil
}

// queueSet queues a set and, unless it is an address set, its elements.
func (c *tableChange) queueSet(t *transaction, w *set) (changed bool, err error) {
	w.Table = c.table
	if c.rewrite || c.has.sets[w.Name] == nil {
		if err := t.AddSet(&w.Set, nil); err != nil {
			return false, err
		}
	}
	had := c.has.elements[w.Name]
	if w.HasTimeout { // its elements expire by themselves
		if c.replace {
			err = t.add(w, remaining(had))
		}
		return false, err
	}
	add, remove := w.difference(had)
	changed = len(add)+len(remove) > 0
	if c.replace {
		add, remove = w.elements, nil
	}
	return changed, t.change(w, add, remove)
}

// in returns the chain in the library's form.
func (c chain) in(table *nftables.Table) *nftables.Chain {
	ch := &nftables.Chain{Name: c.name, Table: table}
	if c.hook != nil {
		policy := nftables.ChainPolicyAccept
		ch.Hooknum, ch.Priority, ch.Type, ch.Policy = c.hook, priority(c.priority), c.kind, &policy
	}
	return ch
}

// difference returns the elements to add to a set that holds have, and the elements to remove.
func (s *set) difference(have []nftables.SetElement) (add, remove []nftables.SetElement) {
	old := make(map[string]nftables.SetElement, len(have))
	for _, e := range have {
		old[identity(e)] = e
	}
	for _, e := range s.elements {
		id := identity(e)
		if _, ok := old[id]; ok {
			delete(old, id)
		} else {
			add = append(add, e)
		}
	}
	for _, e := range old {
		remove = append(remove, e)
	}
	return add, remove
}

// change queues a difference. Sets of ranges are rewritten whole: the kernel rejects half a range.
func (t *transaction) change(w *set, add, remove []nftables.SetElement) error {
	if len(add)+len(remove) == 0 {
		return nil
	}
	if w.Interval {
		t.FlushSet(&w.Set)
		add, remove = w.elements, nil
	}
	for ; len(remove) > 0; remove = remove[min(chunk, len(remove)):] {
		if err := t.SetDeleteElements(&w.Set, remove[:min(chunk, len(remove))]); err != nil {
			return err
		}
	}
	return t.add(w, add)
}

// add queues elements of a set.
func (t *transaction) add(s *set, elements []nftables.SetElement) error {
	for ; len(elements) > 0; elements = elements[min(chunk, len(elements)):] {
		if err := t.SetAddElements(&s.Set, elements[:min(chunk, len(elements))]); err != nil {
			return err
		}
	}
	return nil
}

// remaining returns a copy of elements with timeouts, for another set of the same kind: each keeps the time it has
// left.
func remaining(elements []nftables.SetElement) []nftables.SetElement {
	elements = slices.Clone(elements)
	for i, e := range elements {
		elements[i].Timeout = max(e.Expires, time.Millisecond)
	}
	return elements
}
