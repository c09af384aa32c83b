package socket

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test start itself as a process of another user.
func TestMain(m *testing.M) {
	if path := os.Getenv("TEST_CONNECT"); path != "" {
		conn, err := net.Dial("unix", path)
		if err != nil {
			os.Exit(3)
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			os.Exit(4)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// status returns the exit status of a user's process that connects to the socket and reads a byte: 0 on success, 3 if it cannot
// // connect, 4 if the connection is closed.
func status(t *testing.T, path string, uid uint32) int {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	require.NoError(t, err)
	program := filepath.Join(filepath.Dir(path), "connect")
	require.NoError(t, os.WriteFile(program, self, 0o755))
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "TEST_CONNECT="+path)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	_ = cmd.Run() // the exit status has the result
	return cmd.ProcessState.ExitCode()
}

func TestOnlyItsOwner(t *testing.T) {
	require.Zero(t, os.Getuid(), "only root can be somebody else")
	dir, err := os.MkdirTemp("/tmp", "socket") //nolint:usetesting // other users cannot enter t.TempDir
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "s.sock")
	old := syscall.Umask(0) // would give all rights
	l, err := Listen(t.Context(), path)
	syscall.Umask(old)
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("x"))
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, os.ModeSocket|0o600, info.Mode())
	require.Equal(t, 0, status(t, path, 0))
	require.Equal(t, 3, status(t, path, 65534), "somebody else")

	// A file mode that admits others does not make the daemon accept them.
	require.NoError(t, os.Chmod(path, 0o666))
	require.Equal(t, 4, status(t, path, 65534), "somebody else, the mode being wide")
	require.Equal(t, 0, status(t, path, 0))
}

func TestFolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "egressway", "s.sock")
	old := syscall.Umask(0)
	l, err := Listen(t.Context(), path)
	syscall.Umask(old)
	require.NoError(t, err)
	defer l.Close()
	info, err := os.Stat(filepath.Dir(path))
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o755, info.Mode(), "only its owner may put another socket there")
	_, err = Listen(t.Context(), path)
	require.ErrorContains(t, err, "another daemon answers")
}

func TestAbandoned(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := Listen(t.Context(), path)
	require.NoError(t, err)
	l.(*listener).Listener.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	l, err = Listen(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err = Listen(t.Context(), path)
	require.ErrorContains(t, err, "is not a socket")
}
