package onlink

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
)

// TestFrames compares frames with those that Linux accepts as news about an address.
func TestFrames(t *testing.T) {
	mac := [6]byte{2, 0, 0, 0, 0, 9}
	for address, want := range map[string]string{
		"203.0.113.33": "ffffffffffff" + "020000000009" + "0806" + "0001" + "0800" + "06" + "04" + "0001" +
			"020000000009" + "cb007121" + "000000000000" + "cb007121",
		"2001:db8::33": "333300000001" + "020000000009" + "86dd" + "60000000" + "0020" + "3a" + "ff" +
			"20010db8000000000000000000000033" + "ff020000000000000000000000000001" +
			"8800" + "78be" + "a0000000" + "20010db8000000000000000000000033" + "0201" + "020000000009",
	} {
		require.Equal(t, want, hex.EncodeToString(Frame(netip.MustParseAddr(address), mac)), address)
	}
}

// TestDeviceIsLookedUpOnce announces many addresses of few devices: each look-up reads all links of the node. A later announcement looks
// the devices up once more, because another program may have removed one and added it again.
func TestDeviceIsLookedUpOnce(t *testing.T) {
	index, asked := 7, map[string]int{}
	byName := func(name string) (*net.Interface, error) {
		asked[name]++
		switch name {
		case "eth1":
			return &net.Interface{Index: index, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}}, nil
		case "tun0":
			return &net.Interface{Index: 8}, nil
		}
		return nil, errors.New("no such network interface")
	}
	var all []plan.OnLink
	for i := range 300 {
		a := netip.AddrFrom4([4]byte{203, 0, byte(i / 250), byte(1 + i%250)})
		all = append(all, plan.OnLink{Addr: a, Device: []string{"eth1", "tun0", "gone"}[i%3]})
	}
	for range 2 {
		clear(asked)
		sent := 0
		failed := announce(all, byName, func(frame []byte, by int) error {
			require.Equal(t, index, by)
			require.Equal(t, Frame(all[3*sent].Addr, [6]byte{2, 0, 0, 0, 0, 9}), frame)
			sent++
			return nil
		})
		require.Equal(t, 100, sent, "an address on a device that cannot announce it hinders no other")
		require.Equal(t, map[string]int{"eth1": 1, "tun0": 1, "gone": 1}, asked)
		require.Len(t, failed, 200)
		require.EqualError(t, failed[all[1]], fmt.Sprintf("announce %s on tun0: the interface has no Ethernet address", all[1].Addr))
		require.EqualError(t, failed[all[299]], fmt.Sprintf("announce %s on gone: no such network interface", all[299].Addr))
		index++
	}
}

// TestAnnouncer expects an address to be announced three times, a second apart, from the moment at which this node begins to answer for
// it until it stops.
func TestAnnouncer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // Set and Run send
		var sent []string
		began := time.Now()
		a := newAnnouncer(func(all []plan.OnLink) map[plan.OnLink]error {
			mu.Lock()
			defer mu.Unlock()
			for _, one := range all {
				sent = append(sent, time.Since(began).String()+" "+one.Addr.String()+" "+one.Device)
			}
			return failing(all)
		}, time.Now, time.After)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.Run(ctx) }()
		one := plan.OnLink{Addr: netip.MustParseAddr("203.0.113.33"), Device: "eth1"}
		two := plan.OnLink{Addr: netip.MustParseAddr("2001:db8::33"), Device: "eth1"}
		three := plan.OnLink{Addr: netip.MustParseAddr("203.0.113.34"), Device: "eth1"}

		require.EqualError(t, a.Set([]plan.OnLink{one, three}), "no CAP_NET_RAW", "the caller learns that no neighbour hears it")
		<-time.After(500 * time.Millisecond)
		require.Error(t, a.Set([]plan.OnLink{one, three}), "neighbours still know neither")
		require.Error(t, a.Set([]plan.OnLink{one}), "nor one of them")
		require.Error(t, a.Set([]plan.OnLink{one, two}))
		<-time.After(10 * time.Second)
		require.NoError(t, a.Set(nil))
		require.Error(t, a.Set([]plan.OnLink{one}), "this node answers again")
		cancel()
		<-done
		require.Equal(t, []string{
			"0s 203.0.113.33 eth1", "0s 203.0.113.34 eth1",
			"500ms 2001:db8::33 eth1", "1s 203.0.113.33 eth1", "1.5s 2001:db8::33 eth1", "2s 203.0.113.33 eth1", "2.5s 2001:db8::33 eth1",
			"10.5s 203.0.113.33 eth1",
		}, sent)
	})
}

// failing is the result of announcements that all fail.
func failing(all []plan.OnLink) map[plan.OnLink]error {
	failed := map[plan.OnLink]error{}
	for _, one := range all {
		failed[one] = errors.New("no CAP_NET_RAW")
	}
	return failed
}

// TestAnnouncerRecovers expects the error to end with its cause: in a later round, or in a later Set where all rounds failed.
func TestAnnouncerRecovers(t *testing.T) {
	for name, c := range map[string]struct {
		fails, sent int
	}{
		"in the first round": {1, rounds},
		"in all rounds":      {rounds, 2 * rounds},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sent := 0
				a := newAnnouncer(func(all []plan.OnLink) map[plan.OnLink]error {
					if sent++; sent > c.fails {
						return nil
					}
					return failing(all)
				}, time.Now, time.After)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); a.Run(ctx) }()
				all := []plan.OnLink{{Addr: netip.MustParseAddr("203.0.113.33"), Device: "eth1"}}
				require.Error(t, a.Set(all))
				<-time.After(rounds * roundEvery)
				require.NoError(t, a.Set(all))
				<-time.After(time.Minute)
				require.NoError(t, a.Set(all))
				cancel()
				<-done
				require.Equal(t, c.sent, sent)
			})
		})
	}
}
