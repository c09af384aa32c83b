package walk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
)

// A walk applies the rules in the kernel, including any that another program changed, to a simulated packet. It
// implements only the expressions that our rules have; a rule with any other is reported and skipped.

// expression is an expression of a rule, as the kernel lists it.
type expression struct {
	name string
	data []byte
}

// decodeExpressions decodes the list of a rule's expressions.
func decodeExpressions(list []byte) (all []expression) {
	for _, one := range nl.Attrs(list, 0) {
		all = append(all, expression{name: text(attribute(one, unix.NFTA_EXPR_NAME)), data: attribute(one, unix.NFTA_EXPR_DATA)})
	}
	return all
}

func (e expression) attr(typ uint16) []byte { return attribute(e.data, typ) }

func attribute(body []byte, typ uint16) []byte { return nl.Attr(body, 0, typ) }

func (e expression) has(typ uint16) bool { return e.attr(typ) != nil }

// number decodes an attribute of any width, which nftables sends in network byte order.
func (e expression) number(typ uint16) uint32 { return bigEndian(e.attr(typ)) }

func bigEndian(b []byte) (v uint32) {
	for _, b := range b {
		v = v<<8 | uint32(b)
	}
	return v
}

// value returns the data of an attribute that holds a register's value.
func (e expression) value(typ uint16) []byte { return attribute(e.attr(typ), unix.NFTA_DATA_VALUE) }

// verdictOfData decodes a verdict from data; ok is false if data is no verdict.
func verdictOfData(data []byte) (v expr.Verdict, ok bool) {
	body := attribute(data, unix.NFTA_DATA_VERDICT)
	code := attribute(body, unix.NFTA_VERDICT_CODE)
	if len(code) != 4 {
		return v, false
	}
	v.Kind = expr.VerdictKind(int32(binary.BigEndian.Uint32(code)))
	v.Chain = string(bytes.TrimRight(attribute(body, unix.NFTA_VERDICT_CHAIN), "\x00"))
	return v, true
}

// found is a set's element for a key.
type found struct {
	value   []byte        // of a map
	verdict *expr.Verdict // of a map to verdicts
	span    string        // of a set of ranges: the range that contains the key
}

// ruleTable is the nftables table that a packet meets: the rules of chains by name, and the sets.
type ruleTable interface {
	rules(chain string) [][]expression
	keyLength(set string) (int, error)
	element(set string, key []byte) (*found, error) // nil: no element
	addressType(to netip.Addr) (uint32, error)      // RTN_*, as the fib expression finds it
	ownAddress(a netip.Addr, device string) bool
}

// outcome is the way in which a packet leaves a rule, a chain or a hook.
type outcome int

const (
	nextRule outcome = iota // of the same chain
	goesOn                  // to the calling chain; at a hook, by the policy
	accepted
	dropped
)

// machine executes rules on one packet.
type machine struct {
	table  ruleTable
	packet *flyer
	pass   *Passage
	regs   [64]byte

	// The present rule.
	chain  string
	number int    // from 1
	why    string // name of its counter
}

// flyer is the packet's present state as rules see it.
type flyer struct {
	Packet
	out      string // device that it is about to leave by
	nextHop  netip.Addr
	rewrites rewrites
	class    uint8  // traffic class: DSCP value and congestion bits
	dscp     *uint8 // that a rule set; nil: none did
}

// rewrites holds the source that NAT rules bind.
type rewrites struct {
	source     netip.Addr
	masquerade bool
}

// maxDepth is more than the depth that nftables allows chains to nest (NFT_JUMP_STACK_SIZE).
const maxDepth = 17

// cross simulates the packet's way through a base chain.
func cross(t ruleTable, p *flyer, chain string) (*Passage, error) {
	m := &machine{table: t, packet: p, pass: &Passage{Chain: chain}}
	if len(t.rules(chain)) == 0 {
		m.pass.Empty = true
	}
	o, err := m.run(chain, 0)
	if err != nil {
		return nil, err
	}
	m.pass.Dropped = o == dropped
	m.pass.Mark, m.pass.ConnectionMark = p.Mark, p.Connection.Mark
	m.pass.Source, m.pass.Masquerade, m.pass.DSCP = p.rewrites.source, p.rewrites.masquerade, p.dscp
	return m.pass, nil
}

func (m *machine) run(chain string, depth int) (outcome, error) {
	if depth > maxDepth {
		return dropped, fmt.Errorf("chain %s: its jumps never end", chain)
	}
	for i, rule := range m.table.rules(chain) {
		m.chain, m.number, m.why = chain, i+1, ""
		v, err := m.rule(rule)
		if err != nil {
			return dropped, fmt.Errorf("rule %d of chain %s: %w", i+1, chain, err)
		}
		if o, err := m.obey(v, depth); err != nil || o != nextRule {
			return o, err
		}
	}
	return goesOn, nil
}

// obey carries out a rule's verdict.
func (m *machine) obey(v expr.Verdict, depth int) (outcome, error) {
	switch v.Kind {
	case expr.VerdictContinue, expr.VerdictBreak:
		return nextRule, nil
	case expr.VerdictReturn:
		return goesOn, nil
	case expr.VerdictAccept:
		return m.decide(accepted), nil
	case expr.VerdictDrop:
		m.pass.Why = m.why
		return m.decide(dropped), nil
	case expr.VerdictJump, expr.VerdictGoto:
		return m.enter(v, depth+1)
	}
	return dropped, fmt.Errorf("unknown verdict %d", v.Kind)
}

// decide notes that the present rule decides.
func (m *machine) decide(o outcome) outcome {
	m.pass.Decided, m.pass.Rule = m.chain, m.number
	return o
}

// enter follows a verdict to another chain. A chain that was jumped to returns to the next rule.
func (m *machine) enter(v expr.Verdict, depth int) (outcome, error) {
	m.pass.Chains = append(m.pass.Chains, v.Chain)
	o, err := m.run(v.Chain, depth)
	if err == nil && o == goesOn && v.Kind == expr.VerdictJump {
		return nextRule, nil
	}
	return o, err
}

var (
	mismatch = expr.Verdict{Kind: expr.VerdictBreak}
	onwards  = expr.Verdict{Kind: expr.VerdictContinue}
)

// rule executes one rule. Its verdict is mismatch if the rule does not match the packet.
func (m *machine) rule(rule []expression) (expr.Verdict, error) {
	for _, e := range rule {
		v, err := m.step(e)
		if errors.Is(err, errUnknown) {
			m.pass.Unknown = append(m.pass.Unknown, fmt.Sprintf("%s: %s", m.chain, e.name))
			return mismatch, nil
		}
		if err != nil || v != onwards {
			return v, err
		}
	}
	return onwards, nil
}

// errUnknown is the error for an expression that our rules never have.
var errUnknown = errors.New("unknown expression")

// at returns the bytes from a register on (nft_parse_register): there are four registers of 16 bytes, or sixteen of 4
// bytes in the same place.
func (m *machine) at(register uint32) []byte {
	at := uint32(len(m.regs))
	switch {
	case register >= unix.NFT_REG_1 && register <= unix.NFT_REG_4:
		at = (register - unix.NFT_REG_1) * 16
	case register >= unix.NFT_REG32_00 && register <= unix.NFT_REG32_15:
		at = (register - unix.NFT_REG32_00) * 4
	}
	return m.regs[at:]
}

// load writes a value to a register, padded to whole words.
func (m *machine) load(register uint32, value []byte) error {
	r := m.at(register)
	if len(value) > len(r) {
		return fmt.Errorf("register %d cannot hold %d bytes", register, len(value))
	}
	clear(r[:min(len(r), nl.Align(len(value)))])
	copy(r, value)
	return nil
}

func (m *machine) read(register uint32, length int) ([]byte, error) {
	r := m.at(register)
	if length > len(r) {
		return nil, fmt.Errorf("register %d does not have %d bytes", register, length)
	}
	return r[:length], nil
}

// step executes one expression.
func (m *machine) step(e expression) (expr.Verdict, error) {
	if execute, known := steps[e.name]; known {
		return execute(m, e)
	}
	return mismatch, errUnknown
}

// steps execute expressions, by name.
var steps = map[string]func(*machine, expression) (expr.Verdict, error){
	"counter":   (*machine).skip,
	"log":       (*machine).skip,
	"exthdr":    (*machine).skip, // our rules use it only for the MSS of a TCP SYN
	"objref":    (*machine).objref,
	"meta":      metaKeys.execute,
	"ct":        ctKeys.execute,
	"payload":   (*machine).payload,
	"rt":        (*machine).rt,
	"fib":       (*machine).fib,
	"bitwise":   (*machine).bitwise,
	"cmp":       (*machine).compare,
	"immediate": (*machine).immediate,
	"lookup":    (*machine).lookup,
	"nat":       (*machine).nat,
	"masq":      (*machine).masquerade,
}

func (*machine) skip(expression) (expr.Verdict, error) { return onwards, nil }

// objref notes the counter that names the reason, if the rule drops.
func (m *machine) objref(e expression) (expr.Verdict, error) {
	m.why = text(e.attr(unix.NFTA_OBJREF_IMM_NAME))
	return onwards, nil
}

// keyed describes an expression that loads the value of a key, or sets the mark.
type keyed struct {
	key, source, target uint16 // attributes: the key, and the register to read from or to load
	values              map[uint32]func(*flyer) []byte
	markKey             uint32
	mark                func(*flyer) *uint32
}

var metaKeys = keyed{
	key: unix.NFTA_META_KEY, source: unix.NFTA_META_SREG, target: unix.NFTA_META_DREG,
	values: map[uint32]func(*flyer) []byte{
		unix.NFT_META_MARK:    func(p *flyer) []byte { return ruleset.Native(p.Mark) },
		unix.NFT_META_IIFNAME: func(p *flyer) []byte { return ruleset.DeviceKey(p.In) },
		unix.NFT_META_OIFNAME: func(p *flyer) []byte { return ruleset.DeviceKey(p.out) },
		// Only packets of this node itself meet a VRF device on their way out, and walks do not simulate those.
		ruleset.MetaOutKind:   func(*flyer) []byte { return ruleset.DeviceKey("") },
		unix.NFT_META_NFPROTO: func(p *flyer) []byte { return []byte{p.family().Proto} },
		unix.NFT_META_L4PROTO: func(p *flyer) []byte { return []byte{p.Proto} },
	},
	markKey: unix.NFT_META_MARK, mark: func(p *flyer) *uint32 { return &p.Mark },
}

var ctKeys = keyed{
	key: unix.NFTA_CT_KEY, source: unix.NFTA_CT_SREG, target: unix.NFTA_CT_DREG,
	values: map[uint32]func(*flyer) []byte{
		unix.NFT_CT_STATE:     func(p *flyer) []byte { return ruleset.Native(p.Connection.state()) },
		unix.NFT_CT_DIRECTION: func(p *flyer) []byte { return []byte{p.Connection.direction()} },
		unix.NFT_CT_STATUS:    func(p *flyer) []byte { return ruleset.Native(p.Connection.status()) },
		unix.NFT_CT_MARK:      func(p *flyer) []byte { return ruleset.Native(p.Connection.Mark) },
		unix.NFT_CT_SRC_IP:    originalSource,
		unix.NFT_CT_SRC_IP6:   originalSource,
	},
	markKey: unix.NFT_CT_MARK, mark: func(p *flyer) *uint32 { return &p.Connection.Mark },
}

func originalSource(p *flyer) []byte { return p.Connection.source(p.Packet).AsSlice() }

func (k keyed) execute(m *machine, e expression) (expr.Verdict, error) {
	key := e.number(k.key)
	if e.has(k.source) {
		return k.setMark(m, key, e.number(k.source))
	}
	value, known := k.values[key]
	if !known {
		return mismatch, errUnknown
	}
	return onwards, m.load(e.number(k.target), value(m.packet))
}

// setMark sets the mark from a register: our rules set no other key.
func (k keyed) setMark(m *machine, key, register uint32) (expr.Verdict, error) {
	if key != k.markKey {
		return mismatch, errUnknown
	}
	b, err := m.read(register, 4)
	if err == nil {
		*k.mark(m.packet) = ruleset.NativeUint32(b)
	}
	return onwards, err
}

func (m *machine) payload(e expression) (expr.Verdict, error) {
	if e.has(unix.NFTA_PAYLOAD_SREG) {
		return m.rewrite(e)
	}
	value, ok := m.packet.bytes(e.number(unix.NFTA_PAYLOAD_BASE), e.number(unix.NFTA_PAYLOAD_OFFSET), e.number(unix.NFTA_PAYLOAD_LEN))
	if !ok {
		return mismatch, nil
	}
	return onwards, m.load(e.number(unix.NFTA_PAYLOAD_DREG), value)
}

// rewrite writes a register to the packet. Our rules do so only to the bytes with the traffic class.
func (m *machine) rewrite(e expression) (expr.Verdict, error) {
	const length = 2
	if e.number(unix.NFTA_PAYLOAD_BASE) != unix.NFT_PAYLOAD_NETWORK_HEADER || e.number(unix.NFTA_PAYLOAD_OFFSET) != 0 ||
		e.number(unix.NFTA_PAYLOAD_LEN) != length {
		return mismatch, errUnknown
	}
	b, err := m.read(e.number(unix.NFTA_PAYLOAD_SREG), length)
	if err == nil {
		m.packet.setTrafficClass(binary.BigEndian.Uint16(b))
	}
	return onwards, err
}

// setTrafficClass sets the traffic class to that of a header's first two bytes.
func (p *flyer) setTrafficClass(begin uint16) {
	p.class = uint8(begin) //nolint:gosec // the second byte is meant
	if p.family() == ruleset.IPv6 {
		p.class = uint8(begin >> 4) //nolint:gosec // the byte across both is meant
	}
	dscp := p.class >> 2 // the rest are congestion bits (RFC 3168)
	p.dscp = &dscp
}

// headerBegin returns the first two bytes of the packet's network header.
func (p *flyer) headerBegin() uint16 {
	if p.family() == ruleset.IPv6 {
		return 0x6000 | uint16(p.class)<<4
	}
	return 0x4500 | uint16(p.class)
}

// rt loads the next hop, which only a routed packet has.
func (m *machine) rt(e expression) (expr.Verdict, error) {
	if !m.packet.nextHop.IsValid() {
		return mismatch, nil
	}
	return onwards, m.load(e.number(unix.NFTA_RT_DREG), m.packet.nextHop.AsSlice())
}

// immediate returns the expression's verdict, or loads its data.
func (m *machine) immediate(e expression) (expr.Verdict, error) {
	if v, ok := verdictOfData(e.attr(unix.NFTA_IMMEDIATE_DATA)); ok {
		return v, nil
	}
	return onwards, m.load(e.number(unix.NFTA_IMMEDIATE_DREG), e.value(unix.NFTA_IMMEDIATE_DATA))
}

func (m *machine) fib(e expression) (expr.Verdict, error) {
	if e.number(unix.NFTA_FIB_RESULT) != unix.NFT_FIB_RESULT_ADDRTYPE {
		return mismatch, errUnknown
	}
	kind, err := uint32(unix.RTN_UNICAST), error(nil)
	if e.number(unix.NFTA_FIB_FLAGS)&unix.NFTA_FIB_F_SADDR != 0 {
		if m.table.ownAddress(m.packet.From, m.packet.out) {
			kind = unix.RTN_LOCAL
		}
	} else if kind, err = m.table.addressType(m.packet.To); err != nil {
		return mismatch, err
	}
	return onwards, m.load(e.number(unix.NFTA_FIB_DREG), ruleset.Native(kind))
}

func (m *machine) bitwise(e expression) (expr.Verdict, error) {
	length := int(e.number(unix.NFTA_BITWISE_LEN))
	source, err := m.read(e.number(unix.NFTA_BITWISE_SREG), length)
	if err != nil {
		return onwards, err
	}
	mask, xor := e.value(unix.NFTA_BITWISE_MASK), e.value(unix.NFTA_BITWISE_XOR)
	if len(mask) != length || len(xor) != length {
		return onwards, errUnknown
	}
	value := make([]byte, length)
	for i := range value {
		value[i] = source[i]&mask[i] ^ xor[i]
	}
	return onwards, m.load(e.number(unix.NFTA_BITWISE_DREG), value)
}

func (m *machine) compare(e expression) (expr.Verdict, error) {
	data := e.value(unix.NFTA_CMP_DATA)
	value, err := m.read(e.number(unix.NFTA_CMP_SREG), len(data))
	if err != nil {
		return mismatch, err
	}
	holds, known := comparisons[e.number(unix.NFTA_CMP_OP)]
	if !known || !holds(bytes.Compare(value, data)) {
		return mismatch, nil
	}
	return onwards, nil
}

// comparisons report, by operator, whether a comparison with a result of bytes.Compare holds.
var comparisons = map[uint32]func(int) bool{
	unix.NFT_CMP_EQ:  func(c int) bool { return c == 0 },
	unix.NFT_CMP_NEQ: func(c int) bool { return c != 0 },
	unix.NFT_CMP_LT:  func(c int) bool { return c < 0 },
	unix.NFT_CMP_LTE: func(c int) bool { return c <= 0 },
	unix.NFT_CMP_GT:  func(c int) bool { return c > 0 },
	unix.NFT_CMP_GTE: func(c int) bool { return c >= 0 },
}

func (m *machine) lookup(e expression) (expr.Verdict, error) {
	f, err := m.find(text(e.attr(unix.NFTA_LOOKUP_SET)), e.number(unix.NFTA_LOOKUP_SREG))
	if err != nil {
		return mismatch, err
	}
	inverted := e.number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0
	switch {
	case (f != nil) == inverted:
		return mismatch, nil
	case !e.has(unix.NFTA_LOOKUP_DREG):
		return onwards, nil
	case f.verdict != nil:
		return *f.verdict, nil
	}
	return onwards, m.load(e.number(unix.NFTA_LOOKUP_DREG), f.value)
}

// find looks the key in a register up in a set, and notes the lookup.
func (m *machine) find(set string, register uint32) (*found, error) {
	length, err := m.table.keyLength(set)
	if err != nil {
		return nil, err
	}
	key, err := m.read(register, length)
	if err != nil {
		return nil, err
	}
	key = bytes.Clone(key)
	f, err := m.table.element(set, key)
	if err != nil {
		return nil, err
	}
	l := Lookup{Chain: m.chain, Set: set, Key: keyText(set, key), Found: f != nil}
	if f != nil {
		l.Value = f.text(set)
		if l.Value != f.span {
			l.Range = f.span
		}
	}
	m.pass.Lookups = append(m.pass.Lookups, l)
	return f, nil
}

func (m *machine) nat(e expression) (expr.Verdict, error) {
	b, err := m.read(e.number(unix.NFTA_NAT_REG_ADDR_MIN), int(m.packet.family().Len))
	if err != nil {
		return mismatch, err
	}
	a, _ := netip.AddrFromSlice(b)
	if e.number(unix.NFTA_NAT_TYPE) == unix.NFT_NAT_SNAT {
		m.packet.rewrites.source = a
	}
	return expr.Verdict{Kind: expr.VerdictAccept}, nil
}

func (m *machine) masquerade(expression) (expr.Verdict, error) {
	m.packet.rewrites.masquerade = true
	return expr.Verdict{Kind: expr.VerdictAccept}, nil
}

// bytes returns the packet's headers, as far as rules look at them.
func (p *flyer) bytes(base, offset, length uint32) ([]byte, bool) {
	var header []byte
	switch f := p.family(); base {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		header = make([]byte, f.Dst+f.Len)
		binary.BigEndian.PutUint16(header, p.headerBegin())
		copy(header[f.Src:], p.From.AsSlice())
		copy(header[f.Dst:], p.To.AsSlice())
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		const tcpHeader, flagsAt, syn, ack = 20, 13, 0x02, 0x10
		header = make([]byte, tcpHeader)
		binary.BigEndian.PutUint16(header, p.SourcePort)
		binary.BigEndian.PutUint16(header[2:], p.Port)
		if header[flagsAt] = syn; p.Connection.Known {
			header[flagsAt] = ack
		}
	}
	if int(offset)+int(length) > len(header) {
		return nil, false
	}
	return header[offset : offset+length], true
}

// setKind returns a set's name without the family and path that distinguish it from others of its kind.
func setKind(set string) string {
	kind := set
	for i, r := range set {
		if r == '4' || r == '6' || r == '-' {
			kind = set[:i]
			break
		}
	}
	return kind
}

// keyText formats a key for people.
func keyText(set string, key []byte) string {
	switch kind := setKind(set); kind {
	case ruleset.SetUplinks, ruleset.SetDevices:
		return string(bytes.TrimRight(key, "\x00"))
	case ruleset.SetReplies, ruleset.SetGuards, ruleset.SetGoing, ruleset.SetPaths:
		return fmt.Sprintf("%#x", ruleset.NativeUint32(key))
	case ruleset.SetSources:
		return addressText(key[:len(key)/2]) + " . " + addressText(key[len(key)/2:])
	}
	return addressText(key)
}

func addressText(b []byte) string {
	a, ok := netip.AddrFromSlice(b)
	if !ok {
		return fmt.Sprintf("%#x", b)
	}
	return a.String()
}

// numbered are the maps to numbers.
var numbered = []string{ruleset.SetEgress, ruleset.SetStrays, ruleset.SetFirewalled, ruleset.SetClasses}

// text formats the found element for people: a path id, an address, a range, a chain, or "accept" and "return".
func (f *found) text(set string) string {
	switch {
	case f.verdict != nil:
		return verdictText(f.verdict)
	case slices.Contains(numbered, setKind(set)):
		return strconv.FormatUint(uint64(bigEndian(f.value)), 10)
	case f.value != nil:
		return addressText(f.value)
	}
	return f.span
}

// verdictText formats a verdict: "accept", "return", or the chain to which it leads.
func verdictText(v *expr.Verdict) string {
	switch v.Kind {
	case expr.VerdictAccept:
		return "accept"
	case expr.VerdictReturn:
		return "return"
	}
	return v.Chain
}

// PathValue returns the path id that a lookup in a map of path ids found.
func (l Lookup) PathValue() plan.PathID {
	n, _ := strconv.ParseUint(l.Value, 10, 32)
	return plan.PathID(n)
}
