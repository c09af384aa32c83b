package cluster

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Member is an address of a pod that an EgressIP selects.
type Member struct {
	Addr      netip.Addr
	Node      string
	Namespace string // of the pod
}

// Compare orders members by address, then by namespace and node.
func (m Member) Compare(o Member) int {
	return cmp.Or(m.Addr.Compare(o.Addr), cmp.Compare(m.Namespace, o.Namespace), cmp.Compare(m.Node, o.Node))
}

// Selection finds the members of EgressIPs among the Pods of all nodes. A change of a Pod costs a comparison with each EgressIP; a
// change of an EgressIP or of a Namespace's labels reads all Pods again.
type Selection struct {
	ips        Map[Key, EgressIP]
	namespaces Map[string, Namespace]
	of         map[Key]map[Key][]Member // by EgressIP and Pod
}

// Update applies the differences to the objects of the call before. changed names the Pods that may differ. touched names the
// EgressIPs whose members may differ, or that are gone.
func (s *Selection) Update(
	ips Map[Key, EgressIP], namespaces Map[string, Namespace], pods Map[Key, Pod], changed map[Key]bool,
) (touched map[Key]bool) {
	touched = s.differing(ips, namespaces)
	s.ips, s.namespaces = ips, namespaces
	for key := range touched {
		delete(s.of, key)
	}
	if len(touched) > 0 {
		for pod, p := range pods.All() {
			for key := range touched {
				s.set(key, pod, p.membersOf(s, key, pod))
			}
		}
	}
	for pod := range changed {
		p := pods.At(pod)
		for key := range ips.Keys() {
			if now := p.membersOf(s, key, pod); !slices.Equal(now, s.of[key][pod]) {
				s.set(key, pod, now)
				touched[key] = true
			}
		}
	}
	return touched
}

// differing names the EgressIPs that select other Pods than before, by themselves or by the labels of Namespaces.
func (s *Selection) differing(ips Map[Key, EgressIP], namespaces Map[string, Namespace]) map[Key]bool {
	all := map[Key]bool{}
	relabelled := !namespaces.Same(s.namespaces) && !sameLabels(namespaces, s.namespaces)
	if !relabelled && ips.Same(s.ips) {
		return all
	}
	for key, e := range ips.All() {
		if was, had := s.ips.Get(key); !had || relabelled || !e.selectsAs(was) {
			all[key] = true
		}
	}
	for key := range s.ips.Keys() {
		if _, exists := ips.Get(key); !exists {
			all[key] = true
		}
	}
	return all
}

// sameLabels reports whether Namespaces have equal labels.
func sameLabels(a, b Map[string, Namespace]) bool {
	if a.Len() != b.Len() {
		return false
	}
	for name, n := range a.All() {
		if o, there := b.Get(name); !there || !maps.Equal(n.Labels, o.Labels) {
			return false
		}
	}
	return true
}

// selectsAs reports whether two EgressIPs select the same addresses of the same Pods.
func (e EgressIP) selectsAs(o EgressIP) bool {
	text := func(s labels.Selector) string {
		if s == nil {
			return "!" // no selector has this text
		}
		return s.String()
	}
	return e.IPv4 == o.IPv4 && e.IPv6 == o.IPv6 && text(e.Namespaces) == text(o.Namespaces) && text(e.Pods) == text(o.Pods)
}

// membersOf returns the members that a Pod contributes to an EgressIP.
func (p Pod) membersOf(s *Selection, key, pod Key) (all []Member) {
	e := s.ips.At(key)
	if p.Node == "" || !p.HoldsAddresses() {
		return nil
	}
	if !e.Selects(s.namespaces.At(pod.Namespace).Labels) || !e.Pods.Matches(labels.Set(p.Labels)) {
		return nil
	}
	for _, a := range p.Addresses {
		if e.Wants(a) {
			all = append(all, Member{a, p.Node, pod.Namespace})
		}
	}
	return all
}

func (s *Selection) set(key, pod Key, members []Member) {
	if len(members) == 0 {
		delete(s.of[key], pod)
		return
	}
	if s.of == nil {
		s.of = map[Key]map[Key][]Member{}
	}
	if s.of[key] == nil {
		s.of[key] = map[Key][]Member{}
	}
	s.of[key][pod] = members
}

// Of returns the members of an EgressIP, sorted, each once.
func (s *Selection) Of(key Key) (all []Member) {
	for _, members := range s.of[key] {
		all = append(all, members...)
	}
	slices.SortFunc(all, Member.Compare)
	return slices.Compact(all)
}

// Labels and annotations of EndpointSlices with members.
const (
	labelEgressIP    = "egressway.io/egressip" // the name of the EgressIP, or a digest of a long one; the annotation has the name
	managedByUs      = "egressway"
	mostMembers      = 1000                                       // of a slice, as an API server admits
	labelProxy       = "service.kubernetes.io/service-proxy-name" // kube-proxy does not watch objects that have it
	memberSliceTitle = "egressip-"
)

// MemberSlice is an EndpointSlice with members of an EgressIP, of one family.
type MemberSlice struct {
	Version uint64 // metadata.resourceVersion
	IPv6    bool
	Members []Member // sorted
}

// FromMemberSlice trims an EndpointSlice with members; egressIP is empty if it is no such slice.
func FromMemberSlice(o *discoveryv1.EndpointSlice) (egressIP string, s MemberSlice) {
	name := o.Annotations[labelEgressIP]
	if o.Labels[discoveryv1.LabelManagedBy] != managedByUs || name == "" || o.Labels[labelEgressIP] != labelOf(name) {
		return "", s
	}
	s.IPv6 = o.AddressType == discoveryv1.AddressTypeIPv6
	for i := range o.Endpoints {
		if m, ok := memberOf(&o.Endpoints[i]); ok && m.Addr.Is6() == s.IPv6 {
			s.Members = append(s.Members, m)
		}
	}
	slices.SortFunc(s.Members, Member.Compare)
	return name, s
}

// memberOf reads a member from an endpoint as EndpointSlice writes it; ok is false if the endpoint lacks a part of that.
func memberOf(e *discoveryv1.Endpoint) (m Member, ok bool) {
	if e.NodeName == nil || e.TargetRef == nil || len(e.Addresses) != 1 {
		return m, false
	}
	a, err := ParseAddr(e.Addresses[0])
	return Member{a, *e.NodeName, e.TargetRef.Namespace}, err == nil
}

// labelOf returns the value of the label for an EgressIP.
func labelOf(name string) string {
	if len(name) <= validation.LabelValueMaxLength {
		return name
	}
	return digestOf(name)
}

func digestOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:8])
}

// EndpointSlice returns the object for a slice with a name, in the daemon's namespace.
func (s MemberSlice) EndpointSlice(namespace, name, egressIP string) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels: map[string]string{
				discoveryv1.LabelManagedBy: managedByUs, labelEgressIP: labelOf(egressIP), labelProxy: managedByUs,
			},
			Annotations: map[string]string{labelEgressIP: egressIP},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: make([]discoveryv1.Endpoint, len(s.Members)),
	}
	if s.IPv6 {
		o.AddressType = discoveryv1.AddressTypeIPv6
	}
	for i, m := range s.Members {
		o.Endpoints[i] = discoveryv1.Endpoint{
			Addresses: []string{m.Addr.String()}, NodeName: &s.Members[i].Node,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: m.Namespace},
		}
	}
	return o
}

// PackMembers distributes the members of an EgressIP, sorted, to slices. Members stay in the slice that has them, so that a change
// writes few slices. It returns the slices to be written and the names of those to be deleted.
func PackMembers(egressIP string, have map[string]MemberSlice, want []Member) (put map[string]MemberSlice, gone []string) {
	put = map[string]MemberSlice{}
	for _, ipv6 := range []bool{false, true} {
		p := packingOf(ipv6, have, want)
		p.keep()
		p.fill(func(n int) string { return sliceName(egressIP, ipv6, n) })
		for name, members := range p.now {
			if was, had := p.have[name]; len(members) == 0 {
				gone = append(gone, name)
			} else if !had || !slices.Equal(was.Members, members) {
				put[name] = MemberSlice{IPv6: ipv6, Members: members}
			}
		}
	}
	slices.Sort(gone)
	return put, gone
}

// IsMemberSlice reports whether an EndpointSlice of a name, as PackMembers gives it, has members of an EgressIP.
func IsMemberSlice(name, egressIP string) bool {
	return strings.HasPrefix(name, memberSliceTitle+digestOf(egressIP)+"-")
}

func sliceName(egressIP string, ipv6 bool, n int) string {
	family := 4
	if ipv6 {
		family = 6
	}
	return fmt.Sprintf("%s%s-ipv%d-%d", memberSliceTitle, digestOf(egressIP), family, n)
}

// packing distributes members of one family.
type packing struct {
	have map[string]MemberSlice
	now  map[string][]Member
	left map[Member]bool // without a slice yet
}

// packingOf returns the packing of a family before any member has a slice.
func packingOf(ipv6 bool, have map[string]MemberSlice, want []Member) packing {
	p := packing{have: map[string]MemberSlice{}, now: map[string][]Member{}, left: map[Member]bool{}}
	for name, s := range have {
		if s.IPv6 == ipv6 {
			p.have[name] = s
		}
	}
	for _, m := range want {
		if m.Addr.Is6() == ipv6 {
			p.left[m] = true
		}
	}
	return p
}

// keep leaves members in their slices. If there are more than twice as many slices as are needed, the smallest gives its members away.
func (p *packing) keep() {
	names := slices.SortedFunc(maps.Keys(p.have), func(a, b string) int {
		return cmp.Or(len(p.have[b].Members)-len(p.have[a].Members), cmp.Compare(a, b))
	})
	needed := (len(p.left) + mostMembers - 1) / mostMembers
	for i, name := range names {
		p.now[name] = nil
		if i > 2*needed {
			continue
		}
		for _, m := range p.have[name].Members {
			if p.left[m] && len(p.now[name]) < mostMembers {
				p.now[name] = append(p.now[name], m)
				delete(p.left, m)
			}
		}
	}
}

// fill puts the other members into slices with room, and then into new ones.
func (p *packing) fill(name func(n int) string) {
	left := slices.SortedFunc(maps.Keys(p.left), Member.Compare)
	into := func(slice string) {
		n := min(mostMembers-len(p.now[slice]), len(left))
		if n > 0 {
			p.now[slice] = slices.SortedFunc(slices.Values(append(slices.Clip(p.now[slice]), left[:n]...)), Member.Compare)
			left = left[n:]
		}
	}
	for _, slice := range slices.Sorted(maps.Keys(p.now)) {
		if len(p.now[slice]) > 0 {
			into(slice)
		}
	}
	for n := 0; len(left) > 0; n++ {
		if _, used := p.now[name(n)]; !used || len(p.now[name(n)]) == 0 {
			into(name(n))
		}
	}
}
