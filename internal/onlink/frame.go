package onlink

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Offsets and sizes of the frames that Frame makes.
const (
	etherLen = 14
	ipv6Len  = 40
	naLen    = 32 // neighbour advertisement with one option

	typeARP  = 0x0806
	typeIPv6 = 0x86dd
)

// Frame returns an Ethernet frame by which neighbours learn that a MAC has an address: an ARP announcement (RFC 5227, section 3), or
// an unsolicited neighbour advertisement that replaces their entry (RFC 4861, section 7.2.6).
func Frame(a netip.Addr, mac [6]byte) []byte {
	if a.Is4() {
		return announcement(a.As4(), mac)
	}
	return advertisement(a.As16(), mac)
}

// ether returns the header of a frame from a MAC.
func ether(to net.HardwareAddr, from [6]byte, protocol uint16, size int) []byte {
	b := make([]byte, 0, etherLen+size)
	return binary.BigEndian.AppendUint16(append(append(b, to...), from[:]...), protocol)
}

func announcement(a [4]byte, mac [6]byte) []byte {
	const size = 28
	b := ether(net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, typeARP, size)
	b = append(b, 0, 1, 8, 0, 6, 4, 0, 1) // Ethernet, IPv4, lengths of their addresses, request
	b = append(append(b, mac[:]...), a[:]...)
	return append(append(b, make([]byte, 6)...), a[:]...)
}

func advertisement(a [16]byte, mac [6]byte) []byte {
	const icmp, hopLimit = 58, 255
	const advertised, router, override = 136, 0x80, 0x20
	all := netip.MustParseAddr("ff02::1").As16()
	b := ether(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, mac, typeIPv6, ipv6Len+naLen)
	b = append(b, 0x60, 0, 0, 0, 0, naLen, icmp, hopLimit)
	b = append(append(b, a[:]...), all[:]...)
	b = append(b, advertised, 0, 0, 0, router|override, 0, 0, 0)
	b = append(append(b, a[:]...), 2, 1) // target link-layer address, of 8 bytes
	b = append(b, mac[:]...)
	message := b[etherLen+ipv6Len:]
	binary.BigEndian.PutUint16(message[2:], checksum(b[etherLen+8:etherLen+ipv6Len], message, icmp))
	return b
}

// checksum returns the checksum of an upper-layer message of IPv6 (RFC 8200, section 8.1).
func checksum(addresses, message []byte, protocol uint16) uint16 {
	sum := uint32(len(message)) + uint32(protocol)
	for _, part := range [][]byte{addresses, message} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
