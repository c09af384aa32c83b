package kernel

import (
	"context"
	"hash/maphash"
	"net/netip"

	"github.com/egressway/egressway/internal/plan"
)

// PortsMost is how many connections of one protocol an address can have with one port of one remote address: what the kernel
// chooses from for a source port that is not privileged (nf_nat_l4proto_unique_tuple).
const PortsMost = 65536 - 1024

// PortUse is how the connections of one source address use its ports.
type PortUse struct {
	Flows int // connections, with whomever
	Ports int // of them, the most with one port of one remote address, of one protocol
}

// CountPorts counts the egress flows that leave by this node with another source, by that source. The kernel goes through its
// whole table of connections for it, and tells of those that are ours.
func CountPorts(ctx context.Context, m plan.Marks) (map[netip.Addr]PortUse, error) {
	c := newPortCount()
	err := ListFlows(ctx, m, func(f Flow) bool { c.add(f); return true })
	return c.of, err
}

// portCount counts flows by where they go in as much memory for a million as for one: two rows of numbers, each flow being
// one of each row. The smaller one is what it has in common with others of its kind, and seldom with some others (count-min).
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
