package e2e

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// confinedEnv has the test program put the seccomp filter over itself and become the program that it is told.
const confinedEnv = "TEST_CONFINED"

func init() {
	if os.Getenv(confinedEnv) == "" || len(os.Args) < 2 {
		return
	}
	runtime.LockOSThread()
	_ = os.Unsetenv(confinedEnv) // fails for an empty name only
	err := filterSystemCalls()
	if err == nil {
		err = unix.Exec(os.Args[1], os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, "confine:", err)
	os.Exit(1)
}

// deniedCalls are what the profile that container runtimes have by default denies to who has neither CAP_SYS_ADMIN nor the like.
var deniedCalls = []uint32{
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_PTRACE, unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN,
	unix.SYS_KEXEC_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL, unix.SYS_USERFAULTFD, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_PROCESS_VM_READV,
	unix.SYS_PROCESS_VM_WRITEV, unix.SYS_ACCT, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_QUOTACTL, unix.SYS_SETHOSTNAME,
	unix.SYS_SETDOMAINNAME, unix.SYS_SYSLOG, unix.SYS_CHROOT, unix.SYS_IO_URING_SETUP, unix.SYS_FANOTIFY_INIT, unix.SYS_LOOKUP_DCOOKIE,
}

// filterSystemCalls has the denied calls of this thread, and what it becomes, fail with EPERM.
func filterSystemCalls() error {
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}} // the call's number
	for _, call := range deniedCalls {
		program = append(program,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: call},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0x00050000 | uint32(unix.EPERM)}) // SECCOMP_RET_ERRNO
	}
	program = append(program, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000}) // SECCOMP_RET_ALLOW
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0)
}

// startConfined starts the daemon of a node as it is deployed: these capabilities alone, no new privileges, nothing to be written but
// /run/egressway, the runtime's seccomp filter.
func startConfined(t *testing.T, s *stage.Stage, node, capabilities string) {
	t.Helper()
	config := strings.TrimSuffix(s.Kubeconfig(node), ".kubeconfig") + ".yaml" // StartDaemon has written it
	binary, err := lab.Binary()
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	script := fmt.Sprintf(`
mount --make-rprivate /
mkdir -p /run/egressway
mount --bind /run/egressway /run/egressway
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -o remount,bind,ro /
! touch /written 2>/dev/null
export %s=1
exec setpriv --bounding-set=-all%s --inh-caps=-all --no-new-privs %s %s run --config %s`, confinedEnv, capabilities, self, binary, config)
	s.Daemons[node], err = s.Start(s.Node(node), "unshare", "-m", "sh", "-ec", script)
	require.NoError(t, err)
	if capabilities == "" {
		return
	}
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		out, err := s.Egressway(t.Context(), node, "status", "-o", "json")
		if err == nil && !strings.Contains(out, `"ready": true`) && !strings.Contains(out, `"ready":true`) {
			err = fmt.Errorf("node %s is not ready: %s", node, out)
		}
		return err
	}))
}

// statusOf reads a line of /proc/PID/status.
func statusOf(t *testing.T, pid int, key string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// TestLeastPrivilege runs daemons and speakers with what deploy gives them and nothing else: packets pass, another node takes over, damage is
// repaired. The capabilities are the same in every other test of this package.
func TestLeastPrivilege(t *testing.T) {
	s := play(t, stage.Options{API: true, Manifests: oneFile(t)})
	ctx := t.Context()
	hosts(t, s)
	all := asDeployed()
	awaitServed(t, s, all)
	for _, node := range []string{"a", "b", "c"} {
		if s.Daemons[node] == nil {
			continue
		}
		require.NoError(t, s.Daemons[node].Stop(ctx))
		startConfined(t, s, node, ",+net_admin")
	}
	host, standby := hosts(t, s)
	hostAt(t, s, host)
	awaitServed(t, s, all)
	awaitLearned(t, s)

	t.Run("confined", func(t *testing.T) {
		pid := s.Daemons["a"].PID()
		require.Equal(t, fmt.Sprintf("%016x", 1<<unix.CAP_NET_ADMIN), statusOf(t, pid, "CapEff"))
		require.Equal(t, fmt.Sprintf("%016x", 1<<unix.CAP_NET_ADMIN), statusOf(t, pid, "CapBnd"))
		require.Equal(t, "1", statusOf(t, pid, "NoNewPrivs"))
		require.Equal(t, "2", statusOf(t, pid, "Seccomp"))
		pid = s.Speakers["a"].PID()
		require.Equal(t, fmt.Sprintf("%016x", 1<<unix.CAP_NET_RAW), statusOf(t, pid, "CapEff"))
		require.Equal(t, "1", statusOf(t, pid, "NoNewPrivs"))
	})
	t.Run("an object comes and goes", func(t *testing.T) {
		require.NoError(t, s.Write(ctx, "extra.yaml", extra(t)))
		require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.30/32", "10.2.0.11", "10.2.0.12"))
		require.NoError(t, s.Remove(ctx, "extra.yaml"))
		require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.30/32"))
	})
	t.Run("damage is repaired", func(t *testing.T) {
		const rules = "{ ip rule; ip -6 rule; } | grep 'proto 142'"
		before := inKernel(t, s, "a", rules)
		run(t, s, "a", "ip route flush table 1001 proto 142", "ip rule flush", "ip rule add from all lookup main priority 32766", "ip rule add from all lookup default priority 32767",
			"ip rule add l3mdev protocol kernel priority 1000")
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			if now := inKernel(t, s, "a", rules); strings.Join(now, "\n") != strings.Join(before, "\n") {
				return fmt.Errorf("now %v, before %v", now, before)
			}
			return nil
		}))
		awaitServed(t, s, all)
	})
	t.Run("another node takes over", func(t *testing.T) {
		s.Daemons[host].Kill()
		s.Speakers[host].Kill()
		_, err := s.AwaitStatus(ctx, "shop", "web", func(e egressv1.EgressServiceStatus) error {
			if e.Host != standby {
				return fmt.Errorf("host %s, want %s", e.Host, standby)
			}
			return nil
		})
		require.NoError(t, err)
		hostAt(t, s, standby)
		require.NoError(t, s.StartSpeaker(host))
		startConfined(t, s, host, ",+net_admin")
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, host), "it stays, and the former host stands by")
		awaitServed(t, s, all)
	})
	requireInnocent(t, s, all)

	// Nothing is superfluous.
	t.Run("without CAP_NET_RAW", func(t *testing.T) {
		binary, err := lab.Binary()
		require.NoError(t, err)
		require.NoError(t, s.Daemons["a"].Stop(ctx))
		require.NoError(t, s.Speakers["a"].Stop(ctx))
		s.Speakers["a"], err = s.Start(s.Node("a"), "setpriv", "--bounding-set", "-all", "--inh-caps=-all", "--no-new-privs", binary, "speaker", "--socket", stage.SpeakerSocket)
		require.NoError(t, err)
		startConfined(t, s, "a", ",+net_admin")
		awaitServed(t, s, all) // peers with an address need none
		require.Equal(t, fmt.Sprintf("%016x", 0), statusOf(t, s.Speakers["a"].PID(), "CapEff"))
		conf := strings.TrimSuffix(s.Kubeconfig("a"), ".kubeconfig") + ".yaml"
		b, err := os.ReadFile(conf)
		require.NoError(t, err)
		unnumbered := strings.Replace(string(b), "      - address: 10.1.0.1\n", "      - {interface: eth2, dynamicASN: external}\n      - address: 10.1.0.1\n", 1)
		require.NotEqual(t, string(b), unnumbered)
		require.NoError(t, os.WriteFile(conf, []byte(unnumbered), 0o644))
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			if log := s.Speakers["a"].Log(); !strings.Contains(log, "open ICMPv6 socket on eth2: ") || !strings.Contains(log, "operation not permitted") {
				return fmt.Errorf("it works: %s", log)
			}
			return nil
		}))
		awaitServed(t, s, all)
		require.NoError(t, os.WriteFile(conf, b, 0o644))
		require.NoError(t, s.Speakers["a"].Stop(ctx))
		require.NoError(t, s.StartSpeaker("a"))
	})
	t.Run("without CAP_NET_ADMIN", func(t *testing.T) {
		require.NoError(t, s.Daemons["a"].Stop(ctx))
		startConfined(t, s, "a", "")
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			if log := s.Daemons["a"].Log(); !strings.Contains(log, "operation not permitted") {
				return fmt.Errorf("it works: %s", log)
			}
			return nil
		}))
	})
}
