package conntrack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nft"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
)

// flowLab is a pod's node, two routers that could be the host, and a remote, in a square.
type flowLab struct {
	netns.Family
	marks                plan.Marks
	pod, r1, r2, outside *netns.Machine
	port                 uint16
	answer               func(netip.AddrPort) error // makes the remote send a UDP packet
}

func newFlowLab(t *testing.T, f netns.Family) *flowLab {
	t.Helper()
	l := &flowLab{Family: f, marks: plan.Marks{Mask: 0x3f00}, pod: netns.New(t), r1: netns.New(t), r2: netns.New(t), outside: netns.New(t)}
	netns.Wire(f, l.pod, "r1", l.r1, "pods", f.Pod1)
	netns.Wire(f, l.pod, "r2", l.r2, "pods", f.Pod2)
	netns.Wire(f, l.outside, "r1", l.r1, "out", f.Out1)
	netns.Wire(f, l.outside, "r2", l.r2, "out", f.Out2)
	for _, p := range f.Pods {
		l.pod.Run("ip addr add " + p + f.Local + " dev lo")
	}
	l.outside.Run("ip addr add " + f.Remote + f.Local + " dev lo")
	for i, r := range []*netns.Machine{l.r1, l.r2} {
		r.Run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
			fmt.Sprintf("%s route add %s via %s1", f.IP, f.Remote, []string{f.Out1, f.Out2}[i]))
		for _, p := range f.Pods {
			r.Run(fmt.Sprintf("%s route add %s via %s1", f.IP, p, []string{f.Pod1, f.Pod2}[i]))
		}
		r.Run(fmt.Sprintf(`nft '
			table inet t {
				chain begin { type filter hook prerouting priority -90; iifname pods ct state new ct mark set %#x; }
				chain source { type nat hook postrouting priority 50; oifname out ct mark %#x snat %s to %s; }
				chain rest { type filter hook forward priority 0; ct state invalid drop; }
			}'`, l.marks.Egress(2), l.marks.Egress(2), f.NFT, f.Ingress))
	}
	l.by(1)
	return l
}

// by makes packets in both directions go through one of the routers.
func (l *flowLab) by(router int) {
	l.pod.TB.Helper()
	l.pod.Run(fmt.Sprintf("%s route replace %s via %s2", l.IP, l.All, []string{l.Pod1, l.Pod2}[router-1]))
	l.outside.Run(fmt.Sprintf("%s route replace %s via %s2", l.IP, l.Ingress, []string{l.Out1, l.Out2}[router-1]))
}

// serve makes the remote echo what it receives by TCP, and by UDP except "keep". It returns the source addresses that
// the remote sees.
func (l *flowLab) serve() (seen <-chan netip.AddrPort) {
	t := l.pod.TB
	t.Helper()
	var tcp net.Listener
	var udp *net.UDPConn
	require.NoError(t, l.outside.Do(func() (err error) {
		if tcp, err = net.Listen("tcp", net.JoinHostPort(l.Remote, "0")); err != nil {
			return err
		}
		l.port = tcp.Addr().(*net.TCPAddr).AddrPort().Port()
		udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(l.to()))
		return err
	}))
	l.answer = func(to netip.AddrPort) error {
		_, err := udp.WriteToUDPAddrPort([]byte("answer"), to)
		return err
	}
	clients := make(chan netip.AddrPort, 1024)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			clients <- c.RemoteAddr().(*net.TCPAddr).AddrPort()
			stop := context.AfterFunc(t.Context(), func() { c.Close() })
			work.Go(func() {
				defer stop()
				_, _ = io.Copy(c, c)
				c.Close()
			})
		}
	})
	work.Go(func() {
		for buf := make([]byte, 2048); ; {
			n, from, err := udp.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			clients <- from
			if string(buf[:n]) != "keep" {
				_, _ = udp.WriteToUDPAddrPort(buf[:n], from)
			}
		}
	})
	t.Cleanup(func() {
		tcp.Close()
		udp.Close()
		work.Wait()
	})
	return clients
}

func (l *flowLab) to() netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(l.Remote), l.port)
}

// dial opens a pod's socket with a given source port.
func (l *flowLab) dial(network string, pod int, port uint16) net.Conn {
	t := l.pod.TB
	t.Helper()
	from := netip.AddrPortFrom(netip.MustParseAddr(l.Pods[pod]), port)
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from), KeepAlive: -1, Timeout: netns.Patience}
	if network == "udp" {
		d.LocalAddr = net.UDPAddrFromAddrPort(from)
	}
	var c net.Conn
	require.NoError(t, l.pod.Do(func() (err error) {
		c, err = d.DialContext(t.Context(), network, l.to().String())
		return err
	}))
	t.Cleanup(func() { c.Close() })
	return c
}

// echo sends bytes and waits until they come back.
func echo(c net.Conn, size int, within time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, size))
		wrote <- err
	}()
	_, err := io.CopyN(io.Discard, c, int64(size))
	return errors.Join(err, <-wrote)
}

// receive waits for a packet.
func receive(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(netns.Patience)); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 100))
	return err
}

func (l *flowLab) list(n *netns.Machine) (all []Flow) {
	l.pod.TB.Helper()
	require.NoError(l.pod.TB, n.Do(func() error {
		return ListFlows(l.pod.TB.Context(), l.marks, func(f Flow) bool { all = append(all, f); return true })
	}))
	return all
}

// inject injects flows. Of those that have their entries then, it returns the numbers only.
func (l *flowLab) inject(n *netns.Machine, o Injection, flows ...Flow) (r Injected, err error) {
	l.pod.TB.Helper()
	o.Marks = l.marks
	if o.Steering == nil {
		o.Steering = func(p plan.PathID) bool { return p == 3 }
	}
	require.NoError(l.pod.TB, n.Do(func() error {
		r, err = InjectFlows(o, flows)
		return nil
	}))
	require.Len(l.pod.TB, r.Here, r.Created+r.Refreshed+r.Replaced)
	r.Here = nil
	return r, err
}

func forEachFamily(t *testing.T, test func(t *testing.T, l *flowLab)) {
	t.Helper()
	for _, f := range netns.Families {
		t.Run(f.Name, func(t *testing.T) { test(t, newFlowLab(t, f)) })
	}
}

// TestConnectionGoesOnByAnotherRouter moves live connections from one router to another that has their entries. One
// connection has a source port that the second router would not choose.
func TestConnectionGoesOnByAnotherRouter(t *testing.T) {
	forEachFamily(t, func(t *testing.T, l *flowLab) {
		seen := l.serve()
		const port = 40000
		first := l.dial("tcp", 0, port)
		as := <-seen
		require.EqualValues(t, port, as.Port(), "the port is kept where it is free")
		second := l.dial("tcp", 1, port)
		as = <-seen
		require.NotEqualValues(t, port, as.Port(), "two pods have the same port")
		require.NoError(t, first.Close())
		require.NoError(t, echo(second, 1<<20, netns.Patience))

		flows := l.list(l.r1)
		i := slices.IndexFunc(flows, func(f Flow) bool { return f.Src.Addr().String() == l.Pods[1] })
		require.GreaterOrEqual(t, i, 0, "%+v", flows)
		f := flows[i]
		require.Equal(t, Flow{
			Proto: unix.IPPROTO_TCP, Src: netip.AddrPortFrom(addr(l.Pods[1]), port), Dst: l.to(), SNAT: as, Path: 2,
			State: TCPEstablished, Answered: true, Assured: true, Timeout: f.Timeout,
		}, f)
		require.GreaterOrEqual(t, f.Timeout, uint32(299)) // shorter than usual while data is unacknowledged

		f.Path = 5 // the network's path id there
		r, err := l.inject(l.r2, Injection{Replace: true}, f)
		require.NoError(t, err)
		require.Equal(t, Injected{Created: 1}, r)
		there := l.list(l.r2)
		require.Len(t, there, 1)
		f.Timeout = there[0].Timeout
		require.Equal(t, f, there[0])

		l.by(2)
		for range 3 {
			require.NoError(t, echo(second, 4<<20, netns.Patience))
		}
		// Back again, with the second router's present entry.
		back := l.list(l.r2)[0]
		back.Path = 2
		r, err = l.inject(l.r1, Injection{Replace: true}, back)
		require.NoError(t, err)
		require.Equal(t, Injected{Refreshed: 1}, r)
		l.by(1)
		require.NoError(t, echo(second, 1<<20, netns.Patience))
	})
}

// TestConnectionEndsWithoutItsEntry shows that the same connection ends without its entry.
func TestConnectionEndsWithoutItsEntry(t *testing.T) {
	forEachFamily(t, func(t *testing.T, l *flowLab) {
		seen := l.serve()
		l.dial("tcp", 0, 40000)
		<-seen
		second := l.dial("tcp", 1, 40000)
		<-seen
		require.NoError(t, echo(second, 1000, netns.Patience))
		l.by(2)
		require.Error(t, echo(second, 1000, 2*time.Second))
	})
}

// TestAnswerComesFirst moves a flow, after which the remote sends before the pod does.
func TestAnswerComesFirst(t *testing.T) {
	forEachFamily(t, func(t *testing.T, l *flowLab) {
		seen := l.serve()
		question := l.dial("udp", 1, 40000)
		_, err := question.Write([]byte("keep"))
		require.NoError(t, err)
		as := <-seen
		flows := l.list(l.r1)
		require.Len(t, flows, 1)
		require.False(t, flows[0].Answered)
		r, err := l.inject(l.r2, Injection{Replace: true}, flows...)
		require.NoError(t, err)
		require.Equal(t, Injected{Created: 1}, r)
		l.by(2)
		require.NoError(t, l.answer(as))
		require.NoError(t, receive(question))
		_, err = question.Write([]byte("answer"))
		require.NoError(t, err)
		require.Equal(t, as, <-seen)
		require.NoError(t, receive(question))
	})
}

// TestClashes injects flows that clash with existing entries.
func TestClashes(t *testing.T) {
	forEachFamily(t, func(t *testing.T, l *flowLab) {
		remote, ingress := netip.AddrPortFrom(addr(l.Remote), 443), addr(l.Ingress)
		flow := func(pod int, port, as uint16) Flow {
			return Flow{
				Proto: unix.IPPROTO_TCP, Src: netip.AddrPortFrom(addr(l.Pods[pod]), port), Dst: remote, SNAT: netip.AddrPortFrom(ingress, as),
				Path: 2, State: TCPEstablished, Answered: true, Assured: true, Timeout: 1000,
			}
		}
		inject := func(o Injection, want Injected, flows ...Flow) {
			t.Helper()
			r, err := l.inject(l.r2, o, flows...)
			require.NoError(t, err)
			require.Equal(t, want, r)
		}
		ports := func() map[string]uint16 {
			t.Helper()
			all := map[string]uint16{}
			for _, f := range l.list(l.r2) {
				all[f.Src.String()] = f.SNAT.Port()
			}
			return all
		}
		a := flow(0, 1000, 5000)
		inject(Injection{}, Injected{Created: 1}, a)
		inject(Injection{}, Injected{Refreshed: 1}, a)
		a.Timeout = 2000
		inject(Injection{}, Injected{Refreshed: 1, Created: 1}, a, flow(0, 1001, 5001))
		require.Greater(t, l.list(l.r2)[slices.IndexFunc(l.list(l.r2), func(f Flow) bool { return f.Src == a.Src })].Timeout, uint32(1500))

		other := flow(0, 1000, 6000) // the same tuple, another source
		inject(Injection{}, Injected{Refused: 1}, other)
		inject(Injection{Replace: true}, Injected{Replaced: 1}, other)
		taken := flow(1, 1000, 6000) // another pod with the same source
		inject(Injection{}, Injected{Refused: 1}, taken)
		inject(Injection{Replace: true}, Injected{Replaced: 1}, taken)
		require.Equal(t, map[string]uint16{taken.Src.String(): 6000, flow(0, 1001, 0).Src.String(): 5001}, ports())

		require.NoError(t, l.r2.Do(func() error {
			free := flow(0, 1006, 5006)
			r, err := InjectFlows(Injection{Marks: l.marks}, []Flow{other, free, taken})
			require.ElementsMatch(t, []Flow{free, taken}, r.Here, "the source of the first one is another's")
			return err
		}))

		// A stray is a connection to the ingress IP on its way to another node.
		stray := func(mark uint32, port uint16) {
			t.Helper()
			require.NoError(t, l.r2.Do(func() error {
				f := Flow{
					Proto: unix.IPPROTO_TCP, Src: remote, Dst: netip.AddrPortFrom(ingress, port), SNAT: remote,
					State: TCPEstablished, Answered: true, Assured: true, Timeout: 100,
				}
				m := f.creation(l.marks)
				m.Body = appendMark(m.Body, mark, l.marks.Mask) // the last attribute counts
				changes := []entryChange{{Message: m}}
				return errors.Join(exchangeAll(changes), changes[0].err)
			}))
		}
		stray(l.marks.Ingress(3), 7000)
		inject(Injection{}, Injected{Replaced: 1}, flow(0, 1002, 7000))
		stray(l.marks.Ingress(2), 7001) // a client of the Service
		inject(Injection{Replace: true}, Injected{Refused: 1}, flow(0, 1003, 7001))
		stray(0, 7002)
		inject(Injection{Replace: true}, Injected{Refused: 1}, flow(0, 1004, 7002))

		many := make([]Flow, 1000)
		for i := range many {
			many[i] = flow(1, uint16(20000+i), uint16(30000+i))
		}
		inject(Injection{}, Injected{Created: len(many)}, many...)
		inject(Injection{}, Injected{Refreshed: len(many)}, many...)
		wrong := flow(0, 1005, 8000)
		wrong.SNAT = netip.AddrPortFrom(addr(map[string]string{"IPv4": "2001:db8::1", "IPv6": "203.0.113.1"}[l.Name]), 8000)
		r, err := l.inject(l.r2, Injection{}, wrong)
		require.ErrorContains(t, err, "want addresses of one family")
		require.Equal(t, Injected{Refused: 1}, r)
		require.NoError(t, l.r2.Do(func() error { return RemoveFlows(l.list(l.r2)) }))
		require.Empty(t, l.list(l.r2))
	})
}

// TestStraysMeanwhile injects flows while the remote's packets make strays of them: every flow gets its source.
func TestStraysMeanwhile(t *testing.T) {
	forEachFamily(t, func(t *testing.T, l *flowLab) {
		remote := netip.AddrPortFrom(addr(l.Remote), 443)
		flows, strays := make([]Flow, 100), make([]entryChange, 100)
		for i := range flows {
			as := netip.AddrPortFrom(addr(l.Ingress), uint16(5000+i))
			flows[i] = Flow{
				Proto: unix.IPPROTO_UDP, Src: netip.AddrPortFrom(addr(l.Pods[0]), uint16(1000+i)), Dst: remote, SNAT: as,
				Path: 2, Answered: true, Assured: true, Timeout: 1000,
			}
			stray := Flow{Proto: unix.IPPROTO_UDP, Src: remote, Dst: as, SNAT: remote, Timeout: 100}
			m := stray.creation(l.marks)
			m.Body = appendMark(m.Body, l.marks.Ingress(3), l.marks.Mask) // the last attribute counts
			strays[i].Message = m
		}
		stop, stopped := make(chan struct{}), make(chan error)
		go func() {
			stopped <- l.r2.Do(func() error {
				c, err := dialConntrack()
				if err != nil {
					return err
				}
				defer c.Close()
				for {
					select {
					case <-stop:
						return nil
					default:
					}
					if err := c.exchange(strays); err != nil {
						return err
					}
				}
			})
		}()
		for range 100 {
			r, err := l.inject(l.r2, Injection{}, flows...)
			require.NoError(t, err)
			require.Equal(t, len(flows), r.Created+r.Replaced, "%+v", r)
			require.NoError(t, l.r2.Do(func() error { return RemoveFlows(flows) }))
		}
		close(stop)
		require.NoError(t, <-stopped)
	})
}

// TestFlowsAreLedOn steers flows of local pods elsewhere: their entries stay, with the new path.
func TestFlowsAreLedOn(t *testing.T) {
	forEachFamily(t, func(t *testing.T, l *flowLab) {
		remote, pod := netip.AddrPortFrom(addr(l.Remote), 443), addr(l.Pods[0])
		flow := func(port uint16, path plan.PathID, as netip.AddrPort) Flow {
			return Flow{
				Proto: unix.IPPROTO_TCP, Src: netip.AddrPortFrom(pod, port), Dst: remote, SNAT: as, Path: path,
				State: TCPEstablished, Answered: true, Assured: true, Timeout: 1000,
			}
		}
		own := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(pod, port) }
		ingress := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(addr(l.Ingress), port) }
		_, err := l.inject(l.r1, Injection{},
			flow(1, 3, own(1)),     // steered to the former host
			flow(2, 4, own(2)),     // steered to the next host already
			flow(3, 2, ingress(9)), // left here, with a source that it cannot have at the next host
			flow(4, 6, own(4)))     // through the standby, where it may stay
		require.NoError(t, err)
		d := plan.DataPlane{
			Marks: l.marks,
			Paths: []plan.Path{
				{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}},
				{ID: 4, Key: plan.PathKey{Kind: plan.PathSteer, Name: "next"}},
				{ID: 6, Key: plan.PathKey{Kind: plan.PathSteer, Name: "standby"}},
			},
			Endpoints: sorted.Of(plan.Endpoint{Addr: pod, Path: 4, Source: pod, Kept: plan.Way{Path: 6, Source: pod}}),
		}
		var n Audit
		for range 2 {
			require.NoError(t, l.r1.Do(func() error { _, err := n.end(t.Context(), d, noNames, doubt{all: true}); return err }))
			all := map[uint16]Flow{}
			require.NoError(t, l.r1.Do(func() error {
				return dumpEntries(t.Context(), l.marks, func(e Entry) bool {
					e.Path, e.Timeout = l.marks.Path(e.Mark), 1000
					all[e.Src.Port()] = e.Flow
					return true
				})
			}))
			require.Equal(t, map[uint16]Flow{
				1: flow(1, 4, own(1)), 2: flow(2, 4, own(2)), 4: flow(4, 6, own(4)),
			}, all)
		}
	})
}

// TestAssociationsAreLedOn steers SCTP associations of a local pod elsewhere: a chunk of data without an entry would be invalid.
func TestAssociationsAreLedOn(t *testing.T) {
	forEachFamily(t, func(t *testing.T, l *flowLab) {
		pod := addr(l.Pods[0])
		left := func(path plan.PathID, as netip.Addr, port uint16) Flow {
			return Flow{
				Proto: unix.IPPROTO_SCTP, Src: netip.AddrPortFrom(pod, port), Dst: netip.AddrPortFrom(addr(l.Remote), port),
				SNAT: netip.AddrPortFrom(as, port), Path: path, Answered: true, Timeout: 1000,
			}
		}
		d := plan.DataPlane{
			Marks: l.marks,
			Paths: []plan.Path{
				{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}},
				{ID: 4, Key: plan.PathKey{Kind: plan.PathSteer, Name: "next"}},
			},
			Endpoints: sorted.Of(plan.Endpoint{Addr: pod, Path: 4, Source: pod}),
		}
		for _, c := range []struct {
			name  string
			flow  Flow
			marks []uint32
		}{
			{"steered to the former host", left(3, pod, 1), []uint32{l.marks.Egress(4)}},
			{"left here, with a source that it cannot have at the next host", left(2, addr(l.Ingress), 2), nil},
		} {
			_, err := l.inject(l.r1, Injection{}, c.flow)
			require.NoError(t, err)
			var a Audit
			require.NoError(t, l.r1.Do(func() error { _, err := a.end(t.Context(), d, noNames, doubt{all: true}); return err }))
			var marks []uint32
			require.NoError(t, l.r1.Do(func() error {
				return dumpEgress(t.Context(), l.marks, func(body []byte) bool {
					marks = append(marks, DecodeConnection(body).mark)
					return true
				})
			}))
			require.Equal(t, c.marks, marks, c.name)
			require.NoError(t, l.r1.Do(func() error { return a.EndAll(t.Context(), l.marks) }))
		}
	})
}

// TestConnectionsAreHandedOver ends the time for which flows of local pods leave here: entries of TCP connections that the next host has are
// steered there before the plan without that time is in force, and those of other flows are removed.
func TestConnectionsAreHandedOver(t *testing.T) {
	forEachFamily(t, func(t *testing.T, l *flowLab) {
		pod, ingress := addr(l.Pods[0]), addr(l.Ingress)
		left := func(proto uint8, port uint16) Flow {
			return Flow{
				Proto: proto, Src: netip.AddrPortFrom(pod, port), Dst: netip.AddrPortFrom(addr(l.Remote), 443),
				SNAT: netip.AddrPortFrom(ingress, port+100), Path: 2, State: TCPEstablished, Answered: true, Assured: true, Timeout: 1000,
			}
		}
		goesOn, refused, datagrams := left(unix.IPPROTO_TCP, 1), left(unix.IPPROTO_TCP, 2), left(unix.IPPROTO_UDP, 3)
		_, err := l.inject(l.r1, Injection{}, goesOn, refused, datagrams)
		require.NoError(t, err)
		kept := plan.DataPlane{
			Marks: l.marks,
			Paths: []plan.Path{
				{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}},
				{ID: 4, Key: plan.PathKey{Kind: plan.PathSteer, Name: "next"}},
			},
			Endpoints: sorted.Of(plan.Endpoint{Addr: pod, Path: 4, Source: pod, Kept: plan.Way{Path: 2, Source: ingress}}),
		}
		over := kept
		over.Endpoints = sorted.Of(plan.Endpoint{Addr: pod, Path: 4, Source: pod})
		var handed []Flow
		hand := func(_ context.Context, flows []Flow) []Flow {
			handed = flows
			return []Flow{flows[slices.IndexFunc(flows, func(f Flow) bool { return f.Src == goesOn.Src })]}
		}
		entries := func() (all []Flow) {
			require.NoError(t, l.r1.Do(func() error {
				return dumpEntries(t.Context(), l.marks, func(e Entry) bool {
					e.Path, e.Timeout = l.marks.Path(e.Mark), 1000
					all = append(all, e.Flow)
					return true
				})
			}))
			return all
		}
		var a Audit
		require.NoError(t, l.r1.Do(func() error { return a.EndKept(t.Context(), &kept, &kept, hand) }))
		require.Empty(t, handed, "the plan keeps them")
		require.NoError(t, l.r1.Do(func() error { return a.EndKept(t.Context(), &kept, &over, hand) }))
		require.ElementsMatch(t, []netip.AddrPort{goesOn.Src, refused.Src}, []netip.AddrPort{handed[0].Src, handed[1].Src})
		goesOn.Path, goesOn.SNAT = 4, goesOn.Src
		require.Equal(t, []Flow{goesOn}, entries())

		_, err = l.inject(l.r1, Injection{}, refused)
		require.NoError(t, err)
		require.NoError(t, l.r1.Do(func() error { return a.EndKept(t.Context(), &kept, &over, nil) }))
		require.Equal(t, []Flow{goesOn}, entries(), "flows are not handed over")
	})
}

// TestUnansweredFlowKeepsItsPath repeats a query that was steered to another node, after the pod's packets are to leave
// here and before the flow is ended: the query must not leave here with the source bound before.
func TestUnansweredFlowKeepsItsPath(t *testing.T) {
	forEachFamily(t, func(t *testing.T, l *flowLab) {
		l.r1.Run("nft flush ruleset", fmt.Sprintf("%s rule add prio 701 fwmark 0x2200/0x3f00 lookup 1001", l.IP),
			fmt.Sprintf("%s route add default via %s1 dev out table 1001", l.IP, l.Out1))
		l.outside.Run(fmt.Sprintf("%s route add %s via %s2", l.IP, l.Pods[0], l.Out1))
		seen, pod, pods := l.serve(), addr(l.Pods[0]), netip.PrefixFrom(addr(l.Pods[0]), addr(l.Pods[0]).BitLen())
		d := plan.DataPlane{
			Marks: l.marks,
			Paths: []plan.Path{
				{ID: 2, Key: plan.PathKey{Kind: plan.PathNetwork, Name: "red"}, Table: 1001, Devices: []string{"out"}},
				{ID: 3, Key: plan.PathKey{Kind: plan.PathSteer, Name: "standby"}, Table: 794603, Devices: []string{"pods"}},
				{ID: 4, Key: plan.PathKey{Kind: plan.PathSteer, Name: "former"}, Table: 794604, Devices: []string{"pods"}},
			},
			Uplinks:   []plan.Uplink{{Device: "out", Path: 2}},
			Endpoints: sorted.Of(plan.Endpoint{Addr: pod, Path: 2, Source: addr(l.Ingress), Kept: plan.Way{Path: 3, Source: pod}}),
			Pods:      []netip.Prefix{pods}, Cluster: []netip.Prefix{pods},
			Ingress: sorted.Of(plan.IngressIP{Addr: addr(l.Ingress), Path: 2}),
		}
		old := l.dial("udp", 0, 40000)
		steered := Flow{Proto: unix.IPPROTO_UDP, Src: netip.AddrPortFrom(pod, 40000), Dst: l.to(), SNAT: netip.AddrPortFrom(pod, 40000), Path: 4, Timeout: 30}
		var n nft.Table
		t.Cleanup(func() { n.Close() })
		require.NoError(t, l.r1.Do(func() error {
			if _, err := n.Apply(t.Context(), nft.Held{}, &d, false); err != nil {
				return err
			}
			_, err := InjectFlows(Injection{Marks: l.marks}, []Flow{steered})
			return err
		}))
		for _, question := range []net.Conn{old, l.dial("udp", 0, 40001)} {
			_, err := question.Write([]byte("keep"))
			require.NoError(t, err)
		}
		require.Equal(t, netip.AddrPortFrom(addr(l.Ingress), 40001), <-seen)
		require.Empty(t, seen)
	})
}
