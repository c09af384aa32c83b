package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stage"
)

// TestStandbyRefuses has another program own the table of a standby, so that its kernel refuses every change: it cannot become the host,
// and nothing is moved to it until it can.
func TestStandbyRefuses(t *testing.T) {
	s := play(t, stage.Options{API: true, Config: func(c string) string { return c + "moves: {keepFlows: 0s}\n" }})
	ctx := t.Context()
	now := asDeployed()
	host, standby := hosts(t, s)
	awaitServed(t, s, now)
	traffic := ask(t, s, "a-p1", "b-p1", "c-p1")
	traffic.answered(t, 3, now)

	s.Daemons[standby].Kill()
	var release func()
	require.NoError(t, s.Node(standby).Do(func() (err error) {
		release, err = netns.OwnTable("egressway")
		return err
	}))
	require.NoError(t, s.StartDaemon(standby))
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", host, ""))
	_, err := s.Egressway(ctx, host, "drain", "--timeout", "1s")
	require.Error(t, err, "there is no other host")
	traffic.answered(t, 5, now)
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", host, ""))
	traffic.stop(t, now)

	release() // the move itself may lose answers, as flows are not kept here
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, ""))
	hostAt(t, s, standby)
	requireInnocent(t, s, now)
}
