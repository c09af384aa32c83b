package kernel

import (
	"encoding/binary"
	"iter"
	"net/netip"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// attrs yields the attributes that follow a header of length fixed.
func attrs(body []byte, fixed int) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for b := body[min(fixed, len(body)):]; len(b) >= unix.SizeofRtAttr; {
			n := int(binary.NativeEndian.Uint16(b))
			if n < unix.SizeofRtAttr || n > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&vnl.NLA_TYPE_MASK, b[unix.SizeofRtAttr:n]) {
				return
			}
			b = b[min(align(n), len(b)):]
		}
	}
}

// appendAttr appends an attribute, padded.
func appendAttr(b []byte, typ uint16, value ...byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, value...)
	return append(b, make([]byte, align(len(value))-len(value))...)
}

func appendAttr32(b []byte, typ uint16, value uint32) []byte {
	return appendAttr(b, typ, binary.NativeEndian.AppendUint32(nil, value)...)
}

func align(n int) int { return (n + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1) }

// nested appends an attribute whose contents add appends.
func nested(b []byte, typ uint16, add func([]byte) []byte) []byte {
	start := len(b)
	b = add(append(b, 0, 0, 0, 0))
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	binary.NativeEndian.PutUint16(b[start+2:], typ|unix.NLA_F_NESTED)
	return b
}

func appendBE16(b []byte, typ, value uint16) []byte {
	return appendAttr(b, typ, byte(value>>8), byte(value))
}

func appendBE32(b []byte, typ uint16, value uint32) []byte {
	return appendAttr(b, typ, byte(value>>24), byte(value>>16), byte(value>>8), byte(value))
}

func appendAddr(b []byte, typ uint16, a netip.Addr) []byte {
	if a.Is4() {
		raw := a.As4()
		return appendAttr(b, typ, raw[:]...)
	}
	raw := a.As16()
	return appendAttr(b, typ, raw[:]...)
}

// closed fills in the header of the attribute that begins at start, and pads it.
func closed(b []byte, start int, typ uint16) []byte {
	binary.NativeEndian.PutUint16(b[start:], uint16(len(b)-start))
	binary.NativeEndian.PutUint16(b[start+2:], typ)
	for len(b)%unix.NLA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}
