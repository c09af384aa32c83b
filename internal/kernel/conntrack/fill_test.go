package conntrack

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab/netns"
)

func TestConnections(t *testing.T) {
	netns.Enter(t)
	netns.MustNFT(t, "table inet t { chain c { type filter hook output priority 0; ct state new accept; }; }") // enables connection tracking
	before, err := CountConnections()
	require.NoError(t, err)
	require.NotZero(t, before.Limit)
	const many = 50
	for i := range many {
		c, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", 10_000+i))
		require.NoError(t, err)
		_, err = c.Write([]byte("x"))
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	after, err := CountConnections()
	require.NoError(t, err)
	require.Equal(t, before.Limit, after.Limit)
	require.GreaterOrEqual(t, after.Entries, before.Entries+many)
}

func TestFilling(t *testing.T) {
	for _, c := range []struct {
		entries       uint32
		before, after bool
	}{{79, false, false}, {80, false, true}, {100, false, true}, {79, true, true}, {70, true, true}, {69, true, false}, {0, true, false}} {
		require.Equal(t, c.after, Connections{c.entries, 100}.Filling(c.before), "%+v", c)
	}
	require.True(t, Connections{4_000_000_000, 4_200_000_000}.Filling(false))
	require.Contains(t, Connections{1640, 2000}.Problem("a").Error(), "1640 of 2000")
}
