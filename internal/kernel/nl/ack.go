// Package nl sends and reads netlink messages: sockets for routing (Conn), for netfilter (Netfilter) and for transactions
// of nftables (Writer), subscriptions to events, attributes and acknowledgements.
package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// AckError decodes the error of an acknowledgement, with the kernel's error text if there is one.
func AckError(m syscall.NetlinkMessage) error {
	if len(m.Data) < 4 {
		return nil
	}
	errno := int32(binary.NativeEndian.Uint32(m.Data))
	if errno == 0 {
		return nil
	}
	err := error(syscall.Errno(-errno))
	if m.Header.Flags&unix.NLM_F_ACK_TLVS == 0 {
		return err
	}
	if text := Attr(m.Data, ackAttrs(m), unix.NLMSGERR_ATTR_MSG); text != nil {
		return fmt.Errorf("%w (%s)", err, strings.TrimRight(string(text), "\x00"))
	}
	return err
}

// ackAttrs returns the place of an acknowledgement's attributes: they follow the error number and, except at the end of
// a dump, the request or its header.
func ackAttrs(m syscall.NetlinkMessage) int {
	const errno = 4
	switch {
	case m.Header.Type == unix.NLMSG_DONE:
		return errno
	case m.Header.Flags&unix.NLM_F_CAPPED == 0 && len(m.Data) >= 8:
		return errno + Align(int(binary.NativeEndian.Uint32(m.Data[errno:])))
	}
	return errno + unix.SizeofNlMsghdr
}

// JoinErrors joins errors, at most the first ten.
func JoinErrors(errs []error) error {
	const most = 10
	kept := errs[:0:0]
	n := 0
	for _, err := range errs {
		if err == nil {
			continue
		}
		if n++; n <= most {
			kept = append(kept, err)
		}
	}
	if n > most {
		kept = append(kept, fmt.Errorf("and %d more errors", n-most))
	}
	return errors.Join(kept...)
}
