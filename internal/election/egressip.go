package election

import (
	"iter"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
)

// EgressIPSeat returns the seat of an address of an EgressIP.
func EgressIPSeat(name string, a netip.Addr) Seat {
	return Seat{cluster.ID{Kind: cluster.KindEgressIP, Key: cluster.Key{Name: name}, Slot: a}}
}

// egressIPs makes contenders of EgressIPs: one for each address. Those of one EgressIP prefer different nodes.
type egressIPs struct{}

func (k egressIPs) seats(o *cluster.Objects) iter.Seq[Seat] {
	return func(yield func(Seat) bool) {
		for key := range o.EgressIPs.Keys() {
			for _, s := range k.seatsOf(o, key) {
				if !yield(s) {
					return
				}
			}
		}
	}
}

func (egressIPs) seatsOf(o *cluster.Objects, key cluster.Key) (all []Seat) {
	for _, a := range o.EgressIPs.At(key).Addresses {
		all = append(all, EgressIPSeat(key.Name, a))
	}
	return all
}

func (egressIPs) tenure(o *cluster.Objects, s Seat) (t tenure, exists bool) {
	spec := o.EgressIPs.At(s.Key)
	had := spec.Holder(s.Slot)
	return tenure{had.Host, had.Standby, had.Term, spec.Created}, slices.Contains(spec.Addresses, s.Slot)
}

// awaited returns nothing: a folder of manifests has no reports.
func (egressIPs) awaited(*cluster.Objects, map[string]cluster.Report) iter.Seq[awaited] {
	return func(func(awaited) bool) {}
}

func (egressIPs) addresses(_ *cluster.Objects, s Seat) []netip.Addr { return []netip.Addr{s.Slot} }

// assignable selects the nodes that may be the host of an EgressIP's address.
var assignable = mustSelect(cluster.Assignable())

// mustSelect parses a selector that is a part of this program.
func mustSelect(s *metav1.LabelSelector) labels.Selector {
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		panic(err)
	}
	return parsed
}

// contender checks one address of an EgressIP on its own. The pods that it selects do not matter: with them, each change of a
// pod would be a reason for another election.
func (k egressIPs) contender(e *elector, s Seat) (c *contender, all bool, problem *cluster.Problem) {
	had, _ := k.tenure(&e.objects, s)
	if e.nodeAddrs[s.Slot] {
		return nil, false, noAddress(s, cluster.ReasonEgressIPConflict, "is an address of a node: choose one that no node has")
	}
	c = &contender{
		seat: s, since: had.created, addresses: []netip.Addr{s.Slot}, need: families{s.Slot.Is4(), s.Slot.Is6()},
		had: had, selector: assignable,
	}
	matching := e.selected(assignable)
	if c.candidates = e.fit(assignable, matching, c.network); len(c.candidates) > 0 {
		return c, false, nil
	}
	switch {
	case len(matching) > 0:
		return nil, false, noAddress(s, cluster.ReasonNoEligibleNode, "has no host: %s", e.lacking(matching, c.network))
	case len(e.nodes) > 0:
		return nil, false, noAddress(s, cluster.ReasonNoEligibleNode,
			"has no host: no Ready node has the label %s; add it, with any value, to those that may be", cluster.LabelAssignable)
	}
	return nil, false, noAddress(s, cluster.ReasonNoEligibleNode, "has no host: no node is Ready")
}

// noAddress describes why one address of an object has no host.
func noAddress(s Seat, reason cluster.Reason, format string, args ...any) *cluster.Problem {
	return noHost(s.ID, "spec.egressIPs", s.Slot.String(), reason, format, args...)
}

// seatApart gives the seats with an address of their own, in order of precedence, to nodes. held holds the owners of addresses
// that have one already. An address that has an owner is refused, like an ingress IP that the plan refuses: as its
// host would not announce it, its pods have to leave with another one.
func (s *sharing) seatApart(contenders []*contender, held map[netip.Addr]cluster.ID) {
	first := len(s.units)
	for _, c := range contenders {
		if owner, taken := held[c.seat.Slot]; taken {
			s.refuse(c, noAddress(c.seat, cluster.ReasonAddressConflict, "belongs to %s, which keeps it: choose another address", owner))
			continue
		}
		held[c.seat.Slot] = c.seat.ID
		s.join(c, nil, c.candidates)
	}
	s.elector.assignAll(s.units[first:])
}

// whole returns the identity of the seat's object.
func (s Seat) whole() cluster.ID { return s.Kind.ID(s.Key) }

// sit records the host of a unit.
func (e *elector) sit(u *unit) {
	e.assign(u.host, len(u.members))
	if s := u.members[0].seat; s.Slot.IsValid() && u.host != none {
		if e.beside == nil {
			e.beside = map[cluster.ID][]int{}
		}
		e.beside[s.whole()] = append(e.beside[s.whole()], u.host)
	}
}

// besides lists the hosts of other addresses of the unit's object. Its own host is among them, if it has one.
func (e *elector) besides(u *unit) []int { return e.beside[u.members[0].seat.whole()] }

// hashed returns the text by which a rendezvous hash decides among nodes for a seat.
func (s Seat) hashed() string {
	if s.Slot.IsValid() {
		return s.Key.String() + " " + s.Slot.String()
	}
	return s.Key.String()
}
