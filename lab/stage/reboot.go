package stage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab"
)

// PowerOff ends a node as a loss of power does: no packet leaves it or comes to it any more, and its kernel forgets the
// daemon's state and all connections. Boot brings the node back.
func (s *Stage) PowerOff(ctx context.Context, node string) error {
	if err := s.Unplug(s.cables(node)...); err != nil {
		return err
	}
	for _, process := range []*lab.Daemon{s.Daemons[node], s.Speakers[node]} {
		if process != nil {
			process.Kill()
		}
	}
	return s.forget(ctx, node)
}

// ShutDown is PowerOff after the node's processes have ended in order.
func (s *Stage) ShutDown(ctx context.Context, node string) error {
	for _, process := range []*lab.Daemon{s.Daemons[node], s.Speakers[node]} {
		if process != nil && !process.Ended() {
			if err := process.Stop(ctx); err != nil {
				return err
			}
		}
	}
	return s.PowerOff(ctx, node)
}

// Boot has a node come back with its kernel, its addresses and its CNI. StartDaemon follows.
func (s *Stage) Boot(node string) error { return s.Plug(s.cables(node)...) }

// forget makes the kernel of a node as it is after a boot.
func (s *Stage) forget(ctx context.Context, node string) error {
	if _, err := s.Egressway(ctx, node, "cleanup"); err != nil {
		return err
	}
	if err := s.Node(node).Do(flushConnections); err != nil {
		return fmt.Errorf("node %s: flush connections: %w", node, err)
	}
	return nil
}

// flushConnections removes all connections from the kernel.
func flushConnections() (err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	const deleteAll = 1<<8 | 2 // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE without a tuple
	const length = unix.SizeofNlMsghdr + 4
	b := binary.NativeEndian.AppendUint32(nil, length)
	b = binary.NativeEndian.AppendUint16(b, deleteAll)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = append(b, make([]byte, length-len(b))...) // sequence, port, struct nfgenmsg
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 128)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 {
		return errors.New("the kernel's answer is too short")
	}
	if errno := -int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}
