package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	egressv1 "github.com/egressway/egressway/api/v1"
)

// EgressIP is the part of the custom resource that is read.
type EgressIP struct {
	Created    time.Time       // zero: unknown
	Addresses  []netip.Addr    // the usable ones, each once, in the order of the spec
	IPv4, IPv6 bool            // families that the spec names an address of, usable or not
	Namespaces labels.Selector // nil: no namespace
	Pods       labels.Selector // nil: no pod
	Holders    []Holder        // by its status, that is in force

	// An API server has these for the leader; manifests leave them empty.
	UID        string
	Version    uint64             // metadata.resourceVersion
	Spec       uint64             // a digest of the spec: the generation grows with each write of the status
	Conditions []metav1.Condition // of its status
	Writer     Writer             // of the server's items
	Disobeyed  []Holder           // the server's, where daemons do not follow them, see Writer; nil: they are Holders
}

// Stands returns the nodes that have the addresses by the source, whether they are in force or not.
func (e EgressIP) Stands() []Holder {
	if e.Disobeyed != nil {
		return e.Disobeyed
	}
	return e.Holders
}

// Holder names the nodes that have an address, by the status of an EgressIP.
type Holder struct {
	Addr    netip.Addr
	Host    string
	Standby string // empty: none
	Term    int64  // 0: not known
}

// Wants reports whether pods of a family are selected: the object names an address of the family.
func (e EgressIP) Wants(a netip.Addr) bool { return a.Is4() && e.IPv4 || a.Is6() && e.IPv6 }

// Holder returns the nodes that have an address; zero: none have.
func (e EgressIP) Holder(a netip.Addr) Holder {
	if i := slices.IndexFunc(e.Holders, func(h Holder) bool { return h.Addr == a }); i >= 0 {
		return e.Holders[i]
	}
	return Holder{}
}

// LabelAssignable is the label of nodes that may be the host of an EgressIP's address, whatever its value.
const LabelAssignable = "k8s.ovn.org/egress-assignable"

// Assignable returns the selector of the nodes that may be the host of an EgressIP's address.
func Assignable() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: LabelAssignable, Operator: metav1.LabelSelectorOpExists,
	}}}
}

// mostEgressIPs bounds the addresses of a family that an EgressIP may have.
const mostEgressIPs = 64

// FromEgressIP trims an EgressIP. One whose selector is invalid selects no pod, since nobody knows which pods are meant.
func FromEgressIP(o *egressv1.EgressIP) (key Key, e EgressIP, problems []Problem, ok bool) {
	key = Key{Name: o.Name}
	f := findings{kind: "EgressIP", object: key.String()}
	if len(validation.IsDNS1123Subdomain(o.Name)) > 0 {
		f.add("metadata.name", o.Name, ReasonInvalidName, "lower case letters, digits, '-' and '.', at most 253 bytes")
		return key, e, f.problems, false
	}
	e.Created = o.CreationTimestamp.Time
	f.egressIPs(&e, o.Spec.EgressIPs)
	e.Namespaces = f.selector("spec.namespaceSelector", &o.Spec.NamespaceSelector)
	e.Pods = f.selector("spec.podSelector", &o.Spec.PodSelector)
	e.Holders = HoldersOf(o.Status.Items)
	return key, e, f.problems, true
}

// HoldersOf reads the items of a status.
func HoldersOf(items []egressv1.EgressIPStatusItem) (all []Holder) {
	e := EgressIP{}
	for _, item := range items {
		if a, err := ParseAddr(item.EgressIP); err == nil && item.Node != "" && e.Holder(a).Host == "" {
			e.Holders = append(e.Holders, Holder{a, item.Node, item.Standby, item.Term})
		}
	}
	return e.Holders
}

// egressIPs adds the usable addresses of an EgressIP. An unusable one counts for its family, which a colon tells: packets of
// that family must not leave with another source.
func (f *findings) egressIPs(e *EgressIP, texts []string) {
	if len(texts) == 0 {
		f.add("spec.egressIPs", "", ReasonNoEgressIP, "holds no address, so no pod is selected: list at least one, such as 203.0.113.7")
	}
	most := map[bool]int{}
	for i, text := range texts {
		field := fmt.Sprintf("spec.egressIPs[%d]", i)
		a, ok := f.egressIP(field, text)
		ipv6 := strings.Contains(text, ":") && !a.Is4In6()
		e.IPv4, e.IPv6 = e.IPv4 || !ipv6, e.IPv6 || ipv6
		switch {
		case !ok || slices.Contains(e.Addresses, a):
		case most[ipv6] == mostEgressIPs:
			most[ipv6]++
			f.add(field, text, ReasonTooManyAddresses, "is left out: at most %d addresses of a family, the first ones count", mostEgressIPs)
		case most[ipv6] > mostEgressIPs: // one report is enough
		default:
			most[ipv6]++
			e.Addresses = append(e.Addresses, a)
		}
	}
}

// egressIP parses an address of an EgressIP, and reports one that cannot be a source address.
func (f *findings) egressIP(field, text string) (a netip.Addr, ok bool) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		right := "an address such as 203.0.113.7 or 2001:db8::7"
		if p, err := netip.ParsePrefix(text); err == nil {
			right = "the address alone, " + p.Addr().String()
		}
		f.add(field, text, ReasonInvalidAddress, "not an IP address: write %s", right)
		return a, false
	}
	why := Unfit(a)
	switch {
	case a.Is4In6():
		f.add(field, text, ReasonInvalidAddress, "%s: write %s", why, a.Unmap())
	case why != "":
		f.add(field, text, ReasonInvalidAddress, "%s cannot be announced nor be a source address: choose a unicast address", why)
	}
	return a, why == ""
}

// selector parses a label selector; nil: it is invalid, which is reported.
func (f *findings) selector(field string, s *metav1.LabelSelector) labels.Selector {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		f.add(field, "", ReasonInvalidSelector, "not a label selector, so no pod is selected: %s", err)
		return nil
	}
	return parsed
}

// Selects reports whether pods of a namespace with these labels may be selected.
func (e EgressIP) Selects(namespace labels.Set) bool {
	return e.Namespaces != nil && e.Pods != nil && e.Namespaces.Matches(namespace)
}
