package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bgp"
)

// TestHaveAnnounced checks whom this node waits for before it removes routes of an earlier run: not for a peer whose session it ended.
func TestHaveAnnounced(t *testing.T) {
	now := time.Now()
	up := bgp.Session{Network: "red", Up: true, Since: now.Add(-2 * announceWithin)}
	fresh := bgp.Session{Network: "red", Up: true, Since: now}
	down := bgp.Session{Network: "red", Since: now.Add(-2 * announceWithin)}
	ended := bgp.Session{Network: "red", Ended: true, Since: now, LastError: "the peer sent more routes than maxPrefixes allows"}
	other := bgp.Session{Network: "blue"}
	for name, test := range map[string]struct {
		sessions []bgp.Session
		want     bool
	}{
		"no session":             {nil, false},
		"another network's":      {[]bgp.Session{other}, false},
		"all up":                 {[]bgp.Session{other, up, up}, true},
		"just up":                {[]bgp.Session{up, fresh}, false},
		"one down":               {[]bgp.Session{up, down}, false},
		"ended":                  {[]bgp.Session{ended, other}, true},
		"ended, another up":      {[]bgp.Session{ended, up}, true},
		"ended, another to come": {[]bgp.Session{ended, down}, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, haveAnnounced(test.sessions, "red", now)) })
	}
}
