package cluster

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	egressv1 "github.com/egressway/egressway/api/v1"
)

// EgressFirewall is the part of the custom resource that is read.
type EgressFirewall struct {
	Meta
	// Rules holds the rules in order, without those that allow nothing. A rule that cannot be read counts as its strictest reading:
	// an Allow allows nothing, a Deny denies every destination.
	Rules []FirewallRule
	Given int // rules that the object has
}

// FirewallRule allows or denies connections to a destination. Without To, Nodes and Name it concerns every destination of both families.
type FirewallRule struct {
	Number int // among the object's rules, from 1
	Deny   bool
	To     netip.Prefix    // invalid: not by prefix
	Nodes  labels.Selector // of nodes whose addresses are the destination; nil: not by node
	Name   string          // DNS name whose addresses are the destination, see DNSName; empty: not by name
	Ports  []FirewallPort  // none: every protocol and port
	Text   string          // the rule in one line, for people
}

// FirewallPort is a port of a protocol.
type FirewallPort struct {
	Protocol uint8 // unix.IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP
	Number   uint16
}

// NameEgressFirewall is the only name that an EgressFirewall may have: a namespace has one.
const NameEgressFirewall = "default"

// MostFirewallRules bounds the rules of an EgressFirewall.
const MostFirewallRules = 8000

// FirewallProtocols maps the names of protocols in rules to their numbers.
var FirewallProtocols = map[string]uint8{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP, "SCTP": unix.IPPROTO_SCTP}

// UnreadRule names the parts of a rule that a source could not decode, and has reported.
type UnreadRule struct{ Type, Ports, To bool }

// DenyAll is an EgressFirewall that cannot be read as a whole.
func DenyAll() EgressFirewall {
	return EgressFirewall{Rules: []FirewallRule{{Number: 1, Deny: true, Text: "Deny every destination: the object cannot be read"}}}
}

// DecodePart decodes the part of an object at a field into a value, and returns a Problem if it cannot.
type DecodePart func(field string, data []byte, into any) *Problem

// DecodeEgressFirewall decodes and trims an EgressFirewall rule by rule, and of a rule part by part: a value of the wrong type costs its
// rule alone, which then counts as its strictest reading. An object whose rules are no list denies everything.
func DecodeEgressFirewall(
	meta metav1.ObjectMeta, spec json.RawMessage, decode DecodePart,
) (key Key, e EgressFirewall, problems []Problem, ok bool) {
	o, unread := egressv1.EgressFirewall{ObjectMeta: meta}, map[int]UnreadRule{}
	rules, fault := firewallRules(keyOf(&o), spec, decode)
	o.Spec.Egress = make([]egressv1.EgressFirewallRule, len(rules))
	for i, data := range rules {
		rule := firewallDecoder{field: fmt.Sprintf("spec.egress[%d]", i), decode: decode, to: &o.Spec.Egress[i]}
		if rule.rule(data); len(rule.problems) > 0 {
			problems, unread[i] = Few(append(problems, rule.problems...)), rule.unread
		}
	}
	key, e, found, ok := FromEgressFirewall(&o, unread)
	if ok && fault != nil {
		fault.Message += ": until then every connection to outside of the cluster is denied"
		found, e = append(found, *fault), DenyAll()
	}
	return key, e, Few(append(found, problems...)), ok // first why the object as a whole cannot be read
}

// firewallRules returns the rules in a spec, or why they cannot be read.
func firewallRules(key Key, spec json.RawMessage, decode DecodePart) ([]json.RawMessage, *Problem) {
	var given struct {
		Egress *[]json.RawMessage `json:"egress"`
	}
	if len(spec) > 0 {
		if fault := decode("spec", spec, &given); fault != nil {
			return nil, fault
		}
	}
	if given.Egress == nil {
		return nil, &Problem{
			Kind: KindEgressFirewall.String(), Object: key.String(), Field: "spec.egress", Reason: ReasonInvalidValue,
			Message: "missing: a list of rules, such as [{type: Deny, to: {cidrSelector: 0.0.0.0/0}}]",
		}
	}
	return *given.Egress, nil
}

// firewallDecoder decodes a rule.
type firewallDecoder struct {
	field    string
	decode   DecodePart
	to       *egressv1.EgressFirewallRule
	unread   UnreadRule
	problems []Problem
}

// rule decodes the parts of the rule.
func (d *firewallDecoder) rule(data []byte) {
	var parts struct {
		Type  json.RawMessage `json:"type"`
		Ports json.RawMessage `json:"ports"`
		To    json.RawMessage `json:"to"`
	}
	if fault := d.decode(d.field, data, &parts); fault != nil {
		d.unread = UnreadRule{Type: true, Ports: true, To: true}
		d.report(fault, "until then this rule denies every destination")
		return
	}
	d.part("type", parts.Type, &d.to.Type, &d.unread.Type, "one of Allow, Deny: this rule counts as Deny")
	otherwise := strictest(d.to.Type != egressv1.EgressFirewallAllow, "everything that its other fields say")
	d.part("ports", parts.Ports, &d.to.Ports, &d.unread.Ports, otherwise)
	d.part("to", parts.To, &d.to.To, &d.unread.To, otherwise)
}

// part decodes a part of the rule, if it is given.
func (d *firewallDecoder) part(name string, data json.RawMessage, into any, unread *bool, otherwise string) {
	if len(data) == 0 || string(data) == "null" {
		return
	}
	if fault := d.decode(d.field+"."+name, data, into); fault != nil {
		*unread = true
		d.report(fault, otherwise)
	}
}

func (d *firewallDecoder) report(fault *Problem, otherwise string) {
	fault.Message += "; " + otherwise
	d.problems = append(d.problems, *fault)
}

// FromEgressFirewall trims an EgressFirewall. unread holds parts of rules, by the rule's index.
func FromEgressFirewall(o *egressv1.EgressFirewall, unread map[int]UnreadRule) (key Key, e EgressFirewall, problems []Problem, ok bool) {
	key = keyOf(o)
	f := findings{kind: KindEgressFirewall.String(), object: key.String()}
	if !f.label("metadata.namespace", key.Namespace) {
		return key, e, f.problems, false
	}
	if key.Name != NameEgressFirewall {
		f.add("metadata.name", key.Name, ReasonInvalidName,
			"a namespace has one EgressFirewall, named %s: add the rules to that one", NameEgressFirewall)
		return key, e, f.problems, false
	}
	e.Given = len(o.Spec.Egress)
	e.Rules = make([]FirewallRule, 0, min(e.Given, MostFirewallRules+1))
	for i := range o.Spec.Egress {
		field := fmt.Sprintf("spec.egress[%d]", i)
		if i == MostFirewallRules {
			f.add(field, "", ReasonTooManyRules, "this rule and those after it count as one Deny of every destination: at most %d rules, "+
				"of which the first ones count", MostFirewallRules)
			e.Rules = append(e.Rules, FirewallRule{Number: i + 1, Deny: true, Text: "Deny every destination: too many rules"})
			break
		}
		if rule, ok := f.firewallRule(field, &o.Spec.Egress[i], unread[i]); ok {
			rule.Number = i + 1
			e.Rules = append(e.Rules, rule)
		}
	}
	return key, e, f.problems, true
}

// firewallRule checks all parts of a rule; ok is false if the rule allows nothing, and so has no effect.
func (f *findings) firewallRule(field string, o *egressv1.EgressFirewallRule, unread UnreadRule) (rule FirewallRule, ok bool) {
	rule.Deny = f.firewallDenies(field+".type", o.Type, unread.Type)
	if unread.Ports {
		o.Ports = nil // of which some may have been read
	}
	ports, readable := f.firewallPorts(field, o.Ports, rule.Deny)
	if readable = readable && !unread.Ports; readable {
		rule.Ports = ports
	}
	destination := !unread.To && f.firewallDestination(field+".to", o, &rule)
	rule.Text = ruleText(o, &rule, readable && destination)
	return rule, rule.Deny || readable && destination
}

// firewallDenies reports whether a rule of a type denies: each does that does not allow. An unknown type is reported, unless the source
// could not read it, and has reported that.
func (f *findings) firewallDenies(field string, t egressv1.EgressFirewallRuleType, unread bool) bool {
	if t != egressv1.EgressFirewallAllow && t != egressv1.EgressFirewallDeny && !unread {
		f.add(field, string(t), ReasonInvalidValue, "one of Allow, Deny: this rule counts as Deny")
	}
	return t != egressv1.EgressFirewallAllow
}

// strictest returns the effect of a rule with an unreadable part, for messages.
func strictest(deny bool, denies string) string {
	if deny {
		return "until then this rule denies " + denies
	}
	return "until then this rule allows nothing"
}

// firewallPorts parses the ports of a rule; ok is false if one of them cannot be read.
func (f *findings) firewallPorts(field string, given []egressv1.EgressFirewallPort, deny bool) (ports []FirewallPort, ok bool) {
	ok = true
	otherwise := strictest(deny, "every port of its destination")
	for i, p := range given {
		port, readable := f.firewallPort(fmt.Sprintf("%s.ports[%d]", field, i), p, otherwise)
		if ok = ok && readable; ok {
			ports = append(ports, port)
		}
	}
	return ports, ok
}

// firewallPort parses a port of a rule; ok is false if it cannot be read. otherwise is the effect of a rule with such a port, for
// messages.
func (f *findings) firewallPort(field string, p egressv1.EgressFirewallPort, otherwise string) (port FirewallPort, ok bool) {
	protocol, known := FirewallProtocols[p.Protocol]
	if !known {
		f.add(field+".protocol", p.Protocol, ReasonInvalidValue, "one of TCP, UDP, SCTP; %s", otherwise)
	}
	inRange := p.Port > 0 && p.Port <= 65535
	if !inRange {
		f.add(field+".port", fmt.Sprint(p.Port), ReasonInvalidValue, "a number from 1 to 65535; %s", otherwise)
	}
	return FirewallPort{protocol, uint16(p.Port)}, known && inRange //nolint:gosec // checked above
}

// firewallDestination sets the destination of a rule, and reports whether it can be read.
func (f *findings) firewallDestination(field string, o *egressv1.EgressFirewallRule, rule *FirewallRule) bool {
	denies := "every destination"
	if len(rule.Ports) > 0 {
		denies = "its ports of every destination"
	}
	otherwise := strictest(rule.Deny, denies)
	given := 0
	for _, is := range []bool{o.To.CIDRSelector != "", o.To.DNSName != "", o.To.NodeSelector != nil} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		f.add(field, "", ReasonInvalidValue, "exactly one of cidrSelector, nodeSelector, dnsName; %s", otherwise)
		return false
	case o.To.DNSName != "":
		name, fault := DNSName(o.To.DNSName)
		if fault != "" {
			f.add(field+".dnsName", o.To.DNSName, ReasonInvalidValue, "%s; %s", fault, otherwise)
			return false
		}
		rule.Name = name
		return true
	case o.To.NodeSelector != nil:
		selector, err := metav1.LabelSelectorAsSelector(o.To.NodeSelector)
		if err != nil {
			f.add(field+".nodeSelector", "", ReasonInvalidSelector, "not a label selector: %s; %s", err, otherwise)
			return false
		}
		rule.Nodes = selector
		return true
	}
	to, ok := f.destination(field+".cidrSelector", o.To.CIDRSelector, otherwise)
	if ok {
		rule.To = to
	}
	return ok
}

// Bounds of DNS names, in bytes (RFC 1035, section 2.3.4).
const (
	mostName  = 253
	mostLabel = 63
)

// DNSName returns a DNS name in the form in which names are compared: lower case, without the final dot. "*." at its beginning stands for
// one label. fault says why the name cannot be one, and what would be right; empty: it can.
func DNSName(given string) (name, fault string) {
	name = strings.ToLower(strings.TrimSuffix(given, "."))
	parts := strings.Split(strings.TrimPrefix(name, "*."), ".")
	last := parts[len(parts)-1]
	_, err := netip.ParseAddr(name)
	switch {
	case err == nil || strings.Trim(last, "0123456789") == "":
		return "", "a DNS name, such as www.example.com or *.example.com; an address belongs into cidrSelector"
	case len(name) > mostName:
		return "", fmt.Sprintf("a DNS name has at most %d bytes, this one has %d", mostName, len(name))
	}
	for _, label := range parts {
		if !dnsLabel(label) {
			return "", fmt.Sprintf("not a label of a DNS name: %q. A label has 1 to %d letters, digits, '-' and '_', without '-' first or "+
				`last; "*." may stand for the first one; a name with other letters is written in its xn-- form`, Clip(label), mostLabel)
		}
	}
	return name, ""
}

// dnsLabel reports whether a text in lower case is a label of a DNS name.
func dnsLabel(s string) bool {
	odd := strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
	})
	return s != "" && len(s) <= mostLabel && !odd && s[0] != '-' && s[len(s)-1] != '-'
}

// ruleText describes a rule as written, in one line.
func ruleText(o *egressv1.EgressFirewallRule, rule *FirewallRule, readable bool) string {
	text := "Allow "
	if rule.Deny {
		text = "Deny "
	}
	switch {
	case o.To.DNSName != "":
		text += Clip(o.To.DNSName)
	case o.To.NodeSelector != nil:
		text += "nodes with labels " + Clip(metav1.FormatLabelSelector(o.To.NodeSelector))
	default:
		text += Clip(o.To.CIDRSelector)
	}
	for i, p := range o.Ports {
		if i == 8 {
			text += ", ..."
			break
		}
		text += map[bool]string{true: " ", false: ", "}[i == 0] + strings.ToLower(Clip(p.Protocol)) + fmt.Sprintf("/%d", p.Port)
	}
	if !readable {
		text += " (cannot be read)"
	}
	return text
}
