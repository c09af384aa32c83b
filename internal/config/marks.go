package config

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// defaultMask holds bits that no program uses on a node that this daemon can serve, except Cilium's 0x0f00, whose eBPF data
// plane bypasses netfilter, and 0x2000, which the CNI plugin portmap sets in packets that it masquerades. A packet mark with that bit and
// no path id is not ours.
const defaultMask = 0x3f00

// markUser is a program that writes or reads bits of the fwmark or the conntrack mark.
type markUser struct {
	name string
	bits uint32
	use  string
}

// markUsers lists the programs of Kubernetes nodes whose bits are known. github.com/fwmark/registry collects such uses.
var markUsers = []markUser{
	// amazon-vpc-cni-k8s, pkg/networkutils/network.go: defaultConnmark, AWS_VPC_K8S_CNI_CONNMARK.
	{"aws-vpc-cni", 0x80, "returns by the primary interface"},
	// antrea, pkg/agent/types/marks.go: SNATIPMarkMask, and the bits 30 and 31.
	{"antrea", 0xc00000ff, "source of egress, traffic of the node"},
	// projectcalico, felix/config/config_params.go: IptablesMarkMask and NftablesMarkMask.
	{"calico", 0xffff0000, "its default iptablesMarkMask and nftablesMarkMask"},
	// cilium, pkg/datapath/linux/linux_defaults/mark.go: 4 bits of its own, and 24 bits of identity around them.
	{"cilium", 0xffff0fff, "identities, and traffic of its proxy"},
	// kubernetes, pkg/proxy/iptables: masquerade-bit 14, and 15 of kubelets before 1.28.
	{"kube-proxy", 0xc000, "0x4000 masquerades, 0x8000 drops"},
	// cloudnativelabs/kube-router, pkg/controllers/netpol: packets that a NetworkPolicy has allowed.
	{"kube-router", 0x30000, "NetworkPolicies"},
	// kube-vip, pkg/egress: the packets of its own egress.
	{"kube-vip", 0x40, "its egress"},
	// tailscale, tsconst/linuxfw.go: LinuxFwmarkMask.
	{"tailscale", 0xff0000, "traffic of subnet routes, and its own"},
	// weave, npc/constants.go and net/ipsec/ipsec.go.
	{"weave", 0x60000, "NetworkPolicies, IPsec"},
}

func (v *validator) marks() {
	m := v.c.Marks
	v.mask(m)
	if m.RulePriority < 1 || m.RulePriority > 899 {
		v.bad("marks.rulePriority", "1 to 899: our 100 priorities must end before the kernel's VRF rule at 1000")
	}
}

func (v *validator) mask(m Marks) {
	allowed := v.allowedConflicts()
	taken := takenBits(m.Mask, allowed)
	switch most := m.Paths(); {
	case !enoughInARow(m.Mask):
		v.bad("marks.mask", "at least 4 bits in a row are needed, such as %s", freeMasks(allowed))
	case len(taken) > 0:
		v.bad("marks.mask", "these bits are in use: %s; choose free ones, %s, or list in marks.allowConflicts "+
			"the programs that do not run on these nodes or leave these bits alone", strings.Join(taken, ", "), freeMasks(allowed))
	case len(v.c.Networks) > most:
		v.bad("networks", "%d networks, the default one among them, but marks.mask %#x has room for %d: list fewer, or widen the mask",
			len(v.c.Networks), m.Mask, most)
	}
}

// enoughInARow reports whether the bits of a mask are at least 4, without gaps.
func enoughInARow(mask uint32) bool {
	n := bits.OnesCount32(mask)
	return n >= 4 && bits.Len32(mask)-bits.TrailingZeros32(mask) == n
}

// allowedConflicts returns the programs of marks.allowConflicts, and reports unknown ones.
func (v *validator) allowedConflicts() map[string]bool {
	allowed, seen := map[string]bool{}, map[string]string{}
	for i, name := range v.c.Marks.AllowConflicts {
		path := fmt.Sprintf("marks.allowConflicts[%d]", i)
		if !slices.ContainsFunc(markUsers, func(u markUser) bool { return u.name == name }) {
			v.bad(path, "one of %s", userNames())
			continue
		}
		v.unique(seen, name, path, "this program is listed twice")
		allowed[name] = true
	}
	return allowed
}

// userNames lists the names of all markUsers.
func userNames() string {
	names := make([]string, len(markUsers))
	for i, u := range markUsers {
		names[i] = u.name
	}
	return strings.Join(names, ", ")
}

// takenBits describes the bits of a mask that belong to known programs, without the bits of the default mask.
func takenBits(mask uint32, allowed map[string]bool) (taken []string) {
	for _, u := range markUsers {
		if common := mask & u.bits &^ defaultMask; common != 0 && !allowed[u.name] {
			taken = append(taken, fmt.Sprintf("%#x by %s (%s)", common, u.name, u.use))
		}
	}
	return taken
}

// freeMasks lists the longest masks without bits of known programs that are not allowed to conflict.
func freeMasks(allowed map[string]bool) string {
	free := ^uint32(0)
	for _, u := range markUsers {
		if !allowed[u.name] {
			free &^= u.bits
		}
	}
	free |= defaultMask
	var masks []string
	for free != 0 {
		low := bits.TrailingZeros32(free)
		n := bits.TrailingZeros32(^(free >> low)) // 32 if all bits are free
		run := uint32(1<<n-1) << low
		if n >= 4 {
			masks = append(masks, fmt.Sprintf("%#x", run))
		}
		free &^= run
	}
	return strings.Join(masks, " or ")
}
