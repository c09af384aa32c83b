package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/kernel"
)

func TestFilling(t *testing.T) {
	var f filling
	told := 0
	for _, entries := range []uint32{100, 799, 800, 801, 810, 849, 850, 880, 801, 800, 790, 710, 700, 699, 750, 799} {
		if f.take(kernel.Connections{Entries: entries, Limit: 1000}) {
			told++
			require.Equal(t, entries, f.Entries)
		}
	}
	require.Equal(t, 5, told, "at 800, 850, 800, 750 or less, and when it is over")
	require.False(t, f.is)
	require.True(t, f.take(kernel.Connections{Entries: 799, Limit: 900}))
	require.True(t, f.take(kernel.Connections{Entries: 799, Limit: 950}), "the operator raises it, not enough")
	require.True(t, f.is)
}
