package link

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/plan"
)

// MainTable is the main routing table.
const MainTable = unix.RT_TABLE_MAIN

// Fields of struct ifaddrmsg, and attributes that x/sys does not define.
const (
	addrFlags  = 2
	AddrIndex  = 4
	ifaProto   = 11 // IFA_PROTO
	protoRA    = 2  // IFAPROT_KERNEL_RA: router advertisements restore these addresses
	tableField = 4  // of struct rtmsg
)

// flushed holds the addresses and routes which the kernel flushes from an interface when its master changes
// (addrconf_notify on NETDEV_CHANGEUPPER, cycle_netdev of the VRF driver): its IPv6 addresses, and the static routes of
// both families.
type flushed struct {
	addrs, routes []nl.Message // as requests to add them
}

func readFlushed(device int) (f flushed, err error) {
	if f.addrs, err = nl.Retry(func() ([]nl.Message, error) { return listAddresses(device) }); err != nil {
		return f, fmt.Errorf("list IPv6 addresses: %w", err)
	}
	if f.routes, err = nl.Retry(func() ([]nl.Message, error) { return listStatic(device) }); err != nil {
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
	return errors.Join(append(errs, f.restoreRoutes(ctx, device, from, to)...)...)
}

// restoreRoutes adds the routes that are gone. Those with several next hops may have survived.
func (f flushed) restoreRoutes(ctx context.Context, device int, from, to uint32) (errs []error) {
	stayed, err := nl.Retry(func() ([]nl.Message, error) { return listStatic(device) })
	errs = append(errs, err)
	routes := slices.DeleteFunc(slices.Clone(f.routes), func(m nl.Message) bool {
		return slices.ContainsFunc(stayed, func(s nl.Message) bool { return keyOfMessage(s) == keyOfMessage(m) })
	})
	for i := range routes {
		routes[i].Body = inTable(routes[i].Body, from, to)
	}
	results, err := nl.Change(ctx, routes)
	errs = append(errs, err)
	for i, err := range results {
		if err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("restore route %s: %w", keyOfMessage(routes[i]), err))
		}
	}
	return errs
}

// takeDefaults removes and returns the default routes of a table, of the given families.
func (f *flushed) takeDefaults(table uint32, of plan.Families) (taken []nl.Message) {
	f.routes = slices.DeleteFunc(f.routes, func(m nl.Message) bool {
		k := keyOfMessage(m)
		takes := k.Table == table && k.Dst.Bits() == 0 && (k.Dst.Addr().Is4() && of.IPv4 || k.Dst.Addr().Is6() && of.IPv6)
		if takes {
			taken = append(taken, m)
		}
		return takes
	})
	return taken
}

// listAddresses lists a device's global IPv6 addresses that neither router advertisements nor the kernel restore, as
// requests to add them.
func listAddresses(device int) ([]nl.Message, error) {
	var addrs []nl.Message
	body := make([]byte, unix.SizeofIfAddrmsg)
	body[0] = unix.AF_INET6
	binary.NativeEndian.PutUint32(body[AddrIndex:], uint32(device))
	err := nl.Dump(nl.Message{Type: unix.RTM_GETADDR, Body: body}, unix.RTM_NEWADDR, func(b []byte) bool {
		if int(binary.NativeEndian.Uint32(b[AddrIndex:])) == device && staysAway(b) {
			addrs = append(addrs, nl.Message{Type: unix.RTM_NEWADDR, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Body: slices.Clone(b)})
		}
		return true
	})
	slices.Reverse(addrs) // the kernel lists the newest first
	return addrs, err
}

// staysAway reports whether neither router advertisements nor the kernel restore an address.
func staysAway(b []byte) bool {
	if b[3] == unix.RT_SCOPE_LINK || b[addrFlags]&unix.IFA_F_TEMPORARY != 0 {
		return false
	}
	for typ, value := range nl.Attrs(b, unix.SizeofIfAddrmsg) {
		if typ == ifaProto && value[0] == protoRA {
			return false
		}
	}
	return true
}

// restoreAddress adds an address with all its attributes. The address was unique on its link before, so it skips
// duplicate address detection (IFA_F_NODAD) and is usable at once; a second request clears that flag.
func restoreAddress(ctx context.Context, m nl.Message) error {
	var ip netip.Addr
	flags := uint32(m.Body[addrFlags])
	var rest []byte
	for typ, value := range nl.Attrs(m.Body, unix.SizeofIfAddrmsg) {
		switch typ {
		case unix.IFA_FLAGS:
			flags = binary.NativeEndian.Uint32(value)
			continue
		case unix.IFA_ADDRESS, unix.IFA_LOCAL:
			ip, _ = netip.AddrFromSlice(value)
		}
		rest = nl.AppendAttr(rest, typ, value...)
	}
	flags &^= unix.IFA_F_TENTATIVE | unix.IFA_F_PERMANENT | unix.IFA_F_DADFAILED
	request := func(flags uint32) []byte {
		b := slices.Clone(m.Body[:unix.SizeofIfAddrmsg])
		b[addrFlags] = uint8(flags)
		return append(nl.AppendAttr32(b, unix.IFA_FLAGS, flags), rest...)
	}
	requests := []nl.Message{
		{Type: m.Type, Flags: m.Flags, Body: request(flags | unix.IFA_F_NODAD)},
		{Type: m.Type, Flags: unix.NLM_F_REPLACE, Body: request(flags)},
	}
	results, err := nl.Change(ctx, requests)
	if err == nil && !errors.Is(results[0], unix.EEXIST) {
		err = errors.Join(results...)
	}
	if err != nil {
		return fmt.Errorf("restore address %s: %w", ip, err)
	}
	return nil
}

// listStatic lists a device's routes of protocols static and boot, as requests to add them.
func listStatic(device int) ([]nl.Message, error) {
	var routes []nl.Message
	for _, family := range nl.Families() {
		for _, protocol := range []uint8{unix.RTPROT_STATIC, unix.RTPROT_BOOT} {
			more, err := listRoutes(device, family, protocol)
			if err != nil {
				return nil, err
			}
			routes = append(routes, more...)
		}
	}
	// One of these routes may lead to another's gateway, so routes without a gateway come first.
	slices.SortStableFunc(routes, func(a, b nl.Message) int { return cmp.Compare(gateways(a), gateways(b)) })
	return routes, nil
}

// listRoutes lists a device's routes of a family and protocol, as requests to add them.
func listRoutes(device int, family, protocol uint8) (routes []nl.Message, err error) {
	body := make([]byte, unix.SizeofRtMsg)
	body[0], body[5] = family, protocol
	body = nl.AppendAttr32(body, unix.RTA_OIF, uint32(device))
	err = nl.Dump(nl.Message{Type: unix.RTM_GETROUTE, Body: body}, unix.RTM_NEWROUTE, func(b []byte) bool {
		r, ok := route.DecodeRoute(b)
		if ok && r.Protocol == protocol && slices.ContainsFunc(r.Legs, func(l route.Leg) bool { return l.Device == device }) {
			routes = append(routes, nl.Message{Type: unix.RTM_NEWROUTE, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Body: slices.Clone(b)})
		}
		return true
	})
	return routes, err
}

func gateways(m nl.Message) (n int) {
	r, _ := route.DecodeRoute(m.Body)
	for _, l := range r.Legs {
		if l.Gateway.IsValid() {
			n++
		}
	}
	return n
}

func keyOfMessage(m nl.Message) route.Key {
	if r, ok := route.DecodeRoute(m.Body); ok {
		return r.Key
	}
	return route.Key{}
}

// inTable returns an encoded route moved from table from to table to, without the flags that only the kernel sets.
func inTable(body []byte, from, to uint32) []byte {
	b := slices.Clone(body)
	binary.NativeEndian.PutUint32(b[8:], binary.NativeEndian.Uint32(b[8:])&unix.RTNH_F_ONLINK)
	for typ, value := range nl.Attrs(b, unix.SizeofRtMsg) {
		if typ == unix.RTA_TABLE && binary.NativeEndian.Uint32(value) == from {
			binary.NativeEndian.PutUint32(value, to)
			b[tableField] = unix.RT_TABLE_UNSPEC
		}
	}
	return b
}
