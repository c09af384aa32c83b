package netns

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Machine is a network namespace that stands for a machine.
type Machine struct {
	TB   testing.TB
	File *os.File
}

// New makes a machine, with lo up.
func New(tb testing.TB) *Machine {
	tb.Helper()
	n := &Machine{TB: tb}
	require.NoError(tb, OnThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		n.File, err = os.Open("/proc/thread-self/ns/net")
		return err
	}))
	tb.Cleanup(func() { require.NoError(tb, n.File.Close()) })
	n.Run("ip link set lo up", "sysctl -qw net.ipv6.conf.default.accept_dad=0")
	return n
}

// OnThread runs f on a thread that ends afterwards.
func OnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// Do runs f in the namespace. Sockets that f opens stay there.
func (n *Machine) Do(f func() error) error {
	return OnThread(func() error {
		if err := unix.Setns(int(n.File.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

// Run runs shell commands in the namespace.
func (n *Machine) Run(lines ...string) {
	n.TB.Helper()
	var out []byte
	err := n.Do(func() (err error) {
		out, err = exec.CommandContext(n.TB.Context(), "sh", "-ec", strings.Join(lines, "\n")).CombinedOutput()
		return err
	})
	require.NoError(n.TB, err, "%s: %s", lines, out)
}

// Family holds addresses and commands of one address family, for a node with pods, two routers and a remote.
type Family struct {
	Name                string
	Pods                [2]string
	Ingress, Remote     string
	Pod1, Pod2          string // first three parts of the addresses between the pods and each router
	Out1, Out2          string
	IP, NFT, All, Local string
}

// Families has an example of each address family.
var Families = []Family{
	{
		"IPv4",
		[2]string{"10.244.1.11", "10.244.1.12"},
		"203.0.113.10", "198.51.100.10", "10.0.1.", "10.0.2.", "10.1.1.", "10.1.2.", "ip -4",
		"ip", "0.0.0.0/0", "/32",
	},
	{
		"IPv6",
		[2]string{"fd44:1::11", "fd44:1::12"},
		"2001:db8:203::10", "2001:db8:100::10", "fd00:1::", "fd00:2::", "fd01:1::", "fd01:2::",
		"ip -6", "ip6", "::/0", "/128",
	},
}

// Wire connects two machines. start is the beginning of their addresses: the left machine gets 1, the right one 2.
func Wire(f Family, left *Machine, leftDevice string, right *Machine, rightDevice, start string) {
	left.TB.Helper()
	left.Run(fmt.Sprintf("ip link add %s type veth peer name %s netns /proc/%d/fd/%d", leftDevice, rightDevice, os.Getpid(),
		right.File.Fd()))
	bits, nodad := "/24", ""
	if f.Name == "IPv6" {
		bits, nodad = "/64", "nodad"
	}
	for i, end := range []struct {
		n      *Machine
		device string
	}{{left, leftDevice}, {right, rightDevice}} {
		end.n.Run(fmt.Sprintf("ip addr add %s%d%s dev %s %s", start, i+1, bits, end.device, nodad), "ip link set "+end.device+" up")
	}
}
