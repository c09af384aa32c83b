package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
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
)

// The sets of names hold addresses that come with answers of DNS, and that expire. A plan does not have them: Table fills a set when it
// makes it, and leaves it alone afterwards. So addresses outlive the daemon, and a change of the rules.

// NameElement is an address in a set of names, and the time after which it expires there.
type NameElement struct {
	Set     string
	Addr    netip.Addr
	Timeout time.Duration
}

// WriteNames adds elements to sets of names, or gives them a new timeout, in one transaction. The sets exist; if one does not, the error
// is ENOENT, and nothing changes. Any goroutine may call it.
func (n *Table) WriteNames(all []NameElement) error {
	if n.writer == nil {
		return fmt.Errorf("write addresses of names: %w", unix.ENOENT)
	}
	if err := n.writer.Commit(nameMessages(all)); err != nil {
		return fmt.Errorf("write addresses of names: %w", err)
	}
	return nil
}

// nameMessages returns the messages that add elements with their whole timeout. As for the former set, an element that may exist is added,
// removed and added again.
func nameMessages(all []NameElement) (messages []netlink.Message) {
	for len(all) > 0 {
		part := all[:1]
		for len(part) < min(len(all), chunk) && all[len(part)].Set == all[0].Set {
			part = all[:len(part)+1]
		}
		all = all[len(part):]
		messages = append(messages,
			nameMessage(unix.NFT_MSG_NEWSETELEM, part), nameMessage(unix.NFT_MSG_DELSETELEM, part),
			nameMessage(unix.NFT_MSG_NEWSETELEM, part))
	}
	return messages
}

// nameMessage returns a message about elements of one set.
func nameMessage(kind uint16, all []NameElement) netlink.Message {
	b := nl.AppendAttr(nil, unix.NFTA_SET_ELEM_LIST_TABLE, []byte(ruleset.TableName+"\x00")...)
	b = nl.AppendAttr(b, unix.NFTA_SET_ELEM_LIST_SET, []byte(all[0].Set+"\x00")...)
	b = nl.AppendNested(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(b []byte) []byte {
		for i := range all {
			b = appendName(b, kind, &all[i])
		}
		return b
	})
	flags := netlink.HeaderFlags(0)
	if kind == unix.NFT_MSG_NEWSETELEM {
		flags = netlink.Create
	}
	return nl.NftMessage(kind, flags, b)
}

// appendName appends an element to a list.
func appendName(b []byte, kind uint16, e *NameElement) []byte {
	return nl.AppendNested(b, unix.NFTA_LIST_ELEM, func(b []byte) []byte {
		b = nl.AppendNested(b, unix.NFTA_SET_ELEM_KEY, func(b []byte) []byte {
			return nl.AppendAttr(b, unix.NFTA_DATA_VALUE, e.Addr.AsSlice()...)
		})
		if kind != unix.NFT_MSG_NEWSETELEM {
			return b
		}
		milliseconds := uint64(max(e.Timeout, time.Millisecond).Milliseconds()) //nolint:gosec // positive
		return nl.AppendAttr(b, unix.NFTA_SET_ELEM_TIMEOUT, binary.BigEndian.AppendUint64(nil, milliseconds)...)
	})
}

// queueEvery is the least time between two questions for queues to a kernel that had none.
const queueEvery = time.Minute

// askForQueues finds out whether the kernel has queues for packets in rules (CONFIG_NFT_QUEUE), when the first plan has names. It asks a
// kernel that had none again when the table is not trusted, as in a full re-read: an operator may have loaded the module.
func (n *Table) askForQueues(d *plan.DataPlane, trusted bool) error {
	if known := n.queue != nil && (*n.queue || trusted || time.Since(n.asked) < queueEvery); known || !hasNames(d) {
		return nil
	}
	probe := &nftables.Table{Family: nftables.TableFamilyINet, Name: probeName}
	chain := &nftables.Chain{Name: ruleset.ChainAnswers, Table: probe}
	lacking, err := lacksQueues(n.probe(chain, &expr.Queue{Num: ruleset.QueueAnswers, Total: 1}))
	if err != nil {
		return err
	}
	n.queue, n.asked = new(!lacking), time.Now()
	return nil
}

// lacksQueues reports whether the error of a probe means that the kernel lacks the expression, or does not support it there.
func lacksQueues(probe error) (bool, error) {
	switch {
	case errors.Is(probe, unix.ENOENT), errors.Is(probe, unix.EOPNOTSUPP):
		return true, nil
	case probe != nil:
		return false, fmt.Errorf("ask for queues in nftables rules: %w", probe)
	}
	return false, nil
}

// hasNames reports whether some rules of a plan are for DNS names.
func hasNames(d *plan.DataPlane) bool {
	return slices.ContainsFunc(d.Policies, func(p firewall.Policy) bool { return p.HasNames() })
}

// queueless reports whether the kernel is known to have no such queues.
func (n *Table) queueless() bool { return n.queue != nil && !*n.queue }

// filler returns a function that returns the elements of a set of a plan that is being made, for the transaction that makes it.
func (n *Table) filler(d *plan.DataPlane) func(set string) []nftables.SetElement {
	return func(set string) (all []nftables.SetElement) {
		sets := ruleset.NameSets(d)
		i := slices.IndexFunc(sets, func(s ruleset.NameSet) bool { return s.Set == set })
		if i < 0 || n.Names == nil {
			return nil
		}
		for _, e := range n.Names(sets[i]) {
			all = append(all, nftables.SetElement{Key: e.Addr.AsSlice(), Timeout: max(e.Timeout, time.Millisecond)})
		}
		return all
	}
}

// HeldNames returns a firewall.Reads that reads the sets of names of the table when it first needs each of them. A set that is not there
// holds nothing.
func HeldNames() firewall.Reads {
	type contents struct {
		has map[string]string
		err error
	}
	read := map[string]contents{}
	return func(of firewall.PolicyID, stretch int, a netip.Addr) (bool, error) {
		set := ruleset.NameSetOf(of, stretch)
		c, known := read[set]
		if !known {
			if c.has, c.err = readElements(set, ruleset.TableInet); errors.Is(c.err, unix.ENOENT) {
				c.err = nil
			}
			read[set] = c
		}
		_, holds := c.has[string(a.AsSlice())]
		return holds, c.err
	}
}
