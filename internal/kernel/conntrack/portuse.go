package conntrack

import (
	"context"
	"hash/maphash"
	"net/netip"

	"github.com/egressway/egressway/internal/plan"
)

// PortsMost is the most connections of one protocol that an address can have with one port of one remote address: the
// kernel chooses among the unprivileged source ports (nf_nat_l4proto_unique_tuple).
const PortsMost = 65536 - 1024

// PortUse describes how the connections of one source address use its ports.
type PortUse struct {
	Flows int // all connections
	Ports int // the most connections with one port of one remote address, of one protocol
}

// CountPorts counts the egress flows that leave this node with SNAT, by their source after SNAT. The kernel walks its
// whole connection table for that, and sends the entries that are ours.
func CountPorts(ctx context.Context, m plan.Marks) (map[netip.Addr]PortUse, error) {
	c := newPortCount()
	err := ListFlows(ctx, m, func(f Flow) bool { c.add(f); return true })
	return c.of, err
}

// portCount counts flows by destination, in as much memory for a million as for one: in two rows of counters, each flow
// increments one of each row. The smaller of its two counters is the number of flows with its destination, seldom plus
// some others (count-min sketch).
type portCount struct {
	of    map[netip.Addr]PortUse
	rows  [2][1 << 16]uint32
	seeds [2]maphash.Seed
}

func newPortCount() *portCount {
	return &portCount{of: map[netip.Addr]PortUse{}, seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}}
}

func (c *portCount) add(f Flow) {
	kind := struct {
		proto uint8
		src   netip.Addr
		dst   netip.AddrPort
	}{f.Proto, f.SNAT.Addr(), f.Dst}
	least := ^uint32(0)
	for i := range c.rows {
		n := &c.rows[i][maphash.Comparable(c.seeds[i], kind)%uint64(len(c.rows[i]))]
		*n++
		least = min(least, *n)
	}
	u := c.of[kind.src]
	u.Flows++
	u.Ports = max(u.Ports, int(least))
	c.of[kind.src] = u
}
