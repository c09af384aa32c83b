package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/kernel/conntrack"
)

func TestConntrackUsage(t *testing.T) {
	var u conntrackUsage
	published := 0
	for _, entries := range []uint32{100, 799, 800, 801, 810, 849, 850, 880, 801, 800, 790, 710, 700, 699, 750, 799} {
		if u.update(conntrack.Connections{Entries: entries, Limit: 1000}) {
			published++
			require.Equal(t, entries, u.Entries)
		}
	}
	require.Equal(t, 5, published, "at 800, 850, 800, 750 or less, and when it is over")
	require.False(t, u.full)
	require.True(t, u.update(conntrack.Connections{Entries: 799, Limit: 900}))
	require.True(t, u.update(conntrack.Connections{Entries: 799, Limit: 950}), "the operator raises it, not enough")
	require.True(t, u.full)
}
