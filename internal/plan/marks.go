package plan

import (
	"math/bits"

	"github.com/egressway/egressway/internal/config"
)

// Marks defines our bits of the packet mark and of the conntrack mark: the top bit of the mask means "egress", the
// others hold a path id. In a packet mark, all path bits without the egress bit mean "cluster": the main table.
// In a conntrack mark, egress and N is an egress flow on path N; N alone is a connection that came in by network N.
type Marks struct {
	Mask     uint32 `json:"mask"`
	Priority int    `json:"priority"` // of the first rule
}

func (m Marks) shift() int { return bits.TrailingZeros32(m.Mask) }

// EgressBit is the bit that marks egress.
func (m Marks) EgressBit() uint32 { return 1 << (31 - bits.LeadingZeros32(m.Mask)) }

// Egress is the mark of an egress packet on path id.
func (m Marks) Egress(id PathID) uint32 { return m.Ingress(id) | m.EgressBit() }

// Ingress is the conntrack mark of a connection that came in by the network of path id.
func (m Marks) Ingress(id PathID) uint32 { return uint32(id) << m.shift() }

// Cluster is the packet mark that means the main table.
func (m Marks) Cluster() uint32 { return m.Mask &^ m.EgressBit() }

// MaxPath is the largest path id that fits, also among the routing tables for steering.
func (m Marks) MaxPath() PathID {
	return PathID(config.Marks{Mask: m.Mask}.Paths())
}

// Path returns the path id in a mark of either kind.
func (m Marks) Path(mark uint32) PathID { return PathID((mark & m.Cluster()) >> m.shift()) }
