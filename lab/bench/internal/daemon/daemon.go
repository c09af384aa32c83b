// Package daemon starts the daemon for benchmarks.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

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
