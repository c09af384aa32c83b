package kernel

import (
	"context"
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/route"
	"github.com/egressway/egressway/internal/plan"
)

// watchHere runs watch in the test's namespace and returns a channel that receives its wake-ups.
func watchHere(t *testing.T, buffer int, n ...*Node) <-chan struct{} {
	t.Helper()
	if n == nil {
		n = []*Node{{}}
	}
	ns, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	woken := make(chan struct{}, 1)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- n[0].watch(ctx, buffer, func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, unix.Close(ns))
	})
	return woken
}

// keptNode is a Node with the Record that its caller keeps.
type keptNode struct {
	*Node
	record Record
}

func openKept() (*keptNode, error) {
	n, err := Open()
	return &keptNode{Node: n}, err
}

// Facts begins a pass, as the agent does.
func (k *keptNode) Facts(ctx context.Context, tables ...uint32) (plan.Facts, error) {
	k.record = k.record.At(k.clock())
	f, lost, err := k.Node.Facts(ctx, k.record, tables...)
	for try := 0; lost && err == nil && try < 3; try++ {
		if k.record, err = k.Restore(ctx, k.record); err != nil {
			return f, nil
		}
		f, lost, err = k.Node.Facts(ctx, k.record, tables...)
	}
	return f, err
}

func (k *keptNode) Problems(node string, devices []string) ([]cluster.Problem, error) {
	return k.Node.Problems(k.record, node, devices)
}

func (k *keptNode) Apply(ctx context.Context, p *plan.NodePlan) (Result, error) {
	r, err := k.Node.Apply(ctx, k.record, p)
	k.record = r.Record
	return r, err
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
func addr(s string) netip.Addr     { return netip.MustParseAddr(s) }

func via(gateway, device string) plan.NextHop {
	return plan.NextHop{Gateway: addr(gateway), Device: device}
}

// These functions change routes and rules as another program does: through their own sockets.

func addRoutes(ctx context.Context, h *netlink.Handle, desired []plan.Route) error {
	return route.Socket{}.AddRoutes(ctx, h, desired, func(_ *plan.Route, err error) error { return err })
}

func addRules(ctx context.Context, desired []plan.Rule) error {
	return route.Socket{}.AddRules(ctx, desired)
}
