package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab"
)

// ourTable is the daemon's. Elements leave its sets of former addresses by time, without the daemon.
const (
	ourTable = "egressway"
	former   = "former"
)

// netfilterWatch is the socket of watchNetfilter.
type netfilterWatch int

// listen begins or stops listening to events. As long as a socket listens, a large transaction takes twice as long.
func (w netfilterWatch) listen(on bool) error {
	option := unix.NETLINK_DROP_MEMBERSHIP
	if on {
		option = unix.NETLINK_ADD_MEMBERSHIP
	}
	return unix.SetsockoptInt(int(w), unix.SOL_NETLINK, option, unix.NFNLGRP_NFTABLES)
}

// watchNetfilter notes every address that comes to or goes from a set of the daemon's table in a node, while the watch listens.
// The kernel reports a transaction when it is in force. The watch ends with the process.
func watchNetfilter(n *lab.Node, s *seen) (w netfilterWatch, err error) {
	var fd int
	err = n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err == nil {
			err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		}
		if err == nil { // a move adds very many elements at once
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<29)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("listen to nftables: %w", err)
	}
	go func() {
		atOnce()
		b := make([]byte, 1<<20)
		for {
			n, _, err := unix.Recvfrom(fd, b, 0)
			at := time.Now()
			switch {
			case errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOBUFS): // a lost change is never matched, which shows in the table
				continue
			case err != nil:
				return
			}
			s.note(at, netfilterSights(b[:n]))
		}
	}()
	return netfilterWatch(fd), nil
}

// atOnce has this goroutine's thread run whenever it can: it notes when something happens.
func atOnce() {
	runtime.LockOSThread()
	// If this fails, the times are a little late.
	_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
}

func netfilterSights(b []byte) (all []sight) {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			break
		}
		const generic = 4 // struct nfgenmsg
		typ, body := binary.NativeEndian.Uint16(b[4:]), b[unix.SizeofNlMsghdr:size]
		k := added
		switch typ {
		case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELSETELEM:
			k = removed
			fallthrough
		case unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSETELEM:
			if len(body) >= generic {
				all = append(all, elements(body[generic:], k)...)
			}
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return all
}

// keys returns the addresses that an element's key begins with.
func keys(element []byte) (all []netip.Addr) {
	for key := range values(element, unix.NFTA_SET_ELEM_KEY) {
		for data := range values(key, unix.NFTA_DATA_VALUE) {
			if len(data)%4 == 0 && len(data) >= 4 {
				all = append(all, netip.AddrFrom4([4]byte(data)))
			}
		}
	}
	return all
}

// values iterates over the values of all attributes of a type.
func values(b []byte, typ uint16) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for t, value := range attributes(b) {
			if t == typ && !yield(value) {
				return
			}
		}
	}
}

// elements lists the addresses of an element message: those that are the key, or begin it.
func elements(b []byte, k kind) (all []sight) {
	for typ, value := range attributes(b) {
		switch typ {
		case unix.NFTA_SET_ELEM_LIST_TABLE:
			if text(value) != ourTable {
				return nil
			}
		case unix.NFTA_SET_ELEM_LIST_SET:
			if strings.HasPrefix(text(value), former) {
				return nil
			}
		case unix.NFTA_SET_ELEM_LIST_ELEMENTS:
			for _, element := range attributes(value) {
				for _, a := range keys(element) {
					all = append(all, sight{k, a})
				}
			}
		}
	}
	return all
}

func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

// attributes walks netlink attributes.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			size := int(binary.NativeEndian.Uint16(b))
			if size < unix.SizeofRtAttr || size > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.SizeofRtAttr:size]) {
				return
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}
