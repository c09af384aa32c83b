package kernel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// tableName is the one nftables table that is ours, of family inet.
const tableName = "egressway"

// chunk is how many elements go into one message: a netlink attribute holds 64 KiB.
const chunk = 500

// sendBuffer lets a transaction of some 100,000 elements through in one piece, bytes.
const sendBuffer = 64 << 20

// nft makes our nftables table equal to a plan, in one transaction. It remembers what it wrote, and what the kernel then
// showed, to leave rules alone that are as they should be.
type nft struct {
	wrote, showed [sha256.Size]byte
	writer        *tableWriter
	flags         uint32          // that the table should have
	inForce       *plan.DataPlane // what the last apply brought about; nil: it failed
	missed        bool            // the last apply found that somebody had been at the table
}

// open opens what is needed to read.
func (*nft) open() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(sendBuffer), c.SetReadBuffer(sendBuffer))
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	return c, nil
}

// claim opens the socket that is to own the table, unless it is open.
func (n *nft) claim(flags uint32) error {
	if n.writer != nil {
		return nil
	}
	w, err := openTableWriter()
	if err != nil {
		return err
	}
	if flags != 0 {
		if able, err := w.takesFlags(flags); err != nil {
			w.close()
			return err
		} else if !able {
			flags = 0
		}
	}
	n.writer, n.flags = w, flags
	return nil
}

// apply brings the table to the plan. Packets see the old rules or the new, never a mixture. It says whether
// connections may now disagree with the plan.
func (n *nft) apply(ctx context.Context, d plan.DataPlane) (changed bool, err error) {
	if err := n.claim(tableOwned); err != nil {
		return false, err
	}
	before := n.inForce
	n.inForce = nil
	changed, err = n.update(before, d, n.flags, false)
	if owned := (OwnedError{}); err != nil && !errors.As(err, &owned) && ctx.Err() == nil {
		// The table is not of the shape we know: another version's, or somebody's hand was in it. Replace it whole, at once.
		if _, again := n.update(nil, d, n.flags, true); again != nil {
			return false, fmt.Errorf("replace nftables table %s: %w (after %w)", tableName, again, err)
		}
		changed, err = true, nil
	}
	if err == nil {
		n.inForce = &d
	}
	return changed, err
}

// release gives the table up: it stays in force, as anybody's. Whoever comes next takes it over, an older version too,
// which would not know what to do with an orphan.
func (n *nft) release() error {
	if n.writer == nil {
		return nil
	}
	defer n.close()
	if n.flags == 0 || n.inForce == nil {
		return nil
	}
	_, err := n.update(nil, *n.inForce, 0, false)
	return err
}

func (n *nft) close() {
	if n.writer != nil {
		n.writer.close()
		n.writer = nil
	}
}

// update writes what differs. A table of ours alone is as it was written, by before; others are read. The table is written
// whole, in place of the one that is there, where that has other flags, which nobody can change, or where asked for: fresh
// forgets what it holds.
func (n *nft) update(before *plan.DataPlane, d plan.DataPlane, flags uint32, fresh bool) (changed bool, err error) {
	now, err := readTableState()
	if err != nil {
		return false, err
	}
	if now.owner != 0 && now.owner != n.writer.port {
		return false, OwnedError{now.owner}
	}
	known := before != nil && now.owner == n.writer.port && !fresh
	if known && sameDataPlane(before, &d) {
		return false, nil
	}
	orphan := now.exists && now.flags == tablePersist
	replace := now.exists && (fresh || now.flags != flags && !(orphan && flags == tableOwned))

	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}
	want, wantChains := sets(d), chains(d)
	wrote, err := fingerprint(wantChains)
	if err != nil {
		return false, err
	}
	rewrite := !now.exists || replace || wrote != n.wrote
	written := n.showed != [sha256.Size]byte{}
	n.missed = written && !now.exists
	var has contents
	switch {
	case known:
		has = contentsOf(*before)
	case now.exists && !fresh:
		if has, err = n.read(table); err != nil {
			return false, err
		}
		n.missed = written && has.showed != n.showed
		rewrite = rewrite || has.showed != n.showed
	}
	stale := has.chains
	var staleSets []*nftables.Set
	for _, s := range has.sets {
		if s.Table = table; !containsSet(want, s.Name) {
			staleSets = append(staleSets, s)
		}
	}

	t, err := newTransaction()
	if err != nil {
		return false, fmt.Errorf("begin transaction: %w", err)
	}
	if replace {
		t.DelTable(table)
		clear(stale)
		staleSets = nil
	}
	if rewrite || orphan {
		t.AddTable(table)
	}
	made := map[string]*nftables.Chain{}
	for _, w := range wantChains {
		delete(stale, w.name)
		if !rewrite {
			continue
		}
		ch := &nftables.Chain{Name: w.name, Table: table}
		if w.hook != nil {
			policy := nftables.ChainPolicyAccept
			ch.Hooknum, ch.Priority, ch.Type, ch.Policy = w.hook, priority(w.priority), w.kind, &policy
		}
		made[w.name] = t.AddChain(ch)
		t.FlushChain(ch)
	}
	if rewrite {
		t.AddChain(&nftables.Chain{Name: chainOwnSource, Table: table})
	}
	for name := range stale {
		t.FlushChain(&nftables.Chain{Name: name, Table: table})
	}
	for _, w := range want {
		w.Table = table
		had, there := has.elements[w.Name]
		if rewrite || !there {
			if err := t.AddSet(&w.Set, nil); err != nil {
				return false, fmt.Errorf("add set %s: %w", w.Name, err)
			}
		}
		if w.HasTimeout { // what is in there leaves by itself
			if replace {
				if err := n.add(t, w, remaining(had)); err != nil {
					return false, fmt.Errorf("carry set %s over: %w", w.Name, err)
				}
			}
			continue
		}
		if w.former != nil {
			if err := n.add(t, w.former, w.left(had)); err != nil {
				return false, fmt.Errorf("keep what leaves set %s: %w", w.Name, err)
			}
		}
		add, remove := w.difference(had)
		changed = changed || len(add)+len(remove) > 0
		if replace {
			add, remove = w.elements, nil
		}
		if err := n.change(t, w, add, remove); err != nil {
			return false, fmt.Errorf("update set %s: %w", w.Name, err)
		}
	}
	for _, w := range wantChains {
		if !rewrite {
			break
		}
		for _, r := range w.rules {
			t.AddRule(&nftables.Rule{Table: table, Chain: made[w.name], Exprs: r})
		}
	}
	for _, s := range staleSets {
		t.DelSet(s)
	}
	for name := range stale {
		t.DelChain(&nftables.Chain{Name: name, Table: table})
	}
	var more []netlink.Message
	if rewrite {
		if more, err = ownSourceRules(); err != nil {
			return false, err
		}
	}
	if err := t.commit(n.writer, flags, more...); err != nil {
		return false, fmt.Errorf("commit to nftables table %s: %w", tableName, err)
	}
	if rewrite {
		if n.showed, err = n.shown(); err != nil {
			return false, err
		}
		n.wrote = wrote
	}
	return changed || !now.exists || fresh, nil
}

// contents is what the table holds.
type contents struct {
	sets     []*nftables.Set
	elements map[string][]nftables.SetElement // by set
	chains   map[string]bool                  // but for own-source, which stays
	showed   [sha256.Size]byte                // sum of the rules
}

// read reads the contents from the kernel.
func (n *nft) read(table *nftables.Table) (has contents, err error) {
	c, err := n.open()
	if err != nil {
		return has, err
	}
	defer func() { _ = c.CloseLasting() }()
	if has.sets, err = c.GetSets(table); err != nil {
		return has, fmt.Errorf("list sets of nftables table %s: %w", tableName, err)
	}
	has.elements, has.chains = make(map[string][]nftables.SetElement, len(has.sets)), map[string]bool{}
	for _, s := range has.sets {
		s.Table = table
		if has.elements[s.Name], err = n.elements(c, s); err != nil {
			return has, err
		}
	}
	list, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return has, fmt.Errorf("list chains of nftables table %s: %w", tableName, err)
	}
	for _, ch := range list {
		if ch.Table.Name == tableName && ch.Name != chainOwnSource {
			has.chains[ch.Name] = true
		}
	}
	has.showed, err = n.shown()
	return has, err
}

// contentsOf is what a table that was written by d holds, but for elements that leave by themselves.
func contentsOf(d plan.DataPlane) contents {
	has := contents{elements: map[string][]nftables.SetElement{}, chains: map[string]bool{}}
	for _, s := range sets(d) {
		has.sets = append(has.sets, &s.Set)
		has.elements[s.Name] = s.elements
	}
	for _, ch := range chains(d) {
		has.chains[ch.name] = true
	}
	return has
}

// sameDataPlane compares what may be long without reflection.
func sameDataPlane(a, b *plan.DataPlane) bool {
	if !slices.Equal(a.Endpoints, b.Endpoints) || !slices.Equal(a.Ingress, b.Ingress) {
		return false
	}
	x, y := *a, *b
	x.Endpoints, y.Endpoints, x.Ingress, y.Ingress = nil, nil, nil, nil
	return reflect.DeepEqual(x, y)
}

// fingerprint sums up what is to be written into the chains.
func fingerprint(all []chain) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, c := range all {
		_, _ = fmt.Fprintf(h, "chain %s %d\n", c.name, c.priority)
		for _, r := range c.rules {
			for _, e := range r {
				b, err := expr.Marshal(unix.NFPROTO_INET, e)
				if err != nil {
					return sum, fmt.Errorf("encode %T: %w", e, err)
				}
				_, _ = h.Write(b)
			}
			_, _ = h.Write([]byte("\n"))
		}
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// shown sums up the rules that the kernel lists for the table, handles included: anybody's hand in them shows.
func (*nft) shown() (sum [sha256.Size]byte, err error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return sum, fmt.Errorf("open nftables socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	rules, err := conn.Execute(nftMessage(unix.NFT_MSG_GETRULE, netlink.Dump, encode(netlink.Attribute{
		Type: unix.NFTA_RULE_TABLE, Data: []byte(tableName + "\x00"),
	})))
	if err != nil {
		return sum, fmt.Errorf("list rules of nftables table %s: %w", tableName, err)
	}
	h := sha256.New()
	for _, r := range rules {
		_, _ = h.Write(r.Data[nfgenmsgLen:]) // that header holds the generation, which any table's change moves on
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// nfgenmsgLen is the length of struct nfgenmsg.
const nfgenmsgLen = 4

func containsSet(all []*set, name string) bool {
	for _, s := range all {
		if s.Name == name {
			return true
		}
	}
	return false
}

func (*nft) elements(c *nftables.Conn, s *nftables.Set) ([]nftables.SetElement, error) {
	elements, err := c.GetSetElements(s)
	if err != nil {
		return nil, fmt.Errorf("list elements of set %s: %w", s.Name, err)
	}
	if s.IsMap && s.DataType.Name == "" { // of what it lists, verdicts are the type that the library has no name for
		for i := range elements {
			verdictFromKernel(&elements[i])
		}
	}
	return elements, nil
}

// difference is what must be added to, and taken from, the elements that a set has.
func (w *set) difference(have []nftables.SetElement) (add, remove []nftables.SetElement) {
	old := make(map[string]nftables.SetElement, len(have))
	for _, e := range have {
		old[identity(e)] = e
	}
	for _, e := range w.elements {
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

// change queues a difference. Ranges are replaced whole: the kernel refuses half of one.
func (n *nft) change(t *transaction, w *set, add, remove []nftables.SetElement) error {
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
	return n.add(t, w, add)
}

// add queues elements of a set.
func (*nft) add(t *transaction, s *set, elements []nftables.SetElement) error {
	for ; len(elements) > 0; elements = elements[min(chunk, len(elements)):] {
		if err := t.SetAddElements(&s.Set, elements[:min(chunk, len(elements))]); err != nil {
			return err
		}
	}
	return nil
}

// remaining are elements that leave by themselves, for another set of the same kind: each for as long as it still has.
func remaining(elements []nftables.SetElement) []nftables.SetElement {
	elements = slices.Clone(elements)
	for i, e := range elements {
		elements[i].Timeout = max(e.Expires, time.Millisecond)
	}
	return elements
}

func (*nft) exists(c *nftables.Conn) (bool, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == tableName {
			return true, nil
		}
	}
	return false, nil
}

// paths reads the path ids in force.
func (n *nft) paths() (map[plan.PathKey]plan.PathID, error) {
	c, err := n.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.CloseLasting() }()
	exists, err := n.exists(c)
	if err != nil || !exists {
		return nil, err
	}
	s, err := c.GetSetByName(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}, setPaths)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read set %s: %w", setPaths, err)
	}
	elements, err := n.elements(c, s)
	if err != nil {
		return nil, err
	}
	paths := map[plan.PathKey]plan.PathID{}
	for _, e := range elements {
		if key, ok := parsePath(e.Comment); ok && len(e.Key) == 4 {
			paths[key] = plan.PathID(nativeUint32(e.Key))
		}
	}
	return paths, nil
}

// cleanup removes the table, unless it belongs to a daemon.
func (n *nft) cleanup() error {
	if err := n.claim(0); err != nil {
		return err
	}
	now, err := readTableState()
	if err != nil || !now.exists {
		return err
	}
	if now.owner != 0 && now.owner != n.writer.port {
		return OwnedError{now.owner}
	}
	t, err := newTransaction()
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	t.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName})
	if err := t.commit(n.writer, 0); err != nil {
		return fmt.Errorf("delete nftables table %s: %w", tableName, err)
	}
	n.inForce = nil
	return nil
}
