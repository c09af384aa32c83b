package nft

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
)

// contents is the content of the table.
type contents struct {
	sets      map[string]*nftables.Set
	elements  map[string][]nftables.SetElement      // by set; without the address sets
	addresses map[ruleset.SetName]map[string]string // of the address sets: key and value, as readElements returns them
	chains    map[string]bool
	showed    [sha256.Size]byte // fingerprint of the rules
}

func noContents() contents {
	return contents{sets: map[string]*nftables.Set{}, elements: map[string][]nftables.SetElement{}, chains: map[string]bool{}}
}

// read reads the contents of the tables that exist now from the kernel. Sets that d lacks do not matter: they will be deleted.
func (n *Table) read(now states, d *plan.DataPlane) (has contents, err error) {
	c, err := n.open()
	if err != nil {
		return has, err
	}
	defer func() { _ = c.CloseLasting() }()
	var all []*nftables.Set
	has.chains = map[string]bool{}
	for _, table := range now.each(State.any) {
		sets, err := setsOf(c, table)
		if err == nil {
			err = has.readChains(c, table.Family)
		}
		if err != nil {
			return has, err
		}
		all = append(all, sets...)
	}
	has.sets, has.elements = make(map[string]*nftables.Set, len(all)), make(map[string][]nftables.SetElement, len(all))
	has.addresses = map[ruleset.SetName]map[string]string{}
	ofAddresses := ruleset.AddressSets(d)
	for _, s := range all {
		has.sets[s.Name] = s
		if name, ok := ofAddresses[s.Name]; ok {
			if has.addresses[name], err = readElements(s.Name, name.Set.Table()); err != nil {
				return has, err
			}
		} else if has.elements[s.Name], err = n.elements(c, s); err != nil {
			return has, err
		}
	}
	has.showed, err = n.shown()
	return has, err
}

func setsOf(c *nftables.Conn, table *nftables.Table) ([]*nftables.Set, error) {
	sets, err := c.GetSets(table)
	if err != nil {
		return nil, fmt.Errorf("list sets of nftables table %s: %w", ruleset.TableName, err)
	}
	for _, s := range sets {
		s.Table = table
	}
	return sets, nil
}

func (has *contents) readChains(c *nftables.Conn, family nftables.TableFamily) error {
	list, err := c.ListChainsOfTableFamily(family)
	if err != nil {
		return fmt.Errorf("list chains of nftables table %s: %w", ruleset.TableName, err)
	}
	for _, ch := range list {
		if ch.Table.Name == ruleset.TableName {
			has.chains[ch.Name] = true
		}
	}
	return nil
}

// contentsOf returns the contents of a table that was written for d, without addresses.
func contentsOf(d plan.DataPlane) contents {
	has := noContents()
	for _, s := range ruleset.Sets(d) {
		s.Table = tableOf(s.In)
		has.sets[s.Name] = &s.Set
		has.elements[s.Name] = s.Elements
	}
	for _, ch := range ruleset.Chains(d) {
		has.chains[ch.Name] = true
	}
	return has
}

// tableChange holds the data for one change of the table.
type tableChange struct {
	table     *nftables.Table
	now       states
	sets      []*ruleset.Set
	chains    []ruleset.Chain
	has       contents
	addresses *elementChanges
	marks     plan.Marks
	plan      *plan.DataPlane
	rewrite   bool // write the rules again
	replace   bool // replace the whole table
	missed    bool // another program has changed the table
	unqueued  bool // the kernel has no queues, so the chains of answers were never made

	fill func(set string) []nftables.SetElement // elements of a set that has a timeout, and is being made

	// Fingerprints of each chain's rules: as planned, and as the kernel is known to have them. nil: nothing is known.
	wrote, had map[string][sha256.Size]byte
}

// keeps reports whether a chain's rules are already right. Writing a rule that looks into a map costs the kernel a walk
// through the whole map (nf_tables_bind_set).
func (c *tableChange) keeps(chain string) bool {
	had, ok := c.had[chain]
	return ok && !c.replace && had == c.wrote[chain]
}

// queueAhead adds the new sets to a transaction that comes before the one of queue, with their elements and with the new chains that no
// hook calls, and reports whether there are any. A new table gets all of its chains, those of hooks without rules. The kernel makes the
// rules of a transaction visible before the elements of sets of ranges (nft_set_commit_update): in between, a rule finds nothing in such
// a set that is as new as itself, and what a policy denies would pass.
func (c *tableChange) queueAhead(t *transaction) (ahead bool, err error) {
	if !c.rewrite || c.replace || !slices.ContainsFunc(c.sets, c.emptyAtFirst) {
		return false, nil
	}
	missing := !c.now[ruleset.TableInet].Exists
	if missing {
		t.AddTable(tableOf(ruleset.TableInet))
	}
	made, err := c.queueEmpty(t, func(w ruleset.Chain) bool {
		return (w.Hook == nil || missing) && w.In == ruleset.TableInet && !c.has.chains[w.Name]
	})
	if err != nil {
		return false, err
	}
	maps.DeleteFunc(made, func(_ string, ch *nftables.Chain) bool { return ch.Hooknum != nil })
	if err := c.queueNewSets(t); err != nil {
		return false, err
	}
	if err := c.queueAllRules(t, made); err != nil {
		return false, err
	}
	if c.had = maps.Clone(c.had); c.had == nil {
		c.had = make(map[string][sha256.Size]byte, len(made))
	}
	for name := range made {
		c.had[name] = c.wrote[name]
	}
	return true, nil
}

// queueNewSets queues the sets that do not exist yet.
func (c *tableChange) queueNewSets(t *transaction) error {
	for _, w := range c.sets {
		if w.In != ruleset.TableInet || c.has.sets[w.Name] != nil {
			continue
		}
		if _, err := c.queueSet(t, w); err != nil {
			return fmt.Errorf("make set %s: %w", w.Name, err)
		}
		c.has.sets[w.Name], c.has.elements[w.Name] = &w.Set, w.Elements
	}
	return nil
}

// emptyAtFirst reports whether rules of the same transaction would find nothing in a set at first.
func (c *tableChange) emptyAtFirst(w *ruleset.Set) bool {
	return w.In == ruleset.TableInet && w.Interval && len(w.Elements) > 0 && c.has.sets[w.Name] == nil
}

// queue adds the change to a transaction and reports whether it changes any elements.
func (c *tableChange) queue(t *transaction) (changed bool, err error) {
	if c.replace {
		for _, table := range c.now.each(State.any) {
			t.DelTable(table)
		}
	}
	made, err := c.queueChains(t)
	if err != nil {
		return false, err
	}
	if changed, err = c.queueSets(t); err != nil {
		return false, err
	}
	return changed, c.queueAllRules(t, made)
}

// stale returns the chains to delete. Those outside of family inet go with their tables.
func (c *tableChange) stale() map[string]bool {
	stale := c.has.chains
	delete(stale, ruleset.ChainShared)
	delete(stale, ruleset.ChainAsked)
	if c.unqueued {
		delete(stale, ruleset.ChainAnswers)
		delete(stale, ruleset.ChainAnswered)
	}
	for _, w := range c.chains {
		delete(stale, w.Name)
	}
	return stale
}

// queueGone adds the deletion of the chains, sets and tables that are not needed to a transaction that comes after the one of queue, and
// reports whether there are any. A packet that is under way reads the rules of one generation and the elements of the next: rules of a
// policy that was replaced would find its set empty, and what the policy denies would pass.
func (c *tableChange) queueGone(t *transaction) (gone bool, err error) {
	if c.replace {
		return false, nil
	}
	stale := c.stale()
	for name := range stale { // they may jump to each other
		t.FlushChain(&nftables.Chain{Name: name, Table: c.table})
	}
	gone = len(stale) > 0
	for _, s := range c.has.sets {
		if s.Table.Family == nftables.TableFamilyINet && !containsSet(c.sets, s.Name) {
			t.DelSet(s)
			gone = true
		}
	}
	for name := range stale {
		t.DelChain(&nftables.Chain{Name: name, Table: c.table})
	}
	for _, table := range ruleset.Tables() {
		if c.now[table].Exists && !table.In(c.plan) {
			t.DelTable(tableOf(table))
			gone = true
		}
	}
	for why, chain := range ruleset.Optional {
		if stale[chain] { // its counter was created along with it
			if err := t.raw(noCounter(why)); err != nil {
				return false, err
			}
		}
	}
	return gone, nil
}

// queueChains queues the chains whose rules will be written, empty, with all that their rules need besides the sets. It
// returns them by name.
func (c *tableChange) queueChains(t *transaction) (made map[string]*nftables.Chain, err error) {
	if !c.rewrite {
		return nil, nil
	}
	for _, table := range ruleset.Tables() {
		if table.In(c.plan) {
			t.AddTable(tableOf(table))
		}
	}
	return c.queueEmpty(t, func(w ruleset.Chain) bool { return !c.keeps(w.Name) })
}

// queueEmpty queues the counters, and those of the chains that which selects, without rules. It returns these chains by name.
func (c *tableChange) queueEmpty(t *transaction, which func(ruleset.Chain) bool) (made map[string]*nftables.Chain, err error) {
	if err := t.raw(dropCounters(c.chains)...); err != nil {
		return nil, err
	}
	made = map[string]*nftables.Chain{}
	for _, w := range c.chains {
		if which(w) {
			made[w.Name] = t.AddChain(chainIn(w, tableOf(w.In)))
			t.FlushChain(made[w.Name]) // it may be there since a change that failed
		}
	}
	return made, nil
}

// queueSets queues the sets with their elements, and reports whether any elements change.
func (c *tableChange) queueSets(t *transaction) (changed bool, err error) {
	for _, w := range c.sets {
		differs, err := c.queueSet(t, w)
		if err != nil {
			return false, fmt.Errorf("change set %s: %w", w.Name, err)
		}
		changed = changed || differs
	}
	return changed || c.addresses.differs, t.raw(c.addresses.messages()...)
}

// queueAllRules queues the rules of the chains that queueChains made.
func (c *tableChange) queueAllRules(t *transaction, made map[string]*nftables.Chain) error {
	for _, w := range c.chains {
		if ch := made[w.Name]; ch != nil {
			if err := c.queueRules(t, ch, w); err != nil {
				return err
			}
		}
	}
	return nil
}

// queueRules queues the rules of a chain.
func (c *tableChange) queueRules(t *transaction, made *nftables.Chain, w ruleset.Chain) error {
	for _, r := range w.Rules {
		t.AddRule(&nftables.Rule{Table: made.Table, Chain: made, Exprs: r})
	}
	if w.OwnOf == 0 {
		return nil
	}
	own, err := ruleset.OwnSourceRules(c.marks, w.OwnOf)
	if err != nil {
		return err
	}
	return t.raw(own...)
}

// queueSet queues a set and, unless it is an address set, its elements.
func (c *tableChange) queueSet(t *transaction, w *ruleset.Set) (changed bool, err error) {
	w.Table = tableOf(w.In)
	if c.rewrite || c.has.sets[w.Name] == nil {
		if err := t.AddSet(&w.Set, nil); err != nil {
			return false, err
		}
	}
	if w.HasTimeout {
		return false, c.queueExpiring(t, w)
	}
	return c.queueElements(t, w)
}

// queueExpiring queues the elements of a set whose elements expire by themselves: a set that exists keeps them, also when it is replaced.
func (c *tableChange) queueExpiring(t *transaction, w *ruleset.Set) error {
	had := c.has.elements[w.Name]
	switch {
	case c.replace && had != nil:
		return t.add(w, remaining(had))
	case c.replace || c.has.sets[w.Name] == nil:
		return t.add(w, c.fill(w.Name))
	}
	return nil
}

// queueElements queues the difference of the elements of a set, all of them if the set is replaced.
func (c *tableChange) queueElements(t *transaction, w *ruleset.Set) (changed bool, err error) {
	had := c.has.elements[w.Name]
	add, remove := difference(w, had)
	switch changed = len(add)+len(remove) > 0; {
	case c.replace:
		add, remove = w.Elements, nil
	case changed && w.Interval:
		var whole bool
		if add, remove, whole = differenceOfRanges(w, had); whole {
			t.FlushSet(&w.Set)
		}
	}
	return changed, t.change(w, add, remove)
}

// chainIn returns a chain in the library's form.
func chainIn(c ruleset.Chain, table *nftables.Table) *nftables.Chain {
	ch := &nftables.Chain{Name: c.Name, Table: table}
	if c.Hook != nil {
		policy := nftables.ChainPolicyAccept
		ch.Hooknum, ch.Priority, ch.Type, ch.Policy, ch.Device = c.Hook, priority(c.Priority), c.Kind, &policy, c.Device
	}
	return ch
}

// difference returns the elements to add to a set that holds have, and the elements to remove.
func difference(s *ruleset.Set, have []nftables.SetElement) (add, remove []nftables.SetElement) {
	old := make(map[string]nftables.SetElement, len(have))
	for _, e := range have {
		old[identity(e)] = e
	}
	for _, e := range s.Elements {
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

// differenceOfRanges is difference for a set of ranges: it adds and removes whole ranges, and leaves the others alone. Before Linux 7.0,
// a lookup of an address that is in a removed range and in an added one with the same beginning may find neither (nft_rbtree_lookup). In
// a map, a range may end where the next one begins, without an element that says so: whole reports that all elements have to be replaced.
func differenceOfRanges(s *ruleset.Set, have []nftables.SetElement) (add, remove []nftables.SetElement, whole bool) {
	old, known := rangesOf(have)
	wanted, pairs := rangesOf(s.Elements)
	if !known || !pairs || s.IsMap {
		return s.Elements, nil, true
	}
	for id, elements := range wanted {
		if _, there := old[id]; !there {
			add = append(add, elements...)
		}
	}
	for id, elements := range old {
		if _, stays := wanted[id]; !stays {
			remove = append(remove, elements...)
		}
	}
	return add, remove, false
}

// rangesOf returns the elements of each range, by their identities; false: some element is no part of a pair of beginning and end, and not
// the beginning of a range to the end of the address space.
func rangesOf(all []nftables.SetElement) (ranges map[string][]nftables.SetElement, pairs bool) {
	sorted := slices.SortedFunc(slices.Values(all), compareBounds)
	ranges = make(map[string][]nftables.SetElement, len(all)/2)
	for bounds := range slices.Chunk(sorted, 2) {
		if !areRange(bounds) {
			return nil, false
		}
		id := identity(bounds[0])
		if len(bounds) == 2 {
			id += identity(bounds[1])
		}
		ranges[id] = bounds
	}
	return ranges, true
}

// compareBounds orders elements of a set of ranges by their keys, and the end of a range before the beginning of the next.
func compareBounds(x, y nftables.SetElement) int {
	switch order := bytes.Compare(x.Key, y.Key); {
	case order != 0 || x.IntervalEnd == y.IntervalEnd:
		return order
	case x.IntervalEnd:
		return -1
	}
	return 1
}

// areRange reports whether elements are a beginning and an end, or a beginning alone.
func areRange(bounds []nftables.SetElement) bool {
	return !bounds[0].IntervalEnd && (len(bounds) == 1 || bounds[1].IntervalEnd)
}

// change queues a difference.
func (t *transaction) change(w *ruleset.Set, add, remove []nftables.SetElement) error {
	for ; len(remove) > 0; remove = remove[min(chunk, len(remove)):] {
		if err := t.SetDeleteElements(&w.Set, remove[:min(chunk, len(remove))]); err != nil {
			return err
		}
	}
	return t.add(w, add)
}

// add queues elements of a set.
func (t *transaction) add(s *ruleset.Set, elements []nftables.SetElement) error {
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

// identity encodes an element so that a planned element and the same one listed by the kernel are equal.
func identity(e nftables.SetElement) string {
	var b bytes.Buffer
	b.Write(e.Key)
	if e.IntervalEnd {
		b.WriteString("|end")
	}
	b.WriteByte('|')
	switch {
	case e.VerdictData != nil:
		b.Write(ruleset.Native(uint32(e.VerdictData.Kind)))
		b.WriteString(e.VerdictData.Chain)
	case e.Val != nil:
		b.Write(e.Val)
	}
	b.WriteByte('|')
	b.WriteString(e.Comment)
	return b.String()
}

// verdictFromKernel decodes the verdict attributes that the library leaves encoded: code and chain. The end of a range has none.
func verdictFromKernel(e *nftables.SetElement) {
	if e.IntervalEnd {
		return
	}
	v := &expr.Verdict{Chain: string(bytes.TrimRight(nl.Attr(e.Val, 0, unix.NFTA_VERDICT_CHAIN), "\x00"))}
	if code := nl.Attr(e.Val, 0, unix.NFTA_VERDICT_CODE); len(code) == 4 {
		v.Kind = expr.VerdictKind(int32(binary.BigEndian.Uint32(code)))
	}
	e.Val, e.VerdictData = nil, v
}

// priority returns a chain's priority in the library's form.
func priority(p int32) *nftables.ChainPriority {
	return new(nftables.ChainPriority(p))
}
