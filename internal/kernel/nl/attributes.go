package nl

import (
	"encoding/binary"
	"iter"
	"net/netip"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Attrs yields the attributes that follow a header of length fixed.
func Attrs(body []byte, fixed int) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for b := body[min(fixed, len(body)):]; len(b) >= unix.SizeofRtAttr; {
			n := int(binary.NativeEndian.Uint16(b))
			if n < unix.SizeofRtAttr || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&vnl.NLA_TYPE_MASK, b[unix.SizeofRtAttr:n]) {
				return
			}
			b = b[min(Align(n), len(b)):]
		}
	}
}

// Attr returns the value of the first attribute of a type that follows a header of length fixed; nil: there is none.
func Attr(body []byte, fixed int, typ uint16) []byte {
	for t, value := range Attrs(body, fixed) {
		if t == typ {
			return value
		}
	}
	return nil
}

// Byte returns the first byte of an attribute's value; 0: it is empty.
func Byte(value []byte) uint8 {
	if len(value) < 1 {
		return 0
	}
	return value[0]
}

// BE16 returns the number that an attribute's value has in network byte order; 0: it is too short.
func BE16(value []byte) uint16 {
	if len(value) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(value)
}

// BE32 returns the number that an attribute's value has in network byte order; 0: it is too short.
func BE32(value []byte) uint32 {
	if len(value) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(value)
}

// BE64 returns the number that an attribute's value has in network byte order; 0: it is too short.
func BE64(value []byte) uint64 {
	if len(value) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(value)
}

// AppendAttr appends an attribute, padded.
func AppendAttr(b []byte, typ uint16, value ...byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, value...)
	return append(b, make([]byte, Align(len(value))-len(value))...)
}

// AppendAttr32 appends an attribute with a number in the machine's byte order.
func AppendAttr32(b []byte, typ uint16, value uint32) []byte {
	return AppendAttr(b, typ, binary.NativeEndian.AppendUint32(nil, value)...)
}

// Align rounds a length up to the alignment of attributes and messages.
func Align(n int) int { return (n + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1) }

// AppendNested appends an attribute whose contents add appends.
func AppendNested(b []byte, typ uint16, add func([]byte) []byte) []byte {
	start := len(b)
	b = add(append(b, 0, 0, 0, 0))
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	binary.NativeEndian.PutUint16(b[start+2:], typ|unix.NLA_F_NESTED)
	return b
}

// AppendBE16 appends an attribute with a number in network byte order.
func AppendBE16(b []byte, typ, value uint16) []byte {
	return AppendAttr(b, typ, byte(value>>8), byte(value))
}

// AppendBE32 appends an attribute with a number in network byte order.
func AppendBE32(b []byte, typ uint16, value uint32) []byte {
	return AppendAttr(b, typ, byte(value>>24), byte(value>>16), byte(value>>8), byte(value))
}

// AppendAddr appends an attribute with an address.
func AppendAddr(b []byte, typ uint16, a netip.Addr) []byte {
	if a.Is4() {
		raw := a.As4()
		return AppendAttr(b, typ, raw[:]...)
	}
	raw := a.As16()
	return AppendAttr(b, typ, raw[:]...)
}

// CloseAttr fills in the header of the attribute that begins at start, and pads it.
func CloseAttr(b []byte, start int, typ uint16) []byte {
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	binary.NativeEndian.PutUint16(b[start+2:], typ)
	for len(b)%unix.NLA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}
