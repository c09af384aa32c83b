// Package socket makes Unix sockets that only their owner and root may use.
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

// Listen makes the socket, accessible only to its owner, and its folder. It replaces a socket on which no process
// answers, left by a daemon that was killed.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the socket's folder: %w", err)
	}
	// Without a lock, two daemons that start at once could both find the socket abandoned and remove each other's.
	lock, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("lock the socket's folder: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock the socket's folder %s: %w", dir, err)
	}
	// The file gets the mode that the socket has when it is bound, so other users can connect at no time.
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

// listener accepts connections of its own user and of root, and closes others: the file's mode may have been changed.
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

// permitted checks the user of a connection's other end, as the kernel reports it (SO_PEERCRED, unix(7)).
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
		return fmt.Errorf("%s exists and is not a socket", path)
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
