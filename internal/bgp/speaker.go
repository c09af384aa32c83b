package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// identity holds the parameters that all sessions of a speaker share; they cannot change while it runs.
type identity struct {
	device     string
	index      int // of the device
	asn        uint32
	routerID   netip.Addr
	listenPort int
}

func (i identity) boundTo() boundTo { return boundTo{i.device, i.index} }

func identityOf(d plan.Speaker) identity {
	return identity{device: d.Device, index: d.DeviceIndex, asn: d.ASN, routerID: d.RouterID, listenPort: d.ListenPort}
}

// speaker is the BGP speaker of one network. Speakers serialises the calls that change it.
type speaker struct {
	network  string
	identity identity
	listens  []netip.Addr // since its start: GoBGP cannot change them later
	log      *slog.Logger
	hint     Hints
	started  time.Time

	server    *server.BgpServer
	ended     *atomic.Bool // silences the server's log
	unwatch   context.CancelFunc
	served    chan struct{} // closed when the server's loop has ended
	neighbors *neighbors    // of unnumbered peers

	announced sorted.List[plan.Announcement]
	untold    []plan.Announcement // withdrawn while a peer waited, see retractAgain
	configs   map[netip.Addr]session
	keyed     map[netip.Addr]bool     // peers whose connections our sockets accept only with a password: GoBGP removes none from them
	exchanges map[netip.Addr]exchange // as set in GoBGP's policy
	following map[string]bool         // names of peers without a session since our start: they may hold routes of an earlier run
	looked    time.Time               // when peers were last checked for unanswered OPENs
	timed     time.Time               // when the clock was last checked
	recounted time.Time               // when all routes were counted last

	guards *guards
	resets sync.WaitGroup // running resets of sessions that BFD has lost

	rib     rib
	reading sync.Mutex // held while learned routes are read, so that older ones never replace newer ones; locked before mu
	reader  reader

	mu            sync.Mutex // guards the fields below; never held while GoBGP is called
	stopping      bool
	desired       plan.Speaker
	peers         map[netip.Addr]plan.Peer // desired peers, by the address of the session
	states        map[netip.Addr]*sessionState
	faults        map[string]string // why a peer has no session, by the peer's name
	unheard       map[string]string // why the connections of a peer are not accepted, by the peer's name
	failed        map[netip.Addr]*failedOpenings
	lapses        map[netip.Addr]lapse  // of sessions that were ended for memory
	lastASN       map[netip.Addr]uint32 // of peers, in their last OPEN
	outdated      outdated
	learned       learned
	uncounted     bool                 // the number of received routes may have changed since the last count
	announcements perFamily            // how many of announced are of each family
	sends         map[netip.Addr]sends // of exchanges
	clock         func() time.Duration // clockShift
}

// start starts a speaker without sessions. It listens where it can: sessions are dialled anyway.
func start(ctx context.Context, log *slog.Logger, hint Hints, guards *guards, d plan.Speaker, following map[string]bool) (*speaker, error) {
	if !d.RouterID.Is4() {
		return nil, fmt.Errorf("start BGP speaker: router ID %s is not an IPv4 address", d.RouterID)
	}
	log = log.With("network", d.Network)
	ended := new(atomic.Bool)
	s := &speaker{
		network:   d.Network,
		identity:  identityOf(d),
		listens:   listenable(d),
		log:       log,
		hint:      hint,
		guards:    guards,
		started:   time.Now(),
		server:    server.NewBgpServer(server.LoggerOption(slog.New(quieter{log.Handler(), ended}), nil)),
		ended:     ended,
		served:    make(chan struct{}),
		configs:   map[netip.Addr]session{},
		keyed:     map[netip.Addr]bool{},
		following: following,
		states:    map[netip.Addr]*sessionState{},
		faults:    map[string]string{},
		failed:    map[netip.Addr]*failedOpenings{},
		lapses:    map[netip.Addr]lapse{},
		lastASN:   map[netip.Addr]uint32{},
		clock:     clockShift,
	}
	s.reader.rib = &s.rib
	s.neighbors = newNeighbors(log, hint.Apply, func(a netip.Addr) bool { return s.remoteASN(a) != 0 })
	go func() {
		defer close(s.served)
		s.server.Serve()
	}()
	if err := s.begin(ctx); err != nil {
		return nil, errors.Join(err, s.stop(ctx, false))
	}
	return s, nil
}

func (s *speaker) begin(ctx context.Context) error {
	global := &api.Global{
		Asn:          s.identity.asn,
		RouterId:     s.identity.routerID.String(),
		ListenPort:   -1, // to GoBGP, 0 means 179
		BindToDevice: s.identity.device,
	}
	for _, a := range s.listens { // to GoBGP, none means all
		global.ListenPort = int32(s.identity.listenPort)
		global.ListenAddresses = append(global.ListenAddresses, a.String())
	}
	if err := s.server.StartBgp(ctx, &api.StartBgpRequest{Global: global}); err != nil {
		return fmt.Errorf("start BGP speaker: %w", err)
	}
	if err := s.setPolicies(ctx, map[netip.Addr]exchange{}); err != nil {
		return err
	}
	for direction, name := range map[api.PolicyDirection]string{
		api.PolicyDirection_POLICY_DIRECTION_IMPORT: importPolicy,
		api.PolicyDirection_POLICY_DIRECTION_EXPORT: exportPolicy,
	} {
		if err := s.server.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
			Name:          "global",
			Direction:     direction,
			Policies:      []*api.Policy{{Name: name}},
			DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
		}}); err != nil {
			return fmt.Errorf("assign %s policy: %w", name, err)
		}
	}
	watch, cancel := context.WithCancel(context.Background())
	s.unwatch = cancel
	if err := s.server.WatchEvent(watch, server.WatchEventMessageCallbacks{
		OnPathUpdate: s.pathsChanged,
		OnPathEor:    s.tableTold,
		OnPeerUpdate: s.peerChanged,
		// Don't watch best paths: this package chooses them, and GoBGP does not report every change that the choice
		// depends on. GoBGP's event queue is unbounded, so no event is lost.
	}, server.WatchUpdate(false, "", ""), server.WatchAdjInWithdraw(), server.WatchEor(false), server.WatchPeer()); err != nil {
		return fmt.Errorf("watch BGP events: %w", err)
	}
	return nil
}

// stop ends all sessions and the server.
func (s *speaker) stop(ctx context.Context, graceful bool) error {
	s.neighbors.close()
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.resets.Wait() // a server that has ended does not answer
	if s.unwatch != nil {
		s.unwatch() // first: GoBGP's watchers may block a server that stops
	}
	err := s.server.StopBgp(ctx, &api.StopBgpRequest{AllowGracefulRestart: graceful})
	s.ended.Store(true)
	s.server.Stop() // ends the rest, and logs that BGP has ended
	<-s.served
	if err != nil {
		return fmt.Errorf("stop BGP speaker: %w", err)
	}
	return nil
}

// withdraw withdraws the announcements and ends the sessions that d does not contain.
func (s *speaker) withdraw(ctx context.Context, d plan.Speaker) error {
	errs := []error{s.retract(ctx, d.Announce)}
	s.mu.Lock()
	peers := maps.Clone(s.peers)
	s.mu.Unlock()
	for _, addr := range sortedAddrs(s.configs) {
		p, ok := peers[addr]
		if ok && slices.ContainsFunc(d.Peers, func(q plan.Peer) bool { return nameOf(p) == nameOf(q) }) {
			continue
		}
		errs = append(errs, s.removePeer(ctx, addr))
	}
	return errors.Join(errs...)
}

// apply makes sessions and announcements equal to d.
func (s *speaker) apply(ctx context.Context, d plan.Speaker) error {
	var errs []error
	s.neighbors.set(interfaces(d))
	peers := make(map[netip.Addr]plan.Peer, len(d.Peers))
	configs := make(map[netip.Addr]session, len(d.Peers))
	faults := map[string]string{}
	refuse := func(p plan.Peer, err error) {
		errs = append(errs, err)
		faults[nameOf(p)] = err.Error()
	}
	// GoBGP's policies compare addresses without zones: neighbours with the same link-local address on different links
	// would share one policy.
	holders := map[netip.Addr]string{}
	for _, p := range s.addressed(d.Peers) {
		bare := p.address.WithZone("")
		if other, held := holders[bare]; held {
			refuse(p.Peer, fmt.Errorf("peer %s: peer %s of the network already has its address, %s: each needs its own",
				nameOf(p.Peer), other, bare))
			continue
		}
		c, err := newSession(d, p.Peer, p.address)
		if err != nil {
			refuse(p.Peer, err)
			running, ok := s.configs[p.address]
			if !ok {
				continue
			}
			c = running // better the previous session than none
		}
		holders[bare], peers[p.address], configs[p.address] = nameOf(p.Peer), p.Peer, c
	}

	s.noteUnanswered(ctx, time.Now())
	s.noteClock(time.Now())
	why := map[netip.Addr]string{} // why a session is set up again
	for _, addr := range sortedAddrs(s.configs) {
		if configs[addr] != s.configs[addr] {
			errs = append(errs, s.removePeer(ctx, addr))
		} else if s.tryAgain(addr) {
			why[addr] = s.lastError(addr)
			errs = append(errs, s.removePeer(ctx, addr))
		}
	}
	s.setDesired(d, peers, faults)
	errs = append(errs, s.limit(ctx), s.withdraw(ctx, d), s.retractAgain(ctx))

	exchanges := map[netip.Addr]exchange{}
	for addr, p := range peers {
		x, err := s.exchange(d, p, addr)
		if err != nil {
			errs = append(errs, err)
		}
		exchanges[addr] = x
	}
	before := s.exchanges
	if err := s.setPolicies(ctx, exchanges); err != nil {
		return errors.Join(append(errs, err)...) // without the right policy nothing may be announced
	}
	// Announce before adding sessions: then the first table that a peer gets is complete.
	errs = append(errs, s.announce(d.Announce))
	for _, addr := range sortedAddrs(configs) {
		if _, running := s.configs[addr]; running {
			if s.remoteASN(addr) != 0 {
				delete(s.following, nameOf(peers[addr]))
			}
			errs = append(errs, s.refresh(ctx, addr, before[addr], exchanges[addr]))
		} else if wait := s.silence(peers[addr]); wait > 0 {
			time.AfterFunc(wait, s.hint.Apply)
		} else {
			errs = append(errs, s.addPeer(ctx, configs[addr], nameOf(peers[addr]), why[addr]))
		}
	}
	return errors.Join(errs...)
}

// addressed is a peer with the address of its session.
type addressed struct {
	plan.Peer
	address netip.Addr
}

// addressed returns the peers whose addresses are known. Peers that have a session come first: they keep their
// addresses.
func (s *speaker) addressed(all []plan.Peer) []addressed {
	var known, others []addressed
	for _, p := range all {
		address := s.addressOf(p)
		if _, running := s.configs[address]; running {
			known = append(known, addressed{p, address})
		} else if address.IsValid() { // otherwise it has not advertised it yet
			others = append(others, addressed{p, address})
		}
	}
	return append(known, others...)
}

// addressOf returns the address of a peer's session; invalid: it is not known yet.
func (s *speaker) addressOf(p plan.Peer) netip.Addr {
	if p.Interface != "" {
		return s.neighbors.address(p.Interface)
	}
	return p.Address
}

// addPeer starts a session. lastError is why the previous one ended.
func (s *speaker) addPeer(ctx context.Context, c session, name, lastError string) error {
	s.mu.Lock()
	s.states[c.address] = &sessionState{since: time.Now(), lastError: lastError}
	s.mu.Unlock()
	if err := s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: c.peer(s.following[name])}); err != nil {
		return fmt.Errorf("add peer %s: %w", name, err)
	}
	s.configs[c.address] = c
	if c.password != "" {
		s.keyed[c.address] = true
	}
	return nil
}

// exchange returns the export rules for a peer as planned.
func (s *speaker) exchange(d plan.Speaker, p plan.Peer, addr netip.Addr) (exchange, error) {
	asn, own := p.ASN, p.LocalASN(d.ASN)
	var x exchange
	var err error
	switch p.DynamicASN {
	case config.DynamicInternal:
		asn = own
	case config.DynamicExternal:
		// GoBGP can only accept any AS: the peer stays silenced until its OPEN shows that it is external. It counts as external
		// after the session is lost: silenced, it would get an empty table at the start of the next one.
		s.mu.Lock()
		asn = s.lastASN[addr]
		s.mu.Unlock()
		x.Silent = asn == 0 || asn == own
		if asn == own {
			err = fmt.Errorf("peer %s is not external: its AS is %d, as ours", nameOf(p), asn)
		}
	}
	x.Export = export{Advertise: p.Advertise, Internal: asn == own, ASN: own, NextHop4: p.NextHop4, NextHop6: p.NextHop6}
	switch offered, established := s.offersExtended(addr); {
	case p.Interface != "":
		// If the interface has no address of a family, its link-local address is the next hop (RFC 8950). Whether the
		// peer accepts that for IPv4 is known only once the session is established: waiting for it would leave the
		// first table incomplete.
		x.Export.completeNextHops(linkLocal(p.Interface), offered || !established)
	case addr.Is6():
		// Many routers at numbered addresses do not offer it, unlike those of unnumbered links, and may end a session for
		// an IPv6 next hop of IPv4.
		x.Export.completeNextHops(p.NextHop6, offered)
	}
	return x, err
}

// completeNextHops sets missing next hops to our own IPv6 address, that for IPv4 only if extended next hops are possible.
func (e *export) completeNextHops(own netip.Addr, extended bool) {
	if !e.NextHop4.IsValid() && extended {
		e.NextHop4 = own
	}
	if !e.NextHop6.IsValid() {
		e.NextHop6 = own
	}
}

func (s *speaker) setPolicies(ctx context.Context, exchanges map[netip.Addr]exchange) error {
	if reflect.DeepEqual(s.exchanges, exchanges) {
		return nil
	}
	if err := s.server.SetPolicies(ctx, policies(exchanges)); err != nil {
		return fmt.Errorf("set BGP policies: %w", err)
	}
	s.exchanges = exchanges
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sends = make(map[netip.Addr]sends, len(exchanges))
	for addr, x := range exchanges {
		s.sends[addr] = x.sends()
	}
	return nil
}

// refresh applies changed policies to a running session. While announcements wait for other peers after a restart, nothing has been sent:
// what is sent then has the policies. Sent now, it would not be withdrawn before then, as GoBGP withdraws nothing meanwhile.
func (s *speaker) refresh(ctx context.Context, addr netip.Addr, before, after exchange) error {
	if reflect.DeepEqual(before, after) || s.waits(ctx, addr) {
		return nil
	}
	if err := s.server.ResetPeer(ctx, &api.ResetPeerRequest{
		Address: addr.String(), Soft: true, Direction: api.ResetPeerRequest_DIRECTION_OUT,
	}); err != nil {
		return fmt.Errorf("refresh peer %s: %w", addr, err)
	}
	return nil
}

// waits reports whether announcements to a peer wait for other peers after a restart (RFC 4724, 4.1).
func (s *speaker) waits(ctx context.Context, addr netip.Addr) (yes bool) {
	if err := s.server.ListPeer(ctx, &api.ListPeerRequest{Address: addr.String()}, func(p *api.Peer) {
		yes = yes || p.GetGracefulRestart().GetLocalRestarting()
	}); err != nil {
		s.log.Debug("cannot list BGP peers", "error", err)
	}
	return yes
}

// anyWaits reports whether announcements to any peer with a session wait for others. GoBGP counts the routes of each peer that it is asked
// about, so old sessions, whose announcements do not wait, are left out.
func (s *speaker) anyWaits(ctx context.Context) bool {
	var young []netip.Addr
	s.mu.Lock()
	for addr, st := range s.states {
		if st.state == bgp.BGP_FSM_ESTABLISHED && time.Since(st.since) < 2*restartDeferral {
			young = append(young, addr)
		}
	}
	s.mu.Unlock()
	return slices.ContainsFunc(young, func(addr netip.Addr) bool { return s.waits(ctx, addr) })
}

// endLimit limits how long removePeer waits until a session has ended.
const endLimit = time.Second

// removePeer ends a session and removes its peer from GoBGP.
func (s *speaker) removePeer(ctx context.Context, addr netip.Addr) error {
	s.end(ctx, addr)
	s.mu.Lock()
	delete(s.states, addr)
	s.mu.Unlock()
	if err := s.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: addr.String()}); err != nil {
		return fmt.Errorf("remove peer %s: %w", addr, err)
	}
	delete(s.configs, addr)
	return nil
}

// end ends an established session, and returns when the peer was sent the reason and the connection is closed. GoBGP does
// both some time after it has removed a peer. The interface may leave the VRF by then: the peer would miss the end, and
// keep our paths for the restart time.
func (s *speaker) end(ctx context.Context, addr netip.Addr) {
	s.mu.Lock()
	st := s.states[addr]
	if st == nil || st.state != bgp.BGP_FSM_ESTABLISHED {
		s.mu.Unlock()
		return
	}
	st.ended = make(chan struct{})
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	err := s.server.DisablePeer(ctx, &api.DisablePeerRequest{Address: addr.String()})
	if err == nil {
		select {
		case <-st.ended:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		s.log.Warn("the session is removed before it has ended: the peer may keep our paths for the restart time",
			"peer", addr, "error", err)
	}
}

func (s *speaker) setDesired(d plan.Speaker, peers map[netip.Addr]plan.Peer, faults map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed(func(o *outdated) { s.noteChanges(o, d, peers) })
	s.desired, s.peers, s.faults = d, peers, faults
	deleteOthers(s.states, peers)
	deleteOthers(s.lapses, peers)
	deleteOthers(s.lastASN, peers)
	deleteOthers(s.failed, peers)
}

// noteChanges adds the routes that may change with the desired speaker and its peers. The caller holds s.mu.
func (s *speaker) noteChanges(o *outdated, d plan.Speaker, peers map[netip.Addr]plan.Peer) {
	if s.rulesChange(d, peers) {
		o.addAll()
		return
	}
	for had, now := range s.desired.Announce.Changes(d.Announce) {
		if had == nil || now == nil {
			o.add(cmp.Or(now, had).Prefix)
		}
	}
	for had, now := range s.desired.Refuse.Changes(d.Refuse) {
		o.addInside(cmp.Or(now, had).Prefix)
	}
}

// rulesChange reports whether rules change that hold for all routes. The caller holds s.mu.
func (s *speaker) rulesChange(d plan.Speaker, peers map[netip.Addr]plan.Peer) bool {
	return s.desired.ASN != d.ASN || !reflect.DeepEqual(s.peers, peers) ||
		!slices.Equal(s.desired.Subnets, d.Subnets) || !slices.Equal(s.desired.Guarded, d.Guarded)
}

// deleteOthers deletes the entries of m that are no peer's.
func deleteOthers[V any](m map[netip.Addr]V, peers map[netip.Addr]plan.Peer) {
	maps.DeleteFunc(m, func(a netip.Addr, _ V) bool { _, ok := peers[a]; return !ok })
}

func interfaces(d plan.Speaker) []string {
	var names []string
	for _, p := range d.Peers {
		if p.Interface != "" {
			names = append(names, p.Interface)
		}
	}
	return names
}

// quieter passes GoBGP's log on with lower levels: errors as warnings, everything else as debug messages. GoBGP logs,
// for example, each connection attempt, and we log session changes from its events.
type quieter struct {
	slog.Handler
	ended *atomic.Bool // drop everything once this is set
}

func quieterLevel(l slog.Level) slog.Level {
	if l >= slog.LevelError {
		return slog.LevelWarn
	}
	return min(l, slog.LevelDebug)
}

// Enabled implements slog.Handler.
func (q quieter) Enabled(ctx context.Context, l slog.Level) bool {
	return !q.ended.Load() && q.Handler.Enabled(ctx, quieterLevel(l))
}

// Handle implements slog.Handler.
func (q quieter) Handle(ctx context.Context, r slog.Record) error {
	r.Level = quieterLevel(r.Level)
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (q quieter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quieter{q.Handler.WithAttrs(attrs), q.ended}
}

// WithGroup implements slog.Handler.
func (q quieter) WithGroup(name string) slog.Handler {
	return quieter{q.Handler.WithGroup(name), q.ended}
}
