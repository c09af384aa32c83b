// Package nft makes our nftables table equal to a plan, owns it, and reads its counters.
package nft

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/qos"
	"github.com/egressway/egressway/internal/sorted"
)

// chunk is the number of elements per message: a netlink attribute holds 64 KiB.
const chunk = 500

// pauseFrom is the number of messages, of up to chunk elements each, above which a transaction pauses the events.
const pauseFrom = 8

// Table makes our nftables table equal to a plan, in one transaction, before which another makes new sets of ranges. It keeps no plan:
// the caller hands it the Held of the last Result. It remembers fingerprints of the rules that it wrote and of those that the kernel then
// listed, to skip rules that need no change, and to notice changes by other programs.
type Table struct {
	wrote   map[string][sha256.Size]byte // fingerprint of each chain's rules
	showed  [sha256.Size]byte            // fingerprint of the rules as the kernel listed them
	writer  *nl.Writer
	claimed bool
	flags   uint32    // flags that the table should have
	queue   *bool     // whether the kernel has queues for packets; nil: no plan needed them yet
	asked   time.Time // when the kernel was last asked for queues

	// Without leaves out the chain of PathShared, since its device is missing: kernels before 6.16 refuse such a chain. The
	// tunnel's absence drops the packets.
	Without bool

	// Pause keeps the kernel from making events during one transaction, until resume, which gets whether it was committed. It
	// returns nil if no socket of ours listens. Table calls it for large transactions, if it is not nil.
	Pause func() (resume func(committed bool))

	// Names returns what a set of names holds when it is made. nil: nothing.
	Names func(ruleset.NameSet) []NameElement
}

// DeviceMade records that the device of PathShared was made again: kernels before 6.16 have deleted the chain along with it.
func (n *Table) DeviceMade() { delete(n.wrote, ruleset.ChainShared) }

// complete reports whether the chain of PathShared has been written, if the plan has one, and those that queue answers, if the plan has
// names and the kernel has queues.
func (n *Table) complete(d *plan.DataPlane) bool {
	_, shared := n.wrote[ruleset.ChainShared]
	_, queued := n.wrote[ruleset.ChainAnswers]
	return (shared || ruleset.SharedDevice(d) == "") && (queued || n.queueless() || !hasNames(d))
}

// Held is the content that our table was last written with. The zero Held is unknown content.
type Held struct {
	Data  *plan.DataPlane // not to be modified; nil: unknown
	Paths map[plan.PathKey]plan.PathID
}

// holding returns the Held of a table that holds d. It keeps the path ids of the former one if they are the same.
func (h Held) holding(d *plan.DataPlane) Held {
	sameID := func(a, b plan.Path) bool { return a.ID == b.ID && a.Key == b.Key }
	if h.Data != nil && slices.EqualFunc(h.Data.Paths, d.Paths, sameID) {
		return Held{Data: d, Paths: h.Paths}
	}
	paths := make(map[plan.PathKey]plan.PathID, len(d.Paths))
	for _, p := range d.Paths {
		paths[p.Key] = p.ID
	}
	return Held{Data: d, Paths: paths}
}

// Result is the outcome of Table.Apply.
type Result struct {
	Held
	Changed bool // connections may contradict the plan now
	Missed  bool // another program has changed the table
	Doubted bool // the table's former content could not be assumed
	Made    bool // the table was missing, also where it could not be made
}

// open opens a socket for reading.
func (*Table) open() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(nl.SendBuffer), c.SetReadBuffer(nl.SendBuffer))
	}))
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	return c, nil
}

// OpenWriter opens the socket that will own the table.
func (n *Table) OpenWriter() (err error) {
	n.writer, err = nl.OpenWriter()
	return err
}

// Port returns the port id of the socket that writes the table: events about its changes carry it.
func (n *Table) Port() uint32 { return n.writer.Port }

// Claim finds out once which flags the kernel supports for the table, and opens the socket that will own it.
func (n *Table) Claim(flags uint32) error {
	if n.claimed {
		return nil
	}
	if n.writer == nil {
		if err := n.OpenWriter(); err != nil {
			return err
		}
	}
	flags, err := supported(n.writer, flags)
	if err != nil {
		return err
	}
	n.flags, n.claimed = flags, true
	return nil
}

// Apply makes the table equal to the plan d. Packets see the old rules or the new, and for an instant the old rules with new elements. held
// is the content of the table as of the last Apply; trusted means that no event reported a change by another program since. With an error,
// the Result keeps only the path ids, for when the table is gone.
func (n *Table) Apply(ctx context.Context, held Held, d *plan.DataPlane, trusted bool) (Result, error) {
	if err := n.Claim(tableOwned); err != nil {
		return Result{Held: held}, err
	}
	if err := n.askForQueues(d, trusted); err != nil {
		return Result{Held: held}, err
	}
	r, err := n.update(held.Data, d, n.flags, trusted, false)
	if err != nil && ctx.Err() == nil {
		missing := r.Made
		r, err = n.replace(d, err)
		r.Made = r.Made || missing
	}
	if err != nil {
		return Result{Held: Held{Paths: held.Paths}, Made: r.Made}, err
	}
	r.Held = held.holding(d)
	return r, nil
}

// replace replaces the table whole, at once, after an update failed: it has an unknown shape, since another version wrote
// it, or another program changed it. A table that belongs to another daemon stays.
func (n *Table) replace(d *plan.DataPlane, failed error) (Result, error) {
	if owned := (OwnedError{}); errors.As(failed, &owned) {
		return Result{}, failed
	}
	r, err := n.update(nil, d, n.flags, false, true)
	if err != nil {
		return Result{}, fmt.Errorf("replace nftables table %s: %w (after %w)", ruleset.TableName, err, failed)
	}
	r.Changed = true
	return r, nil
}

// Close closes the socket that owns the table: the table becomes ownerless.
func (n *Table) Close() {
	if n.writer != nil {
		n.writer.Close()
		n.writer, n.claimed = nil, false
	}
}

// update writes the difference between the table and the plan. If the table can only be changed by us, its content is
// that of the plan before; otherwise it is read. The table is replaced whole if its flags differ, which cannot be
// changed except to adopt an orphan, or if fresh asks for that; fresh also drops the elements with a timeout.
func (n *Table) update(before, d *plan.DataPlane, flags uint32, trusted, fresh bool) (r Result, err error) {
	now, before, err := n.standing(before, flags, trusted, fresh)
	if err != nil {
		return r, err
	}
	r.Doubted, r.Made = before == nil, !now[ruleset.TableInet].Exists
	t, err := newTransaction()
	if err != nil {
		return r, fmt.Errorf("begin transaction: %w", err)
	}
	if before != nil && sameFixed(before, d) && n.complete(d) {
		r.Changed, err = n.updateAddresses(t, flags, between(before, d))
		return r, err
	}
	c, err := n.compare(now, before, d, flags, fresh)
	if err != nil {
		return r, err
	}
	r.Missed = c.missed
	ahead, err := n.prepare(&c, flags)
	if err != nil {
		return r, err
	}
	changed, err := n.write(&c, t, flags)
	if err != nil {
		return r, err
	}
	if c.rewrite {
		if n.showed, err = n.shown(); err != nil {
			return r, err
		}
		n.wrote = c.wrote
	}
	r.Changed = changed || ahead || r.Made || fresh || c.missed
	return r, nil
}

// prepare adopts orphaned tables that are not replaced, and makes the new sets that the rules of a change will look into. It reports
// whether there are any.
func (n *Table) prepare(c *tableChange, flags uint32) (ahead bool, err error) {
	if !c.replace {
		if err := n.adopt(c.now, flags); err != nil {
			return false, err
		}
	}
	t, err := newTransaction()
	if err != nil {
		return false, fmt.Errorf("begin transaction: %w", err)
	}
	if ahead, err = c.queueAhead(t); !ahead || err != nil {
		return false, err
	}
	return true, n.commit(t, flags)
}

// write writes a change, and then deletes what it made superfluous. It reports whether any elements changed.
func (n *Table) write(c *tableChange, t *transaction, flags uint32) (changed bool, err error) {
	if changed, err = c.queue(t); err != nil {
		return false, err
	}
	if err := n.commit(t, flags); err != nil {
		return false, err
	}
	return changed, n.finish(c, flags)
}

// finish deletes everything that the rules of a change do not need any more.
func (n *Table) finish(c *tableChange, flags uint32) error {
	t, err := newTransaction()
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	if gone, err := c.queueGone(t); !gone || err != nil {
		return err
	}
	return n.commit(t, flags)
}

// adopt makes tables without an owner ours, in a transaction of its own: the kernel refuses new base chains in one that changes a
// table's flags (nf_tables_addchain).
func (n *Table) adopt(now states, flags uint32) error {
	orphans := now.each(State.orphan)
	if len(orphans) == 0 {
		return nil
	}
	t, err := newTransaction()
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	for _, orphan := range orphans {
		t.AddTable(orphan)
	}
	return n.commit(t, flags)
}

// standing returns the tables' attributes, and the plan that they were written for: before, or nil if the tables may have
// changed since. It returns an OwnedError if a table belongs to another daemon.
func (n *Table) standing(before *plan.DataPlane, flags uint32, trusted, fresh bool) (states, *plan.DataPlane, error) {
	if before != nil && trusted && !fresh {
		there := states{}
		for _, table := range ruleset.Tables() {
			there[table] = State{Exists: table.In(before), flags: flags}
		}
		return there, before, nil
	}
	now, err := readStates()
	if err == nil {
		err = now.stranger(n.writer.Port)
	}
	if err != nil || fresh || before == nil || !now.only(n.writer.Port, before) {
		return now, nil, err
	}
	return now, before, nil
}

// updateAddresses writes a change of nothing but addresses.
func (n *Table) updateAddresses(t *transaction, flags uint32, addresses *elementChanges) (changed bool, err error) {
	if !addresses.differs {
		return false, nil
	}
	t.batch = addresses.messages()
	if err := n.commit(t, flags); err != nil {
		return false, err
	}
	return true, nil
}

// compare returns the change that makes the table equal to the plan d. The table was written for the plan before; if
// that is nil, compare reads it.
func (n *Table) compare(now states, before, d *plan.DataPlane, flags uint32, fresh bool) (c tableChange, err error) {
	exists := now[ruleset.TableInet].Exists
	c = tableChange{
		table: tableOf(ruleset.TableInet), now: now, plan: d,
		sets: ruleset.Sets(*d), chains: n.chains(d), marks: d.Marks, replace: now.mustGo(flags, fresh), fill: n.filler(d),
		unqueued: n.queueless(), has: noContents(),
	}
	if c.wrote, err = fingerprints(d.Marks, c.chains); err != nil {
		return c, err
	}
	c.rewrite = !exists || c.replace || !maps.Equal(c.wrote, n.wrote)
	written := n.showed != [sha256.Size]byte{}
	c.missed = written && !exists
	if before != nil {
		c.has, c.addresses, c.had = contentsOf(*before), between(before, d), n.wrote
		return c, nil
	}
	if exists && !fresh {
		if c.has, err = n.read(now, d); err != nil {
			return c, err
		}
		c.missed = written && c.has.showed != n.showed
		c.rewrite = c.rewrite || c.has.showed != n.showed
	}
	c.addresses = reach(c.has.addresses, d, c.replace || !exists)
	return c, nil
}

// chains returns the chains to write for a plan.
func (n *Table) chains(d *plan.DataPlane) []ruleset.Chain {
	all := ruleset.Chains(*d)
	if n.Without {
		all = slices.DeleteFunc(all, func(c ruleset.Chain) bool { return c.Name == ruleset.ChainShared })
	}
	if n.queueless() {
		all = slices.DeleteFunc(all, ofAnswers)
	}
	return all
}

func ofAnswers(c ruleset.Chain) bool {
	return c.Name == ruleset.ChainAnswers || c.Name == ruleset.ChainAnswered
}

// commit sends a transaction from the socket that owns the table.
func (n *Table) commit(t *transaction, flags uint32) error {
	err := t.Flush()
	if err == nil {
		resume := n.pause(len(t.batch))
		err = t.commit(n.writer, flags)
		resume(err == nil)
	}
	if err != nil {
		return fmt.Errorf("commit to nftables table %s: %w", ruleset.TableName, err)
	}
	return nil
}

// pause keeps the kernel from making events about a transaction of so many messages, if it is large. resume gets whether it was
// committed.
func (n *Table) pause(messages int) (resume func(committed bool)) {
	if messages > pauseFrom && n.Pause != nil {
		if resume := n.Pause(); resume != nil {
			return resume
		}
	}
	return func(bool) {}
}

// sameFixed reports whether two plans differ in nothing but addresses.
func sameFixed(a, b *plan.DataPlane) bool {
	x, y := *a, *b
	for _, d := range []*plan.DataPlane{&x, &y} {
		d.Endpoints, d.Ingress, d.Let = sorted.List[plan.Endpoint]{}, sorted.List[plan.IngressIP]{}, sorted.List[plan.Address]{}
		d.Marked, d.Firewalled = sorted.List[qos.Marked]{}, sorted.List[firewall.Firewalled]{}
		d.OnLink = sorted.List[plan.OnLink]{}
	}
	return sorted.Same(&x, &y) && ruleset.TableARP.In(a) == ruleset.TableARP.In(b)
}

// fingerprints returns a hash of the rules of each chain.
func fingerprints(m plan.Marks, all []ruleset.Chain) (map[string][sha256.Size]byte, error) {
	sums := make(map[string][sha256.Size]byte, len(all))
	for _, c := range all {
		h := sha256.New()
		_, _ = fmt.Fprintf(h, "chain %s %s %d %d %x\n", c.Name, c.Device, c.Priority, c.OwnOf, m.Mask)
		for _, r := range c.Rules {
			for _, e := range r {
				b, err := expr.Marshal(unix.NFPROTO_INET, e)
				if err != nil {
					return nil, fmt.Errorf("encode %T: %w", e, err)
				}
				_, _ = h.Write(b)
			}
			_, _ = h.Write([]byte("\n"))
		}
		sums[c.Name] = [sha256.Size]byte(h.Sum(nil))
	}
	return sums, nil
}

// shown returns a hash of the table's rules as the kernel lists them, with handles: any change by another program
// shows.
func (*Table) shown() (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, table := range ruleset.Tables() {
		name := netlink.Attribute{Type: unix.NFTA_RULE_TABLE, Data: []byte(ruleset.TableName + "\x00")}
		request := nl.NftRequest(unix.NFT_MSG_GETRULE, name)
		request.Body[0] = table.Family()
		if _, err := dumpTable(request, func(rule []byte) {
			_, _ = h.Write(rule[nl.NfgenmsgLen:]) // that header contains the generation, which a change of any table increments
		}); err != nil {
			return sum, fmt.Errorf("list rules of nftables table %s: %w", ruleset.TableName, err)
		}
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

func containsSet(all []*ruleset.Set, name string) bool {
	for _, s := range all {
		if s.Name == name {
			return true
		}
	}
	return false
}

func (*Table) elements(c *nftables.Conn, s *nftables.Set) ([]nftables.SetElement, error) {
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

func (*Table) exists(c *nftables.Conn) (bool, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("list nftables tables: %w", err)
	}
	for _, t := range tables {
		if t.Name == ruleset.TableName {
			return true, nil
		}
	}
	return false, nil
}

// ReadPaths reads the path ids in force from the kernel.
func (n *Table) ReadPaths() (map[plan.PathKey]plan.PathID, error) {
	c, err := n.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.CloseLasting() }()
	exists, err := n.exists(c)
	if err != nil || !exists {
		return nil, err
	}
	s, err := c.GetSetByName(&nftables.Table{Family: nftables.TableFamilyINet, Name: ruleset.TableName}, ruleset.SetPaths)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read set %s: %w", ruleset.SetPaths, err)
	}
	elements, err := n.elements(c, s)
	if err != nil {
		return nil, err
	}
	return pathsOf(elements), nil
}

// pathsOf returns the path ids that the elements of the set of paths have.
func pathsOf(elements []nftables.SetElement) map[plan.PathKey]plan.PathID {
	paths := map[plan.PathKey]plan.PathID{}
	for _, e := range elements {
		if key, ok := ruleset.ParsePath(e.Comment); ok && len(e.Key) == 4 {
			paths[key] = plan.PathID(ruleset.NativeUint32(e.Key))
		}
	}
	return paths
}

// Free returns an OwnedError if a table of ours belongs to a daemon.
func (n *Table) Free() error {
	_, err := n.free()
	return err
}

func (n *Table) free() (states, error) {
	if err := n.Claim(0); err != nil {
		return nil, err
	}
	now, err := readStates()
	if err == nil {
		err = now.stranger(n.writer.Port)
	}
	return now, err
}

// Cleanup removes our tables, unless they belong to a daemon.
func (n *Table) Cleanup() error {
	now, err := n.free()
	if err != nil || len(now.each(State.any)) == 0 {
		return err
	}
	return n.remove(now)
}

// remove deletes the tables that exist now.
func (n *Table) remove(now states) error {
	t, err := newTransaction()
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	for _, table := range now.each(State.any) {
		t.DelTable(table)
	}
	if err := t.commit(n.writer, 0); err != nil {
		return fmt.Errorf("delete nftables table %s: %w", ruleset.TableName, err)
	}
	return nil
}
