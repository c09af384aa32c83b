package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// soon is how long our processes are away if the runner starts them again.
var soon = [2]time.Duration{0, 3 * time.Second}

// processFaults are those of our own processes.
var processFaults = map[string]fault{
	"agent killed":  {inject: killAgent, heal: startAgent, hold: soon},
	"agent stopped": {inject: stopAgent, heal: startAgent, hold: soon},
	"agent killed in a change": {
		inject: func(ctx context.Context, r *run, s *step) error {
			if err := r.toggle(ctx); err != nil {
				return err
			}
			const most = 100 // milliseconds, in which a change is made
			if err := pause(ctx, time.Duration(s.dice%most)*time.Millisecond); err != nil {
				return err
			}
			return killAgent(ctx, r, s)
		},
		heal: startAgent, hold: soon,
	},
	"speaker killed": { // the daemon starts another one
		inject: func(_ context.Context, r *run, s *step) error { return r.signalSpeaker(s.node, syscall.SIGKILL) },
	},
	"agent and speaker killed": {
		inject: func(ctx context.Context, r *run, s *step) error {
			return errors.Join(killAgent(ctx, r, s), r.signalSpeaker(s.node, syscall.SIGKILL))
		},
		heal: startAgent, hold: soon,
	},
	"all agents killed": {
		inject: func(_ context.Context, r *run, _ *step) error {
			for _, d := range r.Daemons {
				d.Kill()
			}
			return nil
		},
		heal: func(_ context.Context, r *run, _ *step) (err error) {
			for node := range r.Daemons {
				err = errors.Join(err, r.restart(node))
			}
			return err
		},
		hold: soon,
	},
}

func killAgent(_ context.Context, r *run, s *step) error {
	r.Daemons[s.node].Kill()
	return nil
}

func stopAgent(ctx context.Context, r *run, s *step) error { return r.Daemons[s.node].Stop(ctx) }

func startAgent(_ context.Context, r *run, s *step) error { return r.restart(s.node) }

// restart starts the daemon of a node again, and keeps the log of the former one.
func (r *run) restart(node string) error {
	r.logs[node] += r.Daemons[node].Log()
	return r.StartDaemon(node)
}

// signalSpeaker signals the speaker of a node, also one that the runner did not start.
func (r *run) signalSpeaker(node string, signal syscall.Signal) error {
	pid, err := r.speaker(node)
	if err == nil {
		err = syscall.Kill(pid, signal)
	}
	if err != nil {
		return fmt.Errorf("node %s: signal speaker: %w", node, err)
	}
	return nil
}

// speaker finds the process by where it runs.
func (r *run) speaker(node string) (pid int, err error) {
	var home string
	if err := r.Node(node).Do(func() (err error) {
		home, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		return 0, err
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, path := range all {
		args, err := os.ReadFile(path + "/cmdline")
		if err != nil || !strings.Contains(string(args), "\x00speaker\x00") {
			continue // it has ended, or it is another
		}
		if there, err := os.Readlink(path + "/ns/net"); err == nil && there == home {
			return strconv.Atoi(filepath.Base(path))
		}
	}
	return 0, errors.New("none runs")
}
