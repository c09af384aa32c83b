package netns

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// FlowRouter returns a router that gives new UDP flows of a pod a mark of their connection and another source. An entry expires after a
// second.
func FlowRouter(tb testing.TB, mark uint32) *Machine {
	tb.Helper()
	router, outside := New(tb), New(tb)
	router.Run("sysctl -qw net.ipv4.ip_forward=1 net.netfilter.nf_conntrack_udp_timeout=1",
		"ip link add pods address 02:00:00:00:00:02 type veth peer name pod",
		fmt.Sprintf("ip link add out type veth peer name in netns /proc/%d/fd/%d", os.Getpid(), outside.File.Fd()),
		"ip link set pods up", "ip link set pod up", "ip link set out up",
		"ip addr add 10.244.1.1/24 dev pods", "ip addr add 10.1.0.1/24 dev out", "ip route add 198.51.100.0/24 dev out",
		"ip neigh add 10.1.0.9 lladdr 02:00:00:00:00:09 dev out", "ip route replace 198.51.100.0/24 via 10.1.0.9")
	outside.Run("ip link set in up")
	router.Run(fmt.Sprintf(`nft '
		table inet t {
			chain begin { type filter hook prerouting priority -90; iifname pods ct state new ct mark set %#x; }
			chain source { type nat hook postrouting priority 50; oifname out snat ip to 203.0.113.10; }
		}'`, mark))
	return router
}

// FlowSender sends packets from the pod of a FlowRouter.
type FlowSender struct {
	fd     int
	to     *unix.SockaddrLinklayer
	packet []byte
	sent   uint32
}

// NewFlowSender opens a socket in the namespace of a FlowRouter, in which the caller is.
func NewFlowSender() (*FlowSender, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		return nil, err
	}
	device, err := net.InterfaceByName("pod")
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	s := &FlowSender{fd: fd, to: &unix.SockaddrLinklayer{Ifindex: device.Index, Protocol: 0x0008}, packet: make([]byte, 14+20+8+10)}
	copy(s.packet, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0})
	copy(s.packet[14:], []byte{0x45, 0, 0, 38, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0, 10, 244, 1, 11, 198, 51, 100, 10})
	binary.BigEndian.PutUint16(s.packet[36:], 53)
	binary.BigEndian.PutUint16(s.packet[38:], 18)
	return s, nil
}

// Send sends one packet of a new flow. After 2^24 of them flows repeat.
func (s *FlowSender) Send() error {
	s.sent++
	copy(s.packet[30:], []byte{198, 51, 100, byte(s.sent >> 16)})
	binary.BigEndian.PutUint16(s.packet[34:], uint16(s.sent))
	binary.BigEndian.PutUint16(s.packet[24:], 0)
	binary.BigEndian.PutUint16(s.packet[24:], headerChecksum(s.packet[14:34]))
	return unix.Sendto(s.fd, s.packet, 0, s.to)
}

// Close closes the socket.
func (s *FlowSender) Close() { unix.Close(s.fd) }

// FlushConnections removes all connections of the caller's namespace.
func FlushConnections() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }

func headerChecksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
