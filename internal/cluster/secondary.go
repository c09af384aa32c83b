package cluster

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// Secondary holds the addresses of a node's interfaces that its Node object does not list.
type Secondary struct {
	// Beside holds the addresses of interfaces that also have an address of the Node object.
	Beside []netip.Addr `json:"beside,omitempty"`
	// Apart holds the addresses of other interfaces, such as one in a storage network.
	Apart []netip.Addr `json:"apart,omitempty"`
}

// SecondaryMost bounds the secondary addresses of a node. Other nodes neither steer nor translate packets to them, so a node
// can take only single destinations out of the reach of EgressServices, and only few.
const SecondaryMost = 64

// Len returns the number of addresses.
func (s Secondary) Len() int { return len(s.Beside) + len(s.Apart) }

// Equal reports whether two nodes' secondary addresses are the same.
func (s Secondary) Equal(o Secondary) bool {
	return slices.Equal(s.Beside, o.Beside) && slices.Equal(s.Apart, o.Apart)
}

// Sorted returns the addresses sorted, each once, and at most SecondaryMost of them: those beside first. dropped counts the
// others.
func (s Secondary) Sorted() (all Secondary, dropped int) {
	all.Beside = sortedAddrs(s.Beside)
	all.Apart = slices.DeleteFunc(sortedAddrs(s.Apart), func(a netip.Addr) bool { return slices.Contains(all.Beside, a) })
	dropped = max(all.Len()-SecondaryMost, 0)
	all.Beside = slices.Clip(all.Beside[:min(len(all.Beside), SecondaryMost)])
	all.Apart = slices.Clip(all.Apart[:min(len(all.Apart), SecondaryMost-len(all.Beside))])
	return all, dropped
}

func sortedAddrs(all []netip.Addr) []netip.Addr {
	all = slices.Clone(all)
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// ParseSecondary parses the JSON of a Secondary that another node wrote.
func ParseSecondary(text string) (s Secondary, err error) {
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return Secondary{}, fmt.Errorf("not the addresses of a node: %w", err)
	}
	if n := s.Len(); n > SecondaryMost {
		return Secondary{}, fmt.Errorf("%d addresses: at most %d", n, SecondaryMost)
	}
	for _, a := range slices.Concat(s.Beside, s.Apart) {
		if why := Unfit(a); why != "" {
			return Secondary{}, fmt.Errorf("%s is %s, not one of a node", a, why)
		}
	}
	return s, nil
}

// annotationHostCIDRs is OVN-Kubernetes' annotation of Nodes: a JSON list of all addresses of the node's interfaces, each with
// the length of its subnet's prefix.
const annotationHostCIDRs = "k8s.ovn.org/host-cidrs"

// secondary reads the secondary addresses in annotationHostCIDRs of a Node with the given addresses. The annotation names no
// interfaces: an address in the subnet of one of the Node's addresses counts as beside it.
func (f *findings) secondary(text string, listed []netip.Addr) Secondary {
	const field = "metadata.annotations[" + annotationHostCIDRs + "]"
	var prefixes []netip.Prefix
	if text == "" {
		return Secondary{}
	}
	if json.Unmarshal([]byte(text), &prefixes) != nil {
		f.add(field, text, ReasonInvalidValue, `a JSON list of addresses with the lengths of their prefixes, such as ["10.0.0.5/24"]`)
		return Secondary{}
	}
	s, dropped := apportion(prefixes, listed).Sorted()
	if dropped > 0 {
		f.add(field, strconv.Itoa(s.Len()+dropped), ReasonInvalidValue,
			"at most %d addresses besides those in status.addresses: the others do not count", SecondaryMost)
	}
	return s
}

// apportion sorts a node's addresses that are not listed into those in the subnet of a listed one, and others. It leaves out
// those that no node can have.
func apportion(prefixes []netip.Prefix, listed []netip.Addr) (s Secondary) {
	subnets := slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool {
		return p.Bits() <= 0 || p.IsSingleIP() || !slices.ContainsFunc(listed, p.Contains)
	})
	for _, p := range prefixes {
		a := p.Addr()
		switch {
		case Unfit(a) != "" || slices.Contains(listed, a):
		case slices.ContainsFunc(subnets, func(s netip.Prefix) bool { return s.Contains(a) }):
			s.Beside = append(s.Beside, a)
		default:
			s.Apart = append(s.Apart, a)
		}
	}
	return s
}
