package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// BinaryEnv names the environment variable with the path of our own program, built beforehand.
const BinaryEnv = "LAB_BIN"

// Binary is the path of our own program.
func Binary() (string, error) {
	path := os.Getenv(BinaryEnv)
	if path == "" {
		return "", fmt.Errorf("%s is not set: it must name the built program", BinaryEnv)
	}
	return path, nil
}

// OtherEnv names the environment variable with the path of our own program in another version; unset: see OtherBinary.
const OtherEnv = "LAB_OTHER"

// OtherBinary returns the path of our own program in another version and that version. Without LAB_OTHER it is the same
// code, built beside Binary.
func OtherBinary(ctx context.Context) (path, version string, err error) {
	if path = os.Getenv(OtherEnv); path == "" {
		if path, err = Binary(); err != nil {
			return "", "", err
		}
		path += "-next"
	}
	out, err := exec.CommandContext(ctx, path, "version").Output()
	if err != nil {
		return "", "", fmt.Errorf("another version of our program is needed, make bin/egressway-next builds it: %s version: %w", path, err)
	}
	words := strings.Fields(string(out)) // egressway VERSION GO PLATFORM
	if len(words) < 2 {
		return "", "", fmt.Errorf("%s version: printed %q, without a version", path, out)
	}
	return path, words[1], nil
}

// Daemon is a program that runs in a node until it is stopped.
type Daemon struct {
	cmd  *exec.Cmd
	what string
	log  logBuffer
	done chan struct{}
	err  error // once done
}

// StartDaemon starts our own daemon in a node: `binary run --config config`, with further arguments. It ends with the lab.
func (l *Lab) StartDaemon(n *Node, binary, config string, args ...string) (*Daemon, error) {
	return l.Start(n, append([]string{binary, "run", "--config", config}, args...)...)
}

// Start starts a program in a node. It ends with the lab.
func (l *Lab) Start(n *Node, args ...string) (*Daemon, error) {
	d := &Daemon{cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{})}
	d.what = fmt.Sprintf("node %s: %s", n.Name, args[0])
	d.cmd.Stdout, d.cmd.Stderr = &d.log, &d.log
	// Processes that it leaves behind must not keep Wait waiting by holding its output.
	d.cmd.WaitDelay = time.Second
	if err := n.start(d.cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", d.what, err)
	}
	go func() { // owned by Done: every way to end waits for it
		if err := d.cmd.Wait(); !errors.Is(err, exec.ErrWaitDelay) { // a process that it left behind may still write
			d.err = err
		}
		close(d.done)
	}()
	l.atEnd(d.Kill)
	return d, nil
}

// Log returns the daemon's standard output and error.
func (d *Daemon) Log() string { return d.log.String() }

// PID is the daemon's process.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Done is closed when the daemon has ended; Err returns how.
func (d *Daemon) Done() <-chan struct{} { return d.done }

// Ended reports whether the daemon has ended.
func (d *Daemon) Ended() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// Err is how the daemon ended: nil with status 0. It waits for the end.
func (d *Daemon) Err() error {
	<-d.done
	return d.err
}

// Signal sends the daemon a signal.
func (d *Daemon) Signal(s syscall.Signal) error {
	if err := d.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%s: signal %s: %w", d.what, s, err)
	}
	return nil
}

// Stop asks the daemon to end, and waits until it has. An end other than with status 0 is an error. A daemon that was just
// started would be ended by the signal itself: it is awaited that it says something, which ours do once they can be asked.
func (d *Daemon) Stop(ctx context.Context) error {
	if err := Wait(ctx, Patience, d.begun); err != nil {
		return err
	}
	if err := d.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-d.done:
	case <-ctx.Done():
		d.Kill()
		return fmt.Errorf("%s does not stop: %w", d.what, ctx.Err())
	}
	if d.err != nil {
		return fmt.Errorf("%s: %w", d.what, d.err)
	}
	return nil
}

// begun fails until the daemon has written something, or has ended.
func (d *Daemon) begun() error {
	if d.Log() == "" && !d.Ended() {
		return fmt.Errorf("%s says nothing yet", d.what)
	}
	return nil
}

// Kill ends the daemon at once, and waits until it has ended.
func (d *Daemon) Kill() {
	_ = d.cmd.Process.Kill() // it may have ended
	<-d.done
}

// logBuffer is written by the daemon and read by tests.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
