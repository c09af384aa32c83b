package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/names"
	"github.com/egressway/egressway/internal/plan"
)

// Only its owner, a netlink socket, can change a table with an owner: "nft flush ruleset" of other programs skips it,
// and any other attempt fails with EPERM. When the owner closes, a table with the flag persist becomes an orphan, which
// is like any other table until the next owner adopts it. Without that flag the table is deleted with its owner
// (nft_rcv_nl_event, nf_tables_updtable in net/netfilter/nf_tables_api.c; owner since Linux 5.12, persist and adoption
// since 6.9).
const (
	tableOwner   = 0x2 // NFT_TABLE_F_OWNER
	tablePersist = 0x4 // NFT_TABLE_F_PERSIST
	tableOwned   = tableOwner | tablePersist

	attrTableOwner = 7 // NFTA_TABLE_OWNER: the port of the owner's socket
	probeName      = ruleset.TableName + "-probe"
)

// transaction collects changes of our table. The library encodes most of them; the socket that owns the table sends
// them.
type transaction struct {
	*nftables.Conn
	batch []netlink.Message // without the edges
}

func newTransaction() (*transaction, error) {
	t := &transaction{}
	// The library offers no other way to send its messages through a foreign socket.
	c, err := nftables.New(nftables.WithTestDial(func(batch []netlink.Message) ([]netlink.Message, error) {
		t.batch = append(t.batch, batch[1:len(batch)-1]...)
		return nil, io.EOF // no answers
	}))
	t.Conn = c
	return t, err
}

// raw appends encoded messages to the transaction.
func (t *transaction) raw(messages ...netlink.Message) error {
	if len(messages) == 0 {
		return nil
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("encode transaction: %w", err)
	}
	t.batch = append(t.batch, messages...)
	return nil
}

// commit sends the transaction. It sets the flags of created tables, which the library does not support.
func (t *transaction) commit(w *nl.Writer, flags uint32) error {
	if err := t.Flush(); err != nil {
		return err
	}
	for i, m := range t.batch {
		if m.Header.Type == netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE) {
			t.batch[i] = newTable(m.Data[0], ruleset.TableName, flags)
		}
	}
	return w.Commit(t.batch)
}

func newTable(family byte, name string, flags uint32) netlink.Message {
	m := nl.NftMessage(unix.NFT_MSG_NEWTABLE, netlink.Create, nl.EncodeAttrs(
		netlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: []byte(name + "\x00")},
		netlink.Attribute{Type: unix.NFTA_TABLE_FLAGS, Data: binary.BigEndian.AppendUint32(nil, flags)},
	))
	m.Data[0] = family
	return m
}

// tableOf returns one of our tables in the library's form.
func tableOf(t ruleset.Table) *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamily(t.Family()), Name: ruleset.TableName}
}

// HasEgressHook reports whether the kernel has the egress hook of devices (since Linux 5.16, CONFIG_NETFILTER_EGRESS). It
// creates and deletes a probe chain in one transaction.
func (n *Table) HasEgressHook() (bool, error) {
	probe := &nftables.Table{Family: nftables.TableFamilyNetdev, Name: probeName}
	return n.takes(&nftables.Chain{
		Name: ruleset.ChainShared, Table: probe, Hooknum: nftables.ChainHookEgress, Priority: priority(0),
		Type: nftables.ChainTypeFilter, Device: "lo",
	}, "the egress hook of devices")
}

// HasARP reports whether the kernel has nftables' family arp (CONFIG_NF_TABLES_ARP), as HasEgressHook does.
func (n *Table) HasARP() (bool, error) {
	probe := &nftables.Table{Family: nftables.TableFamilyARP, Name: probeName}
	return n.takes(&nftables.Chain{
		Name: ruleset.ChainAsked, Table: probe, Hooknum: ruleset.HookARPInput, Priority: priority(0), Type: nftables.ChainTypeFilter,
	}, "nftables' family arp")
}

// takes reports whether the kernel accepts a chain.
func (n *Table) takes(c *nftables.Chain, what string) (bool, error) {
	err := n.probe(c)
	if errno := unix.Errno(0); errors.As(err, &errno) { // which one depends on what the kernel lacks
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for %s: %w", what, err)
	}
	return true, nil
}

// probe creates and deletes a chain with one rule, or none, and its table in one transaction: that may load a module.
func (n *Table) probe(c *nftables.Chain, rule ...expr.Any) error {
	t, err := newTransaction()
	if err != nil {
		return err
	}
	t.AddTable(c.Table)
	t.AddChain(c)
	if len(rule) > 0 {
		t.AddRule(&nftables.Rule{Table: c.Table, Chain: c, Exprs: rule})
	}
	t.DelTable(c.Table)
	if err := t.Flush(); err != nil {
		return err
	}
	return n.writer.Commit(t.batch)
}

// supported returns the table flags, or 0 if the kernel does not support them.
func supported(w *nl.Writer, flags uint32) (uint32, error) {
	if flags == 0 {
		return 0, nil
	}
	able, err := takesFlags(w, flags)
	if err != nil || !able {
		return 0, err
	}
	return flags, nil
}

// takesFlags reports whether the kernel supports these table flags. It creates and deletes a probe table in one
// transaction.
func takesFlags(w *nl.Writer, flags uint32) (bool, error) {
	err := w.Commit([]netlink.Message{
		newTable(unix.NFPROTO_INET, probeName, flags),
		nl.NftMessage(unix.NFT_MSG_DELTABLE, 0, nl.EncodeAttrs(
			netlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: []byte(probeName + "\x00")},
		)),
	})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask for ownership of nftables tables: %w", err)
	}
	return true, nil
}

// State holds the kernel's attributes of one of our tables.
type State struct {
	Exists bool
	flags  uint32
	Owner  uint32 // port id of the owner's socket; 0: none
}

// orphan reports whether the table has lost its owner.
func (s State) orphan() bool { return s.Exists && s.flags == tablePersist }

func (State) any() bool { return true }

// suits reports whether the table needs no other flags than it has, or gets by adoption.
func (s State) suits(flags uint32) bool {
	adopt := s.orphan() && flags == tableOwned
	return !s.Exists || s.flags == flags || adopt
}

// states holds the attributes of our tables. The others exist only along with that of family inet.
type states map[ruleset.Table]State

func readStates() (states, error) {
	s := states{}
	for _, table := range ruleset.Tables() {
		one, err := readState(table)
		if err != nil {
			return nil, err
		}
		s[table] = one
	}
	return s, nil
}

// each returns the tables that exist and meet a condition.
func (s states) each(is func(State) bool) (all []*nftables.Table) {
	for _, table := range ruleset.Tables() {
		if one := s[table]; one.Exists && is(one) {
			all = append(all, tableOf(table))
		}
	}
	return all
}

// mustGo reports whether the tables have to be replaced whole to get these flags, or because fresh asks for that. Another table
// without that of family inet is a remainder.
func (s states) mustGo(flags uint32, fresh bool) bool {
	for _, one := range s {
		if one.Exists && (fresh || !s[ruleset.TableInet].Exists) || !one.suits(flags) {
			return true
		}
	}
	return false
}

// stranger returns an OwnedError if a socket other than port owns one of the tables.
func (s states) stranger(port uint32) error {
	for _, table := range ruleset.Tables() {
		if owner := s[table].Owner; owner != 0 && owner != port {
			return OwnedError{owner}
		}
	}
	return nil
}

// only reports whether the socket port owns the tables of a plan, so that no other program can have changed them.
func (s states) only(port uint32, d *plan.DataPlane) bool {
	for _, table := range ruleset.Tables() {
		one, needed := s[table], table.In(d)
		if one.Exists != needed || needed && one.Owner != port {
			return false
		}
	}
	return true
}

// ReadState reads the attributes of our table of family inet.
func ReadState() (State, error) { return readState(ruleset.TableInet) }

// readState reads the attributes of one of our tables.
func readState(table ruleset.Table) (s State, err error) {
	c, err := nl.DialNetfilter()
	if err != nil {
		return s, err
	}
	defer c.Close()
	name := netlink.Attribute{Type: unix.NFTA_TABLE_NAME, Data: []byte(ruleset.TableName + "\x00")}
	request := nl.NftRequest(unix.NFT_MSG_GETTABLE, name)
	request.Body[0] = table.Family()
	answers, err := c.Ask(request)
	if errors.Is(err, unix.ENOENT) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read nftables table %s: %w", ruleset.TableName, err)
	}
	for _, m := range answers {
		s.Exists = true
		for typ, value := range nl.Attrs(m, nl.NfgenmsgLen) {
			switch {
			case len(value) != 4:
			case typ == unix.NFTA_TABLE_FLAGS:
				s.flags = binary.BigEndian.Uint32(value)
			case typ == attrTableOwner:
				s.Owner = binary.BigEndian.Uint32(value)
			}
		}
	}
	return s, nil
}

// ReasonTableNotOwned is the reason of the Problem that this kernel does not support ownership of our table.
const ReasonTableNotOwned cluster.Reason = "TableNotOwned"

// Problems reports that other programs can change the table, and that answers of DNS cannot wait, if the kernel does not support that.
func (n *Table) Problems(node string) (all []cluster.Problem) {
	var release string
	if u := (unix.Utsname{}); unix.Uname(&u) == nil {
		release = unix.ByteSliceToString(u.Release[:])
	}
	if n.queueless() {
		all = append(all, cluster.Problem{
			Kind: "Node", Object: node, Field: "kernel", Value: release, Reason: names.ReasonNamesPolled,
			Message: "it has no nft_queue, so answers of DNS do not wait for our rules: pods may get an address before it is allowed, " +
				"and names with \"*.\" have no addresses; use a kernel with CONFIG_NFT_QUEUE, or load the module",
		})
	}
	if !n.claimed || n.flags != 0 {
		return all
	}
	return append(all, cluster.Problem{
		Kind: "Node", Object: node, Field: "kernel", Value: release, Reason: ReasonTableNotOwned,
		Message: "it cannot protect our nftables table from other programs, as Linux 6.9 and newer can: after nft flush ruleset, " +
			"selected pods leave by the main table until the table is restored, some milliseconds later",
	})
}

// OwnedError is the error that another process owns our tables: another daemon runs on this node.
type OwnedError struct{ Port uint32 }

func (e OwnedError) Error() string {
	who := fmt.Sprintf("the netlink socket %d", e.Port)
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", e.Port)); err == nil { // the first socket's port is the pid
		who = fmt.Sprintf("process %d (%s)", e.Port, strings.TrimSpace(string(name)))
	}
	return fmt.Sprintf("nftables table inet %s belongs to %s: another daemon runs on this node; stop it first", ruleset.TableName, who)
}
