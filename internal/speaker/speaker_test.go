package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	ossignal "os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab"
)

// TestMain lets the test start itself as a speaker.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[0] == "egressway" {
		os.Exit(speak())
	}
	goleak.VerifyTestMain(m)
}

func speak() (status int) {
	if len(os.Args) != 4 || os.Args[1] != "speaker" {
		return 7
	}
	ctx, stop := ossignal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := Serve(ctx, Options{Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Socket: os.Args[3], Version: "v1"}); err != nil {
		return 1
	}
	return 0
}

const limit = lab.Patience

// process is a speaker. It is not this process: GoBGP's servers share variables, which the race detector sees.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // once done
}

// serve starts a speaker that listens on the socket.
func serve(tb testing.TB, path string) *process {
	tb.Helper()
	p := &process{cmd: exec.CommandContext(context.WithoutCancel(tb.Context()), "/proc/self/exe"), done: make(chan struct{})}
	p.cmd.Args = []string{"egressway", "speaker", "--socket", path}
	p.cmd.Env = append(os.Environ(), "GORACE=exitcode=0") // GoBGP marks paths stale while others read them
	p.cmd.Stderr = tb.Output()
	require.NoError(tb, p.cmd.Start())
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	tb.Cleanup(func() { require.NoError(tb, p.stop()) })
	require.Eventually(tb, func() bool {
		conn, err := net.Dial("unix", path)
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, limit, 10*time.Millisecond)
	return p
}

// stop tells the speaker to end, if it has not already.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.done
	return p.err
}

// drive connects an agent. Its end is that of an agent that is killed: the connection breaks, nothing is said.
func drive(tb testing.TB, o ClientOptions) (c *Client, end func()) {
	tb.Helper()
	o.Log = slog.New(slog.NewTextHandler(tb.Output(), nil)).With("agent", o.Version)
	if o.Wake == nil {
		o.Wake = func() {}
	}
	c = NewClient(o)
	ctx, cancel := context.WithCancel(tb.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	end = func() {
		cancel()
		<-done
	}
	tb.Cleanup(end)
	return c, end
}

func ready(tb testing.TB, c *Client) {
	tb.Helper()
	select {
	case <-c.Ready():
	case <-time.After(limit):
		require.Fail(tb, "no speaker answers")
	}
}

// apply makes the change as an agent does.
func apply(t *testing.T, c *Client, desired ...plan.Speaker) {
	t.Helper()
	require.NoError(t, c.Withdraw(t.Context(), desired))
	require.NoError(t, c.Apply(t.Context(), desired))
}

// router is a BGP speaker on this machine that the speaker under test dials.
type router struct {
	*Client
	port uint16
}

func newRouter(t *testing.T) *router {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	return newRouterAt(t, l)
}

// newRouterAt makes a router that listens instead of somebody else.
func newRouterAt(t *testing.T, l net.Listener) *router {
	t.Helper()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	require.NoError(t, l.Close())
	path := filepath.Join(t.TempDir(), "router.sock")
	serve(t, path)
	c, _ := drive(t, ClientOptions{Socket: path, Version: "router"})
	ready(t, c)
	require.NoError(t, c.Apply(t.Context(), []plan.Speaker{{
		Network: "router", ASN: 64601, RouterID: netip.MustParseAddr("192.0.2.1"), ListenPort: int(port),
		GracefulRestart: config.GracefulRestart{Enabled: true, RestartTime: config.Duration(time.Minute)},
		Peers: []plan.Peer{{
			Peer: config.Peer{
				Address: netip.MustParseAddr("127.0.0.1"), ASN: 64512, Port: 1, // it only listens
				HoldTime: config.Duration(9 * time.Second), KeepaliveTime: config.Duration(3 * time.Second), ConnectTime: config.Duration(time.Hour),
				MaxPrefixes: 1000, Receive: []config.PrefixPattern{{Prefix: netip.MustParsePrefix("0.0.0.0/0"), GE: 1, LE: 32}},
			},
		}},
	}}))
	return &router{Client: c, port: port}
}

// speaker is what an agent wants to be spoken to the router.
func (r *router) speaker(announce ...string) plan.Speaker {
	s := plan.Speaker{
		Network: "red", ASN: 64512, RouterID: netip.MustParseAddr("192.0.2.2"), ListenPort: -1,
		GracefulRestart: config.GracefulRestart{Enabled: true, RestartTime: config.Duration(time.Minute)},
		Peers: []plan.Peer{{
			Peer: config.Peer{
				Address: netip.MustParseAddr("127.0.0.1"), ASN: 64601, Port: r.port, MaxPrefixes: 1000,
				HoldTime: config.Duration(9 * time.Second), KeepaliveTime: config.Duration(3 * time.Second), ConnectTime: config.Duration(time.Second),
			},
			NextHop4: netip.MustParseAddr("192.0.2.2"),
		}},
	}
	for _, a := range announce {
		s.Announce = s.Announce.With([]plan.Announcement{{Prefix: netip.MustParsePrefix(a)}}, nil)
	}
	return s
}

// has waits until the router has so many routes by a session that is up.
func (r *router) has(t *testing.T, routes int) {
	t.Helper()
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		s := r.Sessions()[0]
		require.True(t, s.Up, "%+v", s)
		require.Equal(t, routes, s.Received, "%+v", s)
	}, limit, 20*time.Millisecond)
}

// since is when the router's session came up.
func (r *router) since() time.Time { return r.Sessions()[0].Since }

func TestAdoption(t *testing.T) {
	r := newRouter(t)
	path := filepath.Join(t.TempDir(), "run", "speaker.sock")
	p := serve(t, path)
	woken := make(chan struct{}, 1)
	first, kill := drive(t, ClientOptions{Socket: path, Version: "v1", Wake: func() { signal(woken) }})
	ready(t, first)
	require.NoError(t, first.Problem())
	require.Empty(t, first.Announced())
	require.Empty(t, first.Sessions())

	apply(t, first, r.speaker("198.51.100.1/32", "198.51.100.2/32"))
	require.Len(t, first.Sessions(), 1, "known when Apply returns")
	r.has(t, 2)
	up := r.since()
	require.EventuallyWithT(t, func(t *assert.CollectT) { require.True(t, first.Sessions()[0].Up) }, limit, 20*time.Millisecond)
	<-woken

	kill()
	second, _ := drive(t, ClientOptions{Socket: path, Version: "v2"})
	ready(t, second)
	require.Equal(t, first.Started(), second.Started())
	require.Equal(t, []plan.Announcement{
		{Prefix: netip.MustParsePrefix("198.51.100.1/32")}, {Prefix: netip.MustParsePrefix("198.51.100.2/32")},
	}, second.Announced()["red"].Slice())
	require.True(t, second.Sessions()[0].Up)
	require.True(t, first.Sessions()[0].Since.Equal(second.Sessions()[0].Since))
	r.has(t, 2)

	// It withdraws first, as an agent does that finds other objects than the one before left.
	desired := r.speaker("198.51.100.2/32", "198.51.100.3/32", "198.51.100.4/32")
	require.NoError(t, second.Withdraw(t.Context(), []plan.Speaker{desired}))
	require.Equal(t, []plan.Announcement{{Prefix: netip.MustParsePrefix("198.51.100.2/32")}}, second.Announced()["red"].Slice())
	r.has(t, 1)
	require.NoError(t, second.Apply(t.Context(), []plan.Speaker{desired}))
	r.has(t, 3)
	require.Equal(t, up, r.since(), "the session is the one of before")

	require.NoError(t, p.stop())
	require.EventuallyWithT(t, func(t *assert.CollectT) { require.ErrorIs(t, second.Problem(), ErrAbsent) }, limit, 20*time.Millisecond)
	require.ErrorIs(t, second.Apply(t.Context(), nil), ErrAbsent)
	require.ErrorIs(t, second.Withdraw(t.Context(), nil), ErrAbsent)
	require.Nil(t, second.Announced())
	require.False(t, second.Sessions()[0].Up)

	// Another speaker: it knows nothing, and the agent asks for everything again.
	serve(t, path)
	require.EventuallyWithT(t, func(t *assert.CollectT) { require.NoError(t, second.Problem()) }, limit, 20*time.Millisecond)
	require.NotEqual(t, first.Started(), second.Started())
	require.Empty(t, second.Announced())
	apply(t, second, desired)
	r.has(t, 3)
	require.NotEqual(t, up, r.since())
}

// TestSilentRouter is about a router that takes the first connection, as its kernel does when it is stopped, and never answers
// on it, nor ends it. There is a session with the next one, long before the 240 s that RFC 4271 grants to an OPEN.
func TestSilentRouter(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "s.sock")
	serve(t, path)
	c, _ := drive(t, ClientOptions{Socket: path, Version: "v1"})
	ready(t, c)
	r := &router{port: uint16(l.Addr().(*net.TCPAddr).Port)}
	apply(t, c, r.speaker("198.51.100.1/32"))
	silent, err := l.Accept()
	require.NoError(t, err)
	defer silent.Close()
	r = newRouterAt(t, l)
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		require.Contains(t, c.Sessions()[0].LastError, "has not answered an OPEN")
	}, limit, 20*time.Millisecond)
	r.has(t, 1)
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		require.True(t, c.Sessions()[0].Up)
		require.Empty(t, c.Sessions()[0].LastError)
	}, limit, 20*time.Millisecond)
}

// TestAbsent is about an agent that must not start a speaker, and waits for one.
func TestAbsent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	c, _ := drive(t, ClientOptions{Socket: path, Version: "v1"})
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		require.EqualError(t, c.Problem(), `no speaker listens on socket `+path+`: start "egressway speaker", or set speaker.start`)
	}, limit, 10*time.Millisecond)
	require.ErrorIs(t, c.Apply(t.Context(), nil), ErrAbsent)
	require.Empty(t, c.Learned())
	serve(t, path)
	ready(t, c)
	require.NoError(t, c.Apply(t.Context(), nil))
}

// TestTakeOver has a second agent come while the first is there.
func TestTakeOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	serve(t, path)
	first, _ := drive(t, ClientOptions{Socket: path, Version: "v1"})
	ready(t, first)
	second, _ := drive(t, ClientOptions{Socket: path, Version: "v2"})
	ready(t, second)
	require.EventuallyWithT(t, func(t *assert.CollectT) { require.ErrorIs(t, first.Problem(), errTakenOver) }, limit, 20*time.Millisecond)
	require.ErrorContains(t, first.Problem(), "of version v2")
	require.ErrorIs(t, first.Apply(t.Context(), nil), ErrAbsent)
	require.NoError(t, second.Apply(t.Context(), nil))
}

// TestLateAgent has agents whose connections waited too long while the speaker was busy: one that has hung up and one that is older do
// not take over, a later one does.
func TestLateAgent(t *testing.T) {
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	s := &server{log: log, version: "v1", speakers: bgp.New(log, bgp.Hints{}), nodes: &watch{log: log}}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s.sock"))
	require.NoError(t, err)
	defer l.Close()
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	// connects has an agent say hello, and serves it once the agent has gone on.
	connects := func(number int, then func(*wire)) (agent *wire, ended chan struct{}) {
		conn, err := net.Dial("unix", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		agent, ended = newWire(conn), make(chan struct{})
		require.NoError(t, agent.write(message{Hello: &hello{Protocol: Protocol, Version: "v1"}}, limit))
		then(agent)
		accepted, err := l.Accept()
		require.NoError(t, err)
		running.Go(func() {
			defer close(ended)
			s.serve(t.Context(), accepted, number)
		})
		return agent, ended
	}
	stays := func(*wire) {}
	drives := func(agent *wire) *driver {
		_, err := agent.readHello()
		require.NoError(t, err)
		return s.driver.Load()
	}
	first, _ := connects(5, stays)
	driver := drives(first)
	for number, then := range map[int]func(*wire){4: stays, 6: func(w *wire) { w.conn.Close() }} {
		_, ended := connects(number, then)
		select {
		case <-ended:
		case <-time.After(limit):
			require.Fail(t, "it is served", "%d", number)
		}
		require.Same(t, driver, s.driver.Load(), "%d", number)
	}
	last, _ := connects(7, stays)
	require.NotSame(t, driver, drives(last))
	last.conn.Close()
}

// TestFault is about what the speaker cannot do: the agent learns of it, and that it is gone.
func TestFault(t *testing.T) {
	r := newRouter(t)
	path := filepath.Join(t.TempDir(), "s.sock")
	serve(t, path)
	c, _ := drive(t, ClientOptions{Socket: path, Version: "v1"})
	ready(t, c)
	apply(t, c, r.speaker("198.51.100.1/32"))
	r.has(t, 1)

	unreadable := r.speaker("198.51.100.1/32", "198.51.100.2/32")
	unreadable.Peers[0].PasswordFile = filepath.Join(t.TempDir(), "password")
	err := c.Apply(t.Context(), []plan.Speaker{unreadable})
	require.ErrorContains(t, err, "network red: read the password of peer 127.0.0.1")
	require.EqualError(t, c.Apply(t.Context(), []plan.Speaker{unreadable}), err.Error(), "it is tried again")
	r.has(t, 2)
	require.NotEmpty(t, c.Sessions()[0].LastError)
	apply(t, c, r.speaker("198.51.100.1/32"))
	require.Empty(t, c.Sessions()[0].LastError)
}

// TestNotAsked is about an agent that wants what is there already: it does not wait for the speaker.
func TestNotAsked(t *testing.T) {
	r := newRouter(t)
	path := filepath.Join(t.TempDir(), "s.sock")
	serve(t, path)
	c, _ := drive(t, ClientOptions{Socket: path, Version: "v1"})
	ready(t, c)
	desired := r.speaker("198.51.100.1/32")
	apply(t, c, desired)
	before := c.link.last
	apply(t, c, desired)
	require.Equal(t, before, c.link.last)
	apply(t, c, r.speaker("198.51.100.1/32", "198.51.100.2/32"))
	require.Equal(t, before+1, c.link.last, "nothing is withdrawn")
	apply(t, c, desired)
	require.Equal(t, before+2, c.link.last, "the withdrawal is all that there is to do")

	// The speaker could not keep to it: the next time, it is asked.
	require.NoError(t, c.link.hear(message{Again: true}, nil))
	require.NoError(t, c.Apply(t.Context(), []plan.Speaker{desired}))
	require.Equal(t, before+3, c.link.last)
}

// TestOtherProtocol has an agent meet a speaker that is too different, and a speaker an agent.
func TestOtherProtocol(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			w := newWire(conn)
			_, _ = w.readHello()
			_ = w.write(message{Hello: &hello{Protocol: 99, Version: "v9"}}, time.Second)
			conn.Close()
		}
	}()
	c, _ := drive(t, ClientOptions{Socket: path, Version: "v1"})
	require.EventuallyWithT(t, func(t *assert.CollectT) { require.ErrorIs(t, c.Problem(), errOtherProtocol) }, limit, 20*time.Millisecond)
	require.ErrorContains(t, c.Problem(), "it speaks another protocol: 99, of version v9; this agent speaks 1, of version v1: restart the speaker")

	path = filepath.Join(t.TempDir(), "t.sock")
	serve(t, path)
	d, _ := drive(t, ClientOptions{Socket: path, Version: "v1"})
	ready(t, d)
	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer conn.Close()
	w := newWire(conn)
	require.NoError(t, w.write(message{Hello: &hello{Protocol: 99, Version: "v9"}}, time.Second))
	h, err := w.readHello()
	require.NoError(t, err)
	require.Equal(t, Protocol, h.Protocol)
	require.Equal(t, "v1", h.Version)
	_, err = w.read()
	require.Error(t, err)
	require.NoError(t, d.Apply(t.Context(), nil), "the agent of before still drives")
}

// TestUnknownRequest is that of a newer agent.
func TestUnknownRequest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	serve(t, path)
	l, _, err := connect(t.Context(), path, "v2", func() {})
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.listen(func() {}) // we hang up
	}()
	a, err := l.ask(t.Context(), message{})
	require.NoError(t, err)
	require.EqualError(t, a.err(), "the speaker is of version v1 and does not know this request: restart it when its sessions may be lost")
	l.hangUp(errors.New("enough"))
	<-done
}

func TestNodes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	serve(t, path)
	c, kill := drive(t, ClientOptions{Socket: path, Version: "v1"})
	ready(t, c)
	here, there := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	o := bfd.Options{Bind: here, Port: freeUDP(t), Profile: config.BFDProfile{TransmitInterval: 50, ReceiveInterval: 50, DetectMultiplier: 100}}
	require.NoError(t, c.Watch(t.Context(), o, []bfd.Peer{{Node: "b", Address: there, Local: here, Active: true}}))
	require.Len(t, c.Nodes(), 1)
	require.Equal(t, bfd.Down, c.Nodes()[0].State)

	other, err := bfd.Listen(bfd.Options{Bind: there, Port: o.Port, Profile: o.Profile})
	require.NoError(t, err)
	other.Set([]bfd.Peer{{Node: "a", Address: here, Local: there}})
	require.EventuallyWithT(t, func(t *assert.CollectT) { require.Equal(t, bfd.Up, c.Nodes()[0].State) }, limit, 10*time.Millisecond)
	up := c.Nodes()[0].Since
	kill()
	c, _ = drive(t, ClientOptions{Socket: path, Version: "v2"})
	ready(t, c)
	require.Equal(t, bfd.Up, c.Nodes()[0].State)
	require.True(t, up.Equal(c.Nodes()[0].Since))
	require.NoError(t, c.Watch(t.Context(), o, []bfd.Peer{{Node: "b", Address: there, Local: here, Active: true}}))
	require.True(t, up.Equal(c.Nodes()[0].Since), "asked for the same, it stays")

	require.NoError(t, other.Close())
	require.EventuallyWithT(t, func(t *assert.CollectT) { require.NotEqual(t, bfd.Up, c.Nodes()[0].State) }, limit, 10*time.Millisecond)
	require.False(t, c.Nodes()[0].Failed, "it said that it goes")
	require.NoError(t, c.Watch(t.Context(), o, nil))
	require.Empty(t, c.Nodes())
}

// TestOnLinkComesBack has an address leave this node while no agent drives the speaker, and come back: it is announced again. Its device
// does not exist, so that each attempt is an error.
func TestOnLinkComesBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	serve(t, path)
	all := sorted.Of(plan.OnLink{Addr: netip.MustParseAddr("203.0.113.33"), Device: "none0"})
	c, kill := drive(t, ClientOptions{Socket: path, Version: "v1"})
	ready(t, c)
	require.Error(t, c.AnswerOnLink(t.Context(), all))
	kill()
	c, kill = drive(t, ClientOptions{Socket: path, Version: "v2"})
	ready(t, c)
	for range 2 {
		asked := c.link.last
		require.Error(t, c.AnswerOnLink(t.Context(), all), "no neighbour has heard of it yet")
		require.Equal(t, asked+1, c.link.last, "the speaker is to try again")
	}
	kill()
	c, _ = drive(t, ClientOptions{Socket: path, Version: "v3"})
	ready(t, c)
	require.NoError(t, c.AnswerOnLink(t.Context(), sorted.List[plan.OnLink]{}), "another node answers")
	asked := c.link.last
	require.NotZero(t, asked, "the speaker still knows the address")
	require.NoError(t, c.AnswerOnLink(t.Context(), sorted.List[plan.OnLink]{}))
	require.Equal(t, asked, c.link.last, "the speaker knows that already")
	require.Error(t, c.AnswerOnLink(t.Context(), all), "this node answers again")
}

// TestOnLinkUnknown is about a speaker of a version that announces no addresses on links: only an agent that has some notices.
func TestOnLinkUnknown(t *testing.T) {
	const unknown = "the speaker does not know this request"
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	running.Go(func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		w := newWire(conn)
		_, err = w.readHello()
		for m := (message{Hello: &hello{Protocol: Protocol, Version: "v0"}}); err == nil && w.write(m, limit) == nil; {
			if m.Hello != nil {
				m = message{Complete: true}
				continue
			}
			var request message
			request, err = w.read()
			m = message{ID: request.ID, Answer: &answer{Errors: []string{unknown}}}
		}
	})
	c, _ := drive(t, ClientOptions{Socket: path, Version: "v1"})
	ready(t, c)
	require.NoError(t, c.AnswerOnLink(t.Context(), sorted.List[plan.OnLink]{}))
	all := sorted.Of(plan.OnLink{Addr: netip.MustParseAddr("203.0.113.33"), Device: "none0"})
	for range 2 {
		require.EqualError(t, c.AnswerOnLink(t.Context(), all), unknown)
	}
	require.NoError(t, c.AnswerOnLink(t.Context(), sorted.List[plan.OnLink]{}))
}

func freeUDP(t *testing.T) uint16 {
	t.Helper()
	conn, err := net.ListenPacket("udp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer conn.Close()
	return uint16(conn.LocalAddr().(*net.UDPAddr).Port)
}

func TestEnd(t *testing.T) {
	r := newRouter(t)
	path := filepath.Join(t.TempDir(), "s.sock")
	require.NoError(t, End(t.Context(), path, "v1"), "there is none")
	p := serve(t, path)
	c, _ := drive(t, ClientOptions{Socket: path, Version: "v1"})
	ready(t, c)
	apply(t, c, r.speaker("198.51.100.1/32"))
	r.has(t, 1)
	require.NoError(t, End(t.Context(), path, "v1"))
	<-p.done
	require.NoError(t, p.err)
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		require.Zero(t, r.Sessions()[0].Received, "nothing is kept for a restart")
	}, limit, 20*time.Millisecond)
	_, err := os.Stat(path)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestStart has agents start the speaker: it is a process of its own.
func TestStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	c, kill := drive(t, ClientOptions{Socket: path, Version: "v1", Start: []string{"egressway", "speaker", "--socket", path}})
	ready(t, c)
	require.NoError(t, c.Apply(t.Context(), nil))
	started := c.Started()
	pid := holder(t, path)
	require.NotEqual(t, os.Getpid(), pid)
	session, err := unix.Getsid(pid)
	require.NoError(t, err)
	require.Equal(t, pid, session, "it leads a session of its own")
	kill()

	c, _ = drive(t, ClientOptions{Socket: path, Version: "v2", Start: []string{"egressway", "speaker", "--socket", path}})
	ready(t, c)
	require.Equal(t, started, c.Started())
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		require.NoError(t, c.Problem())
		require.NotEqual(t, started, c.Started())
	}, limit, 20*time.Millisecond, "another one is started")
	require.NoError(t, c.Apply(t.Context(), nil))
	c, _ = drive(t, ClientOptions{Socket: path, Version: "v3"})
	ready(t, c)
	require.NoError(t, End(t.Context(), path, "v3"))

	c, _ = drive(t, ClientOptions{Socket: filepath.Join(t.TempDir(), "t.sock"), Version: "v1", Start: []string{"egressway", "nonsense"}})
	require.EventuallyWithT(t, func(t *assert.CollectT) { require.ErrorIs(t, c.Problem(), errNotStarted) }, limit, 20*time.Millisecond)
	require.ErrorContains(t, c.Problem(), "it has ended: exit status 7")
}

// holder is the process that listens on a socket.
func holder(t *testing.T, path string) int {
	t.Helper()
	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	require.NoError(t, err)
	var cred *syscall.Ucred
	require.NoError(t, raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}))
	require.NoError(t, err)
	return int(cred.Pid)
}

// TestManyRoutes tells an agent 100,000 routes, and then what changes of them; also one that does not understand groups.
func TestManyRoutes(t *testing.T) {
	for _, groups := range []bool{true, false} {
		t.Run(fmt.Sprintf("groups %t", groups), func(t *testing.T) { manyRoutes(t, groups) })
	}
}

func manyRoutes(t *testing.T, groups bool) {
	t.Helper()
	a, b := net.Pipe()
	d := &driver{wire: newWire(a), groups: groups}
	wakes := 0
	l := &link{wire: newWire(b), wake: func() { wakes++ }, pieces: routes{}}
	done := make(chan error, 1)
	go func() { done <- l.listen(func() {}) }()
	route := func(i int, via string) plan.Route {
		return plan.Route{
			Dst:      netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32),
			NextHops: []plan.NextHop{{Gateway: netip.MustParseAddr(via), Device: "eth1"}},
		}
	}
	var had sorted.List[plan.Route]
	tell := func(routes []plan.Route) {
		now := sorted.Of(slices.Clone(routes)...)
		require.NoError(t, d.tellLearned("red", changeIn(had, now, destination)))
		had = now
	}
	var routes []plan.Route
	for i := range 100000 {
		routes = append(routes, route(i, "192.0.2.1"))
	}
	tell(routes)
	routes = append([]plan.Route{}, routes[2000:]...)
	for i := range 5000 {
		routes[10*i] = route(2000+10*i, "192.0.2.2")
	}
	tell(routes)
	require.NoError(t, d.write(message{Learned: &learned{Network: "blue", Gone: true}}, limit))
	require.NoError(t, a.Close())
	require.Error(t, <-done)
	require.Equal(t, 3, wakes, "once for all pieces")
	heard := l.heard.learned.list()
	require.Len(t, heard, 1)
	require.Equal(t, "red", heard[0].Network)
	require.Equal(t, routes, heard[0].Routes.Slice())
}
