package bgp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// withBFD gives a peer BFD of 3 × 1 s, which outlives a stall of the machine.
func withBFD(p *plan.Peer) {
	p.BFD = &config.BFDProfile{Name: "fast", TransmitInterval: 1000, ReceiveInterval: 1000, DetectMultiplier: 3}
}

// profile makes a router's profile with the same timers.
func (s *site) profile(router string, more ...string) {
	s.t.Helper()
	_, err := s.Node(router).VTY("bfdd", append([]string{"configure terminal", "bfd", "profile fast", "receive-interval 1000", "transmit-interval 1000"}, more...)...)
	require.NoError(s.t, err)
}

// untilBFD waits until a peer's BGP is up, and its BFD in a state.
func (s *site) untilBFD(network, peer, state string) {
	s.t.Helper()
	s.until(func() error {
		if e := s.session(network, peer); !e.Up || e.BFD != state {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
}

// TestBFDFollowsSessions has sessions of both families end and come again: FRR recreates its end of BFD each time, which ends no
// session.
func TestBFDFollowsSessions(t *testing.T) {
	s := newSite(t)
	s.profile("r1")
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.1.2 bfd profile fast", "neighbor fd00:1::2 bfd profile fast")
	s.apply(red(peer("10.0.1.1", "red1", withBFD), peer("fd00:1::1", "red1", withBFD)))
	for i := range 4 {
		for peer, neighbor := range map[string]string{"10.0.1.1": "10.0.1.2", "fd00:1::1": "fd00:1::2"} {
			s.untilBFD("red", peer, "up")
			require.Equal(t, i+1, s.establishments("r1", "red", neighbor), "BFD cost a session with %s", neighbor)
		}
		_, err := s.Node("r1").VTY("bgpd", "enable", "clear bgp vrf red *")
		require.NoError(t, err)
		s.until(func() error {
			for _, neighbor := range []string{"10.0.1.2", "fd00:1::2"} {
				if n := s.establishments("r1", "red", neighbor); n < i+2 {
					return fmt.Errorf("%s: %d", neighbor, n)
				}
			}
			return nil
		})
	}
}

// TestBFDOnPurpose has a router take BFD down on purpose, and the configuration change it: both end no session of BGP.
func TestBFDOnPurpose(t *testing.T) {
	s := newSite(t)
	s.profile("r1")
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.1.2 bfd profile fast")
	desired := red(peer("10.0.1.1", "red1", withBFD))
	s.apply(desired)
	s.untilBFD("red", "10.0.1.1", "up")
	s.profile("r1", "shutdown")
	s.untilBFD("red", "10.0.1.1", "down")
	s.profile("r1", "no shutdown")
	s.untilBFD("red", "10.0.1.1", "up")
	slower := *desired.Peers[0].BFD
	slower.ReceiveInterval = 2000
	desired = red(peer("10.0.1.1", "red1", func(p *plan.Peer) { p.BFD = &slower }))
	s.apply(desired)
	s.until(func() error {
		if e := s.watched(); e.Detection != 6*time.Second {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	s.untilBFD("red", "10.0.1.1", "up")
	require.Equal(t, 1, s.establishments("r1", "red", "10.0.1.2"))
}

// watched is the one session of BFD that there is.
func (s *site) watched() bfd.Session {
	s.speakers.guards.mu.Lock()
	defer s.speakers.guards.mu.Unlock()
	for _, g := range s.speakers.guards.all {
		for _, e := range g.engine.Sessions() {
			return e
		}
	}
	return bfd.Session{}
}

// received counts packets of BFD.
func (s *site) received() (n uint64) {
	s.speakers.guards.mu.Lock()
	defer s.speakers.guards.mu.Unlock()
	for _, g := range s.speakers.guards.all {
		n += g.engine.Counters().Received
	}
	return n
}

// TestBFDForged sends packets with a router's address before the router speaks BFD: from afar, from another link, and from its own link
// with the longest intervals. The session with the router stays, and its BFD comes up.
func TestBFDForged(t *testing.T) {
	s := newSite(t)
	s.profile("r1")
	s.apply(red(peer("10.0.1.1", "red1", withBFD)))
	s.until(func() error {
		if !s.session("red", "10.0.1.1").Up || !s.watched().Active {
			return errors.New("BFD does not watch the session")
		}
		return nil
	})
	const down = 1 << 6
	_, err := s.Node("r2").Run(t.Context(), "sh", "-ec", "ip addr add 10.0.1.1/32 dev red2; ip route add 10.0.1.2/32 dev red2 vrf red src 10.0.1.1")
	require.NoError(t, err)
	for i, from := range []struct {
		router string
		ttl    int
	}{{"r1", 64}, {"r1", 254}, {"r2", 255}, {"r1", 255}} {
		packet := []byte{1 << 5, down, 255, 24}
		for _, field := range []uint32{7, 0, 1<<32 - 1, 1<<32 - 1, 0} { // discriminators, intervals
			packet = binary.BigEndian.AppendUint32(packet, field)
		}
		_, err := s.Node(from.router).Run(t.Context(), "python3", "-c", fmt.Sprintf(`
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"red")
s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, %d)
s.sendto(bytes.fromhex("%x"), ("10.0.1.2", 3784))`, from.ttl, packet))
		require.NoError(t, err)
		s.until(func() error {
			if n := s.received(); n != uint64(i)+1 {
				return fmt.Errorf("received %d", n)
			}
			return nil
		})
		require.Equal(t, i == 3, s.watched().State == bfd.Init, "%+v", from)
	}
	s.until(func() error {
		if e := s.watched(); e.State != bfd.Down {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.1.2 bfd profile fast")
	s.untilBFD("red", "10.0.1.1", "up")
	require.Equal(t, 1, s.establishments("r1", "red", "10.0.1.2"))
}

// TestBFDFlaps loses BFD until its intervals are longer. BGP's hold time is longer than anybody waits here: each loss ends the session.
func TestBFDFlaps(t *testing.T) {
	s := newSite(t)
	s.profile("r1", "receive-interval 100", "transmit-interval 100")
	s.configure("r1", "router bgp 65001 vrf red", "neighbor 10.0.1.2 bfd profile fast", "neighbor 10.0.1.2 timers 60 180")
	s.apply(red(peer("10.0.1.1", "red1", withBFD, func(p *plan.Peer) {
		p.BFD.TransmitInterval, p.BFD.ReceiveInterval = 100, 100
		p.HoldTime, p.KeepaliveTime = config.Duration(180*time.Second), config.Duration(60*time.Second)
	})))
	loss := func(how string) {
		_, err := s.Node("r1").Run(t.Context(), "tc", "qdisc", how, "dev", "red1", "root", "netem", "loss", "100%")
		require.NoError(t, err)
	}
	for {
		s.untilBFD("red", "10.0.1.1", "up")
		if s.session("red", "10.0.1.1").BFDSlowed > 0 {
			break
		}
		loss("add")
		s.until(func() error {
			if e := s.session("red", "10.0.1.1"); e.BFD != "down" || e.Up || e.LastError == "" {
				return fmt.Errorf("%+v", e)
			}
			return nil
		})
		require.Contains(t, s.session("red", "10.0.1.1").LastError, "BFD: ")
		loss("del")
	}
	require.Equal(t, 4, s.session("red", "10.0.1.1").BFDSlowed)
	s.until(func() error {
		if e := s.watched(); e.Detection != 1200*time.Millisecond {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	require.GreaterOrEqual(t, s.watched().Losses, uint64(3))
}

// TestBFDWithoutVRF has two networks, each with its own router and neither with a VRF: one socket hears the routers of both.
func TestBFDWithoutVRF(t *testing.T) {
	s := newSite(t)
	s.plug("r1", "red", "", "main4", 4)
	s.plug("r2", "red", "", "main5", 5)
	var networks []plan.Speaker
	for router, c := range map[string]struct {
		asn            int
		device, subnet string
	}{"r1": {65001, "main4", "4"}, "r2": {65002, "main5", "5"}} {
		neighbor := "neighbor 10.0." + c.subnet + ".2"
		s.profile(router)
		s.configure(router, fmt.Sprintf("router bgp %d vrf red", c.asn), neighbor+" peer-group node", neighbor+" bfd profile fast")
		n := red(peer("10.0."+c.subnet+".1", c.device, withBFD))
		n.Network, n.Device = router, ""
		networks = append(networks, n)
	}
	s.apply(networks...)
	s.untilBFD("r1", "10.0.4.1", "up")
	s.untilBFD("r2", "10.0.5.1", "up")
	_, err := s.Node("r2").Run(t.Context(), "tc", "qdisc", "add", "dev", "main5", "root", "netem", "loss", "100%")
	require.NoError(t, err)
	s.until(func() error {
		if e := s.session("r2", "10.0.5.1"); e.BFD != "down" || e.Up {
			return fmt.Errorf("%+v", e)
		}
		return nil
	})
	s.untilBFD("r1", "10.0.4.1", "up")
	require.Equal(t, 1, s.establishments("r1", "red", "10.0.4.2"))
}
