package walk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
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
		var e expression
		for typ, value := range nl.Attrs(one, 0) {
			switch typ {
			case unix.NFTA_EXPR_NAME:
				e.name = string(bytes.TrimRight(value, "\x00"))
			case unix.NFTA_EXPR_DATA:
				e.data = value
			}
		}
		all = append(all, e)
	}
	return all
}

func (e expression) attr(typ uint16) []byte { return attribute(e.data, typ) }

func attribute(body []byte, typ uint16) []byte {
	for t, value := range nl.Attrs(body, 0) {
		if t == typ {
			return value
		}
	}
	return nil
}

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

// outcome is the way in which a packet leaves a chain or a hook.
type outcome int

const (
	goesOn outcome = iota // to the calling chain; at a hook, by the policy
	accepted
	dropped
)

// machine executes rules on one packet.
type machine struct {
	table  ruleTable
	packet *flyer
	pass   *Passage
	regs   [64]byte
	why    string // name of the present rule's counter
}

// flyer is the packet's present state as rules see it.
type flyer struct {
	Packet
	out      string // device that it is about to leave by
	nextHop  netip.Addr
	rewrites rewrites
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
	m.pass.Source, m.pass.Masquerade = p.rewrites.source, p.rewrites.masquerade
	return m.pass, nil
}

func (m *machine) run(chain string, depth int) (outcome, error) {
	if depth > maxDepth {
		return dropped, fmt.Errorf("chain %s: its jumps never end", chain)
	}
	for i, rule := range m.table.rules(chain) {
		m.why = ""
		v, err := m.rule(chain, rule)
		if err != nil {
			return dropped, fmt.Errorf("rule %d of chain %s: %w", i+1, chain, err)
		}
		switch v.Kind {
		case expr.VerdictContinue, expr.VerdictBreak:
			continue
		case expr.VerdictReturn:
			return goesOn, nil
		case expr.VerdictDrop, expr.VerdictAccept:
			m.pass.Decided, m.pass.Rule = chain, i+1
			if v.Kind == expr.VerdictDrop {
				m.pass.Why = m.why
				return dropped, nil
			}
			return accepted, nil
		case expr.VerdictJump, expr.VerdictGoto:
			m.pass.Chains = append(m.pass.Chains, v.Chain)
			o, err := m.run(v.Chain, depth+1)
			if err != nil || o != goesOn || v.Kind == expr.VerdictGoto {
				return o, err
			}
		default:
			return dropped, fmt.Errorf("unknown verdict %d", v.Kind)
		}
	}
	return goesOn, nil
}

var (
	mismatch = expr.Verdict{Kind: expr.VerdictBreak}
	onwards  = expr.Verdict{Kind: expr.VerdictContinue}
)

// rule executes one rule. Its verdict is mismatch if the rule does not match the packet.
func (m *machine) rule(chain string, rule []expression) (expr.Verdict, error) {
	for _, e := range rule {
		v, err := m.step(chain, e)
		if errors.Is(err, errUnknown) {
			m.pass.Unknown = append(m.pass.Unknown, fmt.Sprintf("%s: %s", chain, e.name))
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
func (m *machine) step(chain string, e expression) (expr.Verdict, error) {
	switch e.name {
	case "counter", "log", "exthdr": // our rules use exthdr only for the MSS of a TCP SYN
		return onwards, nil
	case "objref": // the counter that names the reason, if the rule drops
		m.why = string(bytes.TrimRight(e.attr(unix.NFTA_OBJREF_IMM_NAME), "\x00"))
		return onwards, nil
	case "meta":
		return m.meta(e)
	case "ct":
		return m.ct(e)
	case "payload":
		return m.payload(e)
	case "rt":
		return m.rt(e)
	case "fib":
		return m.fib(e)
	case "bitwise":
		return onwards, m.bitwise(e)
	case "cmp":
		return m.compare(e)
	case "immediate":
		return m.immediate(e)
	case "lookup":
		return m.lookup(chain, e)
	case "nat":
		return m.nat(e)
	case "masq":
		m.packet.rewrites.masquerade = true
		return expr.Verdict{Kind: expr.VerdictAccept}, nil
	}
	return mismatch, errUnknown
}

func (m *machine) meta(e expression) (expr.Verdict, error) {
	key := e.number(unix.NFTA_META_KEY)
	if e.has(unix.NFTA_META_SREG) {
		if key != unix.NFT_META_MARK {
			return mismatch, errUnknown
		}
		b, err := m.read(e.number(unix.NFTA_META_SREG), 4)
		if err == nil {
			m.packet.Mark = ruleset.NativeUint32(b)
		}
		return onwards, err
	}
	var value []byte
	switch key {
	case unix.NFT_META_MARK:
		value = ruleset.Native(m.packet.Mark)
	case unix.NFT_META_IIFNAME:
		value = ruleset.DeviceKey(m.packet.In)
	case unix.NFT_META_OIFNAME:
		value = ruleset.DeviceKey(m.packet.out)
	case ruleset.MetaOutKind: // only packets of this node itself meet a VRF device on their way out, and walks do not simulate those
		value = ruleset.DeviceKey("")
	case unix.NFT_META_NFPROTO:
		value = []byte{m.packet.family().Proto}
	case unix.NFT_META_L4PROTO:
		value = []byte{m.packet.Proto}
	default:
		return mismatch, errUnknown
	}
	return onwards, m.load(e.number(unix.NFTA_META_DREG), value)
}

func (m *machine) ct(e expression) (expr.Verdict, error) {
	key, c := e.number(unix.NFTA_CT_KEY), &m.packet.Connection
	if e.has(unix.NFTA_CT_SREG) {
		if key != unix.NFT_CT_MARK {
			return mismatch, errUnknown
		}
		b, err := m.read(e.number(unix.NFTA_CT_SREG), 4)
		if err == nil {
			c.Mark = ruleset.NativeUint32(b)
		}
		return onwards, err
	}
	var value []byte
	switch key {
	case unix.NFT_CT_STATE:
		state := uint32(ruleset.StateNew)
		if c.Known {
			state = ruleset.StateEstablished
		}
		value = ruleset.Native(state)
	case unix.NFT_CT_DIRECTION:
		value = []byte{0}
		if c.Reply {
			value = []byte{1}
		}
	case unix.NFT_CT_STATUS:
		status := uint32(0)
		if c.DNAT {
			status |= ruleset.StatusDNAT
		}
		value = ruleset.Native(status)
	case unix.NFT_CT_MARK:
		value = ruleset.Native(c.Mark)
	case unix.NFT_CT_SRC_IP, unix.NFT_CT_SRC_IP6:
		value = c.source(m.packet.Packet).AsSlice()
	default:
		return mismatch, errUnknown
	}
	return onwards, m.load(e.number(unix.NFTA_CT_DREG), value)
}

func (m *machine) payload(e expression) (expr.Verdict, error) {
	if e.has(unix.NFTA_PAYLOAD_SREG) {
		return mismatch, errUnknown
	}
	value, ok := m.packet.bytes(e.number(unix.NFTA_PAYLOAD_BASE), e.number(unix.NFTA_PAYLOAD_OFFSET), e.number(unix.NFTA_PAYLOAD_LEN))
	if !ok {
		return mismatch, nil
	}
	return onwards, m.load(e.number(unix.NFTA_PAYLOAD_DREG), value)
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

func (m *machine) bitwise(e expression) error {
	length := int(e.number(unix.NFTA_BITWISE_LEN))
	source, err := m.read(e.number(unix.NFTA_BITWISE_SREG), length)
	if err != nil {
		return err
	}
	mask, xor := e.value(unix.NFTA_BITWISE_MASK), e.value(unix.NFTA_BITWISE_XOR)
	if len(mask) != length || len(xor) != length {
		return errUnknown
	}
	value := make([]byte, length)
	for i := range value {
		value[i] = source[i]&mask[i] ^ xor[i]
	}
	return m.load(e.number(unix.NFTA_BITWISE_DREG), value)
}

func (m *machine) compare(e expression) (expr.Verdict, error) {
	data := e.value(unix.NFTA_CMP_DATA)
	value, err := m.read(e.number(unix.NFTA_CMP_SREG), len(data))
	if err != nil {
		return mismatch, err
	}
	var ok bool
	switch c := bytes.Compare(value, data); e.number(unix.NFTA_CMP_OP) {
	case unix.NFT_CMP_EQ:
		ok = c == 0
	case unix.NFT_CMP_NEQ:
		ok = c != 0
	case unix.NFT_CMP_LT:
		ok = c < 0
	case unix.NFT_CMP_LTE:
		ok = c <= 0
	case unix.NFT_CMP_GT:
		ok = c > 0
	case unix.NFT_CMP_GTE:
		ok = c >= 0
	}
	if !ok {
		return mismatch, nil
	}
	return onwards, nil
}

func (m *machine) lookup(chain string, e expression) (expr.Verdict, error) {
	set := string(bytes.TrimRight(e.attr(unix.NFTA_LOOKUP_SET), "\x00"))
	length, err := m.table.keyLength(set)
	if err != nil {
		return mismatch, err
	}
	key, err := m.read(e.number(unix.NFTA_LOOKUP_SREG), length)
	if err != nil {
		return mismatch, err
	}
	key = bytes.Clone(key)
	f, err := m.table.element(set, key)
	if err != nil {
		return mismatch, err
	}
	l := Lookup{Chain: chain, Set: set, Key: keyText(set, key), Found: f != nil}
	if f != nil {
		l.Value = f.text(set)
	}
	m.pass.Lookups = append(m.pass.Lookups, l)
	if (f != nil) == (e.number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0) {
		return mismatch, nil
	}
	if !e.has(unix.NFTA_LOOKUP_DREG) {
		return onwards, nil
	}
	if f.verdict != nil {
		return *f.verdict, nil
	}
	return onwards, m.load(e.number(unix.NFTA_LOOKUP_DREG), f.value)
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

// bytes returns the packet's headers, as far as rules look at them.
func (p *flyer) bytes(base, offset, length uint32) ([]byte, bool) {
	var header []byte
	switch f := p.family(); base {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		header = make([]byte, f.Dst+f.Len)
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

// text formats the found element for people: a path id, an address, a range, or a chain.
func (f *found) text(set string) string {
	switch kind := setKind(set); {
	case f.verdict != nil:
		return f.verdict.Chain
	case kind == ruleset.SetEgress || kind == ruleset.SetStrays:
		return strconv.FormatUint(uint64(bigEndian(f.value)), 10)
	case f.value != nil:
		return addressText(f.value)
	}
	return f.span
}

// PathValue returns the path id that a lookup in a map of path ids found.
func (l Lookup) PathValue() plan.PathID {
	n, _ := strconv.ParseUint(l.Value, 10, 32)
	return plan.PathID(n)
}
