package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGrowthOfHeap lets a large heap grow by a part of it, and a small one by as much as a pass with many routes makes.
func TestGrowthOfHeap(t *testing.T) {
	require.Equal(t, heapGrowth, growthOf(200<<20))
	require.Equal(t, heapGrowth, growthOf(64<<20))
	require.Equal(t, 100, growthOf(16<<20))
	require.Equal(t, 1600, growthOf(0))
}
