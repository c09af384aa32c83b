package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab"
)

// fib is a copy of a node's routes in one table by one protocol, kept by the kernel's notifications.
type fib struct {
	node     *lab.Node
	table    uint32
	protocol uint8

	mu     sync.Mutex
	routes map[netip.Prefix]netip.Addr // next hops
	want   int                         // how many of them a caller waits for; -1: no caller waits
	got    chan time.Time
	err    error
}

// watch follows a table until the lab ends.
func watch(n *lab.Node, table uint32, protocol uint8) (*fib, error) {
	f := &fib{node: n, table: table, protocol: protocol, routes: map[netip.Prefix]netip.Addr{}, want: -1}
	fd, err := f.open(unix.RTMGRP_IPV4_ROUTE)
	if err != nil {
		return nil, err
	}
	go func() {
		b := make([]byte, 1<<20)
		for {
			n, _, err := unix.Recvfrom(fd, b, 0)
			at := time.Now()
			if errors.Is(err, unix.EINTR) {
				continue
			}
			f.mu.Lock()
			f.err = err
			for kind, body := range messages(b[:max(n, 0)]) {
				f.note(f.routes, kind, body)
			}
			if f.want == len(f.routes) || err != nil && f.want >= 0 {
				f.want = -1
				f.got <- at
			}
			f.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return f, nil
}

func (f *fib) open(groups uint32) (fd int, err error) {
	err = f.node.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups})
		}
		if err == nil { // a burst of changes comes faster than it is read
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<30)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("listen to routes: %w", err)
	}
	return fd, nil
}

// reaches has the time sent, once, when the table has n routes. Only one may wait.
func (f *fib) reaches(n int) <-chan time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.got = make(chan time.Time, 1)
	if f.want = n; len(f.routes) == n {
		f.want = -1
		f.got <- time.Now()
	}
	return f.got
}

// await waits for the moment that reaches promised.
func (f *fib) await(ctx context.Context, reached <-chan time.Time) (time.Time, error) {
	select {
	case at := <-reached:
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.err != nil {
			return at, fmt.Errorf("node %s: table %d: changes in the kernel were lost: %w", f.node.Name, f.table, f.err)
		}
		return at, nil
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	case <-time.After(within):
		f.mu.Lock()
		defer f.mu.Unlock()
		return time.Time{}, fmt.Errorf("node %s: table %d has %d routes after %s, not %d",
			f.node.Name, f.table, len(f.routes), within, f.want)
	}
}

// now returns a copy of the routes so far.
func (f *fib) now() map[netip.Prefix]netip.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.routes)
}

// dump asks the kernel for the whole table.
func (f *fib) dump() (map[netip.Prefix]netip.Addr, error) {
	fd, err := f.open(0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	m := make([]byte, unix.SizeofNlMsghdr+unix.SizeofRtMsg)
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	binary.NativeEndian.PutUint16(m[4:], unix.RTM_GETROUTE)
	binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	m[unix.SizeofNlMsghdr] = unix.AF_INET
	if err := unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	all := map[netip.Prefix]netip.Addr{}
	b := make([]byte, 1<<20)
	for {
		n, _, err := unix.Recvfrom(fd, b, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the table: %w", err)
		}
		for kind, body := range messages(b[:n]) {
			switch kind {
			case unix.NLMSG_DONE:
				return all, nil
			case unix.NLMSG_ERROR:
				return nil, fmt.Errorf("read the table: %w", unix.Errno(-int32(binary.NativeEndian.Uint32(body))))
			}
			f.note(all, kind, body)
		}
	}
}

// concerns reports whether a message is about an IPv4 route by the protocol.
func (f *fib) concerns(kind uint16, b []byte) bool {
	return (kind == unix.RTM_NEWROUTE || kind == unix.RTM_DELROUTE) &&
		len(b) >= unix.SizeofRtMsg && b[0] == unix.AF_INET && b[5] == f.protocol
}

// note applies a message on a route to routes.
func (f *fib) note(routes map[netip.Prefix]netip.Addr, kind uint16, b []byte) {
	if !f.concerns(kind, b) {
		return
	}
	bits, table := int(b[1]), uint32(b[4])
	var to, hop netip.Addr
	for typ, value := range attributes(b[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_DST:
			to, _ = netip.AddrFromSlice(value)
		case unix.RTA_GATEWAY:
			hop, _ = netip.AddrFromSlice(value)
		case unix.RTA_TABLE:
			table = binary.NativeEndian.Uint32(value)
		}
	}
	if table != f.table || !to.IsValid() {
		return
	}
	if kind == unix.RTM_DELROUTE {
		delete(routes, netip.PrefixFrom(to, bits))
		return
	}
	routes[netip.PrefixFrom(to, bits)] = hop
}

// messages walks those of netlink.
func messages(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlMsghdr {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.SizeofNlMsghdr || size > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[4:]), b[unix.SizeofNlMsghdr:size]) {
				return
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}

// attributes walks those of a message.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			size := int(binary.NativeEndian.Uint16(b))
			if size < unix.SizeofRtAttr || size > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:]), b[unix.SizeofRtAttr:size]) {
				return
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}
