package nl

import (
	"encoding/binary"
	"fmt"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ReceiveBuffer holds the events of some 20,000 routes while the reader is busy. The kernel drops events that do not
// fit.
const ReceiveBuffer = 16 << 20

// Subscribe opens a socket for events, without those caused by the socket with the port id but (0: none): of these
// there may be very many at once.
func Subscribe(buffer, protocol int, but uint32, groups ...uint) (*vnl.NetlinkSocket, error) {
	sock, err := vnl.Subscribe(protocol, groups...)
	if err != nil {
		return nil, err
	}
	if err := sock.SetReceiveBufferSize(buffer, true); err != nil {
		sock.Close()
		return nil, fmt.Errorf("set receive buffer: %w", err)
	}
	if but != 0 {
		// Kernels without socket filters deliver them, and the reader skips them.
		_ = ignore(sock.GetFd(), but)
	}
	return sock, nil
}

// ignore installs a filter that drops messages caused by the socket with a port id.
func ignore(fd int, port uint32) error {
	var order [4]byte
	binary.NativeEndian.PutUint32(order[:], port)
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: MessagePort},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: binary.BigEndian.Uint32(order[:])}, // the filter loads big endian
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 30},
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter)
}
