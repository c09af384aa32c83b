package bfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// State is the state of a session (RFC 5880, 6.2), numbered as in packets.
type State uint8

// The states. AdminDown means that one end took the session down on purpose.
const (
	AdminDown State = iota
	Down
	Init
	Up
)

var stateNames = [...]string{"admindown", "down", "init", "up"}

// String returns the state's name in lower case.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// MarshalText returns String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText parses the text of MarshalText.
func (s *State) UnmarshalText(text []byte) error {
	for i, name := range stateNames {
		if name == string(text) {
			*s = State(i)
			return nil
		}
	}
	return fmt.Errorf("BFD state %q: one of admindown, down, init, up", text)
}

// Diag is the reason for the last change of a session's state (RFC 5880, 4.1).
type Diag uint8

// The diagnostics that we send or distinguish.
const (
	DiagNone      Diag = 0
	DiagExpired   Diag = 1 // nothing heard within the detection time
	diagEcho      Diag = 2 // echo packets are not answered
	DiagSignaled  Diag = 3 // the neighbour signalled that the session is down
	DiagReset     Diag = 4 // the process ends and may be back soon: the packet filter stays, unless the machine goes down too
	DiagPathDown  Diag = 5 // this node must not be sent anything any more
	DiagAdminDown Diag = 7 // BFD is no longer wanted: the node continues as before
)

// diagTexts are RFC 5880's words.
var diagTexts = map[Diag]string{
	DiagNone:      "no diagnostic",
	DiagExpired:   "control detection time expired",
	DiagSignaled:  "neighbor signaled session down",
	DiagReset:     "forwarding plane reset",
	DiagPathDown:  "path down",
	DiagAdminDown: "administratively down",
}

// String returns RFC 5880's words for the diagnostic.
func (d Diag) String() string {
	if text, ok := diagTexts[d]; ok {
		return text
	}
	return fmt.Sprintf("diagnostic %d", uint8(d))
}

// isFailure reports whether an end that is down with this diagnostic has lost the session. DiagSignaled does not count:
// FRR sends it when it removes its own end to recreate it.
func (d Diag) isFailure() bool {
	return d == DiagExpired || d >= diagEcho && d < DiagAdminDown && d != DiagSignaled
}

// packetSize is the length of a control packet without authentication, in bytes.
const packetSize = 24

// packet is a control packet without authentication (RFC 5880, 4.1). Its intervals are whole microseconds.
type packet struct {
	diag        Diag
	state       State
	poll, final bool
	demand      bool // the sender wants no packets while the session is up
	mult        uint8
	mine, yours uint32 // discriminators: the sender's, and the receiver's if the sender knows it
	desiredTx   time.Duration
	requiredRx  time.Duration
}

// Bits of the second byte.
const (
	bitMultipoint = 1 << iota
	bitDemand
	bitAuthentication
	_ // the control plane is independent of the forwarding plane: ignored
	bitFinal
	bitPoll
)

// encode appends the packet to b.
func (p packet) encode(b []byte) []byte {
	flags := uint8(p.state) << 6
	if p.poll {
		flags |= bitPoll
	}
	if p.final {
		flags |= bitFinal
	}
	if p.demand {
		flags |= bitDemand
	}
	b = append(b, version<<5|uint8(p.diag), flags, p.mult, packetSize)
	b = binary.BigEndian.AppendUint32(b, p.mine)
	b = binary.BigEndian.AppendUint32(b, p.yours)
	b = binary.BigEndian.AppendUint32(b, uint32(p.desiredTx/time.Microsecond))
	b = binary.BigEndian.AppendUint32(b, uint32(p.requiredRx/time.Microsecond))
	return binary.BigEndian.AppendUint32(b, 0) // the required interval of echo packets: we answer none
}

const version = 1

// Reasons for refusing a control packet.
var (
	errLength         = errors.New("length is not 24 bytes")
	errVersion        = errors.New("version is not 1")
	errAuthentication = errors.New("authentication is set")
	errMultipoint     = errors.New("multipoint is set")
	errMultiplier     = errors.New("detection multiplier is 0")
	errDiscriminator  = errors.New("a discriminator is missing")
)

// decode decodes a packet and makes those checks of RFC 5880, 6.8.6 that need no session.
func decode(b []byte) (packet, error) {
	if err := checkFormat(b); err != nil {
		return packet{}, err
	}
	switch {
	case b[1]&bitMultipoint != 0:
		return packet{}, errMultipoint
	case b[2] == 0:
		return packet{}, errMultiplier
	}
	micros := func(at int) time.Duration { return time.Duration(binary.BigEndian.Uint32(b[at:])) * time.Microsecond }
	p := packet{
		diag:       Diag(b[0] & 0x1f),
		state:      State(b[1] >> 6),
		poll:       b[1]&bitPoll != 0,
		final:      b[1]&bitFinal != 0,
		demand:     b[1]&bitDemand != 0,
		mult:       b[2],
		mine:       binary.BigEndian.Uint32(b[4:]),
		yours:      binary.BigEndian.Uint32(b[8:]),
		desiredTx:  micros(12),
		requiredRx: micros(16),
	}
	if p.mine == 0 || p.yours == 0 && p.state >= Init {
		return packet{}, errDiscriminator
	}
	return p, nil
}

// checkFormat refuses packets of other lengths or versions, and those with authentication, which are longer.
func checkFormat(b []byte) error {
	switch {
	case len(b) == 0:
		return errLength
	case b[0]>>5 != version:
		return errVersion
	case len(b) >= 2 && b[1]&bitAuthentication != 0:
		return errAuthentication
	case len(b) != packetSize || b[3] != packetSize:
		return errLength
	}
	return nil
}
