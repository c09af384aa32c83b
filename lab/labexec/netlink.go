package main

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Two netlink requests, written out so that labexec stays small and quick to start.

const vrfTable = 1 // IFLA_VRF_TABLE

func attribute(kind uint16, data []byte) []byte {
	b := make([]byte, 4+(len(data)+3)&^3)
	binary.NativeEndian.PutUint16(b, uint16(4+len(data)))
	binary.NativeEndian.PutUint16(b[2:], kind)
	copy(b[4:], data)
	return b
}

// newLink sends one RTM_NEWLINK and returns the kernel's answer.
func newLink(flags uint16, body []byte) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink socket: %w", err)
	}
	defer unix.Close(fd)
	msg := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+len(body))
	binary.NativeEndian.PutUint32(msg, uint32(cap(msg)))
	binary.NativeEndian.PutUint16(msg[4:], unix.RTM_NEWLINK)
	binary.NativeEndian.PutUint16(msg[6:], flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	if err := unix.Sendto(fd, append(msg, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send to netlink: %w", err)
	}
	answer := make([]byte, 8192)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return fmt.Errorf("read from netlink: %w", err)
	}
	if n < unix.NLMSG_HDRLEN+4 {
		return fmt.Errorf("netlink answered %d bytes", n)
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

func addVRF(name string, table uint32) error {
	data := attribute(vrfTable, binary.NativeEndian.AppendUint32(nil, table))
	info := append(attribute(unix.IFLA_INFO_KIND, []byte("vrf")), attribute(unix.IFLA_INFO_DATA, data)...)
	body := make([]byte, unix.SizeofIfInfomsg)
	body = append(body, attribute(unix.IFLA_IFNAME, append([]byte(name), 0))...)
	body = append(body, attribute(unix.IFLA_LINKINFO, info)...)
	return newLink(unix.NLM_F_CREATE|unix.NLM_F_EXCL, body)
}

func linkUp(name string) error {
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[8:], unix.IFF_UP)
	binary.NativeEndian.PutUint32(body[12:], unix.IFF_UP)
	body = append(body, attribute(unix.IFLA_IFNAME, append([]byte(name), 0))...)
	if err := newLink(0, body); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}
