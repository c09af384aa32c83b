package election

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
)

// TestKindsWithoutSeats changes objects of the kinds that have no seats: no election depends on them.
func TestKindsWithoutSeats(t *testing.T) {
	var e Elected
	e.Update(cluster.Objects{}, nil, cluster.Everything(), Policy{})
	for kind := cluster.Kind(cluster.Claimants); kind < cluster.Kinds; kind++ {
		var change cluster.Changed
		change.Add(kind.ID(cluster.Key{Namespace: "shop", Name: "default"}))
		_, changed := e.Update(cluster.Objects{}, nil, change, Policy{})
		require.Empty(t, changed, kind.String())
	}
}
