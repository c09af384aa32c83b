package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
)

// tableEvents receives events about nftables tables. The kernel makes an event for each element of a transaction as long as
// any socket listens, which takes it longer than the transaction itself. During our large transactions, therefore, this
// socket does not listen; the generation, which every transaction of any program increments, shows whether others changed a
// table meanwhile.
type tableEvents struct {
	mu     sync.Mutex // held while the socket does not listen
	sock   *vnl.NetlinkSocket
	asks   *nl.Netfilter // for the generation
	closed bool
}

// listen subscribes to events about nftables tables, without those that the socket with the port id but causes.
func listen(buffer int, but uint32) (*tableEvents, error) {
	sock, err := nl.Subscribe(buffer, unix.NETLINK_NETFILTER, but, unix.NFNLGRP_NFTABLES)
	if err != nil {
		return nil, err
	}
	asks, err := nl.DialNetfilter()
	if err != nil {
		sock.Close()
		return nil, err
	}
	return &tableEvents{sock: sock, asks: asks}, nil
}

// Close ends listening.
func (e *tableEvents) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.closed = true
		e.sock.Close()
		e.asks.Close()
	}
}

// pause stops listening during one transaction of ours, until resume, which gets whether it was committed. missed is called if
// other programs committed one, or if that is not known. Without a pause, resume is nil.
func (e *tableEvents) pause(missed func()) (resume func(committed bool)) {
	e.mu.Lock()
	before, err := e.generation()
	if err != nil || e.setMember(unix.NETLINK_DROP_MEMBERSHIP) != nil {
		e.mu.Unlock()
		return nil
	}
	return func(committed bool) {
		defer e.mu.Unlock()
		if e.setMember(unix.NETLINK_ADD_MEMBERSHIP) != nil {
			e.closed = true
			e.sock.Close() // the reader gets an error
			e.asks.Close()
			return
		}
		if committed {
			before++
		}
		if now, err := e.generation(); err != nil || now != before {
			missed()
		}
	}
}

// setMember makes the socket join or leave the group of nftables events.
func (e *tableEvents) setMember(option int) error {
	if e.closed {
		return unix.EBADF
	}
	return unix.SetsockoptInt(e.sock.GetFd(), unix.SOL_NETLINK, option, unix.NFNLGRP_NFTABLES)
}

// generation returns the number of the last nftables transaction in this network namespace.
func (e *tableEvents) generation() (uint32, error) {
	if e.closed {
		return 0, unix.EBADF
	}
	bodies, err := e.asks.Ask(nl.NftRequest(unix.NFT_MSG_GETGEN))
	if err != nil {
		return 0, fmt.Errorf("read the nftables generation: %w", err)
	}
	for _, b := range bodies {
		if id := nl.Attr(b, nl.NfgenmsgLen, unix.NFTA_GEN_ID); len(id) == 4 {
			return binary.BigEndian.Uint32(id), nil
		}
	}
	return 0, errors.New("read the nftables generation: the kernel names none")
}
