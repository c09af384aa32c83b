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
	allMark, _ := sysctl.Read("net", "ipv4", "conf", "all", "src_valid_mark")
	for _, device := range devices {
		// The stricter setting is not the larger number: the kernel uses the maximum, where 1 is strict and 2 is loose.
		path := []string{"net", "ipv4", "conf", device, "rp_filter"}
		v, ok := sysctl.Read(path...)
		mark, _ := sysctl.Read("net", "ipv4", "conf", device, "src_valid_mark")
		switch filter := max(v, all); {
		case !ok || filter == 0:
		case max(mark, allMark) != 0:
			// With a packet's mark, the filter searches the network's table for the packet's source (__fib_validate_source).
			problem(ReasonStrictReversePath, v, fmt.Sprintf(
				"with src_valid_mark 1 on %s or on all, reverse path filtering, also the loose one, drops packets of pods whose network "+
					"has no route to them: set src_valid_mark to 0 on both and this to 2, or rp_filter to 0 on both", device), path...)
		case filter == 1:
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
