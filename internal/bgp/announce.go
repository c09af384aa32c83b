package bgp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// Inside GoBGP, our own paths have these LOCAL_PREFs, so that no peer's path to the same prefix wins over them: GoBGP
// would withdraw the announcement then. The export policy distinguishes the kinds of paths by them; peers never see
// them.
const (
	hostPath     pathKind = math.MaxUint32
	standbyPath  pathKind = math.MaxUint32 - 1
	shutdownPath pathKind = math.MaxUint32 - 2 // a standby's path that is about to be withdrawn
	hiddenPath   pathKind = math.MaxUint32 - 3 // announced to no peer
)

type pathKind uint32

func kindOf(a plan.Announcement) pathKind {
	switch {
	case !a.Standby:
		return hostPath
	case a.Shutdown:
		return shutdownPath
	}
	return standbyPath
}

// medTerms is the number of terms that a MED can distinguish.
const medTerms = 1 << 16

// med returns the announcement's share of the MED: the later the term, the lower. Of paths from one AS, routers prefer
// the lowest MED: of two hosts they prefer the later one, while the former has not heard of it yet. Of two standbys
// they prefer the former host, until the next host announces itself as one.
func med(a plan.Announcement) uint32 {
	if a.Term <= 0 {
		return 0
	}
	return uint32(medTerms - 1 - a.Term%medTerms)
}

// retract withdraws the prefixes that desired does not contain. It leaves a host's path that becomes a standby's to
// announce: a standby is programmed like the host, and until routers have the next host's path there is no better one.
func (s *speaker) retract(ctx context.Context, desired sorted.List[plan.Announcement]) error {
	var gone []plan.Announcement
	rest := false
	for had, now := range s.announced.Changes(desired) {
		if now == nil {
			gone = append(gone, *had)
		} else {
			rest = true
		}
	}
	if len(gone) == 0 {
		return nil
	}
	if s.anyWaits(ctx) {
		s.untold = append(s.untold, gone...)
		time.AfterFunc(restartDeferral, s.hint.Apply)
	}
	if err := s.server.DeletePath(apiutil.DeletePathRequest{Paths: paths(gone, kindOf)}); err != nil {
		return fmt.Errorf("withdraw %d prefixes: %w", len(gone), err)
	}
	if s.announced = s.announced.With(nil, gone); !rest {
		s.announced = desired // equal, but it shares more memory with the lists that come next
	}
	s.noteTold(gone, -1)
	return nil
}

// retractAgain withdraws the prefixes again that retract withdrew while announcements to a peer waited, once none wait. GoBGP 4.8.0
// sends such a peer no withdrawals, but sends it all announcements if it asks for them by a ROUTE-REFRESH. GoBGP withdraws only a
// path that it has: it gets one that the export policy rejects.
func (s *speaker) retractAgain(ctx context.Context) error {
	if len(s.untold) == 0 || s.anyWaits(ctx) {
		return nil
	}
	s.untold = slices.DeleteFunc(s.untold, func(a plan.Announcement) bool { _, again := s.announced.Get(a); return again })
	if len(s.untold) == 0 {
		return nil
	}
	hidden := paths(s.untold, func(plan.Announcement) pathKind { return hiddenPath })
	_, err := s.server.AddPath(apiutil.AddPathRequest{Paths: hidden})
	if err = errors.Join(err, s.server.DeletePath(apiutil.DeletePathRequest{Paths: hidden})); err != nil {
		return fmt.Errorf("withdraw %d prefixes again: %w", len(s.untold), err)
	}
	s.untold = nil
	return nil
}

// announce sends peers new and changed announcements. A path replaces the previous one to the same prefix: peers get
// one UPDATE and no withdrawal.
func (s *speaker) announce(desired sorted.List[plan.Announcement]) error {
	var differ, changed, added []plan.Announcement
	rest := false
	for had, now := range s.announced.Changes(desired) {
		if now == nil { // retract failed for it
			rest = true
			continue
		}
		differ = append(differ, *now)
		if had == nil {
			added = append(added, *now)
		}
		if had == nil || differs(*had, *now) {
			changed = append(changed, *now)
		}
	}
	if len(changed) > 0 {
		if _, err := s.server.AddPath(apiutil.AddPathRequest{Paths: paths(changed, kindOf)}); err != nil {
			return fmt.Errorf("announce %d prefixes: %w", len(changed), err)
		}
	}
	if s.announced = s.announced.With(differ, nil); !rest {
		s.announced = desired
	}
	s.noteTold(added, 1)
	return nil
}

// differs reports whether peers get another path for the prefix of a than for that of b.
func differs(a, b plan.Announcement) bool { return kindOf(a) != kindOf(b) || med(a) != med(b) }

// perFamily holds a number for IPv4 and one for IPv6.
type perFamily [2]int

// eachFamily holds the families by the index of perFamily.
var eachFamily = [2]config.Family{config.IPv4Unicast, config.IPv6Unicast}

// in returns the sum of the numbers for some families.
func (n perFamily) in(families []config.Family) (sum int) {
	for i, family := range eachFamily {
		if slices.Contains(families, family) {
			sum += n[i]
		}
	}
	return sum
}

func (s *speaker) noteTold(announcements []plan.Announcement, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range announcements {
		s.announcements[familyIndex(a.Prefix)] += n
	}
}

// sends holds for each family whether a peer gets announcements once its session has the family: it needs a next hop.
type sends [2]bool

func (x exchange) sends() sends {
	return sends{!x.Silent && x.Export.NextHop4.IsValid(), !x.Silent && x.Export.NextHop6.IsValid()}
}

// among returns those of a session's families in which the peer gets announcements: the export policy accepts all of a family, or none.
func (s sends) among(families []config.Family) (sent []config.Family) {
	for i, family := range eachFamily {
		if s[i] && slices.Contains(families, family) {
			sent = append(sent, family)
		}
	}
	return sent
}

// prependRoom is the most by which an AS_PATH may grow on the way to a peer: 255 autonomous systems, and the segment's
// header.
const prependRoom = 2 + 4*255

// roomy makes an attribute claim a greater length than it has. GoBGP 4.8.0 fills messages according to the lengths of
// attributes, but does not count the growth of AS_PATH by our own AS and by prepended ones. It cannot send a message of
// more than 4096 bytes, and drops all prefixes in it without an error.
func roomy(o *bgp.PathAttributeOrigin) *bgp.PathAttributeOrigin {
	o.Length += prependRoom
	return o
}

// paths returns the paths of our own announcements. The export policy sets the attributes that peers see.
func paths(announcements []plan.Announcement, kindOf func(plan.Announcement) pathKind) []*apiutil.Path {
	out := make([]*apiutil.Path, 0, len(announcements))
	for _, a := range announcements {
		family, unspecified := bgp.RF_IPv4_UC, netip.IPv4Unspecified()
		if a.Prefix.Addr().Is6() {
			family, unspecified = bgp.RF_IPv6_UC, netip.IPv6Unspecified()
		}
		nlri, err := bgp.NewIPAddrPrefix(a.Prefix)
		if err != nil {
			continue // not a prefix
		}
		nextHop, err := bgp.NewPathAttributeNextHop(unspecified)
		if err != nil {
			continue
		}
		kind, origin := kindOf(a), bgp.BGP_ORIGIN_ATTR_TYPE_IGP
		if kind != hostPath {
			origin = bgp.BGP_ORIGIN_ATTR_TYPE_INCOMPLETE
		}
		attrs := []bgp.PathAttributeInterface{
			roomy(bgp.NewPathAttributeOrigin(origin)), nextHop, bgp.NewPathAttributeLocalPref(uint32(kind)),
		}
		if m := med(a); m != 0 {
			attrs = append(attrs, bgp.NewPathAttributeMultiExitDisc(m))
		}
		out = append(out, &apiutil.Path{Family: family, Nlri: nlri, Age: time.Now().Unix(), Attrs: attrs})
	}
	return out
}
