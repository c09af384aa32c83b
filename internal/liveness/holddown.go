package liveness

import (
	"maps"
	"time"
)

// HoldDownFor is how long announcements stay held down after a session is back, if the API server does not answer.
const HoldDownFor = 5 * time.Second

// HoldDown holds announcements down in networks from which this node was cut off. A node that lost all its sessions may
// have been dead for the others: another host may have taken over, and this node's return must not disturb it.
// Announcements resume when the API server confirms this node's role. While the API server is away there is no leader:
// after HoldDownFor the node announces again, and if the standby has taken over by itself, the term makes routers prefer
// the later host (docs/decisions/0014). The zero value holds no network.
type HoldDown struct {
	connected map[string]bool      // networks in which a session was up
	since     map[string]time.Time // when the last session of a network was lost
}

// See updates the hold-down from the sessions: up holds the networks with a session, and since when. A network that has
// just lost its last session is held from now on, and one with a session for HoldDownFor is released.
func (h *HoldDown) See(networks []string, up map[string]time.Time, now time.Time) {
	if h.since == nil {
		h.since = map[string]time.Time{}
	}
	connected := make(map[string]bool, len(networks))
	for _, network := range networks {
		since, isUp := up[network]
		h.see(network, isUp, now.Sub(since), now)
		connected[network] = isUp
	}
	h.connected = connected
	maps.DeleteFunc(h.since, func(network string, _ time.Time) bool {
		_, exists := connected[network]
		return !exists
	})
}

// Begin holds a network from now on, if nothing shows that this node had a role there a moment ago.
func (h *HoldDown) Begin(network string, now time.Time) {
	if h.since == nil {
		h.since = map[string]time.Time{}
	}
	h.since[network] = now
}

// see updates the hold-down of one network from whether it has a session, and how long it has had one.
func (h *HoldDown) see(network string, isUp bool, upFor time.Duration, now time.Time) {
	switch {
	case isUp && upFor >= HoldDownFor:
		delete(h.since, network)
	case !isUp && h.connected[network]:
		h.since[network] = now
	}
}

// Confirm releases the networks that were lost before asked: at that time the known objects were those of the API server.
func (h *HoldDown) Confirm(asked time.Time) {
	for network, since := range h.since {
		if !since.After(asked) {
			delete(h.since, network)
		}
	}
}

// Wait returns the time until a network is released without a confirmation, given since when networks have had a session; 0: none
// is. A network without a session stays held.
func (h *HoldDown) Wait(up map[string]time.Time, now time.Time) (least time.Duration) {
	for network, since := range up {
		if h.Holds(network) {
			least = soonest(least, max(HoldDownFor-now.Sub(since), time.Millisecond))
		}
	}
	return least
}

// Active reports whether any network is held.
func (h *HoldDown) Active() bool { return len(h.since) > 0 }

// Holds reports whether a network is held.
func (h *HoldDown) Holds(network string) bool {
	_, held := h.since[network]
	return held
}
