package kernel

import (
	"errors"
	"fmt"

	"github.com/egressway/egressway/internal/cluster"
)

// From what share of its limit on the table of connections counts as filling, and below which one no more. In between it
// stays what it was.
const (
	fillingFrom  = 80 // percent
	fillingUntil = 70
)

// ReasonConntrackTableFilling is of a Problem: soon the kernel may take no more connections.
const ReasonConntrackTableFilling cluster.Reason = "ConntrackTableFilling"

// Connections says how full this node's table of connections is.
type Connections struct{ Entries, Limit uint32 }

// Connections reads how full the table is. It costs microseconds: a netlink socket would not, see ctConn.
func (*Node) Connections() (Connections, error) {
	entries, known := sysctl("net", "netfilter", "nf_conntrack_count")
	limit, limited := sysctl("net", "netfilter", "nf_conntrack_max")
	if !known || !limited {
		return Connections{}, errors.New("read net.netfilter.nf_conntrack_count and nf_conntrack_max: connections are not tracked")
	}
	return Connections{uint32(entries), uint32(limit)}, nil
}

// Filling says whether the table is filling up, where it was before or was not.
func (c Connections) Filling(before bool) bool {
	share := uint64(c.Entries) * 100
	if before {
		return share >= uint64(c.Limit)*fillingUntil
	}
	return share >= uint64(c.Limit)*fillingFrom
}

// Problem tells of a table that is filling up.
func (c Connections) Problem(node string) cluster.Problem {
	return cluster.Problem{
		Kind: "Node", Object: node, Field: "net.netfilter.nf_conntrack_count", Value: fmt.Sprintf("%d of %d", c.Entries, c.Limit),
		Reason: ReasonConntrackTableFilling,
		Message: "the table of connections is filling up; when it is full the kernel drops what begins, of all pods on this node, selected or not: " +
			"raise net.netfilter.nf_conntrack_max",
	}
}
