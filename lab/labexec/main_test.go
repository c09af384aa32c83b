package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// asLabexec makes the test binary behave as labexec itself.
const asLabexec = "LABEXEC_TEST_AS_LABEXEC"

func TestMain(m *testing.M) {
	if os.Getenv(asLabexec) != "" || os.Getenv(stageEnv) != "" || os.Getpid() == 1 && os.Getenv(jobEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

func labexec(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(append(os.Environ(), asLabexec+"=1"), env...)
	return cmd
}

func TestProgramRunsOnAKernelWithVRF(t *testing.T) {
	cmd := labexec(t, []string{"GREETING=hello"}, "sh", "-c", `
		ip link add red type vrf table 10 && ip -br link show lo | cut -c -4 && cat /proc/sys/net/ipv4/ip_forward
		pwd; echo "$GREETING $1"; echo trouble >&2; exit 7`, "sh", "two words")
	cmd.Dir = t.TempDir()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	require.Equal(t, 7, exitStatus(err), stderr.String())
	require.Equal(t, "lo  \n1\n"+cmd.Dir+"\nhello two words\n", stdout.String())
	require.Equal(t, "trouble\n", stderr.String())
}

func TestSignalsReachTheProgram(t *testing.T) {
	cmd := labexec(t, nil, "sh", "-c", "trap 'echo ended; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ready := make([]byte, len("ready\n"))
	_, err = io.ReadFull(out, ready)
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	rest, err := io.ReadAll(out)
	require.NoError(t, err)
	require.Equal(t, "ready\nended\n", string(ready)+string(rest))
	require.Equal(t, 3, exitStatus(cmd.Wait()))
}

func TestProgramThatIsKilled(t *testing.T) {
	require.Equal(t, 128+9, exitStatus(labexec(t, nil, "sh", "-c", "kill -9 $$").Run()))
}

func TestWithoutKernelItSaysWhatToDo(t *testing.T) {
	t.Setenv("LAB_UML", "")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	out, err := labexec(t, []string{"LAB_MODE=uml"}, "true").CombinedOutput()
	require.Equal(t, exitLab, exitStatus(err))
	require.Contains(t, string(out), "run `make lab-kernel`")
	require.Equal(t, 1, strings.Count(string(out), "\n"), "one line")
}

func TestNewestKernelIsTaken(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("LAB_UML", "")
	dir := filepath.Join(cache, "egressway")
	require.NoError(t, os.Mkdir(dir, 0o755))
	for name, age := range map[string]time.Duration{"uml-7.2.10-a": time.Hour, "uml-7.2.9-b": time.Minute, "uml-8-c": 2 * time.Hour} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, nil, 0o755))
		when := time.Now().Add(-age)
		require.NoError(t, os.Chtimes(path, when, when))
	}
	kernel, err := findKernel()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "uml-7.2.9-b"), kernel)

	t.Setenv("LAB_UML", "/my/linux")
	kernel, err = findKernel()
	require.NoError(t, err)
	require.Equal(t, "/my/linux", kernel)
}

func TestKubelabTakesOrdersBesideTheJob(t *testing.T) {
	require.NotEmpty(t, os.Getenv(kubelabEnv), "run `make kubelab`")
	cmd := labexec(t, []string{"LAB_API=1"}, "bash", "-ec", `
		ip -o addr show mgmt | grep -c -e 10.98.0. -e fd98::
		echo $KUBELAB_CONTROL
		exec 3<>/dev/tcp/10.98.0.1/6440
		printf 'POST /kill HTTP/1.0\r\n\r\n' >&3
		read -r answer <&3; echo "${answer%?}"; exit 4`)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.Equal(t, 4, exitStatus(cmd.Run()), stderr.String())
	require.Equal(t, "2\nhttp://10.98.0.1:6440\nHTTP/1.0 200 OK\n", stdout.String())

	out, err := labexec(t, []string{"LAB_API=1", kubelabEnv + "="}, "true").CombinedOutput()
	require.Equal(t, exitLab, exitStatus(err))
	require.Contains(t, string(out), "`make kubelab`")
}

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		env, message string
		args         []string
	}{
		{"", "usage", nil},
		{"LAB_MODE=qemu", "must be native or uml", []string{"true"}},
		{"LAB_MODE=uml", "no-such-program", []string{"no-such-program"}},
	} {
		out, err := labexec(t, []string{c.env}, c.args...).CombinedOutput()
		require.Equal(t, exitLab, exitStatus(err))
		require.Contains(t, string(out), c.message)
	}
}

func TestPanicOf(t *testing.T) {
	log := "Registers:\n\nKernel panic - not syncing: Segfault without recovery target\nCall Trace:\n [<60057abe>] ?\n"
	require.Equal(t, "not syncing: Segfault without recovery target", panicOf([]byte(log)))
	require.Equal(t, "no panic", panicOf([]byte("Linux version 7.2")))
}
