package walk

import (
	"bytes"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nft"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
)

// SharedHost is the node that PathShared has for a packet.
type SharedHost struct {
	Set string     // that has the MAC
	MAC plan.MAC   // zero: the set has none, or no rule looks it up
	At  netip.Addr // underlay address that the tunnel leads the MAC to; invalid: the tunnel drops the packet
}

// sharedHost looks up the host of a packet on PathShared; nil: its mark leads elsewhere.
func (l *Live) sharedHost(source netip.Addr, mark uint32) (*SharedHost, error) {
	path, ok := l.Path(l.Marks.Path(mark & l.Marks.Mask))
	if !ok || path.Key.Kind != plan.PathShared || len(path.Devices) == 0 {
		return nil, nil //nolint:nilnil // another path is no error
	}
	found := &SharedHost{Set: ruleset.SetHosts + Packet{From: source}.family().Suffix}
	if len(l.kernel.chains[ruleset.ChainShared]) == 0 {
		return found, nil
	}
	hosts, err := nft.ReadHosts(found.Set)
	if err != nil {
		return nil, err
	}
	if mac, ok := hosts[source]; ok {
		found.MAC = mac
		found.At, err = l.forwarded(path.Devices[0], mac)
	}
	return found, err
}

// forwarded returns the underlay address that a VXLAN device sends packets for a MAC to; invalid: it drops them.
func (l *Live) forwarded(device string, mac plan.MAC) (at netip.Addr, err error) {
	link, ok := l.Link(device)
	if !ok {
		return at, nil
	}
	entries, err := l.links.NeighList(link.Index, unix.AF_BRIDGE)
	if err != nil {
		return at, fmt.Errorf("list forwarding entries of %s: %w", device, err)
	}
	for i := range entries {
		if bytes.Equal(entries[i].HardwareAddr, mac[:]) {
			at, _ = netip.AddrFromSlice(entries[i].IP)
		}
	}
	return at.Unmap(), nil
}
