// Package daemon starts the daemon for benchmarks.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/bench/internal/apiserver"
)

// startWithin is how long a start may take on a machine that is busy.
const startWithin = 5 * time.Minute

// address is the daemon's default for metrics and health.
const address = "127.0.0.1:9479"

// Start starts a daemon in a node, by its program and its configuration's path, and waits until all is in force: it
// is ready.
func Start(ctx context.Context, l *lab.Lab, n *lab.Node, program, config string) (*lab.Daemon, error) {
	d, err := l.StartDaemon(n, program, config)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, kind, to string) (c net.Conn, err error) {
			err = n.Do(func() (err error) {
				c, err = new(net.Dialer).DialContext(ctx, kind, to)
				return err
			})
			return c, err
		},
	}}
	err = lab.Wait(ctx, startWithin, func() error {
		if d.Ended() {
			return nil
		}
		r, err := client.Get("http://" + address + "/readyz")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if body, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusOK {
			return fmt.Errorf("the daemon is not ready: %s", body)
		}
		return nil
	})
	if err == nil && d.Ended() {
		err = errors.Join(errors.New("the daemon ended"), d.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("node %s: %w\n%s", n.Name, err, apiserver.Tail(d.Log()))
	}
	return d, nil
}

// Speaker returns the process id of a node's speaker; 0: no speaker runs.
func Speaker(n *lab.Node) int {
	var home unix.Stat_t
	if err := n.Do(func() error { return unix.Stat("/proc/thread-self/ns/net", &home) }); err != nil {
		return 0
	}
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range all {
		if pid, err := strconv.Atoi(filepath.Base(process)); err == nil && isSpeaker(process, home.Ino) {
			return pid
		}
	}
	return 0
}

// isSpeaker reports whether a process, a folder of /proc, is a speaker in a network namespace.
func isSpeaker(process string, namespace uint64) bool {
	var there unix.Stat_t
	if unix.Stat(process+"/ns/net", &there) != nil || there.Ino != namespace {
		return false
	}
	line, _ := os.ReadFile(process + "/cmdline")
	return strings.Contains(string(line), "\x00speaker\x00")
}
