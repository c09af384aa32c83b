package ruleset

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/qos"
)

// TestQoSIsFlat expects the rules of 1,000 ranges with two values to be those of two ranges, and short chains for many classes and
// all values.
func TestQoSIsFlat(t *testing.T) {
	class := func(id, ranges, values int) qos.Class {
		c := qos.Class{ID: qos.ClassID(id)}
		for i := range ranges {
			a := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{203, byte(i >> 8), byte(i), last}) }
			c.Ranges = append(c.Ranges, qos.Range{First: a(0), Last: a(255), DSCP: uint8(i % values)})
		}
		return c
	}
	few := qosChains(&plan.DataPlane{QoS: []qos.Class{class(7, 2, 2)}})
	require.Equal(t, few, qosChains(&plan.DataPlane{QoS: []qos.Class{class(7, 1000, 2)}}))
	require.Empty(t, qosChains(&plan.DataPlane{}))
	require.Empty(t, qosSets(&plan.DataPlane{}))

	var many plan.DataPlane
	for id := range 200 {
		many.QoS = append(many.QoS, class(id*7919, 64, 64))
	}
	for _, c := range qosChains(&many) {
		require.LessOrEqual(t, len(c.Rules), leafMost, c.Name)
	}
}
