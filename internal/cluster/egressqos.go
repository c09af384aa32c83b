package cluster

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	egressv1 "github.com/egressway/egressway/api/v1"
)

// EgressQoS is the part of the custom resource that is read.
type EgressQoS struct {
	Meta
	Rules []QoSRule // the valid ones, in order
}

// QoSRule sets the DSCP value of packets from pods to a destination.
type QoSRule struct {
	Number int // among the object's rules, from 1
	DSCP   uint8
	To     netip.Prefix    // invalid: every destination of both families
	Pods   labels.Selector // pods of the namespace
}

// NameEgressQoS is the only name that an EgressQoS may have: a namespace has one.
const NameEgressQoS = "default"

// Bounds of an EgressQoS.
const (
	mostQoSRules = 1000
	mostDSCP     = 63 // the field has 6 bits (RFC 2474)
)

// FromEgressQoS trims an EgressQoS. It leaves out invalid rules, and those of the indices in unread, which the source could not
// decode and has reported.
func FromEgressQoS(o *egressv1.EgressQoS, unread map[int]bool) (key Key, q EgressQoS, problems []Problem, ok bool) {
	key = keyOf(o)
	f := findings{kind: KindEgressQoS.String(), object: key.String()}
	if !f.label("metadata.namespace", key.Namespace) {
		return key, q, f.problems, false
	}
	if key.Name != NameEgressQoS {
		f.add("metadata.name", key.Name, ReasonInvalidName,
			"a namespace has one EgressQoS, named %s: add the rules to that one", NameEgressQoS)
		return key, q, f.problems, false
	}
	for i := range o.Spec.Egress {
		field := fmt.Sprintf("spec.egress[%d]", i)
		if i == mostQoSRules {
			f.add(field, "", ReasonTooManyRules,
				"this rule and those after it are left out: at most %d, of which the first ones count", mostQoSRules)
			break
		}
		if unread[i] {
			continue
		}
		if rule, ok := f.qosRule(field, &o.Spec.Egress[i]); ok {
			rule.Number = i + 1
			q.Rules = append(q.Rules, rule)
		}
	}
	return key, q, f.problems, true
}

// qosRule checks all parts of a rule; ok is false if the rule has to be left out.
func (f *findings) qosRule(field string, o *egressv1.EgressQoSRule) (rule QoSRule, ok bool) {
	ok = true
	if o.DSCP < 0 || o.DSCP > mostDSCP {
		f.add(field+".dscp", strconv.Itoa(o.DSCP), ReasonInvalidValue, "a number from 0 to %d: this rule is left out", mostDSCP)
		ok = false
	}
	rule.DSCP = uint8(o.DSCP) //nolint:gosec // checked above
	if o.DstCIDR != nil {
		fits := false
		rule.To, fits = f.destination(field+".dstCIDR", *o.DstCIDR, "this rule is left out")
		ok = ok && fits
	}
	rule.Pods = f.selector(field+".podSelector", &o.PodSelector)
	return rule, ok && rule.Pods != nil
}

// destination parses the destinations of a rule. A prefix with host bits counts as the network that it is in. otherwise is the
// effect of a rule with unreadable destinations, for messages.
func (f *findings) destination(field, text, otherwise string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		f.add(field, text, ReasonInvalidAddress, "not a prefix: write %s; %s",
			cmp.Or(meantPrefix(text), "one such as 203.0.113.0/24 or 2001:db8::/32"), otherwise)
		return p, false
	case p.Addr().Is4In6():
		f.add(field, text, ReasonInvalidAddress,
			"an IPv4-mapped IPv6 prefix, which no packet has as destination: write %s; %s",
			cmp.Or(unmapped(p), "0.0.0.0/0"), otherwise)
		return p, false
	case p != p.Masked():
		f.add(field, text, ReasonHostBits, "has bits beyond its length, and counts as %s: write that", p.Masked())
	}
	return p.Masked(), true
}

// unmapped returns an IPv4-mapped prefix as the IPv4 one; empty: it holds other addresses too.
func unmapped(p netip.Prefix) string {
	const mapped = 96
	if p.Bits() < mapped {
		return ""
	}
	return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped).Masked().String()
}

// meantPrefix guesses the prefix that a text means; empty: unknown.
func meantPrefix(text string) string {
	text = strings.TrimSpace(text)
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Masked().String()
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()).String()
	}
	return maskedPrefix(text)
}

// maskedPrefix returns the prefix of an IPv4 address with a subnet mask, such as 192.0.2.0/255.255.255.0, and nothing for any other text.
func maskedPrefix(text string) string {
	address, mask, _ := strings.Cut(text, "/")
	a, err := netip.ParseAddr(address)
	m, maskErr := netip.ParseAddr(mask)
	if err != nil || maskErr != nil || !a.Is4() || !m.Is4() {
		return ""
	}
	ones, bits := net.IPMask(m.AsSlice()).Size()
	if bits == 0 { // zeros before ones
		return ""
	}
	return netip.PrefixFrom(a, ones).Masked().String()
}
