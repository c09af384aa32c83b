package preflight

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
)

// RivalError is the error that another program on the node serves EgressServices.
type RivalError struct{ Table, Chain string }

func (e RivalError) Error() string {
	return fmt.Sprintf("OVN-Kubernetes serves EgressServices on this node (nftables chain %[1]s in table inet %[2]s), "+
		"and only one program may: run it without --enable-egress-service, then remove what it left: "+
		"nft delete chain inet %[2]s %[1]s", e.Chain, e.Table)
}

// OVN-Kubernetes creates these on a node when it runs with --enable-egress-service.
const (
	ovnTable = "ovn-kubernetes"
	ovnChain = "egress-services"
)

// CheckRival returns a RivalError if another program serves EgressServices on this node: both would fight for hosts,
// labels and source addresses.
func CheckRival() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables socket: %w", err)
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	rival := func(c *nftables.Chain) bool { return c.Table.Name == ovnTable && c.Name == ovnChain }
	if slices.ContainsFunc(chains, rival) {
		return RivalError{ovnTable, ovnChain}
	}
	return nil
}

// IsRival reports whether err is a RivalError, not a failure to look.
func IsRival(err error) bool {
	_, ok := errors.AsType[RivalError](err)
	return ok
}
