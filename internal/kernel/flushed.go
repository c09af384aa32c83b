package kernel

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

const mainTable = unix.RT_TABLE_MAIN

// Fields of struct ifaddrmsg, and attributes that x/sys does not define.
const (
	addrFlags  = 2
	addrIndex  = 4
	ifaProto   = 11 // IFA_PROTO
	protoRA    = 2  // IFAPROT_KERNEL_RA: router advertisements restore these addresses
	tableField = 4  // of struct rtmsg
)

// flushed holds the addresses and routes which the kernel flushes from an interface when its master changes
// (addrconf_notify on NETDEV_CHANGEUPPER, cycle_netdev of the VRF driver): its IPv6 addresses, and the static routes of
// both families.
type flushed struct {
	addrs, routes []message // as requests to add them
}

func readFlushed(device int) (f flushed, err error) {
	if f.addrs, err = retried(func() ([]message, error) { return listAddresses(device) }); err != nil {
		return f, fmt.Errorf("list IPv6 addresses: %w", err)
	}
	if f.routes, err = retried(func() ([]message, error) { return listStatic(device) }); err != nil {
		return f, fmt.Errorf("list static routes: %w", err)
	}
	return f, nil
}

// restore puts back the addresses and routes that are gone. When the master changes, connected routes move to another
// table, and the static routes that depend on them move along.
func (f flushed) restore(device int, from, to uint32) error {
	if len(f.addrs)+len(f.routes) == 0 {
		return nil
	}
	// Finish even if the daemon is asked to stop meanwhile.
	ctx := context.Background()
	var errs []error
	for _, m := range f.addrs {
		errs = append(errs, restoreAddress(ctx, m))
	}
	// Routes with several next hops may have survived.
	stayed, err := retried(func() ([]message, error) { return listStatic(device) })
	errs = append(errs, err)
	routes := slices.DeleteFunc(slices.Clone(f.routes), func(m message) bool {
		return slices.ContainsFunc(stayed, func(s message) bool { return keyOfMessage(s) == keyOfMessage(m) })
	})
	for i := range routes {
		routes[i].body = inTable(routes[i].body, from, to)
	}
	results, err := change(ctx, routes)
	errs = append(errs, err)
	for i, err := range results {
		if err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("restore route %s: %w", keyOfMessage(routes[i]), err))
		}
	}
	return errors.Join(errs...)
}

// listAddresses lists a device's global IPv6 addresses that neither router advertisements nor the kernel restore, as
// requests to add them.
func listAddresses(device int) ([]message, error) {
	var addrs []message
	body := make([]byte, unix.SizeofIfAddrmsg)
	body[0] = unix.AF_INET6
	binary.NativeEndian.PutUint32(body[addrIndex:], uint32(device))
	err := dump(message{typ: unix.RTM_GETADDR, body: body}, unix.RTM_NEWADDR, func(b []byte) bool {
		if int(binary.NativeEndian.Uint32(b[addrIndex:])) != device || b[3] == unix.RT_SCOPE_LINK || b[addrFlags]&unix.IFA_F_TEMPORARY != 0 {
			return true
		}
		for typ, value := range attrs(b, unix.SizeofIfAddrmsg) {
			if typ == ifaProto && value[0] == protoRA {
				return true
			}
		}
		addrs = append(addrs, message{unix.RTM_NEWADDR, unix.NLM_F_CREATE | unix.NLM_F_EXCL, slices.Clone(b)})
		return true
	})
	slices.Reverse(addrs) // the kernel lists the newest first
	return addrs, err
}

// restoreAddress adds an address with all its attributes. The address was unique on its link before, so it skips
// duplicate address detection (IFA_F_NODAD) and is usable at once; a second request clears that flag.
func restoreAddress(ctx context.Context, m message) error {
	var ip netip.Addr
	flags := uint32(m.body[addrFlags])
	var rest []byte
	for typ, value := range attrs(m.body, unix.SizeofIfAddrmsg) {
		switch typ {
		case unix.IFA_FLAGS:
			flags = binary.NativeEndian.Uint32(value)
			continue
		case unix.IFA_ADDRESS, unix.IFA_LOCAL:
			ip, _ = netip.AddrFromSlice(value)
		}
		rest = appendAttr(rest, typ, value...)
	}
	flags &^= unix.IFA_F_TENTATIVE | unix.IFA_F_PERMANENT | unix.IFA_F_DADFAILED
	request := func(flags uint32) []byte {
		b := slices.Clone(m.body[:unix.SizeofIfAddrmsg])
		b[addrFlags] = uint8(flags)
		return append(appendAttr32(b, unix.IFA_FLAGS, flags), rest...)
	}
	requests := []message{
		{m.typ, m.flags, request(flags | unix.IFA_F_NODAD)},
		{m.typ, unix.NLM_F_REPLACE, request(flags)},
	}
	results, err := change(ctx, requests)
	if err == nil && !errors.Is(results[0], unix.EEXIST) {
		err = errors.Join(results...)
	}
	if err != nil {
		return fmt.Errorf("restore address %s: %w", ip, err)
	}
	return nil
}

// listStatic lists a device's routes of protocols static and boot, as requests to add them.
func listStatic(device int) ([]message, error) {
	var routes []message
	for _, family := range routeFamilies() {
		for _, protocol := range []uint8{unix.RTPROT_STATIC, unix.RTPROT_BOOT} {
			body := make([]byte, unix.SizeofRtMsg)
			body[0], body[5] = family, protocol
			body = appendAttr32(body, unix.RTA_OIF, uint32(device))
			err := dump(message{typ: unix.RTM_GETROUTE, body: body}, unix.RTM_NEWROUTE, func(b []byte) bool {
				r, ok := decodeRoute(b)
				if ok && r.protocol == protocol && slices.ContainsFunc(r.legs, func(l leg) bool { return l.device == device }) {
					routes = append(routes, message{unix.RTM_NEWROUTE, unix.NLM_F_CREATE | unix.NLM_F_EXCL, slices.Clone(b)})
				}
				return true
			})
			if err != nil {
				return nil, err
			}
		}
	}
	// One of these routes may lead to another's gateway, so routes without a gateway come first.
	slices.SortStableFunc(routes, func(a, b message) int { return cmp.Compare(gateways(a), gateways(b)) })
	return routes, nil
}

func gateways(m message) (n int) {
	r, _ := decodeRoute(m.body)
	for _, l := range r.legs {
		if l.gateway.IsValid() {
			n++
		}
	}
	return n
}

func keyOfMessage(m message) routeKey {
	if r, ok := decodeRoute(m.body); ok {
		return r.routeKey
	}
	return routeKey{}
}

// inTable returns an encoded route moved from table from to table to, without the flags that only the kernel sets.
func inTable(body []byte, from, to uint32) []byte {
	b := slices.Clone(body)
	binary.NativeEndian.PutUint32(b[8:], binary.NativeEndian.Uint32(b[8:])&unix.RTNH_F_ONLINK)
	for typ, value := range attrs(b, unix.SizeofRtMsg) {
		if typ == unix.RTA_TABLE && binary.NativeEndian.Uint32(value) == from {
			binary.NativeEndian.PutUint32(value, to)
			b[tableField] = unix.RT_TABLE_UNSPEC
		}
	}
	return b
}
