package kernel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// BenchmarkPause moves 10,000 endpoints of 100,000 to another path and back while a socket of the Node listens to nftables events,
// with and without the pause of these events.
func BenchmarkPause(b *testing.B) {
	for _, pauses := range []bool{false, true, false, true} {
		name := "events"
		if pauses {
			name = "pause"
		}
		b.Run(name, func(b *testing.B) {
			machine := netns.New(b)
			var n *keptNode
			require.NoError(b, machine.Do(func() (err error) { n, err = openKept(); return err }))
			defer n.Close()
			if !pauses {
				n.nft.Pause = nil
			}
			go func() { _ = machine.Do(func() error { return n.watch(b.Context(), nl.ReceiveBuffer, func() {}) }) }()
			netns.Eventually(b, func() bool { return n.stirs.now().watching }, "events are watched")
			d := stories.DataPlane()
			d.Endpoints = sorted.Of(stories.ManyEndpoints(100_000, 2)...)
			moved := make([]plan.Endpoint, 10_000)
			for i, e := range d.Endpoints.Slice()[:len(moved)] {
				moved[i] = plan.Endpoint{Addr: e.Addr, Path: 3, Source: e.Addr}
			}
			all := []*plan.NodePlan{{DataPlane: d}, {DataPlane: d}}
			all[1].DataPlane.Endpoints = d.Endpoints.With(moved, nil)
			i := 0
			apply := func() error { _, err := n.Apply(b.Context(), all[i%2]); i++; return err }
			require.NoError(b, machine.Do(apply))
			for b.Loop() {
				require.NoError(b, machine.Do(apply))
			}
		})
	}
}
