package bgp

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// outdatedMost limits the prefixes that are noted individually; with more, all routes are outdated.
const outdatedMost = 1 << 18

// outdated is the set of learned routes that may have changed.
type outdated struct {
	all      bool
	prefixes map[netip.Prefix]struct{}
}

func (o *outdated) none() bool { return !o.all && len(o.prefixes) == 0 }

func (o *outdated) add(p netip.Prefix) {
	if o.all {
		return
	}
	if o.prefixes == nil {
		o.prefixes = map[netip.Prefix]struct{}{}
	}
	if o.prefixes[p] = struct{}{}; len(o.prefixes) > outdatedMost {
		o.addAll()
	}
}

// addInside adds the routes inside a range.
func (o *outdated) addInside(r netip.Prefix) {
	if r.IsSingleIP() {
		o.add(r)
	} else {
		o.addAll()
	}
}

func (o *outdated) addAll() { o.all, o.prefixes = true, nil }

// advertised lists the peers that announce a prefix, if it passes their import rules. There is one for each announced prefix.
// Its lists are sorted, and must not be modified.
type advertised struct {
	prefix  netip.Prefix
	by      []netip.Addr
	refused []refused // peers that announce it too, but from which it is not learned
}

// refused is the reason why a route that passes a peer's import rules is not learned from it.
type refused struct {
	peer netip.Addr
	why  flaw
}

// flaw is a defect of a route. One of its fields is set.
type flaw struct {
	offLink  netip.Addr   // its next hop is on no link of this node
	unagreed netip.Addr   // its next hop is of a family that was not negotiated
	inside   netip.Prefix // it lies in a subnet of this node
	around   netip.Addr   // it contains an address that this node must reach by another route
}

func (f flaw) String() string {
	switch {
	case f.offLink.IsValid():
		return fmt.Sprintf("its next hop %s is on no link of this node; the router should announce itself as next hop", f.offLink)
	case f.unagreed.IsValid():
		return fmt.Sprintf("it is an IPv4 route with next hop %s, but the router has not offered extended next hops (RFC 8950); "+
			"it should offer them, or announce an IPv4 next hop", f.unagreed)
	case f.inside.IsValid():
		return fmt.Sprintf("it lies in %s, a subnet of this node's links, whose addresses this node reaches directly", f.inside)
	default:
		return fmt.Sprintf("it contains %s, a node, a BGP peer or the API server; "+
			"list exactly this prefix in receive if it is wanted", f.around)
	}
}

// Compare orders by prefix.
func (t advertised) Compare(o advertised) int { return comparePrefixes(t.prefix, o.prefix) }

// Equal reports whether the same peers announce the same prefix.
func (t advertised) Equal(o advertised) bool {
	return t.prefix == o.prefix && slices.Equal(t.by, o.by) && slices.Equal(t.refused, o.refused)
}

// rules decide which of the peers' routes are learned. They are never modified.
type rules struct {
	peers    map[netip.Addr]*learnedFrom
	announce sorted.List[plan.Announcement]
	refuse   sorted.List[plan.Prefix]
	near     neighbourhood
}

// learnedFrom is a peer with the parts of its session that rules depend on.
type learnedFrom struct {
	plan.Peer
	over     bool // it exceeded its limit
	extended bool // it offered IPv6 next hops for IPv4
}

// learned holds the learned routes as of the last call of learnedRoutes.
type learned struct {
	routes     sorted.List[plan.Route]
	advertised sorted.List[advertised]
	counts     map[netip.Addr]count // of the prefixes in advertised, by peer
}

// count is how many of a peer's prefixes pass its import rules.
type count struct {
	passed  int
	refused int          // in addition: not learned
	example netip.Prefix // one of the refused prefixes
	why     flaw         // why the example is refused
}

// fault describes why routes of a peer are not learned; empty: all are.
func (c count) fault() string {
	if c.refused == 0 {
		return ""
	}
	return fmt.Sprintf("routes are not learned, for example %s: %s", c.example, c.why)
}

// reader chooses among the routes that peers announce. It must not be used concurrently.
type reader struct {
	rib     *rib
	refusal refusal
	refused sorted.List[plan.Prefix] // the ranges of refusal
	hops    shared[plan.NextHop]
	by      shared[netip.Addr]
	flawed  shared[refused]
	paths   []candidate // reused between calls, like the next two
	tellers []netip.Addr
	useless []refused
}

// changed records that routes may have changed. It calls the hint only once until they are read. The caller holds s.mu.
func (s *speaker) changed(note func(*outdated)) {
	idle := s.outdated.none()
	note(&s.outdated)
	if idle && !s.outdated.none() {
		s.hint.Routes()
	}
}

// pathsChanged records the paths that a peer sent, and those removed with its session. GoBGP calls it.
func (s *speaker) pathsChanged(paths []*apiutil.Path, _ time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uncounted = true
	var last announced
	s.changed(func(o *outdated) {
		for _, p := range paths {
			if n, ok := p.Nlri.(*bgp.IPAddrPrefix); ok {
				s.pathChanged(p, n.Prefix, &last)
				o.add(n.Prefix)
			}
		}
	})
}

// announced is a path, and what is kept of it. The paths of one UPDATE have the same attributes, which are read once.
type announced struct {
	*apiutil.Path
	candidate candidate
}

// like reports whether the next path differs from a only in its prefix.
func (a *announced) like(next *apiutil.Path) bool {
	return a.Path != nil && a.PeerAddress == next.PeerAddress && a.Family == next.Family && slices.Equal(a.Attrs, next.Attrs)
}

// pathChanged records a path to a prefix. last is the path before. The caller holds s.mu.
func (s *speaker) pathChanged(p *apiutil.Path, prefix netip.Prefix, last *announced) {
	if p.Withdrawal {
		s.rib.remove(p.PeerAddress, prefix)
		return
	}
	st := s.states[p.PeerAddress]
	if st == nil {
		return // a late event of a session that was removed
	}
	if !last.like(p) {
		peer := s.peers[p.PeerAddress]
		*last = announced{p, newCandidate(p, peer.LocalASN(s.desired.ASN))}
	}
	s.noteRoute(p.PeerAddress, st, &last.candidate)
	s.rib.set(p.PeerAddress, prefix, last.candidate)
}

// tableTold handles a peer's End-of-RIB: routes of the family that the peer had before it restarted and did not announce again
// are gone (RFC 4724, 4.2). No event reports that. GoBGP calls it.
func (s *speaker) tableTold(eor *apiutil.Path, _ time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rib.drop(eor.PeerAddress, func(e entry) bool { return e.kept && e.family == eor.Family }) {
		s.changed((*outdated).addAll)
	}
}

// learnedRoutes returns the routes to install. It looks only at the outdated ones.
func (s *speaker) learnedRoutes() sorted.List[plan.Route] {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outdated.none() {
		return s.learned.routes
	}
	o, now := s.outdated, s.learned
	s.outdated = outdated{} // later changes belong to the next call
	r := s.rules()
	s.mu.Unlock()
	next := s.reader.read(r, o, now)
	s.mu.Lock()
	s.noteRefused(s.learned.counts, next.counts)
	s.learned = next
	return next.routes
}

// noteRefused requests Apply when a peer begins or ceases to send routes that are not learned from it, and logs that
// once per session. The caller holds s.mu.
func (s *speaker) noteRefused(before, now map[netip.Addr]count) {
	for addr, st := range s.states {
		is := now[addr].refused > 0
		if is == (before[addr].refused > 0) {
			continue
		}
		s.hint.Apply()
		if is && !st.refusedLogged {
			st.refusedLogged = true
			s.log.Warn("not all routes of a BGP peer are learned", "peer", nameOf(s.peers[addr]), "reason", now[addr].fault())
		}
	}
}

// rules returns the current rules. The caller holds s.mu.
func (s *speaker) rules() rules {
	r := rules{
		peers:    map[netip.Addr]*learnedFrom{},
		announce: s.desired.Announce, refuse: s.desired.Refuse, near: neighbourhood{s.desired.Subnets, s.desired.Guarded},
	}
	for addr, p := range s.peers {
		from := &learnedFrom{Peer: p}
		if st := s.states[addr]; st != nil {
			from.over, from.extended = st.overLimit, st.extended
		}
		r.peers[addr] = from
	}
	return r
}

// read chooses the outdated routes.
func (r *reader) read(ru rules, o outdated, now learned) learned {
	r.refusal.change(r.refused, ru.refuse)
	r.refused = ru.refuse
	if !o.all {
		prefixes := slices.SortedFunc(maps.Keys(o.prefixes), comparePrefixes)
		routes, news := r.look(ru, prefixes)
		return now.with(routes, missing(now.routes, routes, prefixes, routeTo), news, missing(now.advertised, news, prefixes, newsOf))
	}
	routes, news := r.look(ru, r.rib.prefixes())
	changed, noRoutes := difference(now.routes, routes)
	fresh, noNews := difference(now.advertised, news)
	return now.with(changed, noRoutes, fresh, noNews)
}

// look returns the routes to some prefixes, and the peers that announce these. All is sorted.
func (r *reader) look(ru rules, prefixes []netip.Prefix) (routes []plan.Route, news []advertised) {
	routes, news = make([]plan.Route, 0, len(prefixes)), make([]advertised, 0, len(prefixes))
	for _, p := range prefixes {
		hops, t := r.choose(&ru, p)
		if len(hops) > 0 {
			routes = append(routes, plan.Route{Dst: p, NextHops: hops})
		}
		if len(t.by)+len(t.refused) > 0 {
			news = append(news, t)
		}
	}
	return routes, news
}

func routeTo(p netip.Prefix) plan.Route { return plan.Route{Dst: p} }
func newsOf(p netip.Prefix) advertised  { return advertised{prefix: p} }

// missing returns the elements of had for those of the prefixes for which now has none. of returns an element with the key of a
// prefix. All is sorted.
func missing[T sorted.Item[T]](had sorted.List[T], now []T, prefixes []netip.Prefix, of func(netip.Prefix) T) (gone []T) {
	for _, p := range prefixes {
		if like := of(p); len(now) > 0 && now[0].Compare(like) == 0 {
			now = now[1:]
		} else if item, ok := had.Get(like); ok {
			gone = append(gone, item)
		}
	}
	return gone
}

// difference returns the elements to set in a list, and those to remove, so that it equals wanted, which is sorted.
func difference[T sorted.Item[T]](list sorted.List[T], wanted []T) (set, gone []T) {
	for had, has := range list.Changes(sorted.Of(wanted...)) {
		if has == nil {
			gone = append(gone, *had)
		} else {
			set = append(set, *has)
		}
	}
	return set, gone
}

// with returns l after a change. It does not modify l.
func (l learned) with(routes, noRoutes []plan.Route, news, noNews []advertised) learned {
	next := learned{routes: l.routes.With(routes, noRoutes), advertised: l.advertised.With(news, noNews), counts: l.counts}
	changed := false
	for had, has := range l.advertised.Changes(next.advertised) {
		if !changed {
			next.counts, changed = make(map[netip.Addr]count, len(l.counts)+1), true
			maps.Copy(next.counts, l.counts)
		}
		next.count(had, -1)
		next.count(has, 1)
	}
	if changed {
		next.completeCounts()
	}
	return next
}

// count adds n to the counts of the peers that announce a prefix.
func (l learned) count(t *advertised, n int) {
	if t == nil {
		return
	}
	for _, addr := range t.by {
		c := l.counts[addr]
		c.passed += n
		l.counts[addr] = c
	}
	for _, o := range t.refused {
		l.counts[o.peer] = l.counts[o.peer].addRefused(n, t.prefix, o.why)
	}
}

// addRefused returns c with n more refused prefixes, of which prefix is one.
func (c count) addRefused(n int, prefix netip.Prefix, why flaw) count {
	c.refused += n
	switch {
	case n > 0 && !c.example.IsValid():
		c.example, c.why = prefix, why
	case n < 0 && c.example == prefix:
		c.example, c.why = netip.Prefix{}, flaw{}
	}
	return c
}

// completeCounts removes the counts of peers that announce nothing, and finds missing examples.
func (l learned) completeCounts() {
	for addr, c := range l.counts {
		switch {
		case c == (count{}):
			delete(l.counts, addr)
		case c.refused > 0 && !c.example.IsValid():
			l.counts[addr] = l.exampleOf(addr, c)
		}
	}
}

// exampleOf returns c with another example of a peer's refused prefixes.
func (l learned) exampleOf(peer netip.Addr, c count) count {
	for t := range l.advertised.All() {
		for _, o := range t.refused {
			if o.peer == peer {
				c.example, c.why = t.prefix, o.why
				return c
			}
		}
	}
	return c
}

// never reports whether a prefix is not learned from any peer.
func (r *reader) never(ru *rules, p netip.Prefix) bool {
	_, own := ru.announce.Get(plan.Announcement{Prefix: p})
	return own || r.refusal.covers(p) || slices.Contains(ru.near.subnets, p)
}

// choose returns the next hops of a prefix, and the peers that announce it.
func (r *reader) choose(ru *rules, p netip.Prefix) ([]plan.NextHop, advertised) {
	r.paths, r.tellers, r.useless = r.paths[:0], r.tellers[:0], r.useless[:0]
	for addr, e := range r.rib.of(p) {
		peer := ru.peers[addr]
		if peer == nil || peer.over || !matches(peer.Receive, p) {
			continue
		}
		c := *e.candidate
		c.stale = e.kept
		if !c.resolve(addr, &peer.Peer) {
			continue
		}
		if why := ru.flaw(p, &c, peer); why != (flaw{}) {
			r.useless = append(r.useless, refused{addr, why})
		} else {
			r.paths, r.tellers = append(r.paths, c), append(r.tellers, addr)
		}
	}
	if len(r.paths)+len(r.useless) == 0 || r.never(ru, p) {
		return nil, advertised{}
	}
	slices.SortFunc(r.tellers, netip.Addr.Compare)
	slices.SortFunc(r.useless, func(a, b refused) int { return a.peer.Compare(b.peer) })
	return r.hops.one(bestNextHops(r.paths)), advertised{p, r.by.one(r.tellers), r.flawed.one(r.useless)}
}

// flaw returns why a route that passes the import rules of a peer is not learned; zero: it is.
func (ru *rules) flaw(p netip.Prefix, c *candidate, peer *learnedFrom) flaw {
	why := ru.near.flaw(p, peer.Receive)
	switch {
	case why != flaw{}:
	case c.extended && !peer.extended:
		why.unagreed = c.nextHop.Gateway
	case !onLink(&peer.Peer, c.nextHop.Gateway):
		why.offLink = c.nextHop.Gateway
	}
	return why
}

// sharedMost limits the number of lists that are remembered for sharing.
const sharedMost = 4096

// shared makes equal lists share memory: nearly all routes of a peer have the same next hops. Lists are found by their
// first elements, and then compared.
type shared[T comparable] struct {
	known map[T][][]T
	size  int
}

// one returns a list that equals l. The caller may modify l afterwards.
func (s *shared[T]) one(l []T) []T {
	if len(l) == 0 {
		return nil
	}
	if known := s.find(l); known != nil {
		return known
	}
	if s.known == nil || s.size >= sharedMost {
		s.known, s.size = map[T][][]T{}, 0
	}
	l = slices.Clone(l)
	s.known[l[0]], s.size = append(s.known[l[0]], l), s.size+1
	return l
}

func (s *shared[T]) find(l []T) []T {
	for _, known := range s.known[l[0]] {
		if slices.Equal(known, l) {
			return known
		}
	}
	return nil
}
