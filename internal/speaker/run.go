package speaker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/egressway/egressway/internal/pause"
)

const (
	// lookEvery is how often an agent without a speaker looks for one.
	lookEvery = 200 * time.Millisecond
	// listenWithin limits how long a started speaker may take to listen.
	listenWithin = 10 * time.Second
	// restartAfter is the pause after a speaker failed to start.
	restartAfter = 2 * time.Second
	// yieldFor is how long an agent whose speaker another agent took over waits before it connects again.
	yieldFor = 10 * time.Second
)

// Run keeps the client connected to a speaker until ctx ends. The speaker keeps running then.
func (c *Client) Run(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		l, h, err := c.find(ctx)
		if err == nil {
			err = c.hold(ctx, l, h)
		}
		if ctx.Err() != nil {
			return
		}
		c.without(err)
		rest := lookEvery
		switch {
		case errors.Is(err, errTakenOver):
			rest = yieldFor
		case errors.Is(err, errNotStarted), errors.Is(err, errOtherProtocol):
			rest = restartAfter
		case time.Since(began) > lookEvery:
			continue // the speaker served for a while: look for one at once
		}
		pause.For(ctx, rest)
	}
}

// hold serves a connection until it ends.
func (c *Client) hold(ctx context.Context, l *link, h hello) error {
	stop := context.AfterFunc(ctx, func() { l.hangUp(ctx.Err()) })
	defer stop()
	return l.listen(func() {
		c.mu.Lock()
		c.link, c.problem, c.started = l, nil, h.Started
		c.mu.Unlock()
		c.Log.Info("the speaker answers",
			"socket", c.Socket, "speakerVersion", h.Version, "started", h.Started, "networks", len(h.Speakers))
		c.ready.Do(func() { close(c.complete) })
		c.Wake()
	})
}

// without records that there is no speaker.
func (c *Client) without(why error) {
	if !errors.Is(why, ErrAbsent) {
		why = absent(c.Socket, why)
	}
	c.mu.Lock()
	lost := c.link != nil
	if lost {
		c.heard = c.link.known().down(why.Error())
		c.link = nil
	}
	news := lost || c.problem == nil || c.problem.Error() != why.Error()
	c.problem = why
	c.mu.Unlock()
	if news {
		c.Log.Warn("nothing can be announced or withdrawn", "error", why)
		c.Wake()
	}
}

var errNotStarted = errors.New("cannot start a speaker")

// find connects to the speaker. If there is none and c.Start is set, it starts one.
func (c *Client) find(ctx context.Context) (*link, hello, error) {
	l, h, err := connect(ctx, c.Socket, c.Version, c.Wake)
	if !nobody(err) {
		return l, h, err
	}
	if c.Start == nil {
		return nil, h, fmt.Errorf(`%w listens on socket %s: start "egressway speaker", or set speaker.start`, ErrAbsent, c.Socket)
	}
	child, err := start(c.Start)
	if err != nil {
		return nil, h, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	c.Log.Info("speaker started", "pid", child.pid)
	return c.await(ctx, child)
}

// await connects to a started speaker, as soon as it listens.
func (c *Client) await(ctx context.Context, child *child) (*link, hello, error) {
	until := time.NewTimer(listenWithin)
	defer until.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		l, h, err := connect(ctx, c.Socket, c.Version, c.Wake)
		if !nobody(err) {
			return l, h, err
		}
		select {
		case <-tick.C:
		case status := <-child.ended:
			return nil, h, fmt.Errorf("%w: it has ended: %s", errNotStarted, status)
		case <-until.C:
			return nil, h, fmt.Errorf("%w: it does not listen: %w", errNotStarted, err)
		case <-ctx.Done():
			return nil, h, ctx.Err()
		}
	}
}

// nobody reports whether a connection failed because no process listens.
func nobody(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
}

// child is a speaker that this process started.
type child struct {
	pid   int
	ended chan string // receives its exit status
}

// start starts a speaker in a session of its own, so that it outlives this process, however that ends. The speaker
// writes to this process's standard error.
func start(args []string) (*child, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	// The program that is running now: its file may have been replaced.
	p, err := os.StartProcess("/proc/self/exe", args, &os.ProcAttr{
		Dir: "/", Files: []*os.File{null, null, os.Stderr}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", strings.Join(args, " "), err)
	}
	c := &child{pid: p.Pid, ended: make(chan string, 1)}
	go func() { // ends with the child or with this process; the child does not depend on it
		if state, err := p.Wait(); err != nil {
			c.ended <- err.Error()
		} else {
			c.ended <- state.String()
		}
	}()
	return c, nil
}
