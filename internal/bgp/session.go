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

// Session is the state of one session, for reports and metrics.
type Session struct {
	Network string     `json:"network"`
	Peer    string     `json:"peer"`             // the configured address, or the interface of an unnumbered peer
	Address netip.Addr `json:"address,omitzero"` // of the peer; invalid while that of an unnumbered peer is unknown
	ASN     uint32     `json:"asn"`              // of the peer: configured, or as received in its OPEN
	State   string     `json:"state"`            // waiting, idle, connect, active, opensent, openconfirm, established
	Up      bool       `json:"up,omitempty"`     // established, and not with a peer of the wrong AS or over its limit
	// We ended it because the peer sent too much: until a parameter of the session changes, or for a while if it was for memory.
	Ended     bool            `json:"ended,omitempty"`
	Since     time.Time       `json:"since,omitzero"`      // when the state began
	Families  []config.Family `json:"families,omitempty"`  // that both ends offered
	Sent      []config.Family `json:"sent,omitempty"`      // those of Families that we announce; missing from earlier speakers
	Received  int             `json:"received,omitempty"`  // routes the peer sends
	Accepted  int             `json:"accepted,omitempty"`  // received routes that pass the import rules
	Announced int             `json:"announced,omitempty"` // routes sent to the peer
	BFD       string          `json:"bfd,omitempty"`
	BFDSlowed int             `json:"bfdSlowed,omitempty"` // BFD has flapped: its intervals are this many times those of the profile
	// Why the speaker does not accept connections of the peer, although it should listen.
	Unheard string `json:"unheard,omitempty"`
	// Why the session was lost or refused, why one of its families is not announced, or why its routes are refused; empty if all is well.
	LastError string `json:"lastError,omitempty"`
}

// StateEstablished is the state in which a session exchanges routes. StateWaiting is the state of an unnumbered peer
// whose address is unknown, and of a session that waits until BFD of an earlier speaker has expired.
const (
	StateEstablished = "established"
	StateWaiting     = "waiting"
)

// session holds the parameters of one session that cannot change without resetting it. It is comparable.
type session struct {
	address     netip.Addr
	port        uint16
	asn         uint32 // 0: any
	local       uint32 // our AS number
	source      netip.Addr
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

// String and GoString keep the password out of formatted output.
func (s session) String() string   { return "session with " + s.address.String() }
func (s session) GoString() string { return s.String() }

// newSession returns the parameters of a session as planned, with the peer's password from its file.
func newSession(sp plan.Speaker, p plan.Peer, address netip.Addr) (session, error) {
	s := session{
		address:     address,
		port:        p.Port,
		asn:         p.ASN,
		local:       p.LocalASN(sp.ASN),
		source:      p.SourceAddress,
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
		s.asn = s.local
	case config.DynamicExternal:
		s.asn = 0
	}
	if !s.ipv4 && !s.ipv6 {
		s.ipv4, s.ipv6 = true, true
	}
	if sp.GracefulRestart.Enabled {
		s.restartTime = time.Duration(sp.GracefulRestart.RestartTime)
	}
	var err error
	if p.PasswordFile != "" {
		s.password, err = passwordOf(p)
	}
	return s, err
}

// passwordOf reads a peer's password. RFC 2385 leaves the limit of its length to the system; Linux accepts 80 bytes.
func passwordOf(p plan.Peer) (string, error) {
	b, err := os.ReadFile(p.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("read the password of peer %s: %w", nameOf(p), err)
	}
	password := string(bytes.TrimRight(b, "\r\n"))
	if password == "" || len(password) > 80 {
		return "", fmt.Errorf("password of peer %s: file %s holds %d bytes, not 1 to 80", nameOf(p), p.PasswordFile, len(password))
	}
	return password, nil
}

// nameOf returns the name of a peer in reports.
func nameOf(p plan.Peer) string { return p.PeerName() }

// idleHoldTime is how long a session that lost its connection waits before it tries again.
const idleHoldTime = time.Second

// restartDeferral limits how long announcements are held back after a restart of the daemon for peers that have not
// sent all their routes yet: one router that is down must not delay the others much.
const restartDeferral = 5 * time.Second

// ownASNMost makes GoBGP accept paths that went through our AS. Otherwise it would keep them but go on using the peer's
// previous path, without an event. They are refused where routes are chosen.
const ownASNMost = 255

// peer returns GoBGP's configuration. following means that an earlier run of the daemon may have left routes with the
// peer.
func (s session) peer(following bool) *api.Peer {
	p := &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: s.address.String(),
			PeerAsn:         s.asn,
			LocalAsn:        s.local,
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
	if s.source.IsValid() {
		p.Transport.LocalAddress = s.source.String()
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

// sessionState is the state of a session, as learned from events.
type sessionState struct {
	state     bgp.FSMState
	since     time.Time
	clock     time.Duration // clockShift when it was established
	asn       uint32        // the peer's, known once it was established
	families  []config.Family
	overLimit bool      // ended for sending too much; lastError has the reason
	lapses    time.Time // when overLimit ends; zero: when a parameter of the session changes
	suspect   bool      // the peer may exceed its limit
	received  received
	updates   uint64 // UPDATEs that the peer made GoBGP queue, as of the last count: those that it sent, and the answers to refreshes
	answers   uint64 // of these the answers
	refreshes uint64 // requests for them (RFC 2918)

	extended         bool // the peer offered IPv6 next hops for IPv4 (RFC 8950) when the session was last established
	plain            bool // the peer did not offer them
	extendedMessages bool // the peer offered messages of up to 65,535 bytes (RFC 8654), as GoBGP always does
	refusedLogged    bool // it was logged that routes of the peer are not learned

	unanswered unanswered
	former     uint64        // OPENs without an answer before the last session was established, of all that GoBGP counts
	counted    bool          // former is of that session
	restart    bool          // set it up again
	resetFor   string        // why we ended it; empty: we did not
	ended      chan struct{} // closed when the session that removePeer ends has ended; nil: none
	lastError  string
}

var stateNames = map[bgp.FSMState]string{
	bgp.BGP_FSM_CONNECT:     "connect",
	bgp.BGP_FSM_ACTIVE:      "active",
	bgp.BGP_FSM_OPENSENT:    "opensent",
	bgp.BGP_FSM_OPENCONFIRM: "openconfirm",
	bgp.BGP_FSM_ESTABLISHED: StateEstablished,
}

func stateName(s bgp.FSMState) string { return cmp.Or(stateNames[s], "idle") }

// extendedNextHop reports whether a peer offered IPv6 next hops for IPv4 unicast, as GoBGP always does.
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
	var families []config.Family
	for _, f := range []bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC} {
		if offers(local, f) && offers(remote, f) {
			families = append(families, familyName(f))
		}
	}
	return families
}

func familyName(f bgp.Family) config.Family {
	if f == bgp.RF_IPv6_UC {
		return config.IPv6Unicast
	}
	return config.IPv4Unicast
}

// offers reports whether the capabilities of one end include a family.
func offers(caps []bgp.ParameterCapabilityInterface, family bgp.Family) bool {
	return slices.ContainsFunc(caps, func(c bgp.ParameterCapabilityInterface) bool {
		m, ok := c.(*bgp.CapMultiProtocol)
		return ok && m.CapValue == family
	})
}
