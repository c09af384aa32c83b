package flows

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/conntrack"
)

// A channel is a TCP connection from a sender to a receiver of flows. Its format, with numbers in network byte order:
//
//	receiver:  "egfl", version, 16 random bytes
//	sender:    the same bytes, which shows that it receives at its address
//	           frames: length of the records (2 bytes), records; an empty frame is a keepalive
//
//	record:    length of the rest (1), kind (1), protocol (1), flags (1), timeout in seconds (4),
//	           source, destination and SNAT port (2 each), the three addresses (4 or 16 each)
//
// Records of unknown kinds are skipped. A side that receives anything else, or another version, closes the connection.
const (
	magic     = "egfl"
	version   = 1
	helloSize = len(magic) + 1 + 16
	maxFrame  = 16 << 10

	kindAlive = 1 // an established flow, or one that waits for its first reply
	kindEnded = 2

	flagAnswered = 1 << 0
	flagAssured  = 1 << 1
	flagIPv6     = 1 << 2

	fixedSize = 1 + 1 + 1 + 4 + 3*2 // of a record, without its length byte
	size4     = fixedSize + 3*4
	size6     = fixedSize + 3*16
)

// record is a flow with its state, alive or ended.
type record struct {
	conntrack.Flow
	ended bool
}

// appendRecord encodes a record. It omits the TCP state: every flow sent is established.
func appendRecord(b []byte, r record) []byte {
	size, flags, kind := byte(size4), byte(0), byte(kindAlive)
	if r.Src.Addr().Is6() {
		size, flags = size6, flagIPv6
	}
	if r.Answered {
		flags |= flagAnswered
	}
	if r.Assured {
		flags |= flagAssured
	}
	if r.ended {
		kind = kindEnded
	}
	b = append(b, size, kind, r.Proto, flags)
	b = binary.BigEndian.AppendUint32(b, r.Timeout)
	ends := [...]netip.AddrPort{r.Src, r.Dst, r.SNAT}
	for _, e := range ends {
		b = binary.BigEndian.AppendUint16(b, e.Port())
	}
	for _, e := range ends {
		if e.Addr().Is4() {
			raw := e.Addr().As4()
			b = append(b, raw[:]...)
		} else {
			raw := e.Addr().As16()
			b = append(b, raw[:]...)
		}
	}
	return b
}

// errFormat is the error that the other side does not follow the format of version 1.
var errFormat = errors.New("not in the format of version 1")

// decodeRecords calls each for the records of known kinds in a frame.
func decodeRecords(b []byte, each func(record)) error {
	for len(b) > 0 {
		n := 1 + int(b[0])
		if n > len(b) {
			return fmt.Errorf("%w: a record of %d bytes, but only %d are left", errFormat, n, len(b))
		}
		r, known, err := decodeRecord(b[1:n])
		if err != nil {
			return err
		}
		if known {
			each(r)
		}
		b = b[n:]
	}
	return nil
}

func decodeRecord(b []byte) (r record, known bool, err error) {
	if len(b) == 0 || b[0] != kindAlive && b[0] != kindEnded {
		return r, false, nil
	}
	if len(b) < fixedSize {
		return r, false, fmt.Errorf("%w: a record of %d bytes", errFormat, len(b))
	}
	flags := b[2]
	want, width := size4, 4
	if flags&flagIPv6 != 0 {
		want, width = size6, 16
	}
	r.ended, r.Proto, r.Timeout = b[0] == kindEnded, b[1], binary.BigEndian.Uint32(b[3:])
	r.Answered, r.Assured = flags&flagAnswered != 0, flags&flagAssured != 0
	switch {
	case len(b) != want:
		return r, false, fmt.Errorf("%w: a record of %d bytes, not %d", errFormat, len(b), want)
	case r.Proto == unix.IPPROTO_TCP:
		r.State = conntrack.TCPEstablished
	case r.Proto != unix.IPPROTO_UDP:
		return r, false, fmt.Errorf("%w: a flow of protocol %d", errFormat, r.Proto)
	}
	var ends [3]netip.AddrPort
	for i := range ends {
		raw := b[fixedSize+i*width:][:width]
		a, _ := netip.AddrFromSlice(raw)
		if a.Is4In6() {
			return r, false, fmt.Errorf("%w: IPv4 address %s in IPv6", errFormat, a)
		}
		ends[i] = netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[7+2*i:]))
	}
	r.Src, r.Dst, r.SNAT = ends[0], ends[1], ends[2]
	return r, true, nil
}

// frames splits encoded records into parts that fit a frame, and calls each for every part.
func frames(b []byte, each func([]byte) error) error {
	for len(b) > 0 {
		n := 0
		for n < len(b) && n+1+int(b[n]) <= maxFrame {
			n += 1 + int(b[n])
		}
		if err := each(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
