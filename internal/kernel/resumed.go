package kernel

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Resumed reads from the nftables table of an earlier run the ingress IPs that another node is the host of, or was the host of
// before: connections from outside that began there go on there.
func (n *Node) Resumed() (addrs map[netip.Addr]bool, err error) {
	c, err := n.nft.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.CloseLasting() }()
	addrs = map[netip.Addr]bool{}
	for _, f := range families {
		s, err := c.GetSetByName(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}, setResumed+f.suffix)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read set %s: %w", setResumed+f.suffix, err)
		}
		elements, err := n.nft.elements(c, s)
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
