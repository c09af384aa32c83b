package bfd

import (
	"bufio"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/lab"
)

const limit = lab.Patience

// Tests of several processes on one machine must not meet.
var testPort = uint16(20000 + os.Getpid()%10000)

// loopback is one of this machine's own addresses.
func loopback(i byte) netip.Addr { return netip.AddrFrom4([4]byte{127, 84, 7, i}) }

// node is an engine of a test and what it told.
type node struct {
	*Engine
	addr   netip.Addr
	failed atomic.Int64 // times that Wake found a failed peer
}

func listen(t *testing.T, addr netip.Addr) *node {
	t.Helper()
	n := &node{addr: addr}
	var ready sync.WaitGroup
	ready.Add(1)
	e, err := Listen(Options{
		Port: testPort, Bind: addr, Profile: fast, Log: slog.New(slog.NewTextHandler(t.Output(), nil)).With("on", addr),
		Wake: func() {
			ready.Wait()
			for _, s := range n.Sessions() {
				if s.Failed {
					n.failed.Add(1)
				}
			}
		},
	})
	require.NoError(t, err)
	n.Engine = e
	ready.Done()
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

// peer is n as others have it.
func (n *node) peer(active bool) Peer {
	return Peer{Node: n.addr.String(), Address: n.addr, Active: active}
}

// with is the session with o.
func (n *node) with(o *node) Session {
	for _, s := range n.Sessions() {
		if s.Address == o.addr {
			return s
		}
	}
	return Session{}
}

func until(t *testing.T, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, limit, 5*time.Millisecond)
}

// meet waits until both ends of a session are up.
func meet(t *testing.T, a, b *node) {
	t.Helper()
	until(t, func() bool { return a.with(b).State == Up && b.with(a).State == Up })
}

// die ends an engine as a crash would.
func (n *node) die() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	close(n.done)
	n.loop.Wait()
	for _, s := range n.sockets {
		_ = s.close()
	}
	n.readers.Wait()
}

func TestEngines(t *testing.T) {
	a, b := listen(t, loopback(1)), listen(t, loopback(2))
	require.Empty(t, a.Sessions())
	a.Set([]Peer{b.peer(true)})
	b.Set([]Peer{a.peer(false)})
	meet(t, a, b)
	until(t, func() bool { return a.with(b).Detection == 300*time.Millisecond }) // at first, a packet a second is told
	s := a.with(b)
	require.Equal(t, Session{
		Node: "127.84.7.2", Address: b.addr, Active: true, State: Up, Heard: true, Since: s.Since, Detection: 300 * time.Millisecond,
	}, s)
	require.WithinDuration(t, time.Now(), s.Since, limit)

	b.die()
	until(t, func() bool { return a.with(b).Failed })
	require.Equal(t, Down, a.with(b).State)
	require.Contains(t, a.with(b).LastError, "nothing heard for")
	until(t, func() bool { return a.failed.Load() > 0 })

	b = listen(t, loopback(2))
	b.Set([]Peer{a.peer(false)})
	meet(t, a, b)
	require.False(t, a.with(b).Failed)
	require.Positive(t, a.Counters().Sent)
	require.Positive(t, a.Counters().Received)
}

func TestCloseTellsPeers(t *testing.T) {
	a, b := listen(t, loopback(1)), listen(t, loopback(2))
	a.Set([]Peer{b.peer(true)})
	b.Set([]Peer{a.peer(true)})
	meet(t, a, b)
	require.NoError(t, b.Close())
	require.NoError(t, b.Close(), "once more does nothing")
	b.Set([]Peer{a.peer(true)})
	require.Empty(t, b.Sessions())
	until(t, func() bool { return a.with(b).State == Down })
	require.Contains(t, a.with(b).LastError, "the peer took the session down")
	require.False(t, a.with(b).Failed)

	b = listen(t, loopback(2))
	b.Set([]Peer{a.peer(false)})
	meet(t, a, b)
	require.Zero(t, a.failed.Load())
}

func TestAbandon(t *testing.T) {
	a, b := listen(t, loopback(1)), listen(t, loopback(2))
	a.Set([]Peer{b.peer(true)})
	b.Set([]Peer{a.peer(true)})
	meet(t, a, b)
	require.NoError(t, b.Abandon())
	require.NoError(t, b.Abandon(), "once more does nothing")
	until(t, func() bool { return a.with(b).Failed })
	require.Contains(t, a.with(b).LastError, "nothing heard for", "no packet says that it ends")
}

func TestRemovedPeerIsTold(t *testing.T) {
	a, b := listen(t, loopback(1)), listen(t, loopback(2))
	a.Set([]Peer{b.peer(true)})
	b.Set([]Peer{a.peer(false)})
	meet(t, a, b)
	b.Set(nil)
	require.Empty(t, b.Sessions())
	until(t, func() bool { return a.with(b).State == Down })
	b.Set([]Peer{a.peer(false)})
	meet(t, a, b)
	require.Zero(t, a.failed.Load())
	require.Zero(t, b.failed.Load())
}

// An engine that is kept from working while its peer takes it for dead does not take the peer for dead.
func TestPausedEngine(t *testing.T) {
	a, b := listen(t, loopback(1)), listen(t, loopback(2))
	a.Set([]Peer{b.peer(true)})
	b.Set([]Peer{a.peer(true)})
	meet(t, a, b)
	a.mu.Lock()
	until(t, func() bool { return b.with(a).Failed })
	a.mu.Unlock()
	meet(t, a, b)
	require.Zero(t, a.failed.Load())
	require.False(t, b.with(a).Failed)
}

// TestMain runs this in a process of its own for TestStoppedProcess.
func watchInProcess(from, to string) error {
	woken := make(chan struct{}, 1)
	e, err := Listen(Options{Port: testPortOfParent(), Bind: netip.MustParseAddr(from), Profile: fast, Wake: func() {
		select {
		case woken <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		return err
	}
	e.Set([]Peer{{Node: "parent", Address: netip.MustParseAddr(to), Active: true}})
	for range woken {
		for _, s := range e.Sessions() {
			fmt.Fprintln(os.Stdout, s.State, s.Failed)
		}
	}
	return nil
}

func testPortOfParent() uint16 { return uint16(20000 + os.Getppid()%10000) }

// A process that is stopped for long is taken for dead, and takes nobody for dead when it goes on.
func TestStoppedProcess(t *testing.T) {
	b := listen(t, loopback(2))
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "BFD_WATCH_FROM=127.84.7.1", "BFD_WATCH_TO=127.84.7.2")
	cmd.Stderr = t.Output()
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var mu sync.Mutex
	var told []string
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			mu.Lock()
			told = append(told, lines.Text())
			mu.Unlock()
		}
	})
	defer func() {
		require.NoError(t, cmd.Process.Kill())
		reading.Wait()
		require.Error(t, cmd.Wait())
	}()
	// The child takes its peer for dead after 3 s: a machine that is busy for less is no failure here.
	require.NoError(t, b.SetProfile(config.BFDProfile{TransmitInterval: 100, ReceiveInterval: 100, DetectMultiplier: 30}))
	b.Set([]Peer{{Node: "child", Address: loopback(1)}})
	child := func() Session { return b.Sessions()[0] }
	until(t, func() bool { return child().State == Up })
	confirmed := func() bool { // up to then, ends of a session send a packet a second
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, s := range b.table.sessions {
			if s.state != Up || s.polling || s.offered.tx != 100*time.Millisecond {
				return false
			}
		}
		return true
	}
	for range 3 {
		until(t, confirmed)
		require.NoError(t, cmd.Process.Signal(syscall.SIGSTOP))
		stopped := time.Now()
		until(t, func() bool { return child().Failed && time.Since(stopped) > 4*time.Second })
		require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
		until(t, func() bool { return child().State == Up })
		require.False(t, child().Failed)
	}
	mu.Lock()
	defer mu.Unlock()
	require.NotEmpty(t, told)
	require.NotContains(t, strings.Join(told, "\n"), "true")
}

// What goes over the wire is what others expect of BFD over several hops, and what they must not send is counted.
func TestWire(t *testing.T) {
	a := listen(t, loopback(1))
	at := netip.AddrPortFrom(loopback(3), testPort)
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
	require.NoError(t, err)
	defer conn.Close()
	in := ipv4.NewPacketConn(conn)
	require.NoError(t, in.SetControlMessage(ipv4.FlagTTL, true))
	require.NoError(t, conn.SetDeadline(time.Now().Add(limit)))
	a.Set([]Peer{{Address: at.Addr(), Active: true}})

	read := func() packet {
		b := make([]byte, 100)
		n, control, from, err := in.ReadFrom(b)
		require.NoError(t, err)
		require.Equal(t, 255, control.TTL)
		source := from.(*net.UDPAddr).AddrPort()
		require.Equal(t, a.addr, source.Addr())
		require.GreaterOrEqual(t, source.Port(), uint16(49152))
		p, err := decode(b[:n])
		require.NoError(t, err)
		return p
	}
	write := func(b []byte) {
		_, err := conn.WriteToUDPAddrPort(b, netip.AddrPortFrom(a.addr, testPort))
		require.NoError(t, err)
	}
	p := read()
	require.NotZero(t, p.mine)
	require.Equal(t, packet{
		state: Down, mult: 3, mine: p.mine, desiredTx: time.Second, requiredRx: 100 * time.Millisecond,
	}, p)

	good := packet{state: Init, mult: 10, mine: 7, yours: p.mine, desiredTx: time.Second, requiredRx: 50 * time.Millisecond}.encode(nil)
	bad := map[string]func(b []byte) []byte{
		errVersion.Error():        func(b []byte) []byte { b[0] = 2 << 5; return b },
		errLength.Error():         func(b []byte) []byte { return b[:23] },
		errMultiplier.Error():     func(b []byte) []byte { b[2] = 0; return b },
		errMultipoint.Error():     func(b []byte) []byte { b[1] |= bitMultipoint; return b },
		errAuthentication.Error(): func(b []byte) []byte { b[1] |= bitAuthentication; return append(b, 1, 3, 0, 0) },
		errDiscriminator.Error():  func(b []byte) []byte { clear(b[4:8]); return b },
		errSession.Error():        func(b []byte) []byte { b[8]++; return b },
	}
	for why, spoil := range bad {
		write(spoil(append([]byte(nil), good...)))
		until(t, func() bool { return a.Counters().Discarded[why] == 1 })
	}
	write(append(append([]byte(nil), good...), make([]byte, 1000)...))
	until(t, func() bool { return a.Counters().Discarded[errLength.Error()] == 2 })
	require.Equal(t, Down, a.Sessions()[0].State)
	stranger, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(loopback(4), testPort)))
	require.NoError(t, err)
	defer stranger.Close()
	_, err = stranger.WriteToUDPAddrPort(good, netip.AddrPortFrom(a.addr, testPort))
	require.NoError(t, err)
	until(t, func() bool { return a.Counters().Discarded[errPeer.Error()] == 1 })

	write(good)
	for p.state != Up {
		p = read()
	}
	for !p.poll {
		p = read()
	}
	require.Equal(t, 100*time.Millisecond, p.desiredTx)
	require.EqualValues(t, 7, p.yours)
	write(packet{state: Up, final: true, poll: false, mult: 10, mine: 7, yours: p.mine, desiredTx: time.Second, requiredRx: 50 * time.Millisecond}.encode(nil))
	for p.poll {
		p = read()
	}
	write(packet{state: Up, poll: true, mult: 10, mine: 7, yours: p.mine, desiredTx: time.Second, requiredRx: 50 * time.Millisecond}.encode(nil))
	for !p.final {
		p = read()
	}
	a.Set(nil)
	for range farewells {
		for p.state != AdminDown {
			p = read()
		}
		require.Equal(t, DiagAdminDown, p.diag)
		require.EqualValues(t, 7, p.yours)
		p.state = Down
	}
}

// Packets go from the address that peers know us by, whatever the routing table would choose.
func TestLocalAddress(t *testing.T) {
	for _, a := range []netip.Addr{loopback(5), netip.IPv6Loopback()} {
		l, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
		if err != nil {
			t.Logf("no %s here: %s", a, err)
			continue
		}
		l.Close()
		e, err := Listen(Options{Port: testPort, Profile: fast})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.Close()) })
		// An engine that watches itself does not see who answers.
		e.Set([]Peer{{Address: a, Local: a, Active: true}})
		until(t, func() bool { return e.Sessions()[0].State == Up })
		require.NoError(t, e.Close())
	}
}

// What cannot be sent is told, and ends no session.
func TestSendErrors(t *testing.T) {
	a, b := listen(t, loopback(1)), listen(t, loopback(2))
	a.Set([]Peer{
		b.peer(true),
		{Address: netip.MustParseAddr("192.0.2.1"), Active: true}, // not from a loopback address
		{Address: netip.MustParseAddr("2001:db8::1"), Active: true},
	})
	b.Set([]Peer{a.peer(false)})
	meet(t, a, b)
	until(t, func() bool { return a.Counters().SendErrors >= 2 })
	sessions := a.Sessions()
	require.Len(t, sessions, 3)
	require.Equal(t, b.addr, sessions[0].Address)
	require.Equal(t, "send: invalid argument", sessions[1].LastError)
	require.Equal(t, "send: "+errFamily.Error(), sessions[2].LastError)

	// An own address that is gone.
	gone := b.peer(true)
	gone.Local = netip.MustParseAddr("192.0.2.2")
	a.Set([]Peer{gone})
	until(t, func() bool { return a.with(b).LastError != "" })
	a.Set([]Peer{b.peer(true)})
	until(t, func() bool { s := a.with(b); return s.State == Up && s.LastError == "" })
}

func TestSetProfile(t *testing.T) {
	a, b := listen(t, loopback(1)), listen(t, loopback(2))
	a.Set([]Peer{b.peer(true)})
	b.Set([]Peer{a.peer(false)})
	meet(t, a, b)
	require.NoError(t, a.SetProfile(config.BFDProfile{TransmitInterval: 50, ReceiveInterval: 200, DetectMultiplier: 5}))
	until(t, func() bool {
		return a.with(b).Detection == 600*time.Millisecond && b.with(a).Detection == 500*time.Millisecond
	})
	require.EqualError(t, a.SetProfile(config.BFDProfile{TransmitInterval: 50}),
		"BFD timers: transmit interval 50 ms, receive interval 0 ms, detection multiplier 0: none may be 0")
	require.Equal(t, Up, a.with(b).State)
	require.Zero(t, a.failed.Load()+b.failed.Load())
}

func TestListenRefuses(t *testing.T) {
	_, err := Listen(Options{Port: testPort})
	require.ErrorContains(t, err, "none may be 0")
	a := listen(t, loopback(1))
	_, err = Listen(Options{Port: testPort, Bind: a.addr, Profile: fast})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	_, err = Listen(Options{Port: testPort, Profile: fast})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	_, err = Listen(Options{Port: testPort, Bind: netip.MustParseAddr("192.0.2.1"), Profile: fast})
	require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
}

func TestNames(t *testing.T) {
	for s := AdminDown; s <= Up; s++ {
		text, err := s.MarshalText()
		require.NoError(t, err)
		var back State
		require.NoError(t, back.UnmarshalText(text))
		require.Equal(t, s, back)
	}
	var s State
	require.Error(t, s.UnmarshalText([]byte("sideways")))
	require.Equal(t, "state 9", State(9).String())
	for d := range Diag(32) {
		require.NotEmpty(t, d.String())
	}
}

func FuzzPacket(f *testing.F) {
	good := packet{state: Up, mult: 3, mine: 1, yours: 2, desiredTx: time.Second, requiredRx: 100 * time.Millisecond}.encode(nil)
	f.Add(good)
	f.Add(good[:23])
	f.Add(append(good[:24:24], 0))
	f.Add([]byte{})
	f.Add([]byte{0x20})
	for i := range 4 {
		for _, v := range []byte{0, 0x40, 0x44, 0xff} {
			b := append([]byte(nil), good...)
			b[i] = v
			f.Add(b)
		}
	}
	f.Add(packet{state: Down, poll: true, mult: 255, mine: rand.Uint32() | 1}.encode(nil))
	f.Add(packet{state: AdminDown, final: true, demand: true, mult: 1, mine: 1 << 31, desiredTx: 4294967295 * time.Microsecond}.encode(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := decode(data)
		if err == nil {
			again, err := decode(p.encode(nil))
			require.NoError(t, err)
			require.Equal(t, p, again)
			require.NotZero(t, p.mine)
			require.NotZero(t, p.mult)
		}
		// Whatever it is: a session that is up stays so, since the packet cannot know either discriminator but by chance.
		table := newTable(fast)
		peer := address(1)
		table.set([]Peer{{Address: peer, Active: true}}, time.Hour)
		s := table.sessions[peer]
		s.receive(packet{state: Init, mult: 3, mine: 0x5eed5eed, yours: s.local, requiredRx: 1}, time.Hour)
		table.receive(peer, data, time.Hour)
		if err != nil || p.yours != s.local && p.mine != 0x5eed5eed {
			require.Equal(t, Up, s.state)
			require.EqualValues(t, 0x5eed5eed, s.remote)
		}
		// Nor does it harm one that nobody has answered yet.
		fresh := address(2)
		table.set([]Peer{{Address: fresh}}, time.Hour)
		table.receive(fresh, data, time.Hour)
		require.False(t, table.sessions[fresh].failed)
		for now := time.Hour; now < time.Hour+5*time.Second; now += 100 * time.Millisecond {
			out, _ := table.due(now, nil)
			for _, o := range out {
				_, err := decode(o.bytes[:])
				require.NoError(t, err)
			}
		}
	})
}

// TestOneHop has packets come from near and from far: with OneHop, only a TTL of 255 says that the sender is a neighbour.
func TestOneHop(t *testing.T) {
	for _, family := range []struct{ local, remote netip.Addr }{{loopback(1), loopback(2)}, {netip.IPv6Loopback(), netip.IPv6Loopback()}} {
		e, err := Listen(Options{Port: testPort, Bind: family.local, OneHop: true, Profile: fast})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.Close()) })
		e.Set([]Peer{{Address: family.remote}})
		conn, err := net.DialUDP("udp", &net.UDPAddr{IP: family.remote.AsSlice()}, &net.UDPAddr{IP: family.local.AsSlice(), Port: int(testPort)})
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		raw, err := conn.SyscallConn()
		require.NoError(t, err)
		send := func(ttl int) {
			level, option := unix.IPPROTO_IP, unix.IP_TTL
			if family.local.Is6() {
				level, option = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
			}
			require.NoError(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, ttl) }))
			require.NoError(t, err)
			_, err := conn.Write(packet{state: Down, mult: 3, mine: 7, desiredTx: time.Second, requiredRx: time.Second}.encode(nil))
			require.NoError(t, err)
		}
		for i, ttl := range []int{254, 64, 1} {
			send(ttl)
			until(t, func() bool { return e.Counters().Discarded[errHops.Error()] == uint64(i)+1 })
		}
		require.Equal(t, Down, e.Sessions()[0].State)
		send(255)
		until(t, func() bool { return e.Sessions()[0].State == Init })
	}
}

// TestProfiles has peers of one engine with timers of their own, which change while sessions are up.
func TestProfiles(t *testing.T) {
	w := newWorld(t)
	slow := config.BFDProfile{TransmitInterval: 400, ReceiveInterval: 500, DetectMultiplier: 5}
	node, a, b := w.boot(1, slow), w.boot(2, fast), w.boot(3, fast)
	set := func(p config.BFDProfile) {
		node.set([]Peer{{Address: a.addr, Active: true, Profile: p}, {Address: b.addr, Active: true}}, w.now)
		node.next = w.now
	}
	set(fast)
	a.watch(w, false, node)
	b.watch(w, false, node)
	w.meet(node, a)
	w.meet(node, b)
	w.pass(time.Second)
	require.Equal(t, 300*time.Millisecond, node.session(a).Detection)
	require.Equal(t, 300*time.Millisecond, a.session(node).Detection)
	require.Equal(t, 1500*time.Millisecond, node.session(b).Detection)
	require.Equal(t, 2*time.Second, b.session(node).Detection)
	set(config.BFDProfile{TransmitInterval: 200, ReceiveInterval: 300, DetectMultiplier: 4})
	w.until(2*time.Second, "the peer has confirmed", func() bool { return !node.sessions[a.addr].polling })
	w.pass(time.Second)
	require.Equal(t, 900*time.Millisecond, node.session(a).Detection)
	require.Equal(t, 800*time.Millisecond, a.session(node).Detection)
	require.False(t, node.everFailed(a))
	require.False(t, a.everFailed(node))
}
