package agent

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/liveness"
	"github.com/egressway/egressway/internal/plan"
)

// TestUnsureOnTheLink expects a node to answer for no address on a device after a start, unless it did so before, and after the device
// lost its carrier or all other nodes fell silent: until 5 s after the cause has gone, or until its role is confirmed. A confirmation does
// not count before the leader can have written that a standby took over.
func TestUnsureOnTheLink(t *testing.T) {
	at := time.Unix(1000, 0)
	var o onLink
	see := o.at(&at)
	old, fresh := plan.Link{Name: "eth1", Up: true, OnLink: true}, plan.Link{Name: "eth2", Up: true}
	down := old
	down.Up = false
	require.Equal(t, []string{"eth2"}, see(0, false, old, fresh), "it answered on eth1 before its start")
	require.Equal(t, liveness.HoldDownFor, o.Wait(o.up, at))
	require.Equal(t, []string{"eth2"}, see(liveness.HoldDownFor-time.Millisecond, false, old, fresh))
	require.Equal(t, time.Millisecond, o.Wait(o.up, at))
	require.Empty(t, see(time.Millisecond, false, old, fresh))
	require.Equal(t, []string{"eth1"}, see(time.Minute, false, down, fresh))
	require.Zero(t, o.Wait(o.up, at), "it stays held as long as it is down")
	require.Equal(t, []string{"eth1"}, see(time.Minute, false, old, fresh), "the carrier is back")
	require.Empty(t, see(liveness.HoldDownFor, false, old, fresh))
	require.Equal(t, []string{"eth1", "eth2"}, see(time.Minute, true, old, fresh), "all others are silent")
	require.Equal(t, []string{"eth1", "eth2"}, see(time.Minute, false, old, fresh), "they answer again")
	o.Confirm(at)
	require.Empty(t, see(time.Millisecond, false, old, fresh), "the API server has confirmed the role")

	require.Equal(t, []string{"eth1", "eth2"}, see(time.Minute, true, old, fresh), "all others are silent again")
	o.Confirm(at.Add(10 * time.Millisecond))
	require.Equal(t, []string{"eth1", "eth2"}, see(20*time.Millisecond, true, old, fresh), "no leader can have written another host yet")
	o.Confirm(at.Add(liveness.TrustAfter))
	require.Empty(t, see(liveness.TrustAfter, true, old, fresh), "it would have by now, and the others may stay silent")
}

// at returns a function that advances the clock, lets o see these links of a node with a standby, and returns the devices that are held,
// sorted.
func (o *onLink) at(clock *time.Time) func(after time.Duration, isolated bool, links ...plan.Link) (held []string) {
	return func(after time.Duration, isolated bool, links ...plan.Link) (held []string) {
		*clock = clock.Add(after)
		o.cutOff(isolated, func() bool { return true }, *clock)
		for _, device := range o.see(links, *clock) {
			if o.Holds(device) {
				held = append(held, device)
			}
		}
		return held
	}
}

// TestUnsureAfterTheDeviceWasGone expects a node to answer for no address on a device that is made again, if it answered there at any time:
// as after the loss of its carrier. Pods' devices come and go without that.
func TestUnsureAfterTheDeviceWasGone(t *testing.T) {
	at := time.Unix(1000, 0)
	var o onLink
	see := o.at(&at)
	bare, pod := plan.Link{Name: "eth1", Up: true}, plan.Link{Name: "pod", Up: true}
	answering := bare
	answering.OnLink = true
	require.Equal(t, []string{"pod"}, see(0, false, answering, pod))
	require.Empty(t, see(liveness.HoldDownFor, false, bare, pod), "it answers for no address now")
	require.Equal(t, []string{"eth1"}, see(time.Minute, false), "both are gone")
	require.Equal(t, []string{"eth1"}, see(time.Minute, false, plan.Link{Name: "eth1"}, pod), "it has no carrier yet")
	require.Equal(t, []string{"eth1"}, see(time.Minute, true, bare, pod)[:1], "all others are silent still")
	see(time.Minute, false, bare, pod)
	require.Empty(t, see(liveness.HoldDownFor, false, bare, pod))

	require.Equal(t, []string{"eth1"}, see(time.Minute, false, pod), "gone again")
	require.Equal(t, []string{"eth1"}, see(time.Hour, false, bare, pod))
	o.Confirm(at)
	require.Empty(t, see(time.Millisecond, false, bare, pod), "the API server has confirmed the role")

	var many []plan.Link
	for i := range goneMost {
		many = append(many, plan.Link{Name: fmt.Sprint("eth", i), Up: true, OnLink: true})
	}
	see(time.Minute, false, many...)
	require.Len(t, see(time.Minute, false), goneMost)
	many = append(many, plan.Link{Name: "one-more", Up: true, OnLink: true})
	see(time.Minute, false, many...)
	require.Empty(t, see(time.Minute, false), "too many to remember")
	require.Empty(t, o.answered)
}

// TestUnsureWithoutAnAnswer expects the end of the hold-down on a link to wake the loop, also while it asks the API server.
func TestUnsureWithoutAnAnswer(t *testing.T) {
	for name, manifests := range map[string]bool{"API server": false, "manifests": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				if !manifests {
					server := &scriptedServer{scriptedSource: s.source}
					server.cutOff.Store(true)
					s.setSource(server)
				}
				objects := cluster.Objects{EgressIPs: cluster.MapOf(map[cluster.Key]cluster.EgressIP{{Name: "e"}: {}})}
				links, began := []plan.Link{{Name: "eth1", Up: true}}, time.Now()
				for len(s.unsure(t.Context(), "a", objects, links)) > 0 {
					<-s.awake
				}
				require.Equal(t, liveness.HoldDownFor, time.Since(began))
				s.later(2 * askWithin) // no question is left open
			})
		})
	}
}

// TestUnsureWhileIsolated expects a host that hears no other node to ask the API server at once where it has no standby. Where it has one,
// it asks once the leader can have written that the standby took over, and only then.
func TestUnsureWhileIsolated(t *testing.T) {
	for standby, after := range map[string]time.Duration{"": 0, "b": liveness.TrustAfter} {
		t.Run("standby "+standby, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				server := &scriptedServer{scriptedSource: s.source}
				s.setSource(server)
				address := netip.MustParseAddr("10.0.0.33")
				seat := election.EgressIPSeat("e", address)
				s.last.choices.Update(map[election.Seat]election.Choice{seat: {Host: "a", Standby: standby}}, nil, election.Sight{Node: "a"})
				objects := cluster.Objects{EgressIPs: cluster.MapOf(map[cluster.Key]cluster.EgressIP{{Name: "e"}: {}})}
				links := []plan.Link{{Name: "eth1", Up: true, OnLink: true}}
				unsure := func() []string {
					s.last.confirmed = s.confirmed.Load()
					return s.unsure(t.Context(), "a", objects, links)
				}
				require.Empty(t, unsure(), "it answered before its start")
				s.later(time.Minute)
				began := time.Now()
				s.last.others.nodes.Isolated = true
				for len(unsure()) > 0 {
					<-s.awake
				}
				require.Equal(t, after, time.Since(began))
				require.EqualValues(t, 1, server.asked.Load())
			})
		})
	}
}
