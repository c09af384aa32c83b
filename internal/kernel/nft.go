package kernel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

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
}

func (*nft) open() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(sendBuffer), c.SetReadBuffer(sendBuffer))
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	return c, nil
}

// apply brings the table to the plan. Packets see the old rules or the new, never a mixture. It says whether
// connections may now disagree with the plan.
func (n *nft) apply(ctx context.Context, d plan.DataPlane) (changed bool, err error) {
	c, err := n.open()
	if err != nil {
		return false, err
	}
	defer func() { _ = c.CloseLasting() }()
	if changed, err = n.update(c, d, false); err == nil || ctx.Err() != nil {
		return changed, err
	}
	// The table is not of the shape we know: another version's, or somebody's hand was in it. Replace it whole, at once.
	if _, again := n.update(c, d, true); again != nil {
		return false, fmt.Errorf("replace nftables table %s: %w (after %w)", tableName, again, err)
	}
	return true, nil
}

func (n *nft) update(c *nftables.Conn, d plan.DataPlane, fresh bool) (changed bool, err error) {
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}
	have := map[string][]nftables.SetElement{}
	stale := map[string]bool{}
	var staleSets []*nftables.Set
	exists := false
	if !fresh {
		if exists, err = n.exists(c); err != nil {
			return false, err
		}
	}
	want, wantChains := sets(d), chains(d)
	wrote, err := fingerprint(wantChains)
	if err != nil {
		return false, err
	}
	rewrite := !exists || wrote != n.wrote
	if exists {
		present, err := c.GetSets(table)
		if err != nil {
			return false, fmt.Errorf("list sets of nftables table %s: %w", tableName, err)
		}
		for _, s := range present {
			s.Table = table
			elements, err := n.elements(c, s)
			if err != nil {
				return false, err
			}
			have[s.Name] = elements
			if !containsSet(want, s.Name) {
				staleSets = append(staleSets, s)
			}
		}
		list, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
		if err != nil {
			return false, fmt.Errorf("list chains of nftables table %s: %w", tableName, err)
		}
		for _, ch := range list {
			if ch.Table.Name == tableName && ch.Name != chainOwnSource {
				stale[ch.Name] = true
			}
		}
		showed, err := n.shown()
		if err != nil {
			return false, err
		}
		rewrite = rewrite || showed != n.showed
	}

	if fresh {
		c.AddTable(table)
		c.DelTable(table)
	}
	if rewrite {
		c.AddTable(table)
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
		made[w.name] = c.AddChain(ch)
		c.FlushChain(ch)
	}
	if rewrite {
		c.AddChain(&nftables.Chain{Name: chainOwnSource, Table: table})
	}
	for name := range stale {
		c.FlushChain(&nftables.Chain{Name: name, Table: table})
	}
	for _, w := range want {
		w.Table = table
		if _, there := have[w.Name]; rewrite || !there {
			if err := c.AddSet(&w.Set, nil); err != nil {
				return false, fmt.Errorf("add set %s: %w", w.Name, err)
			}
		}
		if w.HasTimeout {
			continue // what is in there leaves by itself
		}
		if err := n.keep(c, w.former, w.left(have[w.Name])); err != nil {
			return false, fmt.Errorf("keep what leaves set %s: %w", w.Name, err)
		}
		differs, err := n.updateElements(c, w, have[w.Name])
		if err != nil {
			return false, fmt.Errorf("update set %s: %w", w.Name, err)
		}
		changed = changed || differs
	}
	for _, w := range wantChains {
		if !rewrite {
			break
		}
		for _, r := range w.rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: made[w.name], Exprs: r})
		}
	}
	for _, s := range staleSets {
		c.DelSet(s)
	}
	for name := range stale {
		c.DelChain(&nftables.Chain{Name: name, Table: table})
	}
	if err := c.Flush(); err != nil {
		return false, fmt.Errorf("commit to nftables table %s: %w", tableName, err)
	}
	if err := addOwnSource(); err != nil {
		return false, err
	}
	if rewrite {
		if n.showed, err = n.shown(); err != nil {
			return false, err
		}
		n.wrote = wrote
	}
	return changed || !exists, nil
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

// updateElements queues the difference. Ranges are replaced whole: the kernel refuses half of one.
func (*nft) updateElements(c *nftables.Conn, w *set, have []nftables.SetElement) (changed bool, err error) {
	old := make(map[string]nftables.SetElement, len(have))
	for _, e := range have {
		old[identity(e)] = e
	}
	var add, remove []nftables.SetElement
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
	if len(add)+len(remove) == 0 {
		return false, nil
	}
	if w.Interval {
		c.FlushSet(&w.Set)
		add, remove = w.elements, nil
	}
	for ; len(remove) > 0; remove = remove[min(chunk, len(remove)):] {
		if err := c.SetDeleteElements(&w.Set, remove[:min(chunk, len(remove))]); err != nil {
			return false, err
		}
	}
	for ; len(add) > 0; add = add[min(chunk, len(add)):] {
		if err := c.SetAddElements(&w.Set, add[:min(chunk, len(add))]); err != nil {
			return false, err
		}
	}
	return true, nil
}

// keep queues elements of a set of former ones.
func (*nft) keep(c *nftables.Conn, former *set, left []nftables.SetElement) error {
	for ; len(left) > 0; left = left[min(chunk, len(left)):] {
		if err := c.SetAddElements(&former.Set, left[:min(chunk, len(left))]); err != nil {
			return err
		}
	}
	return nil
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

// cleanup removes the table.
func (n *nft) cleanup() error {
	c, err := n.open()
	if err != nil {
		return err
	}
	defer func() { _ = c.CloseLasting() }()
	exists, err := n.exists(c)
	if err != nil || !exists {
		return err
	}
	c.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("delete nftables table %s: %w", tableName, err)
	}
	return nil
}
