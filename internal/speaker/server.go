package speaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/onlink"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/socket"
	"github.com/egressway/egressway/internal/sorted"
)

const (
	// settleEvery is how often the speaker applies its desired state again, besides after every event. This covers
	// changes without an event, such as a changed password file.
	settleEvery = 5 * time.Second
	// applyWithin limits an Apply that no agent waits for.
	applyWithin = 30 * time.Second
	// closeWithin limits the orderly shutdown.
	closeWithin = 5 * time.Second
	// leastThreads is the lowest GOMAXPROCS: with several threads, the kernel's scheduler divides the processors
	// fairly.
	leastThreads = 4
)

// Options configures a speaker.
type Options struct {
	Log     *slog.Logger
	Socket  string
	Version string // of the program
}

// server is a running speaker.
type server struct {
	log     *slog.Logger
	version string
	started time.Time
	woken   chan struct{} // BGP state changed
	end     chan struct{} // closed when an agent ends the speaker
	ending  sync.Once

	speakers *bgp.Speakers

	nodes  *watch
	onLink *onlink.Announcer
	driver atomic.Pointer[driver] // the agent's connection, nil: none

	driving sync.Mutex // held while the desired state or the driver changes; guards the fields below
	asked   asked
	applied bool
	fault   string // why the desired state is not complete, from the last Apply
}

// Serve runs a speaker for the agents on the socket, until ctx ends or an agent ends it. When ctx ends, peers that
// negotiated graceful restart keep the announced routes for a while; when an agent ends the speaker, all routes are
// withdrawn.
func Serve(ctx context.Context, o Options) error {
	listener, err := socket.Listen(ctx, o.Socket)
	if err != nil {
		return fmt.Errorf("speaker's socket: %w", err)
	}
	// On one processor the goroutine that receives always runs before the one that processes, and the queue between
	// them only grows.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), leastThreads))
	s := &server{
		log: o.Log, version: o.Version, started: time.Now(),
		woken: make(chan struct{}, 1), end: make(chan struct{}), asked: asked{},
	}
	s.speakers = bgp.New(o.Log, bgp.Hints{Apply: func() { signal(s.woken) }, Routes: s.routesChanged})
	s.nodes, s.onLink = &watch{log: o.Log, wake: s.stirred}, onlink.NewAnnouncer()
	o.Log.Info("speaker starts", "version", o.Version, "socket", o.Socket)

	serving, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { s.settle(serving) })
	running.Go(func() { s.onLink.Run(serving) })
	running.Go(func() { s.speakers.GuardMemory(serving, limitMemory(o.Log)) })
	running.Go(func() { s.accept(serving, listener, &running) })
	graceful := true
	select {
	case <-ctx.Done():
	case <-s.end:
		graceful = false
	}
	_ = listener.Close()
	s.dismiss()
	stop()
	running.Wait()
	return s.close(graceful)
}

// close ends all sessions.
func (s *server) close(graceful bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	s.driving.Lock()
	defer s.driving.Unlock()
	graceful = graceful && slices.ContainsFunc(s.asked.speakers(), func(p plan.Speaker) bool { return p.GracefulRestart.Enabled })
	s.log.Info("speaker ends", "gracefulRestart", graceful)
	return errors.Join(s.nodes.close(bfd.DiagReset), s.speakers.Close(ctx, graceful))
}

// accept serves agents until the listener is closed.
func (s *server) accept(ctx context.Context, l net.Listener, running *sync.WaitGroup) {
	for number := 0; ; number++ {
		conn, err := l.Accept()
		if err == nil {
			running.Go(func() { s.serve(ctx, conn, number) })
			continue
		}
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return
		}
		s.log.Warn("cannot accept an agent", "error", err)
		pause.For(ctx, time.Second) // perhaps out of file descriptors
	}
}

// dismiss sends the agent a message that the speaker ends.
func (s *server) dismiss() {
	if d := s.driver.Load(); d != nil {
		d.farewell(message{Ending: true})
	}
}

// settle applies the desired state again after every event: some sessions can be completed only once they are up, and
// there may be no agent that applies again.
func (s *server) settle(ctx context.Context) {
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.woken:
		case <-tick.C:
		}
		s.again(ctx)
	}
}

// again applies the desired state once more.
func (s *server) again(ctx context.Context) {
	s.driving.Lock()
	defer s.driving.Unlock()
	if s.applied && ctx.Err() == nil {
		s.apply(ctx)
	}
	if d := s.driver.Load(); d != nil {
		signal(d.changed)
	}
}

// apply applies the desired state for no agent. The caller holds s.driving.
func (s *server) apply(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), applyWithin)
	defer cancel()
	fault := ""
	if err := s.speakers.Apply(ctx, s.asked.speakers()); err != nil {
		fault = err.Error()
	}
	if d := s.driver.Load(); d != nil && fault != s.fault {
		signal(d.unsure)
	}
	s.noteFault(fault)
}

// routesChanged is called when learned routes may have changed.
func (s *server) routesChanged() {
	if d := s.driver.Load(); d != nil {
		signal(d.routes)
	}
}

// stirred is called when the BFD state of another node changed.
func (s *server) stirred() {
	if d := s.driver.Load(); d != nil {
		signal(d.stirred)
	}
}

// noteFault logs why the desired state is not complete, when that reason changes.
func (s *server) noteFault(fault string) {
	if fault != "" && fault != s.fault {
		s.log.Error("cannot apply everything, will retry", "error", fault)
	}
	s.fault = fault
}

// takeOver makes d the driving agent. It returns the previous one, and the hello for d. ok is false if d is too late: while it waited,
// its agent gave up, or an agent that connected later took over.
func (s *server) takeOver(d *driver) (former *driver, now hello, ok bool) {
	s.driving.Lock()
	defer s.driving.Unlock()
	former = s.driver.Load()
	if former != nil && former.number > d.number || hungUp(d.conn) {
		return nil, hello{}, false
	}
	s.driver.Store(d)
	now = hello{Protocol: Protocol, Version: s.version, Started: s.started}
	for _, sp := range s.asked.speakers() {
		sp.Refuse = sorted.List[plan.Prefix]{}
		now.Speakers = append(now.Speakers, toWire(sp))
	}
	return former, now, true
}

// hungUp reports whether the other end of a connection has closed it.
func hungUp(conn net.Conn) bool {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return true // it is closed at this end
	}
	p := []unix.PollFd{{Events: unix.POLLRDHUP}}
	err = raw.Control(func(fd uintptr) {
		p[0].Fd = int32(fd)    //nolint:gosec // a file descriptor
		_, _ = unix.Poll(p, 0) // after an error, it has reported nothing
	})
	return err != nil || p[0].Revents != 0
}

// leave is called when a connection has ended.
func (s *server) leave(d *driver) {
	s.driving.Lock()
	defer s.driving.Unlock()
	if s.driver.CompareAndSwap(d, nil) {
		s.log.Info("agent disconnected, sessions stay", "agentVersion", d.version)
	}
}

var errSuperseded = errors.New("another agent drives the speaker now")

// do executes an agent's request.
func (s *server) do(ctx context.Context, d *driver, m message) *answer {
	s.driving.Lock()
	defer s.driving.Unlock()
	if s.driver.Load() != d {
		return answerOf(errSuperseded)
	}
	switch {
	case m.Withdraw != nil:
		s.asked = s.asked.without(*m.Withdraw)
		return answerOf(s.speakers.Withdraw(ctx, s.asked.speakers()))
	case m.Apply != nil:
		next, err := s.asked.changed(*m.Apply)
		if err != nil {
			return &answer{Errors: []string{err.Error()}, Full: true}
		}
		s.asked, s.applied = next, true
		err = s.speakers.Apply(ctx, s.asked.speakers())
		s.fault = ""
		if err != nil {
			s.fault = err.Error() // the agent logs it
		}
		return answerOf(err)
	case m.Watch != nil:
		return answerOf(s.nodes.set(*m.Watch))
	case m.OnLink != nil:
		return answerOf(s.onLink.Set(m.OnLink.All))
	case m.End:
		s.log.Info("an agent ends the speaker", "agentVersion", d.version)
		s.asked = asked{}
		return answerOf(errors.Join(s.nodes.close(bfd.DiagPathDown), s.speakers.Close(ctx, false)))
	}
	return answerOf(fmt.Errorf("the speaker is of version %s and does not know this request: "+
		"restart it when its sessions may be lost", s.version))
}

// answerOf splits joined errors into one string per line.
func answerOf(err error) *answer {
	if err == nil {
		return &answer{}
	}
	return &answer{Errors: strings.Split(err.Error(), "\n")}
}

// signal sends on c unless a value is waiting there already. It never blocks.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a note is there already
	}
}
