package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab"
)

// capture notes every SYN that comes in by some devices of a node.
type capture struct {
	ending  atomic.Bool
	once    sync.Once
	work    sync.WaitGroup
	sockets []*listening
	all     []sight
	lost    int
}

type listening struct {
	fd     int
	device string
	seen   []sight
}

func listen(n *lab.Node, devices ...string) (*capture, error) {
	c := &capture{}
	for _, name := range devices {
		d, err := device(n, name)
		if err != nil {
			return nil, err
		}
		l := &listening{device: name}
		if err := n.Do(func() (err error) { l.fd, err = open(d.Index); return err }); err != nil {
			return nil, fmt.Errorf("listen to %s: %w", name, err)
		}
		c.sockets = append(c.sockets, l)
		c.work.Go(func() { l.run(&c.ending) })
	}
	return c, nil
}

// open opens a socket that is given the packets that come in by a device for the target, with the time of each.
func open(index int) (fd int, err error) {
	const toTarget = 16 // offset of the destination
	address := target.As4()
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: toTarget, Size: 4},
		bpf.JumpIf{
			Cond: bpf.JumpEqual, Val: uint32(address[0])<<24 | uint32(address[1])<<16 | uint32(address[2])<<8 | uint32(address[3]),
			SkipFalse: 1,
		},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{},
	})
	if err != nil {
		return -1, err
	}
	program := make([]unix.SockFilter, len(filter))
	for i, f := range filter {
		program[i] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, err
	}
	const buffer, look = 256 << 20, 100_000 // bytes, µs
	ip := uint16(unix.ETH_P_IP<<8&0xff00 | unix.ETH_P_IP>>8)
	err = errors.Join(
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS_NEW, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: look}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: ip, Ifindex: index}),
	)
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// run reads until the end, and then the packets that are left.
func (l *listening) run(ending *atomic.Bool) {
	packet, control := make([]byte, 256), make([]byte, 256)
	for {
		last := ending.Load()
		n, told, _, _, err := unix.Recvmsg(l.fd, packet, control, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) && !last:
			continue
		case err != nil:
			return
		}
		if x, ok := read(packet[:n]); ok {
			x.device, x.at = l.device, stamp(control[:told])
			l.seen = append(l.seen, x)
		}
	}
}

// stamp returns when the kernel received the packet of a control message.
func stamp(control []byte) time.Time {
	all, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}
	}
	for _, m := range all {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS_NEW && len(m.Data) >= 16 {
			second, nano := binary.NativeEndian.Uint64(m.Data), binary.NativeEndian.Uint64(m.Data[8:]) // struct __kernel_timespec
			return time.Unix(int64(second), int64(nano))
		}
	}
	return time.Time{}
}

// end returns all sights, and how many packets the kernel had no room for. A second call returns the same.
func (c *capture) end() (all []sight, lost int) {
	c.once.Do(func() {
		c.ending.Store(true)
		c.work.Wait()
		for _, l := range c.sockets {
			if stats, err := unix.GetsockoptTpacketStats(l.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
				c.lost += int(stats.Drops)
			}
			unix.Close(l.fd)
			c.all = append(c.all, l.seen...)
		}
	})
	return c.all, c.lost
}
