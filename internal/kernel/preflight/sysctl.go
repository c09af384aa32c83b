// Package preflight reports settings, other data planes and rivals that keep packets from our rules. It changes
// nothing.
package preflight

import (
	"fmt"
	"strconv"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/sysctl"
)

// Reasons of the Problems found in sysctls.
const (
	ReasonStrictReversePath cluster.Reason = "StrictReversePath"
	ReasonForwardingOff     cluster.Reason = "ForwardingOff"
)

// Sysctls reports kernel settings that break egress over the devices: uplinks, VRFs, the tunnel and those
// towards pods and nodes. It changes nothing, and skips devices that do not exist.
func Sysctls(node string, devices []string) []cluster.Problem {
	var problems []cluster.Problem
	problem := func(reason cluster.Reason, value int, message string, path ...string) {
		problems = append(problems, cluster.Problem{
			Kind: "Node", Object: node, Field: sysctl.Name(path...), Value: strconv.Itoa(value), Reason: reason, Message: message,
		})
	}
	for _, path := range [][]string{{"net", "ipv4", "ip_forward"}, {"net", "ipv6", "conf", "all", "forwarding"}} {
		if v, ok := sysctl.Read(path...); ok && v == 0 {
			problem(ReasonForwardingOff, v, "packets of pods are not forwarded; set it to 1", path...)
		}
	}
	all, _ := sysctl.Read("net", "ipv4", "conf", "all", "rp_filter")
	for _, device := range devices {
		// The stricter setting is not the larger number: the kernel uses the maximum, where 1 is strict and 2 is loose.
		path := []string{"net", "ipv4", "conf", device, "rp_filter"}
		if v, ok := sysctl.Read(path...); ok && max(v, all) == 1 {
			problem(ReasonStrictReversePath, v, fmt.Sprintf(
				"strict reverse path filtering on %s drops egress and its replies; "+
					"the maximum of this and net.ipv4.conf.all.rp_filter (%d) counts: set this to 2", device, all), path...)
		}
		path = []string{"net", "ipv4", "conf", device, "forwarding"}
		if v, ok := sysctl.Read(path...); ok && v == 0 {
			problem(ReasonForwardingOff, v, "packets that arrive by "+device+" are not forwarded; set it to 1", path...)
		}
	}
	return problems
}
