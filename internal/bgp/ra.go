package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/pause"
)

// Unnumbered peers find each other by router advertisements (RFC 4861), which carry a router's link-local address. FRR
// opens a session only with a neighbour that sends them.
const (
	advertiseInterval = 10 * time.Second
	reopenInterval    = time.Second // after an interface vanished or while it is down
	// routerStays is how long a router keeps its place after its session has ended, or without one, while another advertises itself.
	routerStays = 30 * time.Second
)

// neighbors learns the link-local address of the router on each of a set of interfaces.
type neighbors struct {
	log         *slog.Logger
	wake        func()
	established func(netip.Addr) bool // whether the router of an address has a session

	mu        sync.Mutex
	listeners map[string]*listener
}

type listener struct {
	cancel context.CancelFunc
	done   chan struct{}
	addr   netip.Addr // of the router, with zone
	since  time.Time  // when the router was found, or last had a session
}

func newNeighbors(log *slog.Logger, wake func(), established func(netip.Addr) bool) *neighbors {
	return &neighbors{log: log, wake: wake, established: established, listeners: map[string]*listener{}}
}

// set replaces the interfaces to listen on.
func (n *neighbors) set(names []string) {
	n.mu.Lock()
	var stopped []*listener
	for name, l := range n.listeners {
		if !slices.Contains(names, name) {
			l.cancel()
			stopped = append(stopped, l)
			delete(n.listeners, name)
		}
	}
	for _, name := range names {
		if n.listeners[name] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		l := &listener{cancel: cancel, done: make(chan struct{})}
		n.listeners[name] = l
		go func() {
			defer close(l.done)
			n.run(ctx, name, l)
		}()
	}
	n.mu.Unlock()
	for _, l := range stopped {
		<-l.done
	}
}

func (n *neighbors) close() { n.set(nil) }

// address returns the router's address on an interface of the last set; invalid while it is unknown.
func (n *neighbors) address(name string) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.listeners[name].addr
}

// run advertises and listens on one interface until ctx ends. It starts again after an error, such as when the
// interface vanishes.
func (n *neighbors) run(ctx context.Context, name string, l *listener) {
	for refused := false; ; {
		if err := n.talk(ctx, name, l); err != nil && ctx.Err() == nil {
			level := slog.LevelDebug // interfaces come and go
			if errors.Is(err, os.ErrPermission) && !refused {
				level, refused = slog.LevelWarn, true
			}
			n.log.Log(ctx, level, "cannot listen for router advertisements", "interface", name, "error", err)
		}
		n.mu.Lock()
		l.since = time.Time{} // another router may be at the other end of the wire
		n.mu.Unlock()
		if !pause.For(ctx, reopenInterval) {
			return
		}
	}
}

func (n *neighbors) talk(ctx context.Context, name string, l *listener) error {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	conn, err := listenICMP(ctx, name)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		failed <- n.receive(conn, ifi, l)
	}()
	err = send(conn, ifi, ipv6.ICMPTypeRouterSolicitation, "ff02::2", solicitation(ifi))
	if err == nil {
		err = advertise(ctx, conn, ifi, failed)
	}
	_ = conn.Close() // ends the receiver
	return errors.Join(err, <-failed)
}

// receive records the sender of each advertisement until the socket fails.
func (n *neighbors) receive(conn *ipv6.PacketConn, ifi *net.Interface, l *listener) error {
	b := make([]byte, 1500)
	for {
		size, control, src, err := conn.ReadFrom(b)
		if err != nil {
			return err
		}
		if size < 16 || !fromLink(control, ifi) {
			continue
		}
		if addr := linkLocalOf(src); addr.IsValid() {
			n.noteRouter(l, addr.WithZone(ifi.Name), time.Now())
		}
	}
}

// fromLink reports whether a message comes from a neighbour on an interface: any other hop limit means that it was forwarded
// (RFC 4861 §6.1.2).
func fromLink(control *ipv6.ControlMessage, ifi *net.Interface) bool {
	return control != nil && control.HopLimit == 255 && control.IfIndex == ifi.Index
}

// linkLocalOf returns a sender's address, without zone; invalid if it is not link-local.
func linkLocalOf(src net.Addr) netip.Addr {
	if ip, ok := src.(*net.IPAddr); ok {
		if addr, ok := netip.AddrFromSlice(ip.IP); ok && addr.IsLinkLocalUnicast() {
			return addr
		}
	}
	return netip.Addr{}
}

// noteRouter records the address of the router on an interface. A router stays while it has a session: others may advertise themselves on
// the same link, as this node's own kind does.
func (n *neighbors) noteRouter(l *listener, addr netip.Addr, now time.Time) {
	n.mu.Lock()
	is := l.addr
	n.mu.Unlock()
	serves := is.IsValid() && n.established(is)
	n.mu.Lock()
	if serves {
		l.since = now
	}
	next := is != addr && (!is.IsValid() || now.Sub(l.since) > routerStays)
	if next {
		l.addr, l.since = addr, now
	}
	n.mu.Unlock()
	if next {
		n.wake()
	}
}

// advertise sends advertisements until ctx ends or the receiver failed.
func advertise(ctx context.Context, conn *ipv6.PacketConn, ifi *net.Interface, failed <-chan error) error {
	tick := time.NewTicker(advertiseInterval)
	defer tick.Stop()
	for {
		if err := send(conn, ifi, ipv6.ICMPTypeRouterAdvertisement, "ff02::1", advertisement(ifi)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-tick.C:
		}
	}
}

func send(conn *ipv6.PacketConn, ifi *net.Interface, typ ipv6.ICMPType, to string, body []byte) error {
	m := icmp.Message{Type: typ, Body: &icmp.RawBody{Data: body}}
	b, err := m.Marshal(nil) // the kernel fills in the checksum
	if err != nil {
		return fmt.Errorf("encode %v: %w", typ, err)
	}
	dst := &net.IPAddr{IP: net.ParseIP(to), Zone: ifi.Name}
	from := &ipv6.ControlMessage{HopLimit: 255, IfIndex: ifi.Index, Src: linkLocal(ifi.Name).AsSlice()}
	if _, err := conn.WriteTo(b, from, dst); err != nil {
		return fmt.Errorf("send %v on %s: %w", typ, ifi.Name, err)
	}
	return nil
}

func solicitation(ifi *net.Interface) []byte {
	return append(make([]byte, 4), sourceLinkLayer(ifi)...)
}

// advertisement returns a router advertisement with lifetime zero, so that no host uses us as its default router.
func advertisement(ifi *net.Interface) []byte {
	b := make([]byte, 12)
	b[0] = 64 // hop limit for hosts
	return append(b, sourceLinkLayer(ifi)...)
}

// sourceLinkLayer returns the option with our hardware address.
func sourceLinkLayer(ifi *net.Interface) []byte {
	if len(ifi.HardwareAddr) != 6 {
		return nil
	}
	return append([]byte{1, 1}, ifi.HardwareAddr...)
}

// listenICMP opens a socket that receives router advertisements of one interface.
func listenICMP(ctx context.Context, name string) (*ipv6.PacketConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), name) }); e != nil {
			return e
		}
		return err
	}}
	c, err := lc.ListenPacket(ctx, "ip6:ipv6-icmp", "::")
	if err != nil {
		return nil, fmt.Errorf("open ICMPv6 socket on %s: %w", name, err)
	}
	conn := ipv6.NewPacketConn(c)
	var filter ipv6.ICMPFilter
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeRouterAdvertisement)
	if err := errors.Join(
		conn.SetICMPFilter(&filter),
		conn.SetControlMessage(ipv6.FlagHopLimit|ipv6.FlagInterface, true),
		conn.SetMulticastHopLimit(255),
		conn.SetMulticastLoopback(false),
	); err != nil {
		c.Close()
		return nil, fmt.Errorf("set up ICMPv6 socket on %s: %w", name, err)
	}
	return conn, nil
}

// linkLocal returns our own link-local address on an interface, without zone; invalid if there is none.
func linkLocal(name string) netip.Addr {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return netip.Addr{}
	}
	addrs, _ := ifi.Addrs() // the interface may be gone
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
			return p.Addr()
		}
	}
	return netip.Addr{}
}
