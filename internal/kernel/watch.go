package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// receiveBuffer holds the events of some 20,000 routes while the reader is busy. The kernel drops what does not fit.
const receiveBuffer = 16 << 20

// Watch calls wake when links, addresses, routes, rules or our nft table change, whoever changes them, and when it
// begins to see changes or may have missed some. It ends with ctx, without an error.
func Watch(ctx context.Context, wake func()) error { return watch(ctx, receiveBuffer, wake) }

func watch(ctx context.Context, buffer int, wake func()) error {
	routing, err := subscribe(buffer, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE)
	if err != nil {
		return fmt.Errorf("subscribe to rtnetlink events: %w", err)
	}
	defer routing.Close()
	nftables, err := subscribe(buffer, unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return fmt.Errorf("subscribe to nftables events: %w", err)
	}
	defer nftables.Close()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, routing.Close)()
	defer context.AfterFunc(ctx, nftables.Close)()
	wake()
	ended := make(chan error)
	go func() {
		defer cancel()
		ended <- follow(ctx, nftables, inOurTable, wake)
	}()
	err = follow(ctx, routing, func(syscall.NetlinkMessage) bool { return true }, wake)
	cancel()
	return errors.Join(err, <-ended)
}

func subscribe(buffer, protocol int, groups ...uint) (*nl.NetlinkSocket, error) {
	sock, err := nl.Subscribe(protocol, groups...)
	if err != nil {
		return nil, err
	}
	if err := sock.SetReceiveBufferSize(buffer, true); err != nil {
		sock.Close()
		return nil, fmt.Errorf("set receive buffer: %w", err)
	}
	return sock, nil
}

// follow calls wake for the events that matter until ctx ends and with it the socket.
func follow(ctx context.Context, sock *nl.NetlinkSocket, matters func(syscall.NetlinkMessage) bool, wake func()) error {
	for {
		events, _, err := sock.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // events were lost, the socket goes on
			wake()
		case err != nil:
			return fmt.Errorf("receive events: %w", err)
		}
		if slices.ContainsFunc(events, matters) {
			wake()
		}
	}
}

// inOurTable says whether an nftables event is about our table or what is in it. Attribute 1 names the table in all of them.
func inOurTable(m syscall.NetlinkMessage) bool {
	for typ, value := range attrs(m.Data, nl.SizeofNfgenmsg) {
		if typ == unix.NFTA_TABLE_NAME {
			return strings.TrimRight(string(value), "\x00") == tableName
		}
	}
	return false
}
