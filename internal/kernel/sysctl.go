package kernel

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/egressway/egressway/internal/cluster"
)

// Reasons of the Problems found in sysctls.
const (
	ReasonStrictReversePath cluster.Reason = "StrictReversePath"
	ReasonForwardingOff     cluster.Reason = "ForwardingOff"
)

// sysctlRoot is the directory of the kernel's settings.
const sysctlRoot = "/proc/sys"

// sysctlProblems reports kernel settings that break egress over the devices: uplinks, VRFs, the tunnel and those
// towards pods and nodes. It changes nothing, and skips devices that do not exist.
func sysctlProblems(node string, devices []string) []cluster.Problem {
	var problems []cluster.Problem
	problem := func(reason cluster.Reason, value int, message string, path ...string) {
		problems = append(problems, cluster.Problem{
			Kind: "Node", Object: node, Field: sysctlName(path...), Value: strconv.Itoa(value), Reason: reason, Message: message,
		})
	}
	for _, path := range [][]string{{"net", "ipv4", "ip_forward"}, {"net", "ipv6", "conf", "all", "forwarding"}} {
		if v, ok := sysctl(path...); ok && v == 0 {
			problem(ReasonForwardingOff, v, "packets of pods are not forwarded; set it to 1", path...)
		}
	}
	all, _ := sysctl("net", "ipv4", "conf", "all", "rp_filter")
	for _, device := range devices {
		// The stricter setting is not the larger number: the kernel uses the maximum, where 1 is strict and 2 is loose.
		path := []string{"net", "ipv4", "conf", device, "rp_filter"}
		if v, ok := sysctl(path...); ok && max(v, all) == 1 {
			problem(ReasonStrictReversePath, v, fmt.Sprintf(
				"strict reverse path filtering on %s drops egress and its replies; the maximum of this and net.ipv4.conf.all.rp_filter (%d) counts: set this to 2",
				device, all), path...)
		}
		path = []string{"net", "ipv4", "conf", device, "forwarding"}
		if v, ok := sysctl(path...); ok && v == 0 {
			problem(ReasonForwardingOff, v, "packets that arrive by "+device+" are not forwarded; set it to 1", path...)
		}
	}
	return problems
}

// sysctl reads a number; ok is false if the setting does not exist.
func sysctl(path ...string) (value int, ok bool) {
	b, err := os.ReadFile(filepath.Join(append([]string{sysctlRoot}, path...)...))
	if err != nil {
		return 0, false
	}
	value, err = strconv.Atoi(strings.TrimSpace(string(b)))
	return value, err == nil
}

// sysctlName formats a path as sysctl(8) expects it: separated by dots, with slashes for the dots of a device's name.
func sysctlName(path ...string) string {
	names := make([]string, len(path))
	for i, p := range path {
		names[i] = strings.ReplaceAll(p, ".", "/")
	}
	return strings.Join(names, ".")
}
