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
	if errors.Is(err, syscall.EADDRINUSE) {
		if err := removeAbandoned(ctx, path); err != nil {
			return nil, err
		}
		l, err = lc.Listen(ctx, "unix", path)
	}
	if err != nil {
		return nil, err
	}
	return &listener{l}, nil
}

// listener accepts connections of its own user and of root, and hangs up on others: somebody may have opened the file's mode to them.
type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if permitted(conn) {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// permitted asks the kernel who connected (SO_PEERCRED, unix(7)).
func permitted(conn net.Conn) bool {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	err = raw.Control(func(fd uintptr) {
		peer, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		ok = err == nil && (peer.Uid == 0 || int(peer.Uid) == os.Getuid())
	})
	return err == nil && ok
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
