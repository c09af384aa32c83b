package bgp

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// Session is the state of one session, for people and metrics.
type Session struct {
	Network   string          `json:"network"`
	Peer      string          `json:"peer"`             // the configured address, or the interface of an unnumbered peer
	Address   netip.Addr      `json:"address,omitzero"` // of the peer; invalid while an unnumbered peer is unknown
	ASN       uint32          `json:"asn"`              // of the peer, as configured or as it says
	State     string          `json:"state"`            // waiting, idle, connect, active, opensent, openconfirm, established
	Up        bool            `json:"up,omitempty"`     // established, and the peer is who it should be
	Ended     bool            `json:"ended,omitempty"`  // by us, as the peer sent too much: it stays so until its configuration is another one, or for a while for memory
	Since     time.Time       `json:"since,omitzero"`   // of the state
	Families  []config.Family `json:"families,omitempty"`
	Received  int             `json:"received,omitempty"`  // routes the peer sends
	Accepted  int             `json:"accepted,omitempty"`  // of them, those that pass the import rules
	Announced int             `json:"announced,omitempty"` // routes sent to the peer
	BFD       string          `json:"bfd,omitempty"`
	BFDSlowed int             `json:"bfdSlowed,omitempty"` // BFD has flapped: its intervals are so many times longer than the profile says
	LastError string          `json:"lastError,omitempty"` // why the session was lost or is refused, or routes of it are; empty when it is well
}

// StateEstablished is the state in which a session exchanges routes, StateWaiting the one of an unnumbered peer whose
// address is not known yet, and of a session that an earlier speaker's BFD still stands in the way of.
const (
	StateEstablished = "established"
	StateWaiting     = "waiting"
)

// session holds the parameters of one session that cannot change without resetting it. It is comparable.
type session struct {
	address     netip.Addr
	port        uint16
	asn         uint32 // 0: any
	hold        time.Duration
	keepalive   time.Duration
	connect     time.Duration
	multihop    uint8
	ttlSecurity uint8
	password    string
	ipv4, ipv6  bool
	maxPrefixes uint32
	restartTime time.Duration // zero: no graceful restart
	bind        string        // device
}

// String and GoString keep the password out of every kind of formatting.
func (s session) String() string   { return "session with " + s.address.String() }
func (s session) GoString() string { return s.String() }

// newSession takes the parameters of a session out of the plan and reads the peer's password.
func newSession(sp plan.Speaker, p plan.Peer, address netip.Addr) (session, error) {
	s := session{
		address:     address,
		port:        p.Port,
		asn:         p.ASN,
		hold:        time.Duration(p.HoldTime),
		keepalive:   time.Duration(p.KeepaliveTime),
		connect:     time.Duration(p.ConnectTime),
		multihop:    p.EBGPMultiHop,
		ttlSecurity: p.TTLSecurity,
		ipv4:        slices.Contains(p.AddressFamilies, config.IPv4Unicast),
		ipv6:        slices.Contains(p.AddressFamilies, config.IPv6Unicast),
		maxPrefixes: p.MaxPrefixes,
		bind:        cmp.Or(address.Zone(), sp.Device),
	}
	switch p.DynamicASN {
	case config.DynamicInternal:
		s.asn = sp.ASN
	case config.DynamicExternal:
		s.asn = 0
	}
	if !s.ipv4 && !s.ipv6 {
		s.ipv4, s.ipv6 = true, true
	}
	if sp.GracefulRestart.Enabled {
		s.restartTime = time.Duration(sp.GracefulRestart.RestartTime)
	}
	if p.PasswordFile != "" {
		b, err := os.ReadFile(p.PasswordFile)
		if err != nil {
			return s, fmt.Errorf("read the password of peer %s: %w", nameOf(p), err)
		}
		// RFC 2385 leaves the limit to the system; Linux has room for 80 bytes.
		s.password = string(bytes.TrimRight(b, "\r\n"))
		if s.password == "" || len(s.password) > 80 {
			return s, fmt.Errorf("password of peer %s: file %s holds %d bytes, not 1 to 80", nameOf(p), p.PasswordFile, len(s.password))
		}
	}
	return s, nil
}

// nameOf is how people call a peer.
func nameOf(p plan.Peer) string {
	if p.Interface != "" {
		return p.Interface
	}
	return p.Address.String()
}

// How long a session that lost its connection waits before it tries again.
const idleHoldTime = time.Second

// How long announcements may be held back after a restart of the daemon for peers that have not sent all their routes
// yet; the time for one router that is away must not cost the others much.
const restartDeferral = 5 * time.Second

// ownASNMost has GoBGP take paths that went through our AS. It would keep them, yet go on with the path that the peer told
// before instead of it, and no event would tell of them. They are refused where routes are chosen.
const ownASNMost = 255

// peer makes GoBGP's configuration. following says that an earlier run of the daemon may have left routes with the peer.
func (s session) peer(following bool) *api.Peer {
	p := &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: s.address.String(),
			PeerAsn:         s.asn,
			AuthPassword:    s.password,
			AllowOwnAsn:     ownASNMost,
		},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime:               seconds(s.hold),
			KeepaliveInterval:      seconds(s.keepalive),
			ConnectRetry:           seconds(s.connect),
			IdleHoldTimeAfterReset: seconds(idleHoldTime),
		}},
		Transport: &api.Transport{BindInterface: s.bind, RemotePort: uint32(s.port)},
	}
	graceful := s.restartTime > 0
	if graceful {
		p.GracefulRestart = &api.GracefulRestart{
			Enabled:         true,
			RestartTime:     uint32(min(seconds(s.restartTime), 4095)),
			DeferralTime:    uint32(seconds(restartDeferral)),
			LocalRestarting: following,
		}
	}
	for _, family := range s.families() {
		p.AfiSafis = append(p.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: family, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: graceful}},
		})
	}
	switch {
	case s.ttlSecurity > 0:
		p.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: 256 - uint32(s.ttlSecurity)}
	case s.multihop > 0:
		p.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(s.multihop)}
	}
	return p
}

func (s session) families() []*api.Family {
	var f []*api.Family
	if s.ipv4 {
		f = append(f, ipv4Unicast)
	}
	if s.ipv6 {
		f = append(f, ipv6Unicast)
	}
	return f
}

// seconds rounds up: half a second must not become the zero that means GoBGP's default.
func seconds(d time.Duration) uint64 {
	return uint64((d + time.Second - 1) / time.Second)
}

// sessionState is what events tell of a session.
type sessionState struct {
	state     bgp.FSMState
	since     time.Time
	asn       uint32 // the peer's, known once it was established
	families  []config.Family
	overLimit bool      // closed for sending too much; lastError says what
	lapses    time.Time // until when it is; zero: until its configuration is another one
	resumed   bool      // the session before ended with a graceful restart of the peer
	suspect   bool      // it may send too many
	received  received
	updates   uint64 // UPDATEs that the peer has sent, when they were counted last

	extended         bool // the peer offered IPv6 next hops for IPv4 (RFC 8950) when the session was established last
	plain            bool // it did not
	extendedMessages bool // it offered messages of up to 65,535 bytes (RFC 8654), which GoBGP always does
	refusedLogged    bool // that it tells routes that are not learned from it

	unanswered unanswered
	anew       bool   // it is to be set up again
	resetFor   string // why we ended it; empty: we did not
	lastError  string
}

func stateName(s bgp.FSMState) string {
	switch s {
	case bgp.BGP_FSM_CONNECT:
		return "connect"
	case bgp.BGP_FSM_ACTIVE:
		return "active"
	case bgp.BGP_FSM_OPENSENT:
		return "opensent"
	case bgp.BGP_FSM_OPENCONFIRM:
		return "openconfirm"
	case bgp.BGP_FSM_ESTABLISHED:
		return StateEstablished
	}
	return "idle"
}

// extendedNextHop reports whether a peer's capabilities have IPv6 next hops for IPv4 unicast, which GoBGP always offers.
func extendedNextHop(remote []bgp.ParameterCapabilityInterface) bool {
	return slices.ContainsFunc(remote, func(c bgp.ParameterCapabilityInterface) bool {
		e, ok := c.(*bgp.CapExtendedNexthop)
		return ok && slices.ContainsFunc(e.Tuples, func(t *bgp.CapExtendedNexthopTuple) bool {
			return t.NLRIAFI == bgp.AFI_IP && t.NLRISAFI == bgp.SAFI_UNICAST && t.NexthopAFI == bgp.AFI_IP6
		})
	})
}

// bothSpeak returns the families that both ends offered.
func bothSpeak(local, remote []bgp.ParameterCapabilityInterface) []config.Family {
	offers := func(caps []bgp.ParameterCapabilityInterface, family bgp.Family) bool {
		return slices.ContainsFunc(caps, func(c bgp.ParameterCapabilityInterface) bool {
			m, ok := c.(*bgp.CapMultiProtocol)
			return ok && m.CapValue == family
		})
	}
	var families []config.Family
	for _, f := range []struct {
		family bgp.Family
		name   config.Family
	}{{bgp.RF_IPv4_UC, config.IPv4Unicast}, {bgp.RF_IPv6_UC, config.IPv6Unicast}} {
		if offers(local, f.family) && offers(remote, f.family) {
			families = append(families, f.name)
		}
	}
	return families
}
