// Package socket makes Unix sockets that only their owner may use.
package socket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Listen makes the socket, accessible to its owner only, and its folder. It replaces a socket on which nobody
// answers: a daemon that was killed left it.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the socket's folder: %w", err)
	}
	// Two daemons that start at once must not both find the socket abandoned and remove each other's.
	lock, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock the socket's folder: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock the socket's folder %s: %w", dir, err)
	}
	// Linux gives the file the mode that the socket has when it is bound: there is no moment at which others may connect.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var chmod error
		err := c.Control(func(fd uintptr) { chmod = syscall.Fchmod(int(fd), 0o600) })
		return errors.Join(err, chmod)
	}}
	l, err := lc.Listen(ctx, "unix", path)
	if !errors.Is(err, syscall.EADDRINUSE) {
		return l, err
	}
	if err := removeAbandoned(ctx, path); err != nil {
		return nil, err
	}
	return lc.Listen(ctx, "unix", path)
}

func removeAbandoned(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s is there already and is no socket", path)
	}
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("another daemon answers on %s", path)
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("another daemon may use %s: %w", path, err)
	}
	return os.Remove(path)
}
