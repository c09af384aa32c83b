package bgp

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

func TestRouterRestart(t *testing.T) {
	s := newSite(t)
	defaultRoute := func() {
		s.configure("r1", "router bgp 65001 vrf red", "address-family ipv4 unicast", "neighbor node default-originate")
	}
	defaultRoute()
	sp := red(peer("10.0.1.1", "red1", receive(pattern("0.0.0.0/0"))))
	sp.Announce = announcing(vip4)
	s.apply(sp)
	s.untilLearned("red", "0.0.0.0/0 via 10.0.1.1 dev red1")
	_, err := s.Node("r1").Run(t.Context(), "sh", "-ec", "kill -9 $(cat /run/frr/bgpd.pid)")
	require.NoError(t, err)
	s.untilLearned("red")
	require.NotEmpty(t, s.session("red", "10.0.1.1").LastError)
	_, err = s.Node("r1").Run(t.Context(), "/usr/lib/frr/bgpd", "-d", "-F", "traditional", "-A", "127.0.0.1")
	require.NoError(t, err)
	started := time.Now()
	defaultRoute()
	s.established()
	t.Logf("the session was back after %s", time.Since(started))
	s.untilLearned("red", "0.0.0.0/0 via 10.0.1.1 dev red1")
	s.untilRoute("r1", "red", vip4, "10.0.1.2", func(route) error { return nil })
}

// TestStoppedRouter stops the BGP daemon of a router for a while: the kernel there accepts connections, and no program answers on them.
func TestStoppedRouter(t *testing.T) {
	s := newSite(t)
	_, err := s.Node("r1").Run(t.Context(), "sh", "-ec", "kill -STOP $(cat /run/frr/bgpd.pid)")
	require.NoError(t, err)
	sp := red(peer("10.0.1.1", "red1"), peer("10.0.2.1", "red2"))
	s.apply(sp)
	s.until(func() error {
		require.NoError(t, s.speakers.Apply(t.Context(), s.desired)) // nothing happens that would ask for it
		if e := s.session("red", "10.0.1.1"); !strings.Contains(e.LastError, "has not answered an OPEN for 10s") {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	others := s.session("red", "10.0.2.1")
	require.True(t, others.Up)
	_, err = s.Node("r1").Run(t.Context(), "sh", "-ec", "kill -CONT $(cat /run/frr/bgpd.pid)")
	require.NoError(t, err)
	s.established()
	require.Empty(t, s.session("red", "10.0.1.1").LastError)
	require.Equal(t, others.Since, s.session("red", "10.0.2.1").Since)
}

// TestClockJumps sets the clock back by an hour while two sessions are up: both are set up again, once.
func TestClockJumps(t *testing.T) {
	s := newSite(t)
	s.configure("r1", "router bgp 65001 vrf red", "address-family ipv4 unicast", "neighbor node default-originate")
	sp := red(peer("10.0.1.1", "red1", receive(pattern("0.0.0.0/0"))), peer("10.0.2.1", "red2"))
	sp.Announce = announcing(vip4)
	s.apply(sp)
	s.untilLearned("red", "0.0.0.0/0 via 10.0.1.1 dev red1")
	s.established()
	s.apply(sp)
	require.Equal(t, 1, s.establishments("r1", "red", "10.0.1.2"))
	running := s.speakers.byNetwork["red"]
	running.mu.Lock()
	running.clock = func() time.Duration { return -time.Hour }
	running.mu.Unlock()
	s.apply(sp)
	s.established()
	s.untilLearned("red", "0.0.0.0/0 via 10.0.1.1 dev red1")
	s.apply(sp)
	for router, neighbor := range map[string]string{"r1": "10.0.1.2", "r2": "10.0.2.2"} {
		s.untilRoute(router, "red", vip4, neighbor, func(route) error { return nil })
		require.Equal(t, 2, s.establishments(router, "red", neighbor))
	}
}

func TestGracefulRestart(t *testing.T) {
	s := newSite(t)
	sp := red(peer("10.0.1.1", "red1"), peer("10.0.2.1", "red2"))
	sp.Announce = announcing(vip4)
	sp.GracefulRestart = config.GracefulRestart{Enabled: true, RestartTime: config.Duration(time.Minute)}
	s.apply(sp)
	s.established()
	s.untilRoute("r1", "red", vip4, "10.0.1.2", func(route) error { return nil })
	require.NoError(t, s.speakers.Close(t.Context(), true))
	s.untilRoute("r1", "red", vip4, "10.0.1.2", func(r route) error {
		if !r.Stale {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	// The next run of the daemon; r2 has gone meanwhile and may not delay what r1 gets to know for long.
	s.nextRun(sp)
	started := time.Now()
	s.untilRoute("r1", "red", vip4, "10.0.1.2", func(r route) error {
		if r.Stale {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	t.Logf("announced anew after %s", time.Since(started))

	// An end without grace takes everything back.
	require.NoError(t, s.speakers.Close(t.Context(), false))
	s.untilNoRoute("r1", "red", vip4)
}

// nextRun starts the speakers again once r2 has gone, and returns when r1 has a session.
func (s *site) nextRun(sp plan.Speaker) {
	s.t.Helper()
	s.configure("r2", "no router bgp 65002 vrf red")
	s.speakers = New(s.speakers.log, s.speakers.hint)
	s.apply(sp)
	s.until(func() error {
		if r1 := s.session("red", "10.0.1.1"); !r1.Up {
			return fmt.Errorf("session %+v", r1)
		}
		return nil
	})
}

// TestWithdrawnWhileWaiting withdraws a prefix right after a restart, while announcements wait for a router that is gone, from a router
// that has asked for all of them meanwhile.
func TestWithdrawnWhileWaiting(t *testing.T) {
	s := newSite(t)
	sp := red(peer("10.0.1.1", "red1"), peer("10.0.2.1", "red2"))
	sp.Announce = announcing(vip4, vip6)
	sp.GracefulRestart = config.GracefulRestart{Enabled: true, RestartTime: config.Duration(time.Minute)}
	s.apply(sp)
	s.established()
	s.untilRoute("r1", "red", vip4, "10.0.1.2", func(route) error { return nil })
	require.NoError(t, s.speakers.Close(t.Context(), true))
	s.nextRun(sp)
	_, err := s.Node("r1").VTY("bgpd", "enable", "clear bgp vrf red * soft in")
	require.NoError(t, err)
	s.untilRoute("r1", "red", vip4, "10.0.1.2", func(r route) error {
		if r.Stale {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	sp.Announce = announcing(vip6)
	s.apply(sp)
	s.untilNoRoute("r1", "red", vip4)
	s.untilRoute("r1", "red", vip6, "10.0.1.2", func(route) error { return nil })
}

// TestEndReachesRouter takes the link of a session away as soon as Withdraw has returned, as a node does that moves to other routers: the
// router has received the end, and keeps no path for the restart time.
func TestEndReachesRouter(t *testing.T) {
	s := newSite(t)
	sp := red(peer("10.0.1.1", "red1"))
	sp.Announce = announcing(vip4)
	sp.GracefulRestart = config.GracefulRestart{Enabled: true, RestartTime: config.Duration(time.Hour)}
	without := sp
	without.Peers, without.Announce = nil, announcing()
	for range 5 {
		s.apply(sp)
		s.established()
		s.untilRoute("r1", "red", vip4, "10.0.1.2", func(route) error { return nil })
		require.NoError(t, s.speakers.Withdraw(t.Context(), []plan.Speaker{without}))
		sockets, err := os.ReadFile("/proc/self/net/tcp")
		require.NoError(t, err)
		for line := range strings.Lines(string(sockets)) {
			if f := strings.Fields(line); strings.HasPrefix(f[2], "0101000A:") { // 10.0.1.1
				require.NotEqual(t, "01", f[3], "established: %s", line)
			}
		}
		run(t, "ip", "link", "set", "red1", "down")
		s.untilNoRoute("r1", "red", vip4)
		s.apply(without)
		run(t, "sh", "-ec", "ip link set red1 up; ip addr replace fd00:1::2/64 dev red1 nodad")
	}
}
