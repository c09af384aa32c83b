package bgp

import (
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

// Inside GoBGP, our own paths have these LOCAL_PREFs: no peer's path to the same prefix may win over one of them, or the
// announcement would be taken back. The export policy tells the kinds of paths apart by them; peers never see them.
const (
	hostPath     pathKind = math.MaxUint32
	standbyPath  pathKind = math.MaxUint32 - 1
	shutdownPath pathKind = math.MaxUint32 - 2 // a standby's that is about to go
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

// medTerms is how many terms a MED tells apart.
const medTerms = 1 << 16

// med is what an announcement adds to the MED of a peer: the later the term, the less. Routers prefer the least among the
// paths by one AS, and so the later one of two hosts while the former does not know of it. Of two standbys, they prefer the
// one that has just been the host, until the next host is one.
func med(a plan.Announcement) uint32 {
	if a.Term <= 0 {
		return 0
	}
	return uint32(medTerms - 1 - a.Term%medTerms)
}

// retract takes back what desired does not hold. A host's path that becomes a standby's waits for announce: a standby is
// programmed like the host, and until routers know the next host's, there is no better path.
func (s *speaker) retract(desired sorted.List[plan.Announcement]) error {
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
	if err := s.server.DeletePath(apiutil.DeletePathRequest{Paths: paths(gone)}); err != nil {
		return fmt.Errorf("withdraw %d prefixes: %w", len(gone), err)
	}
	if s.announced = s.announced.With(nil, gone); !rest {
		s.announced = desired // it holds the same, and shares more with what comes next
	}
	s.noteTold(gone, -1)
	return nil
}

// announce tells peers what they have not been told yet. A path takes the place of the one before to the same prefix:
// peers get one UPDATE and no withdrawal.
func (s *speaker) announce(desired sorted.List[plan.Announcement]) error {
	var differ, changed, added []plan.Announcement
	rest := false
	for had, now := range s.announced.Changes(desired) {
		if now == nil { // it could not be taken back
			rest = true
			continue
		}
		differ = append(differ, *now)
		if had == nil {
			added = append(added, *now)
		}
		if had == nil || kindOf(*had) != kindOf(*now) || med(*had) != med(*now) {
			changed = append(changed, *now)
		}
	}
	if len(changed) > 0 {
		if _, err := s.server.AddPath(apiutil.AddPathRequest{Paths: paths(changed)}); err != nil {
			return fmt.Errorf("announce %d prefixes: %w", len(changed), err)
		}
	}
	if s.announced = s.announced.With(differ, nil); !rest {
		s.announced = desired
	}
	s.noteTold(added, 1)
	return nil
}

// perFamily is how many announcements there are of IPv4 and of IPv6.
type perFamily [2]int

func (s *speaker) noteTold(announcements []plan.Announcement, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range announcements {
		s.tells[familyIndex(a.Prefix)] += n
	}
}

// sends says of which families a peer gets announcements when its session has them: those in which it gets a next hop.
type sends [2]bool

func (x exchange) sends() sends {
	return sends{!x.Silent && x.Export.NextHop4.IsValid(), !x.Silent && x.Export.NextHop6.IsValid()}
}

// announced is how many announcements a peer gets: the export policy lets all of a family pass, or none.
func (s sends) announced(families []config.Family, tells perFamily) (n int) {
	for i, family := range []config.Family{config.IPv4Unicast, config.IPv6Unicast} {
		if s[i] && slices.Contains(families, family) {
			n += tells[i]
		}
	}
	return n
}

// prependRoom is what an AS_PATH may grow by on the way to a peer: 255 autonomous systems, and the segment's head.
const prependRoom = 2 + 4*255

// roomy makes an attribute seem longer than it is. GoBGP 4.8.0 fills a message up by the lengths of its attributes, and does not count what
// AS_PATH has grown by, our own AS and those prepended: a message of more than 4096 bytes cannot be sent, and it drops all
// its prefixes without an error.
func roomy(o *bgp.PathAttributeOrigin) *bgp.PathAttributeOrigin {
	o.Length += prependRoom
	return o
}

// paths makes the paths of our own announcements. What peers get to see of them is the export policy's.
func paths(announcements []plan.Announcement) []*apiutil.Path {
	out := make([]*apiutil.Path, 0, len(announcements))
	for _, a := range announcements {
		family, unspecified := bgp.RF_IPv4_UC, netip.IPv4Unspecified()
		if a.Prefix.Addr().Is6() {
			family, unspecified = bgp.RF_IPv6_UC, netip.IPv6Unspecified()
		}
		nlri, err := bgp.NewIPAddrPrefix(a.Prefix)
		if err != nil {
			continue // not a prefix at all
		}
		nextHop, err := bgp.NewPathAttributeNextHop(unspecified)
		if err != nil {
			continue
		}
		kind, origin := kindOf(a), bgp.BGP_ORIGIN_ATTR_TYPE_IGP
		if kind != hostPath {
			origin = bgp.BGP_ORIGIN_ATTR_TYPE_INCOMPLETE
		}
		attrs := []bgp.PathAttributeInterface{roomy(bgp.NewPathAttributeOrigin(origin)), nextHop, bgp.NewPathAttributeLocalPref(uint32(kind))}
		if m := med(a); m != 0 {
			attrs = append(attrs, bgp.NewPathAttributeMultiExitDisc(m))
		}
		out = append(out, &apiutil.Path{Family: family, Nlri: nlri, Age: time.Now().Unix(), Attrs: attrs})
	}
	return out
}
