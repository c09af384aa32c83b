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
		s, err := c.GetSetByName(&nftables.Table{Family: nftables.TableFamilyINet, Name: ruleset.TableName}, ruleset.SetResumed+f.Suffix)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read set %s: %w", ruleset.SetResumed+f.Suffix, err)
		}
		elements, err := n.elements(c, s)
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
