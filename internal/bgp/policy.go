package bgp

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"

	"github.com/osrg/gobgp/v4/api"

	"github.com/egressway/egressway/internal/config"
)

// exchange holds the parameters of a session that can change without resetting it: which routes are announced, and how.
type exchange struct {
	Export export
	Silent bool // announce nothing
}

// export holds the attributes of announcements to one peer.
type export struct {
	config.Advertise
	Internal bool // an internal peer: LOCAL_PREF is sent
	ASN      uint32
	NextHop4 netip.Addr
	NextHop6 netip.Addr
}

const defaultLocalPref = 100

// Supported address families.
var (
	ipv4Unicast = &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	ipv6Unicast = &api.Family{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}
)

const (
	importPolicy = "import"
	exportPolicy = "export"
)

// policies returns GoBGP's policies for one speaker. They accept our own announcements, and export them by some statements per
// peer and family. The default action rejects everything else: no peer's route enters GoBGP's table, which only we would
// read, see rib.
func policies(peers map[netip.Addr]exchange) *api.SetPoliciesRequest {
	var sets []*api.DefinedSet
	in := &api.Policy{Name: importPolicy, Statements: []*api.Statement{{
		// Import policies see our own announcements too.
		Name:       "in-own",
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
	}}}
	out := &api.Policy{Name: exportPolicy}
	for _, addr := range sortedAddrs(peers) {
		x := peers[addr]
		if x.Silent {
			continue
		}
		peer := &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: "peer-" + addr.String()}
		sets = append(sets, &api.DefinedSet{
			DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR,
			Name:        peer.Name,
			List:        []string{addr.WithZone("").String()},
		})
		for _, family := range []*api.Family{ipv4Unicast, ipv6Unicast} {
			key := fmt.Sprintf("%s-%s", family.Afi, addr)
			nextHop := x.Export.NextHop4
			if family == ipv6Unicast {
				nextHop = x.Export.NextHop6
			}
			if !nextHop.IsValid() {
				continue // nothing can be announced to the peer in this family
			}
			ours := func(name string, kind pathKind) *api.Statement {
				return &api.Statement{
					Name: name + key,
					Conditions: &api.Conditions{
						NeighborSet: peer,
						AfiSafiIn:   []*api.Family{family},
						RouteType:   api.Conditions_ROUTE_TYPE_LOCAL,
						LocalPrefEq: &api.LocalPrefEq{Value: uint32(kind)},
					},
					Actions: x.Export.actions(nextHop, kind),
				}
			}
			out.Statements = append(out.Statements,
				ours("out-", hostPath), ours("out-standby-", standbyPath), ours("out-shutdown-", shutdownPath))
		}
	}
	return &api.SetPoliciesRequest{DefinedSets: sets, Policies: []*api.Policy{in, out}}
}

// gracefulShutdown is the well-known community of RFC 8326.
const gracefulShutdown = "65535:0"

// standbyPrepend is by how many ASes a standby's AS path is longer. Routers prefer the host's path even if it passes up
// to four ASes more, as from one leaf of a fabric with super-spines to another: spine, super-spine, spine and leaf.
const standbyPrepend = 5

// actions returns the attributes of an announcement to the peer. No router prefers a standby's path to the host's:
// external peers get a longer AS path; internal ones, which would refuse an AS path that contains their own AS, get
// half the LOCAL_PREF. In addition, all of a standby's paths have the worst ORIGIN. A path that is about to be
// withdrawn carries the community GRACEFUL_SHUTDOWN, and the lowest LOCAL_PREF (RFC 8326).
func (e export) actions(nextHop netip.Addr, kind pathKind) *api.Actions {
	a := &api.Actions{
		RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT,
		Nexthop:     &api.NexthopAction{Address: nextHop.WithZone("").String()},
	}
	var prepend uint32
	switch {
	case e.Internal:
		a.LocalPref = &api.LocalPrefAction{Value: e.preference(kind)}
	case kind == hostPath:
		prepend = uint32(e.ASPathPrepend)
	default:
		prepend = uint32(e.ASPathPrepend) + standbyPrepend
	}
	if prepend != 0 {
		a.AsPrepend = &api.AsPrependAction{Asn: e.ASN, Repeat: prepend}
	}
	if e.MED != 0 { // in addition to the announcement's own
		a.Med = &api.MedAction{Type: api.MedAction_TYPE_MOD, Value: min(int64(e.MED), math.MaxUint32-medTerms+1)}
	}
	communities := e.Communities
	if kind == shutdownPath {
		communities = append(slices.Clone(communities), gracefulShutdown)
	}
	if len(communities) > 0 {
		a.Community = &api.CommunityAction{Type: api.CommunityAction_TYPE_REPLACE, Communities: decimals(communities)}
	}
	if len(e.LargeCommunities) > 0 {
		a.LargeCommunity = &api.CommunityAction{Type: api.CommunityAction_TYPE_REPLACE, Communities: e.LargeCommunities}
	}
	return a
}

// decimals returns communities as decimal numbers of 32 bits. GoBGP reads these, but has other names for well-known communities:
// 65535:0 is planned-shut.
func decimals(communities []string) []string {
	texts := slices.Clone(communities)
	for i, text := range communities {
		if c, err := config.ParseCommunity(text); err == nil { // GoBGP refuses the others, which no valid configuration has
			texts[i] = strconv.FormatUint(uint64(c), 10)
		}
	}
	return texts
}

// preference returns the LOCAL_PREF of a path. To GoBGP, 0 means unset.
func (e export) preference(kind pathKind) uint32 {
	preference := cmp.Or(e.LocalPref, defaultLocalPref)
	switch kind {
	case standbyPath:
		return max(preference/2, 1)
	case shutdownPath:
		return 1
	}
	return preference
}

// lengths returns the shortest and the longest prefix length that a pattern matches. GE alone matches up to host
// routes, LE alone down to the prefix itself.
func lengths(p config.PrefixPattern) (least, most int) {
	least, most = p.Prefix.Bits(), p.Prefix.Bits()
	if p.GE != 0 {
		least, most = max(least, int(p.GE)), p.Prefix.Addr().BitLen()
	}
	if p.LE != 0 {
		most = int(p.LE)
	}
	return least, most
}

// matches reports whether any pattern matches prefix.
func matches(patterns []config.PrefixPattern, prefix netip.Prefix) bool {
	return slices.ContainsFunc(patterns, func(p config.PrefixPattern) bool {
		least, most := lengths(p)
		return prefix.Bits() >= least && prefix.Bits() <= most &&
			p.Prefix.Addr().BitLen() == prefix.Addr().BitLen() && p.Prefix.Contains(prefix.Addr())
	})
}

func sortedAddrs[V any](m map[netip.Addr]V) []netip.Addr {
	addrs := make([]netip.Addr, 0, len(m))
	for a := range m {
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}
