package route

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
)

// Rule is a rule of ours in one family. The netlink library does not read the action, so rules are raw messages.
type Rule struct {
	Family uint8
	plan.Rule
	Action uint8
}

// String returns the rule as errors name it.
func (r Rule) String() string {
	family := "IPv4"
	if r.Family == unix.AF_INET6 {
		family = "IPv6"
	}
	to := fmt.Sprintf("table %d", r.Table)
	if r.Unreachable {
		to = "unreachable"
	}
	return fmt.Sprintf("%s rule %d mark %#x/%#x %s", family, r.Priority, r.Mark, r.Mask, to)
}

// AddRules adds the missing rules, in both families, and calls made for each rule that it added.
func (c Socket) AddRules(ctx context.Context, desired []plan.Rule, made ...func(Rule)) error {
	have, err := ListRules()
	if err != nil {
		return err
	}
	standing := make(map[Rule]bool, len(have))
	for _, r := range have {
		standing[r] = true
	}
	var missing []Rule
	var messages []nl.Message
	for _, r := range BothFamilies(desired) {
		if !standing[r] {
			standing[r] = true
			missing = append(missing, r)
			messages = append(messages, nl.Message{Type: unix.RTM_NEWRULE, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Body: r.encode()})
		}
	}
	return c.changeRules(ctx, "add", missing, messages, unix.EEXIST, made...)
}

// PruneRules removes our rules that are not desired, and duplicates.
func (c Socket) PruneRules(ctx context.Context, desired []plan.Rule) error {
	have, err := ListRules()
	if err != nil {
		return err
	}
	wanted := make(map[Rule]bool, 2*len(desired))
	for _, r := range BothFamilies(desired) {
		wanted[r] = true
	}
	var missing []Rule
	var messages []nl.Message
	for _, r := range have {
		if !wanted[r] {
			missing = append(missing, r)
			messages = append(messages, nl.Message{Type: unix.RTM_DELRULE, Flags: 0, Body: r.encode()})
		}
		delete(wanted, r)
	}
	return c.changeRules(ctx, "delete", missing, messages, unix.ENOENT)
}

// changeRules sends the messages and calls each for every rule that changed. The error done means that there was
// nothing to do.
func (c Socket) changeRules(ctx context.Context, what string, rules []Rule, messages []nl.Message, done error, each ...func(Rule)) error {
	results, err := c.Change(ctx, messages)
	if err != nil {
		return err
	}
	for i, err := range results {
		results[i] = ruleError(what, rules[i], err, done)
		if err != nil {
			continue
		}
		for _, call := range each {
			call(rules[i])
		}
	}
	return nl.JoinErrors(results)
}

// ruleError returns the error of a change of a rule; nil: there was nothing to do.
func ruleError(what string, r Rule, err, done error) error {
	if err == nil || errors.Is(err, done) {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, r, err)
}

// BothFamilies returns the rules of a plan for each address family of this kernel.
func BothFamilies(desired []plan.Rule) []Rule {
	rules := make([]Rule, 0, 2*len(desired))
	for _, family := range nl.Families() {
		for _, r := range desired {
			action := uint8(vnl.FR_ACT_TO_TBL)
			if r.Unreachable {
				action, r.Table = vnl.FR_ACT_UNREACHABLE, 0
			}
			r.Mark &= r.Mask
			rules = append(rules, Rule{Family: family, Rule: r, Action: action})
		}
	}
	return rules
}

// ListRules lists the rules of our protocol.
func ListRules() ([]Rule, error) {
	var all []Rule
	for _, family := range nl.Families() {
		body := make([]byte, unix.SizeofRtMsg)
		body[0] = family
		rules, err := nl.Retry(func() ([]Rule, error) {
			var rules []Rule
			err := nl.Dump(nl.Message{Type: unix.RTM_GETRULE, Body: body}, unix.RTM_NEWRULE, func(b []byte) bool {
				if r, ours := DecodeRule(b); ours && r.Family == family {
					rules = append(rules, r)
				}
				return true
			})
			return rules, err
		})
		if err != nil {
			return nil, fmt.Errorf("list rules: %w", err)
		}
		all = append(all, rules...)
	}
	return all, nil
}

// encode encodes the body of a request; struct fib_rule_hdr has the layout of struct rtmsg.
func (r Rule) encode() []byte {
	b := make([]byte, unix.SizeofRtMsg, 64)
	b[0], b[7] = r.Family, r.Action
	b = nl.AppendAttr32(b, vnl.FRA_PRIORITY, uint32(r.Priority))
	b = nl.AppendAttr32(b, vnl.FRA_FWMARK, r.Mark)
	b = nl.AppendAttr32(b, vnl.FRA_FWMASK, r.Mask)
	if r.Table != 0 {
		b = nl.AppendAttr32(b, vnl.FRA_TABLE, r.Table)
	}
	return nl.AppendAttr(b, vnl.FRA_PROTOCOL, Protocol)
}

// DecodeRule decodes a rule and reports whether it is ours: of our protocol, and without selectors that ours never
// have.
func DecodeRule(b []byte) (r Rule, ours bool) {
	if len(b) < unix.SizeofRtMsg {
		return r, false
	}
	r.Family, r.Action = b[0], b[7]
	r.Unreachable = r.Action == vnl.FR_ACT_UNREACHABLE
	plain := true
	for typ, value := range nl.Attrs(b, unix.SizeofRtMsg) {
		switch typ {
		case vnl.FRA_PROTOCOL:
			ours = value[0] == Protocol
		case vnl.FRA_SRC, vnl.FRA_DST, vnl.FRA_IIFNAME, vnl.FRA_OIFNAME:
			plain = false
		default:
			r.set(typ, value)
		}
	}
	return r, ours && plain
}

// set sets the field of an attribute.
func (r *Rule) set(typ uint16, value []byte) {
	switch typ {
	case vnl.FRA_PRIORITY:
		r.Priority = int(binary.NativeEndian.Uint32(value))
	case vnl.FRA_FWMARK:
		r.Mark = binary.NativeEndian.Uint32(value)
	case vnl.FRA_FWMASK:
		r.Mask = binary.NativeEndian.Uint32(value)
	case vnl.FRA_TABLE:
		r.Table = binary.NativeEndian.Uint32(value)
	}
}
