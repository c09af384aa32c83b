package speaker

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/config"
)

// TestSentFamiliesAreHeard expects a report where a peer gets announcements of other families than before, and none once the speaker
// is gone.
func TestSentFamiliesAreHeard(t *testing.T) {
	both := []config.Family{config.IPv4Unicast, config.IPv6Unicast}
	before, after := []bgp.Session{{Up: true, Announced: 2, Sent: both}}, []bgp.Session{{Up: true, Announced: 1, Sent: both[1:]}}
	require.True(t, worthAPass(before, after))
	require.False(t, worthAPass(after, after))
	require.Empty(t, heard{sessions: after}.down("it is gone").sessions[0].Sent)
}
