package ruleset

import (
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Rules that drop packets count the reason in a named counter, an object of the table. Such a counter survives when the
// rules are rewritten, one request reads all of them, and packets that pass never touch them.

// Drop is the reason why a rule drops a packet.
type Drop string

// Every drop is intended: it keeps a packet from leaving with the wrong source or by the wrong path.
const (
	DropNoPath    Drop = "no-path"    // from a selected pod without a host, a usable network, or an ingress IP of its family
	DropOtherPath Drop = "other-path" // from a selected pod, in a flow that began on another path, or on none
	DropUntracked Drop = "untracked"  // from a selected pod, without a connection known to the kernel: invalid or untracked
	DropUnclaimed Drop = "unclaimed"  // to an ingress IP, on a port that no Service has, or before any Service handles it
	DropOutside   Drop = "outside"    // from outside, straight to a pod's address
	DropFormer    Drop = "former"     // of a connection that ended with a change, or to an ingress IP that left this node
	DropGuest     Drop = "guest"      // from another node's pod that is not selected here, on its way out of the cluster
	DropGuard     Drop = "guard"      // about to leave with a source, or by a device, that its path does not have
	DropPodSource Drop = "pod-source" // about to leave by an uplink with a pod's own address
	DropFirewall  Drop = "firewall"   // begins a connection that the EgressFirewall of the pod's namespace denies
	DropHeld      Drop = "held"       // from a pod that may leave as an endpoint only, or that is not known yet
)

// drops lists all reasons.
var drops = []Drop{
	DropNoPath, DropOtherPath, DropUntracked, DropUnclaimed, DropOutside, DropFormer, DropGuest, DropGuard, DropPodSource, DropHeld,
	DropFirewall,
}

// Optional maps reasons that not every plan has to a chain that is there with them. Without it, the counter is not made.
var Optional = map[Drop]string{DropHeld: ChainHeld, DropFirewall: ChainFirewall}

// Drops returns all values of Drop.
func Drops() []Drop { return slices.Clone(drops) }

const dropPrefix = "drop-" // of the counters' names

// Counter returns the name of the counter in our table.
func (d Drop) Counter() string { return dropPrefix + string(d) }

// dropFor counts a packet and drops it.
func dropFor(why Drop) part {
	return part{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: dropPrefix + string(why)}, &expr.Verdict{Kind: expr.VerdictDrop}}
}
