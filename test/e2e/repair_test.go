package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/lab"
	"github.com/egressway/egressway/internal/lab/stage"
)

// TestRepair takes away what the daemon made, piece by piece: it comes back unaided.
func TestRepair(t *testing.T) {
	s := play(t, stage.Options{})
	ctx := t.Context()
	served := func() {
		for _, pod := range []string{"a-p1", "b-p1"} {
			require.NoError(t, s.Await(ctx, pod, stage.Outside4, "ext-red", "192.0.2.10"))
			require.NoError(t, s.Await(ctx, pod, stage.Outside6, "ext-red", "2001:db8:2::10"))
		}
	}
	served()
	for what, command := range map[string]string{
		"nftables table":  "nft delete table inet egressway",
		"a chain's rules": "nft flush chain inet egressway prerouting",
		"rules":           "ip rule del pref 701; ip rule del pref 799; ip -6 rule del pref 701",
		"learned routes":  "ip route flush table 1001 proto 142; ip -6 route flush table 1001 proto 142",
	} {
		t.Run(what, func(t *testing.T) {
			dump := func() (string, error) {
				return s.Node("a").Run(ctx, "sh", "-c", "(ip rule; ip -6 rule; nft list chain inet egressway prerouting) | sort; ip route show table 1001 proto 142 0.0.0.0/0 | head -n 1")
			}
			before, err := dump()
			require.NoError(t, err)
			_, err = s.Node("a").Run(ctx, "sh", "-ec", command)
			require.NoError(t, err)
			require.NoError(t, lab.Wait(ctx, 20*time.Second, func() error {
				now, err := dump()
				if err == nil && now != before {
					err = fmt.Errorf("not as before: %s", now)
				}
				return err
			}))
			served()
		})
	}
}
