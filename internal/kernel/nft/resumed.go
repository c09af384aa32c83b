package nft

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/ruleset"
)

// Resumed reads from the nftables table of an earlier run the ingress IPs that another node is the host of, or was the host of
// before: connections from outside that began there go on there.
func (n *Table) Resumed() (addrs map[netip.Addr]bool, err error) {
	c, err := n.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.CloseLasting() }()
	addrs = map[netip.Addr]bool{}
	for _, f := range ruleset.Families {
		elements, err := n.elementsOf(c, ruleset.SetResumed+f.Suffix)
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			if a, ok := netip.AddrFromSlice(e.Key); ok {
				addrs[a] = true
			}
		}
	}
	return addrs, nil
}

// elementsOf reads the elements of a set. A missing set has none.
func (n *Table) elementsOf(c *nftables.Conn, set string) ([]nftables.SetElement, error) {
	s, err := c.GetSetByName(&nftables.Table{Family: nftables.TableFamilyINet, Name: ruleset.TableName}, set)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read set %s: %w", set, err)
	}
	return n.elements(c, s)
}
