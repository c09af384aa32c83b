package election

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// EgressIPSeat returns the seat of an address of an EgressIP.
func EgressIPSeat(name string, a netip.Addr) Seat {
	return Seat{cluster.ID{Kind: cluster.KindEgressIP, Key: cluster.Key{Name: name}, Slot: a}}
}

// egressIPs makes contenders of EgressIPs: one for each address. Those of one EgressIP prefer different nodes, except with Policy.Alone.
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

// awaited iterates over hosts and standbys: a new configuration changes the networks of addresses, and their nodes may read it later than
// the leader's. A daemon reports each network that its configuration lists.
func (egressIPs) awaited(o *cluster.Objects, networks []config.Network, reports map[string]cluster.Report) iter.Seq[awaited] {
	return func(yield func(awaited) bool) {
		if reports == nil {
			return
		}
		for _, spec := range o.EgressIPs.All() {
			for _, h := range spec.Holders {
				network := NetworkFor(networks, h.Addr)
				for _, node := range []string{h.Host, h.Standby} {
					r, reports := reports[node]
					_, known := r.Networks[network]
					if reports && !known && !yield(awaited{node, network}) {
						return
					}
				}
			}
		}
	}
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
		had: had, selector: assignable, network: NetworkFor(e.policy.Networks, s.Slot),
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

// NetworkFor returns the name of the network to which an egress IP belongs: of the one whose egressIPs hold it, of several prefixes the
// longest; else of the default network. It depends on the configuration only, which all nodes have alike.
func NetworkFor(networks []config.Network, a netip.Addr) string {
	best, bits := config.DefaultNetwork, -1
	for i := range networks {
		for _, p := range networks[i].EgressIPs {
			if p.Contains(a) && p.Bits() > bits {
				best, bits = networks[i].Name, p.Bits()
			}
		}
	}
	return best
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

// besides lists the hosts of other addresses of the unit's object. Its own host is among them, if it has one. With Policy.Alone it lists
// none: the choice for an address depends on no other, or a node that goes would move addresses of others too.
func (e *elector) besides(u *unit) []int {
	if e.policy.Alone {
		return nil
	}
	return e.beside[u.members[0].seat.whole()]
}

// hashed returns the text by which a rendezvous hash decides among nodes for a seat.
func (s Seat) hashed() string {
	if s.Slot.IsValid() {
		return s.Key.String() + " " + s.Slot.String()
	}
	return s.Key.String()
}

// Sitting is what becomes of one address of an EgressIP.
type Sitting struct {
	cluster.Holder
	View    View
	Moving  bool // the wanted host becomes the standby first
	Changed bool // the object's status has another host yet
}

// NextHolder returns what becomes of an address that has these nodes now, by the rules of Next.
func NextHolder(objects cluster.Objects, reports map[string]cluster.Report, v View, now cluster.Holder) Sitting {
	v.Kind = cluster.KindEgressIP
	next, moving := v.successor(objects, reports, cluster.Status{Host: now.Host, Standby: now.Standby, Term: now.Term})
	return Sitting{Holder: cluster.Holder{Addr: now.Addr, Host: next.Host, Standby: next.Standby, Term: next.Term}, View: v, Moving: moving}
}

// ConditionAssigned is the type of the condition of an EgressIP whose addresses all have hosts.
const ConditionAssigned = "Assigned"

// ItemConditions returns the conditions of an EgressIP with these addresses and problems, without their times.
func ItemConditions(reports map[string]cluster.Report, all []Sitting, problems []cluster.Problem) []metav1.Condition {
	return []metav1.Condition{assigned(all), programmedAll(reports, all, problems), valid(problems)}
}

// assigned returns the condition that all addresses have hosts.
func assigned(all []Sitting) metav1.Condition {
	if len(all) == 0 {
		return metav1.Condition{
			Type: ConditionAssigned, Status: metav1.ConditionFalse, Reason: string(ReasonNoHost),
			Message: "it has no address that can be used",
		}
	}
	return together(ConditionAssigned, all, func(s Sitting) metav1.Condition {
		return hostAssigned(cluster.Status{Host: s.Host, Standby: s.Standby, Term: s.Term}, s.View.Choice, s.Moving)
	})
}

// refused returns the problem of an address that its host may not serve; nil: there is none.
func refused(a netip.Addr, host string, problems []cluster.Problem) *cluster.Problem {
	i := slices.IndexFunc(problems, func(p cluster.Problem) bool {
		taken := p.Reason == cluster.ReasonEgressIPConflict || p.Reason == cluster.ReasonAddressConflict
		return taken && p.Value == a.String() && (p.Node == "" || p.Node == host)
	})
	if i < 0 {
		return nil
	}
	return &problems[i]
}

// programmedAll returns the condition that the hosts of all addresses that have one report them as in force.
func programmedAll(reports map[string]cluster.Report, all []Sitting, problems []cluster.Problem) metav1.Condition {
	hosted := slices.DeleteFunc(slices.Clone(all), func(s Sitting) bool { return s.Host == "" })
	if len(hosted) == 0 {
		return metav1.Condition{
			Type: ConditionProgrammed, Status: metav1.ConditionFalse, Reason: string(ReasonNoHost),
			Message: "packets of its pods to the outside are dropped, unless onNoPath allows them",
		}
	}
	return together(ConditionProgrammed, hosted, func(s Sitting) metav1.Condition {
		p := refused(s.Addr, s.Host, problems)
		switch {
		case p != nil:
			return metav1.Condition{Status: metav1.ConditionFalse, Reason: string(p.Reason), Message: p.Message}
		case s.View.Dead[s.Host]:
			return metav1.Condition{
				Status: metav1.ConditionFalse, Reason: string(cluster.ReasonHostSilent),
				Message: silent(s.Host) + ": packets of pods on other nodes are dropped",
			}
		case s.Changed || !s.View.applied(reports, s.Host):
			return metav1.Condition{
				Status: metav1.ConditionFalse, Reason: string(ReasonPending), Message: "not yet reported to be in force by node " + s.Host,
			}
		}
		return metav1.Condition{Status: metav1.ConditionTrue, Reason: string(ReasonInForce)}
	})
}

// together joins the conditions of addresses: it is true if all are, and otherwise has the first reason why not.
func together(kind string, all []Sitting, of func(Sitting) metav1.Condition) metav1.Condition {
	const most = 8 // a condition is for people to read; the daemons' status lists all addresses
	joined := metav1.Condition{Type: kind, Status: metav1.ConditionTrue}
	var texts []string
	for _, s := range all {
		c := of(s)
		if joined.Reason == "" || c.Status != metav1.ConditionTrue && joined.Status == metav1.ConditionTrue {
			joined.Status, joined.Reason = c.Status, c.Reason
		}
		if c.Message != "" {
			texts = append(texts, s.Addr.String()+": "+c.Message)
		}
	}
	if more := len(texts) - most; more > 0 {
		texts = append(texts[:most], fmt.Sprintf("and %d more", more))
	}
	joined.Message = strings.Join(texts, "; ")
	return joined
}
