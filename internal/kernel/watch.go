package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/link"
	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/ruleset"
)

// Watch calls wake when links, their settings, addresses, routes, rules, our tunnel's entries or our nftables table
// change other than by this Node, when it starts to see changes, and when it may have missed some. While it runs, this
// Node re-reads only the parts of the kernel that others changed. It returns nil when ctx ends.
func (n *Node) Watch(ctx context.Context, wake func()) error {
	return n.watch(ctx, nl.ReceiveBuffer, wake)
}

func (n *Node) watch(ctx context.Context, buffer int, wake func()) error {
	routing, err := nl.Subscribe(
		buffer, unix.NETLINK_ROUTE, n.stirs.routePort, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV4_NETCONF,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV6_NETCONF,
	)
	if err != nil {
		return fmt.Errorf("subscribe to rtnetlink events: %w", err)
	}
	defer routing.Close()
	nftables, err := listen(buffer, n.stirs.tablePort)
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
	n.stirs.watch(wake, nftables)
	defer n.stirs.watch(nil, nil)
	wake()
	ended := make(chan error)
	go func() {
		defer cancel()
		ended <- n.follow(ctx, nftables.sock, wake, func(m syscall.NetlinkMessage) bool {
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

// follow calls wake for the events that matter, until ctx ends and closes the socket. It passes every event to matters.
func (n *Node) follow(ctx context.Context, sock *vnl.NetlinkSocket, wake func(), matters func(syscall.NetlinkMessage) bool) error {
	for {
		events, _, err := sock.Receive()
		if ctx.Err() != nil {
			return nil
		}
		some, err := n.received(events, err, matters)
		if err != nil {
			return fmt.Errorf("receive events: %w", err)
		}
		if some {
			wake()
		}
	}
}

// received reports whether one of the events matters, or whether events were lost, after which the socket goes on.
func (n *Node) received(events []syscall.NetlinkMessage, err error, matters func(syscall.NetlinkMessage) bool) (some bool, failed error) {
	if err != nil && !errors.Is(err, unix.ENOBUFS) {
		return false, err
	}
	if err != nil {
		n.stirs.missed()
		some = true
	}
	for _, m := range events {
		some = matters(m) || some
	}
	return some, nil
}

// ourLinks holds the indices of the links that we made, except VLAN sub-interfaces. Neighbours on all other links do not matter
// to us.
type ourLinks map[uint32]bool

func readOurLinks() (ourLinks, linkNames, error) {
	links, names := ourLinks{}, linkNames{}
	request := nl.Message{Type: unix.RTM_GETLINK, Body: make([]byte, unix.SizeofIfInfomsg)}
	_, err := nl.Retry(func() (any, error) {
		return nil, nl.Dump(request, unix.RTM_NEWLINK, func(b []byte) bool {
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

func (o ourLinks) add(body []byte) {
	ours, vlan := false, false
	for typ, value := range nl.Attrs(body, unix.SizeofIfInfomsg) {
		switch typ {
		case unix.IFLA_GROUP:
			ours = binary.NativeEndian.Uint32(value) == link.LinkGroup
		case unix.IFLA_LINKINFO:
			vlan = isVLAN(value)
		}
	}
	if ours && !vlan {
		o[binary.NativeEndian.Uint32(body[linkIndex:])] = true
	}
}

// isVLAN reports whether the nested attribute about a link's kind says that it is a VLAN sub-interface.
func isVLAN(info []byte) bool {
	for typ, value := range nl.Attrs(info, 0) {
		if typ == unix.IFLA_INFO_KIND {
			return unix.ByteSliceToString(value) == "vlan"
		}
	}
	return false
}

// neighbour reports whether an event about a neighbour matters: on links that are not ours, neighbours come and go.
func (o ourLinks) neighbour(m syscall.NetlinkMessage) bool {
	return len(m.Data) >= unix.SizeofNdMsg && o[binary.NativeEndian.Uint32(m.Data[linkIndex:])]
}

// Offset in struct ifinfomsg and struct ndmsg.
const linkIndex = 4

// inOurTable reports whether an nftables event is about our table or an object in it. Attribute 1 names the table in
// every event.
func inOurTable(m syscall.NetlinkMessage) bool {
	name := nl.Attr(m.Data, vnl.SizeofNfgenmsg, unix.NFTA_TABLE_NAME)
	return strings.TrimRight(string(name), "\x00") == ruleset.TableName
}
