package speaker

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// asked holds the agent's desired speakers, by network. It is immutable.
type asked map[string]plan.Speaker

func askedFor(speakers []plan.Speaker) asked {
	a := make(asked, len(speakers))
	for _, s := range speakers {
		a[s.Network] = s
	}
	return a
}

// speakers returns the desired speakers, sorted by network.
func (a asked) speakers() []plan.Speaker {
	all := make([]plan.Speaker, 0, len(a))
	for _, network := range slices.Sorted(maps.Keys(a)) {
		all = append(all, a[network])
	}
	return all
}

// announced returns the announcements of each network.
func (a asked) announced() map[string]sorted.List[plan.Announcement] {
	all := make(map[string]sorted.List[plan.Announcement], len(a))
	for network, s := range a {
		all[network] = s.Announce
	}
	return all
}

// excess returns the part of a that desired does not contain.
func (a asked) excess(desired asked) (w withdrawal) {
	for _, s := range a.speakers() {
		d, stays := desired[s.Network]
		n := networkWithdrawal{Network: s.Network, All: !stays}
		if stays {
			n.Prefixes = changeIn(s.Announce, d.Announce, prefixOf).Gone
			n.Peers = gonePeers(s.Peers, d.Peers)
		}
		if !n.empty() {
			w.Networks = append(w.Networks, n)
		}
	}
	return w
}

// gonePeers returns the names of the peers that are not among others.
func gonePeers(peers, others []plan.Peer) (names []string) {
	for _, p := range peers {
		if !slices.ContainsFunc(others, func(q plan.Peer) bool { return nameOf(p) == nameOf(q) }) {
			names = append(names, nameOf(p))
		}
	}
	return names
}

func (n networkWithdrawal) empty() bool { return !n.All && len(n.Prefixes) == 0 && len(n.Peers) == 0 }

// without returns a minus w.
func (a asked) without(w withdrawal) asked {
	less := maps.Clone(a)
	for _, n := range w.Networks {
		s, ok := less[n.Network]
		switch {
		case !ok:
		case n.All:
			delete(less, n.Network)
		default:
			s.Announce = applyIn(listChange[plan.Announcement]{Gone: n.Prefixes}, s.Announce, announced)
			s.Peers = slices.DeleteFunc(slices.Clone(s.Peers), func(p plan.Peer) bool { return slices.Contains(n.Peers, nameOf(p)) })
			less[n.Network] = s
		}
	}
	return less
}

// changeTo returns the change that turns a into desired.
func (a asked) changeTo(desired asked) (c change) {
	for network := range a {
		if _, stays := desired[network]; !stays {
			c.Gone = append(c.Gone, network)
		}
	}
	slices.Sort(c.Gone)
	for _, d := range desired.speakers() {
		if s := a.changeToSpeaker(d); !s.empty() {
			c.Speakers = append(c.Speakers, s)
		}
	}
	return c
}

// changeToSpeaker returns the change that gives a network the desired speaker.
func (a asked) changeToSpeaker(d plan.Speaker) speakerChange {
	had, known := a[d.Network]
	s := speakerChange{
		Network:  d.Network,
		Announce: changeIn(had.Announce, d.Announce, prefixOf),
		Refuse:   changeIn(had.Refuse, d.Refuse, refused),
	}
	if rest := withoutLists(d); !known || !reflect.DeepEqual(withoutLists(had), rest) {
		w := toWire(rest)
		s.Speaker = &w
	}
	return s
}

func (s speakerChange) empty() bool {
	return s.Speaker == nil && s.Announce.empty() && s.Refuse.empty()
}

func (c change) empty() bool { return !c.Full && len(c.Speakers) == 0 && len(c.Gone) == 0 }

// changed returns a with c applied. It fails if c changes a network that a does not contain.
func (a asked) changed(c change) (asked, error) {
	next := asked{}
	if !c.Full {
		next = maps.Clone(a)
	}
	for _, network := range c.Gone {
		delete(next, network)
	}
	for _, s := range c.Speakers {
		now, known := next[s.Network]
		if s.Speaker != nil {
			announce, refuse := now.Announce, now.Refuse
			now = s.Speaker.speaker()
			now.Network, now.Announce, now.Refuse = s.Network, announce, refuse
		} else if !known {
			return a, fmt.Errorf("network %s has no speaker to change", s.Network)
		}
		now.Announce = applyIn(s.Announce, now.Announce, announced)
		now.Refuse = applyIn(s.Refuse, now.Refuse, refusal)
		next[s.Network] = now
	}
	return next, nil
}

func withoutLists(s plan.Speaker) plan.Speaker {
	s.Announce, s.Refuse = sorted.List[plan.Announcement]{}, sorted.List[plan.Prefix]{}
	return s
}

// nameOf identifies a peer within its network: by its interface if it has one, otherwise by its address.
func nameOf(p plan.Peer) string {
	if p.Interface != "" {
		return p.Interface
	}
	return p.Address.String()
}
