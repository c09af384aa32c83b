package kernel

import (
	"context"
	"encoding/binary"
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

// Watch calls wake when links, addresses, routes, rules, what stands in our tunnel or our nft table change, whoever changes
// them, and when it begins to see changes or may have missed some. It ends with ctx, without an error.
func Watch(ctx context.Context, wake func()) error { return watch(ctx, receiveBuffer, wake) }

func watch(ctx context.Context, buffer int, wake func()) error {
	routing, err := subscribe(buffer, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEIGH)
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
	links, err := readOurLinks()
	if err != nil {
		return err
	}
	wake()
	ended := make(chan error)
	go func() {
		defer cancel()
		ended <- follow(ctx, nftables, inOurTable, wake)
	}()
	err = follow(ctx, routing, links.concern, wake)
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

// ourLinks are the indices of the links that we made. Neighbours come and go on all others, and are none of our concern.
type ourLinks map[uint32]bool

func readOurLinks() (ourLinks, error) {
	links := ourLinks{}
	_, err := retried(func() (any, error) {
		return nil, dump(message{typ: unix.RTM_GETLINK, body: make([]byte, unix.SizeofIfInfomsg)}, unix.RTM_NEWLINK, func(b []byte) bool {
			links.add(b)
			return true
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}

func (o ourLinks) add(link []byte) {
	for typ, value := range attrs(link, unix.SizeofIfInfomsg) {
		if typ == unix.IFLA_GROUP && binary.NativeEndian.Uint32(value) == linkGroup {
			o[binary.NativeEndian.Uint32(link[linkIndex:])] = true
		}
	}
}

// Fields of struct ifinfomsg and struct ndmsg.
const linkIndex = 4

// concern says whether a change matters.
func (o ourLinks) concern(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK:
		o.add(m.Data)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return o[binary.NativeEndian.Uint32(m.Data[linkIndex:])]
	}
	return true
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
