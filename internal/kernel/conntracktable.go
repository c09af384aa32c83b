package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
)

// Of the conntrack subsystem, what x/sys does not name (include/uapi/linux/netfilter/nfnetlink_conntrack.h).
const (
	ctGetStats      = 5 // IPCTNL_MSG_CT_GET_STATS
	ctGlobalEntries = 1 // CTA_STATS_GLOBAL_ENTRIES
	ctGlobalLimit   = 2 // CTA_STATS_GLOBAL_MAX_ENTRIES, since Linux 4.18
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

// Connections asks how full the table is. It is cheap.
func (*Node) Connections() (c Connections, err error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return c, fmt.Errorf("open conntrack socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	answers, err := conn.Execute(netlink.Message{
		// The kernel marks its answer as one of several, and ends it with nothing but the acknowledgement.
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_CTNETLINK<<8 | ctGetStats, Flags: netlink.Request | netlink.Acknowledge},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return c, fmt.Errorf("ask for the number of connections: %w", err)
	}
	for _, m := range answers {
		if m.Header.Type == netlink.Error {
			continue
		}
		for typ, value := range attrs(m.Data, nfgenmsgLen) {
			switch {
			case len(value) != 4:
			case typ == ctGlobalEntries:
				c.Entries = binary.BigEndian.Uint32(value)
			case typ == ctGlobalLimit:
				c.Limit = binary.BigEndian.Uint32(value)
			}
		}
	}
	if c.Limit == 0 {
		return c, errors.New("ask for the number of connections: the kernel does not tell the limit")
	}
	return c, nil
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
