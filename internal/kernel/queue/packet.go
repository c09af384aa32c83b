package queue

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Content is the share of a DNS message that a packet carries.
type Content uint8

// The contents.
const (
	None  Content = iota // no byte of one
	Part                 // a part of one, or more than one
	Whole                // exactly one
)

// port is that of DNS servers.
const port = 53

// Message returns the DNS message that a packet carries from port 53, by UDP or TCP, and its share. With Part, the message is its
// beginning, if the packet is the first one of the message.
func Message(packet []byte) ([]byte, Content) {
	proto, segment, whole := transport(packet)
	if len(segment) < 2 || binary.BigEndian.Uint16(segment) != port {
		return nil, None
	}
	var message []byte
	content := None
	switch proto {
	case unix.IPPROTO_UDP:
		message, content = datagram(segment)
	case unix.IPPROTO_TCP:
		message, content = stream(segment)
	}
	if content == Whole && !whole {
		content = Part
	}
	return message, content
}

// datagram returns the message of a UDP datagram.
func datagram(b []byte) ([]byte, Content) {
	const header = 8
	if len(b) < header {
		return nil, None
	}
	size := int(binary.BigEndian.Uint16(b[4:]))
	switch {
	case size <= header:
		return nil, None
	case size > len(b):
		return b[header:], Part
	}
	return b[header:size], Whole
}

// stream returns the message of a TCP segment, after the two bytes of its length (RFC 1035, 4.2.2).
func stream(b []byte) ([]byte, Content) {
	const least, length = 20, 2
	if len(b) < least {
		return nil, None
	}
	header := int(b[12]>>4) * 4
	if header < least || header >= len(b) {
		return nil, None
	}
	b = b[header:]
	if len(b) <= length {
		return nil, Part
	}
	size := int(binary.BigEndian.Uint16(b))
	if b = b[length:]; size == len(b) {
		return b, Whole
	}
	return b[:min(size, len(b))], Part
}

// transport returns the protocol of an IP packet and the bytes after its headers. whole is false for a fragment, or where bytes are
// missing.
func transport(b []byte) (proto uint8, rest []byte, whole bool) {
	if len(b) == 0 {
		return 0, nil, false
	}
	switch b[0] >> 4 {
	case 4:
		return transport4(b)
	case 6:
		return transport6(b)
	}
	return 0, nil, false
}

func transport4(b []byte) (proto uint8, rest []byte, whole bool) {
	const least, offset, more = 20, 0x1fff, 0x2000
	if len(b) < least {
		return 0, nil, false
	}
	header, size, fragment := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:])), binary.BigEndian.Uint16(b[6:])
	if header < least || header > len(b) || fragment&offset != 0 {
		return 0, nil, false
	}
	b, whole = cut(b, size)
	if len(b) < header {
		return 0, nil, false
	}
	return b[9], b[header:], whole && fragment&more == 0
}

func transport6(b []byte) (proto uint8, rest []byte, whole bool) {
	const header = 40
	if len(b) < header {
		return 0, nil, false
	}
	size := int(binary.BigEndian.Uint16(b[4:]))
	if size != 0 { // 0: a jumbogram, or not segmented yet
		size += header
	}
	proto = b[6]
	b, whole = cut(b, size)
	if len(b) < header {
		return 0, nil, false
	}
	for b = b[header:]; ; {
		const offset, more = 0xfff8, 1
		extension := 0
		switch proto {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS:
			extension = 8
			if len(b) > 1 {
				extension += int(b[1]) * 8
			}
		case unix.IPPROTO_FRAGMENT:
			extension = 8
			if len(b) >= extension {
				fragment := binary.BigEndian.Uint16(b[2:])
				if fragment&offset != 0 {
					return 0, nil, false
				}
				whole = whole && fragment&more == 0
			}
		default:
			return proto, b, whole
		}
		if len(b) < extension {
			return 0, nil, false
		}
		proto, b = b[0], b[extension:]
	}
}

// cut shortens a packet to the size that its header states, without padding; 0: the header states none. whole is false where it is
// shorter.
func cut(b []byte, size int) (shorter []byte, whole bool) {
	if size == 0 {
		return b, true
	}
	return b[:min(size, len(b))], size <= len(b)
}
