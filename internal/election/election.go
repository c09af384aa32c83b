// Package election chooses the hosts of objects. The choice is a pure function of the objects.
package election

import (
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
)

// Seat is the role of host of an object, or of one address of an object, which an election gives to a node.
type Seat struct{ cluster.ID }

// Choice is the outcome for one seat.
type Choice struct {
	Host    string // a node's name, cluster.AllHosts, or empty: none
	Standby string // the node that takes over; empty: none
	Term    int64  // counts the hosts so far; 0: not known
	Former  bool   // the standby was the host before, and has connections of that time
	// Left reports that this node was host or standby a moment ago: other nodes may not know yet, and send it packets.
	Left bool
	// Parted is the former host that stood by for this node until a moment ago, or the host for which this node did: flows of the former
	// one's own pods may still leave there. Empty: there is none.
	Parted  string
	Why     string // why the former host lost the role; empty: it did not
	Despite string // the host's worst lack, where no other node would be better; empty: it lacks nothing
	// Unrouted names the families that the object needs and for which the host has no route; empty: none.
	Unrouted string
	// Serves names the host and the standby of the object's status, as far as they can serve it now: a move away from them
	// need not be hasty.
	Serves  []string
	Problem *cluster.Problem
}

// kind makes contenders of the objects of one kind.
type kind interface {
	// seats iterates over the seats of all objects, in no order.
	seats(o *cluster.Objects) iter.Seq[Seat]
	// seatsOf lists the seats that the object with a key has. A kind with one seat for each object lists it even if there is
	// no such object.
	seatsOf(o *cluster.Objects, key cluster.Key) []Seat
	// tenure returns the nodes that have a seat now. exists is false if there is no such seat.
	tenure(o *cluster.Objects, s Seat) (t tenure, exists bool)
	// awaited iterates over the nodes that have a seat and have not reported yet about its network. networks are the configuration's.
	awaited(o *cluster.Objects, networks []config.Network, reports map[string]cluster.Report) iter.Seq[awaited]
	// addresses lists the addresses that the seat's host would announce.
	addresses(o *cluster.Objects, s Seat) []netip.Addr
	// contender checks one seat on its own. all reports that every node is its host.
	contender(e *elector, s Seat) (c *contender, all bool, problem *cluster.Problem)
}

// kinds holds all kinds of objects that have seats.
var kinds = [cluster.Claimants]kind{cluster.KindEgressService: egressServices{}, cluster.KindEgressIP: egressIPs{}}

// tenure names the nodes that have a seat by the status of its object.
type tenure struct {
	host, standby string
	term          int64
	created       time.Time // when the object was created; zero: unknown
}

// Addresses lists the addresses that the host of a seat would announce.
func Addresses(o cluster.Objects, s Seat) []netip.Addr { return kinds[s.Kind].addresses(&o, s) }

// seats iterates over the seats of all objects, in no order.
func seats(o *cluster.Objects) iter.Seq[Seat] {
	return func(yield func(Seat) bool) {
		for _, k := range kinds {
			for s := range k.seats(o) {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// seatsOf iterates over the seats of the objects that changed: those that the objects have, and those with an address that
// are known of before and that they no longer have.
func seatsOf[V any](o *cluster.Objects, change cluster.Changed, known map[Seat]V) iter.Seq[Seat] {
	return func(yield func(Seat) bool) {
		for kind, k := range kinds {
			for key := range change.Of[kind] {
				for _, s := range k.seatsOf(o, key) {
					if !yield(s) {
						return
					}
				}
			}
		}
		if len(change.Of[cluster.KindEgressIP]) == 0 {
			return
		}
		for s := range known {
			if !change.Of[s.Kind][s.Key] || !s.Slot.IsValid() || slices.Contains(kinds[s.Kind].seatsOf(o, s.Key), s) {
				continue
			}
			if !yield(s) {
				return
			}
		}
	}
}
