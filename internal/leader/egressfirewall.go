package leader

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/firewall"
)

// The texts of an EgressFirewall's status, as OVN-Kubernetes writes them: users wait for them.
const (
	firewallApplied    = "EgressFirewall Rules applied"
	firewallNotApplied = "EgressFirewall Rules not correctly applied"
)

const conditionProgrammed = "Programmed"

// egressFirewalls is the kind of EgressFirewalls.
var egressFirewalls = textKind[cluster.EgressFirewall]{
	kind:    cluster.KindEgressFirewall,
	objects: func(o cluster.Objects) cluster.Map[cluster.Key, cluster.EgressFirewall] { return o.EgressFirewalls },
	applied: func(r cluster.Report) applied { return applied{r.EgressFirewalls, r.Firewalled} },
	status:  firewallStatus,
	inForce: conditionProgrammed,
	note: func(e cluster.EgressFirewall, servers []netip.AddrPort, nodes cluster.Map[string, cluster.Node]) string {
		return firewall.DeniesAPIServer(&e, servers, nodes)
	},
}

// firewallStatus returns the status of an EgressFirewall.
func firewallStatus(m cluster.Meta, is standing) cluster.TextStatus {
	w := textWriter{TextStatus: cluster.TextStatus{Text: firewallApplied}, generation: m.Generation, otherwise: firewallNotApplied}
	if len(is.behind) > 0 {
		w.condition(conditionProgrammed, "Pending", "not in force yet on "+listed(is.behind), false)
	} else {
		w.condition(conditionProgrammed, "Applied", "in force on all nodes that report", true)
	}
	w.valid(is)
	w.Messages = firewallMessages(is)
	return w.TextStatus
}

// firewallMessages returns a message for each node that is behind, then for those that hold pods of the namespace; at most
// namesMost, and the number of the others. With the CRD of OVN-Kubernetes, which has no conditions, they alone hold the reasons.
func firewallMessages(is standing) (all []string) {
	message := firewallApplied
	if len(is.problems) > 0 {
		message = firewallNotApplied + ": " + faults(is.problems[:1])[0]
		if more := len(is.problems) - 1; more > 0 {
			message += fmt.Sprintf(" and %d more faults", more)
		}
	}
	for _, node := range is.behind {
		all = append(all, node+": "+firewallNotApplied+": not in force yet")
	}
	for _, node := range is.holders {
		if _, behind := slices.BinarySearch(is.behind, node); !behind {
			all = append(all, node+": "+message)
		}
	}
	if more := len(all) - namesMost; more > 0 {
		all = append(all[:namesMost], fmt.Sprintf("and %d more", more))
	}
	return all
}
