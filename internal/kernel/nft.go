package kernel

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// tableName is the name of our only nftables table, of family inet.
const tableName = "egressway"

// chunk is the number of elements per message: a netlink attribute holds 64 KiB.
const chunk = 500

// nft makes our nftables table equal to a plan, in one transaction. It remembers the rules that it wrote and how the
// kernel then listed them, to skip rules that need no change.
type nft struct {
	wrote   map[string][sha256.Size]byte // fingerprint of each chain's rules
	showed  [sha256.Size]byte            // fingerprint of the rules as the kernel listed them
	writer  *tableWriter
	claimed bool
	flags   uint32                       // flags that the table should have
	inForce *plan.DataPlane              // plan in force since the last apply; nil: that failed
	paths   map[plan.PathKey]plan.PathID // path ids of inForce
	missed  bool                         // the last apply found the table changed by another program
	doubted bool                         // the last apply could not assume that the table was unchanged
	trusted bool                         // no other program has changed the table since: set by trust
}

// open opens a socket for reading.
func (*nft) open() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(sendBuffer), c.SetReadBuffer(sendBuffer))
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	return c, nil
}

// claim finds out once which flags the kernel supports for the table, and opens the socket that will own it.
func (n *nft) claim(flags uint32) error {
	if n.claimed {
		return nil
	}
	if n.writer == nil {
		w, err := openTableWriter()
		if err != nil {
			return err
		}
		n.writer = w
	}
	if flags != 0 {
		if able, err := takesFlags(n.writer, flags); err != nil {
			return err
		} else if !able {
			flags = 0
		}
	}
	n.flags, n.claimed = flags, true
	return nil
}

// apply makes the table equal to the plan. Packets see the old rules or the new, never a mixture. It reports whether
// connections may now contradict the plan.
func (n *nft) apply(ctx context.Context, d plan.DataPlane) (changed bool, err error) {
	if err := n.claim(tableOwned); err != nil {
		return false, err
	}
	before := n.inForce
	n.inForce = nil
	changed, err = n.update(before, d, n.flags, false)
	if owned := (OwnedError{}); err != nil && !errors.As(err, &owned) && ctx.Err() == nil {
		// The table has an unknown shape: another version wrote it, or another program changed it. Replace it whole, at
		// once.
		if _, again := n.update(nil, d, n.flags, true); again != nil {
			return false, fmt.Errorf("replace nftables table %s: %w (after %w)", tableName, again, err)
		}
		changed, err = true, nil
	}
	if err == nil {
		if n.paths == nil || before == nil || !slices.EqualFunc(before.Paths, d.Paths, func(a, b plan.Path) bool { return a.ID == b.ID && a.Key == b.Key }) {
			n.paths = make(map[plan.PathKey]plan.PathID, len(d.Paths))
			for _, p := range d.Paths {
				n.paths[p.Key] = p.ID
			}
		}
		n.inForce = &d
	}
	return changed, err
}

func (n *nft) close() {
	if n.writer != nil {
		n.writer.close()
		n.writer, n.claimed, n.trusted = nil, false, false
	}
}

// update writes the difference between the table and the plan. If the table can only be changed by us, its content is
// that of the plan before; otherwise it is read. The table is replaced whole if its flags differ, which cannot be
// changed except to adopt an orphan, or if fresh asks for that; fresh also drops the elements with a timeout.
func (n *nft) update(before *plan.DataPlane, d plan.DataPlane, flags uint32, fresh bool) (changed bool, err error) {
	known := before != nil && !fresh && n.trusted
	now := tableState{exists: true, flags: flags}
	if !known {
		if now, err = readTableState(); err != nil {
			return false, err
		}
		if now.owner != 0 && now.owner != n.writer.port {
			return false, OwnedError{now.owner}
		}
		known = before != nil && now.owner == n.writer.port && !fresh
	}
	n.doubted, n.missed = !known, false
	rest := known && sameFixed(before, &d) // only addresses differ
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}
	t, err := newTransaction()
	if err != nil {
		return false, fmt.Errorf("begin transaction: %w", err)
	}
	if rest {
		addresses := between(before, &d)
		if !addresses.differs {
			return false, nil
		}
		t.batch = addresses.messages()
		if err := t.commit(n.writer, flags); err != nil {
			return false, fmt.Errorf("commit to nftables table %s: %w", tableName, err)
		}
		return true, nil
	}
	orphan := now.exists && now.flags == tablePersist
	replace := now.exists && (fresh || now.flags != flags && (!orphan || flags != tableOwned))

	c := tableChange{table: table, sets: sets(d), chains: chains(d), marks: d.Marks, hold: d.Hold, replace: replace}
	wrote, err := fingerprints(d.Marks, c.chains)
	if err != nil {
		return false, err
	}
	c.rewrite = !now.exists || replace || !maps.Equal(wrote, n.wrote)
	written := n.showed != [sha256.Size]byte{}
	n.missed = written && !now.exists
	switch {
	case known:
		c.has, c.addresses = contentsOf(*before), between(before, &d)
		c.keep = func(ch chain) bool { had, ok := n.wrote[ch.name]; return ok && !replace && had == wrote[ch.name] }
	case now.exists && !fresh:
		if c.has, err = n.read(table, &d); err != nil {
			return false, err
		}
		n.missed = written && c.has.showed != n.showed
		c.rewrite = c.rewrite || c.has.showed != n.showed
		fallthrough
	default:
		c.addresses = reach(c.has.addresses, &d, replace || !now.exists)
	}
	if orphan && !c.rewrite {
		t.AddTable(table)
	}
	if changed, err = c.queue(t); err != nil {
		return false, err
	}
	if err := t.commit(n.writer, flags); err != nil {
		return false, fmt.Errorf("commit to nftables table %s: %w", tableName, err)
	}
	if c.rewrite {
		if n.showed, err = n.shown(); err != nil {
			return false, err
		}
		n.wrote = wrote
	}
	return changed || !now.exists || fresh, nil
}

// sameFixed reports whether two plans differ in nothing but addresses. Slices that both plans share are not compared.
func sameFixed(a, b *plan.DataPlane) bool {
	if !sorted.SameSlice(a.Cluster, b.Cluster) || !sorted.SameSlice(a.Pods, b.Pods) || !sorted.SameSlice(a.Guests, b.Guests) {
		return false
	}
	x, y := *a, *b
	x.Endpoints, y.Endpoints = sorted.List[plan.Endpoint]{}, sorted.List[plan.Endpoint]{}
	x.Ingress, y.Ingress = sorted.List[plan.IngressIP]{}, sorted.List[plan.IngressIP]{}
	x.Let, y.Let = sorted.List[plan.Address]{}, sorted.List[plan.Address]{}
	x.Cluster, x.Pods, x.Guests, y.Cluster, y.Pods, y.Guests = nil, nil, nil, nil, nil, nil
	return reflect.DeepEqual(x, y)
}

// fingerprints returns a hash of the rules of each chain.
func fingerprints(m plan.Marks, all []chain) (map[string][sha256.Size]byte, error) {
	sums := make(map[string][sha256.Size]byte, len(all))
	for _, c := range all {
		h := sha256.New()
		_, _ = fmt.Fprintf(h, "chain %s %d %d %x\n", c.name, c.priority, c.ownOf, m.Mask)
		for _, r := range c.rules {
			for _, e := range r {
				b, err := expr.Marshal(unix.NFPROTO_INET, e)
				if err != nil {
					return nil, fmt.Errorf("encode %T: %w", e, err)
				}
				_, _ = h.Write(b)
			}
			_, _ = h.Write([]byte("\n"))
		}
		sums[c.name] = [sha256.Size]byte(h.Sum(nil))
	}
	return sums, nil
}

// shown returns a hash of the table's rules as the kernel lists them, with handles: any change by another program
// shows.
func (*nft) shown() (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	request := nftRequest(unix.NFT_MSG_GETRULE, netlink.Attribute{Type: unix.NFTA_RULE_TABLE, Data: []byte(tableName + "\x00")})
	if _, err := dumpTable(request, func(rule []byte) {
		_, _ = h.Write(rule[nfgenmsgLen:]) // that header contains the generation, which a change of any table increments
	}); err != nil {
		return sum, fmt.Errorf("list rules of nftables table %s: %w", tableName, err)
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

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
	if s.IsMap && s.DataType.Name == "" { // verdicts are the only listed type without a name in the library
		for i := range elements {
			verdictFromKernel(&elements[i])
		}
	}
	return elements, nil
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

// pathsInForce returns the path ids in force, from memory or from the kernel.
func (n *nft) pathsInForce() (map[plan.PathKey]plan.PathID, error) {
	if n.inForce != nil && n.trusted {
		return n.paths, nil
	}
	return n.readPaths()
}

// readPaths reads the path ids in force from the kernel.
func (n *nft) readPaths() (map[plan.PathKey]plan.PathID, error) {
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

// free returns an OwnedError if the table belongs to a daemon.
func (n *nft) free() error {
	if err := n.claim(0); err != nil {
		return err
	}
	now, err := readTableState()
	if err == nil && now.owner != 0 && now.owner != n.writer.port {
		err = OwnedError{now.owner}
	}
	return err
}

// cleanup removes the table, unless it belongs to a daemon.
func (n *nft) cleanup() error {
	if err := n.free(); err != nil {
		return err
	}
	if now, err := readTableState(); err != nil || !now.exists {
		return err
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
