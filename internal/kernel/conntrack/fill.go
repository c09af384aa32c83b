package conntrack

import (
	"errors"
	"fmt"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/sysctl"
)

// Fill levels, in percent of the limit, at which the connection table starts and stops counting as filling up. Between
// them the last answer stands.
const (
	fillingFrom  = 80
	fillingUntil = 70
)

// ReasonConntrackTableFilling is the reason of the Problem that the kernel may soon refuse new connections.
const ReasonConntrackTableFilling cluster.Reason = "ConntrackTableFilling"

// Connections is the number of entries in this node's connection table, and its limit.
type Connections struct{ Entries, Limit uint32 }

// CountConnections reads the fill level from /proc in microseconds. A netlink socket would cost more, see Conn.
func CountConnections() (Connections, error) {
	entries, known := sysctl.Read("net", "netfilter", "nf_conntrack_count")
	limit, limited := sysctl.Read("net", "netfilter", "nf_conntrack_max")
	if !known || !limited {
		return Connections{}, errors.New("read net.netfilter.nf_conntrack_count and nf_conntrack_max: connections are not tracked")
	}
	return Connections{uint32(entries), uint32(limit)}, nil
}

// Filling reports whether the table is filling up; before is the previous answer.
func (c Connections) Filling(before bool) bool {
	share := uint64(c.Entries) * 100
	if before {
		return share >= uint64(c.Limit)*fillingUntil
	}
	return share >= uint64(c.Limit)*fillingFrom
}

// Problem returns the Problem for a table that is filling up.
func (c Connections) Problem(node string) cluster.Problem {
	return cluster.Problem{
		Kind: "Node", Object: node, Field: "net.netfilter.nf_conntrack_count", Value: fmt.Sprintf("%d of %d", c.Entries, c.Limit),
		Reason: ReasonConntrackTableFilling,
		Message: "the connection table is filling up; once it is full, the kernel drops new connections of all pods on this node, " +
			"selected or not: raise net.netfilter.nf_conntrack_max",
	}
}
