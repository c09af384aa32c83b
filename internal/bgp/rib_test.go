package bgp

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
)

// reported passes GoBGP's events about one peer to a speaker.
type reported struct {
	*speaker
	t    *testing.T
	peer plan.Peer
}

func newReported(t *testing.T) reported {
	p := peer("10.0.1.1", "red1", receive(pattern("0.0.0.0/0", 0, 32), pattern("::/0", 0, 128)))
	s := &speaker{
		log: slog.New(slog.DiscardHandler), hint: Hints{Apply: func() {}, Routes: func() {}},
		desired: red(p), peers: map[netip.Addr]plan.Peer{p.Address: p},
		states: map[netip.Addr]*sessionState{}, failed: map[netip.Addr]*failedOpenings{}, clock: clockShift,
		lastASN: map[netip.Addr]uint32{},
	}
	s.reader.rib = &s.rib
	return reported{s, t, p}
}

// state reports a state of the session, which carries some families.
func (r reported) state(state bgp.FSMState, why api.PeerState_DisconnectReason, families ...bgp.Family) {
	var capabilities []bgp.ParameterCapabilityInterface
	for _, f := range families {
		capabilities = append(capabilities, bgp.NewCapMultiProtocol(f))
	}
	r.peerChanged(&apiutil.WatchEventMessage_PeerEvent{Type: apiutil.PEER_EVENT_STATE, Peer: apiutil.Peer{State: apiutil.PeerState{
		NeighborAddress: r.peer.Address, PeerASN: r.peer.ASN, SessionState: state, DisconnectReason: why,
		LocalCap: capabilities, RemoteCap: capabilities,
	}}}, time.Now())
}

func (r reported) established(families ...bgp.Family) {
	r.state(bgp.BGP_FSM_ESTABLISHED, api.PeerState_DISCONNECT_REASON_UNSPECIFIED, families...)
}

func (r reported) restarts() {
	r.state(bgp.BGP_FSM_IDLE, api.PeerState_DISCONNECT_REASON_GRACEFUL_RESTART)
}

// announces reports an UPDATE with some prefixes.
func (r reported) announces(prefixes ...string) { r.update(false, prefixes...) }
func (r reported) withdraws(prefixes ...string) { r.update(true, prefixes...) }

func (r reported) update(withdrawn bool, prefixes ...string) {
	r.t.Helper()
	var paths []*apiutil.Path
	for _, prefix := range prefixes {
		nlri, err := bgp.NewIPAddrPrefix(netip.MustParsePrefix(prefix))
		require.NoError(r.t, err)
		p := &apiutil.Path{
			Family: bgp.RF_IPv4_UC, Nlri: nlri, PeerASN: r.peer.ASN, PeerAddress: r.peer.Address, Withdrawal: withdrawn,
			Attrs: []bgp.PathAttributeInterface{bgp.NewPathAttributeLocalPref(300)},
		}
		hop := "10.0.1.1"
		if nlri.Prefix.Addr().Is6() {
			p.Family, hop = bgp.RF_IPv6_UC, "fd00:1::1"
		}
		a, err := bgp.NewPathAttributeMpReachNLRI(p.Family, []bgp.PathNLRI{{NLRI: nlri}}, netip.MustParseAddr(hop))
		require.NoError(r.t, err)
		p.Attrs = append(p.Attrs, a)
		paths = append(paths, p)
	}
	r.pathsChanged(paths, time.Now())
}

func (r reported) endOfRIB(f bgp.Family) {
	r.tableTold(&apiutil.Path{Family: f, PeerAddress: r.peer.Address}, time.Now())
}

func (r reported) learns(prefixes ...string) {
	r.t.Helper()
	have := []string{}
	for route := range r.learnedRoutes().All() {
		have = append(have, route.Dst.String())
	}
	require.Equal(r.t, append([]string{}, prefixes...), have)
}

// TestKeptRoutes restarts a peer. Its routes stay until a new session confirms others, or cannot confirm them.
func TestKeptRoutes(t *testing.T) {
	const ipv4, ipv6 = bgp.RF_IPv4_UC, bgp.RF_IPv6_UC
	r := newReported(t)
	r.established(ipv4, ipv6)
	r.announces("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
	r.learns("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
	r.endOfRIB(ipv4)
	r.restarts()
	r.learns("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
	r.established(ipv4, ipv6)
	r.announces("198.51.100.0/24", "203.0.113.0/24")
	r.withdraws("203.0.113.0/24")
	r.learns("192.0.2.0/24", "198.51.100.0/24", "2001:db8::/32")
	r.endOfRIB(ipv4)
	r.learns("198.51.100.0/24", "2001:db8::/32")
	r.endOfRIB(ipv6)
	r.learns("198.51.100.0/24")

	r.announces("2001:db8::/32")
	r.restarts()
	r.established(ipv4) // IPv6 no more
	r.learns("198.51.100.0/24")
	r.endOfRIB(ipv4)
	r.learns()
	require.Empty(t, r.rib.byPeer)
}

// TestLateUpdate reports an UPDATE of a session after its end. The next session does not have its routes.
func TestLateUpdate(t *testing.T) {
	r := newReported(t)
	r.established(bgp.RF_IPv4_UC)
	r.announces("192.0.2.0/24")
	r.withdraws("192.0.2.0/24")
	delete(r.states, r.peer.Address) // as removePeer does
	r.announces("198.51.100.0/24")
	require.Empty(t, r.rib.byPeer)
	r.states[r.peer.Address] = &sessionState{} // as addPeer does
	r.announces("198.51.100.0/24")
	r.established(bgp.RF_IPv4_UC)
	r.learns()
}

// TestReceivedMeanwhile has a peer announce routes while those before are counted. Neither they nor the count itself may hide that
// there are too many.
func TestReceivedMeanwhile(t *testing.T) {
	r := newReported(t)
	wanted := 0
	r.hint.Apply = func() { wanted++ }
	r.peer.MaxPrefixes = 4
	r.peers[r.peer.Address] = r.peer
	r.established(bgp.RF_IPv4_UC)
	st := r.states[r.peer.Address]
	wanted = 0
	r.announces("192.0.2.0/32", "192.0.2.1/32")
	had := *st
	r.announces("192.0.2.2/32", "192.0.2.3/32")
	r.noteCount(r.peer.Address, had, perFamily{2})
	require.Zero(t, wanted)
	r.announces("192.0.2.4/32")
	require.Equal(t, 1, wanted)

	st.suspect, st.received = false, received{routes: tally{counted: perFamily{5}}}
	r.noteCount(r.peer.Address, *st, perFamily{5})
	require.Equal(t, 2, wanted)

	had = *st
	st.suspect, st.received, st.since = false, received{}, time.Now()
	r.noteCount(r.peer.Address, had, perFamily{5})
	require.Equal(t, received{}, st.received, "a count of the former session")
}

// TestLocalPrefOfExternalPeer has an external peer send LOCAL_PREF: it does not matter.
func TestLocalPrefOfExternalPeer(t *testing.T) {
	r := newReported(t)
	r.established(bgp.RF_IPv4_UC)
	r.announces("192.0.2.0/24")
	for _, e := range r.rib.of(netip.MustParsePrefix("192.0.2.0/24")) {
		require.Equal(t, uint32(defaultLocalPref), e.localPref)
	}
}

// TestSharedCandidates has a peer announce routes together: they share memory.
func TestSharedCandidates(t *testing.T) {
	r := newReported(t)
	r.established(bgp.RF_IPv4_UC)
	r.announces("192.0.2.0/24", "198.51.100.0/24")
	shared := map[*candidate]bool{}
	for _, prefix := range r.rib.prefixes() {
		for _, e := range r.rib.of(prefix) {
			shared[e.candidate] = true
		}
	}
	require.Len(t, shared, 1)
}
