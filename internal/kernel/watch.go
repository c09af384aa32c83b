package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// receiveBuffer holds the events of some 20,000 routes while the reader is busy. The kernel drops events that do not
// fit.
const receiveBuffer = 16 << 20

// Watch calls wake when links, their settings, addresses, routes, rules, our tunnel's entries or our nftables table
// change other than by this Node, when it starts to see changes, and when it may have missed some. While it runs, this
// Node re-reads only the parts of the kernel that others changed. It returns nil when ctx ends.
func (n *Node) Watch(ctx context.Context, wake func()) error {
	return n.watch(ctx, receiveBuffer, wake)
}

func (n *Node) watch(ctx context.Context, buffer int, wake func()) error {
	routing, err := subscribe(buffer, unix.NETLINK_ROUTE, n.stirs.routePort, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEIGH,
		unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return fmt.Errorf("subscribe to rtnetlink events: %w", err)
	}
	defer routing.Close()
	nftables, err := subscribe(buffer, unix.NETLINK_NETFILTER, n.stirs.tablePort, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return fmt.Errorf("subscribe to nftables events: %w", err)
	}
	defer nftables.Close()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, routing.Close)()
	defer context.AfterFunc(ctx, nftables.Close)()
	ours, names, err := readOurLinks()
	if err != nil {
		return err
	}
	n.stirs.watch(wake)
	defer n.stirs.watch(nil)
	wake()
	ended := make(chan error)
	go func() {
		defer cancel()
		ended <- n.follow(ctx, nftables, wake, func(m syscall.NetlinkMessage) bool {
			return inOurTable(m) && n.stirs.takeTable(m)
		})
	}()
	err = n.follow(ctx, routing, wake, func(m syscall.NetlinkMessage) bool {
		if m.Header.Type == unix.RTM_NEWLINK {
			ours.add(m.Data)
		}
		what := n.stirs.stir(names, ours, m)
		n.stirs.take(what)
		return what != stirNothing
	})
	cancel()
	return errors.Join(err, <-ended)
}

// subscribe opens a socket for events, without those caused by the socket with the port id but (0: none): of these
// there may be very many at once.
func subscribe(buffer, protocol int, but uint32, groups ...uint) (*nl.NetlinkSocket, error) {
	sock, err := nl.Subscribe(protocol, groups...)
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
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: messagePort},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: binary.BigEndian.Uint32(order[:])}, // the filter loads big endian
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 30},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// follow calls wake for the events that matter, until ctx ends and closes the socket. It passes every event to matters.
func (n *Node) follow(ctx context.Context, sock *nl.NetlinkSocket, wake func(), matters func(syscall.NetlinkMessage) bool) error {
	for {
		events, _, err := sock.Receive()
		some := false
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // events were lost, the socket goes on
			n.stirs.missed()
			some = true
		case err != nil:
			return fmt.Errorf("receive events: %w", err)
		}
		for _, m := range events {
			some = matters(m) || some
		}
		if some {
			wake()
		}
	}
}

// ourLinks holds the indices of the links that we made. Neighbours on all other links do not matter to us.
type ourLinks map[uint32]bool

func readOurLinks() (ourLinks, linkNames, error) {
	links, names := ourLinks{}, linkNames{}
	_, err := retried(func() (any, error) {
		return nil, dump(message{typ: unix.RTM_GETLINK, body: make([]byte, unix.SizeofIfInfomsg)}, unix.RTM_NEWLINK, func(b []byte) bool {
			links.add(b)
			names[binary.NativeEndian.Uint32(b[linkIndex:])] = linkName(b)
			return true
		})
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list links: %w", err)
	}
	return links, names, nil
}

func (o ourLinks) add(link []byte) {
	for typ, value := range attrs(link, unix.SizeofIfInfomsg) {
		if typ == unix.IFLA_GROUP && binary.NativeEndian.Uint32(value) == linkGroup {
			o[binary.NativeEndian.Uint32(link[linkIndex:])] = true
		}
	}
}

// Offset in struct ifinfomsg and struct ndmsg.
const linkIndex = 4

// inOurTable reports whether an nftables event is about our table or an object in it. Attribute 1 names the table in
// every event.
func inOurTable(m syscall.NetlinkMessage) bool {
	for typ, value := range attrs(m.Data, nl.SizeofNfgenmsg) {
		if typ == unix.NFTA_TABLE_NAME {
			return strings.TrimRight(string(value), "\x00") == tableName
		}
	}
	return false
}
