package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/liveness"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/internal/speaker"
)

// reasonOnLinkSilent means that neighbours do not learn at once that this node answers for an address.
const reasonOnLinkSilent cluster.Reason = "OnLinkSilent"

const (
	// askAgain is the pause after the API server did not answer, or had changes that its watches had not delivered yet.
	askAgain = 300 * time.Millisecond
	// askWithin limits such a request, and the time in which requests are repeated.
	askWithin = 5 * time.Second
)

// heldDown returns the networks in which this node must not announce, because it does not know its role there.
func (a *Agent) heldDown(ctx context.Context, c *config.Config) []string {
	if a.server == nil {
		return nil // each node decides alone, by the manifests
	}
	networks := withPeers(c)
	held := &a.last.holdDown
	if asked := a.last.confirmed; asked != nil {
		held.Confirm(*asked)
	}
	now, up := time.Now(), upSince(a.speakers.Sessions())
	if c.BGP.GracefulRestart.Enabled { // routers keep the routes of a speaker that is replaced: this node has not been away
		a.last.replacement.bridge(up, a.speakers.Started(), a.speakers.Problem() == nil, now)
	}
	held.See(networks, up, now)
	if !held.Active() {
		return nil
	}
	a.awaitRole(ctx, held.Wait(up, now))
	return slices.DeleteFunc(networks, func(network string) bool { return !held.Holds(network) })
}

// upSince returns since when each network has had a session that is up.
func upSince(sessions []bgp.Session) map[string]time.Time {
	up := map[string]time.Time{}
	for _, s := range sessions {
		if first, known := up[s.Network]; s.Up && (!known || s.Since.Before(first)) {
			up[s.Network] = s.Since
		}
	}
	return up
}

// withPeers returns the networks that have peers.
func withPeers(c *config.Config) []string {
	networks := make([]string, 0, len(c.Networks))
	for _, n := range c.Networks {
		if len(n.Peers) > 0 {
			networks = append(networks, n.Name)
		}
	}
	return networks
}

// awaitRole wakes the loop when the API server has confirmed this node's role, or when a hold-down ends without that. within is the
// time until then; 0: none ends.
func (a *Agent) awaitRole(ctx context.Context, within time.Duration) {
	if within > 0 {
		time.AfterFunc(within, a.wake)
	}
	if a.server != nil && a.asking.CompareAndSwap(false, true) {
		go a.ask(ctx)
	}
}

// ask asks the API server whether the known objects are current, until they are.
func (a *Agent) ask(ctx context.Context) {
	defer a.wake()
	defer a.asking.Store(false)
	for until := time.Now().Add(askWithin); ctx.Err() == nil && time.Now().Before(until); {
		began := time.Now()
		bounded, cancel := context.WithTimeout(ctx, askWithin)
		err := a.server.Current(bounded)
		cancel()
		if err == nil {
			a.confirmed.Store(&began)
			return
		}
		a.log.Debug("cannot confirm the known objects yet", "error", err)
		pause.For(ctx, askAgain)
	}
}

// unsure returns the devices on which this node must not answer for addresses of EgressIPs, because it does not know its role: it
// starts and did not answer there before, the device was gone or had no carrier, or all other nodes were silent. Another host may
// answer. Without an API server to confirm the role, the others' hosts come back within liveness.TrustAfter.
func (a *Agent) unsure(ctx context.Context, node string, objects cluster.Objects, links []plan.Link) []string {
	if objects.EgressIPs.Len() == 0 {
		return nil
	}
	now, held := time.Now(), &a.last.onLink
	if asked := a.last.confirmed; asked != nil {
		held.Confirm(*asked)
	}
	held.cutOff(a.last.others.nodes.Isolated, func() bool { return a.succeeded(node) }, now)
	devices := held.see(links, now)
	if !held.Active() {
		return nil
	}
	if early := held.written.Sub(now); early > 0 { // shorter than HoldDownFor, which begins when others answer
		time.AfterFunc(early, a.wake)
	} else {
		a.awaitRole(ctx, held.Wait(held.up, now))
	}
	return slices.DeleteFunc(devices, func(device string) bool { return !held.Holds(device) })
}

// succeeded reports whether a standby takes an address of an EgressIP over from this node, once it does not hear this node.
func (a *Agent) succeeded(node string) bool {
	for seat, choice := range a.last.choices.Choices() {
		if seat.Kind == cluster.KindEgressIP && choice.Host == node && choice.Standby != "" {
			return true
		}
	}
	return false
}

// onLink holds down the answers for addresses on the links of this node.
type onLink struct {
	liveness.HoldDown
	begun    bool
	isolated bool                 // all other nodes are silent
	written  time.Time            // by when the leader has mostly written that standbys took over, since this node was isolated last
	answered map[string]bool      // devices on which this node answered; of those that are gone, goneMost
	up       map[string]time.Time // since when neighbours of a device may reach this node
}

// goneMost is how many devices may be gone at once that count as down until they are back. Of more, none does: they may never come back.
const goneMost = 1000

// cutOff notes whether this node is isolated. succeeded reports whether a standby takes over then.
func (o *onLink) cutOff(isolated bool, succeeded func() bool, now time.Time) {
	if isolated && !o.isolated && succeeded() {
		o.written = now.Add(liveness.TrustAfter)
	}
	o.isolated = isolated
}

// Confirm releases the devices, unless the API server was asked too early: a standby takes over by itself, and until the leader has written
// that, the API server confirms the former host.
func (o *onLink) Confirm(asked time.Time) {
	if !asked.Before(o.written) {
		o.HoldDown.Confirm(asked)
	}
}

// see updates the hold-down, and returns the devices, sorted. Those on which this node answered and that are gone are among them: while
// one is made again, another host may take over, as while it has no carrier.
func (o *onLink) see(links []plan.Link, now time.Time) (devices []string) {
	up, gone := map[string]time.Time{}, maps.Clone(o.answered)
	for _, l := range links {
		devices = append(devices, l.Name)
		delete(gone, l.Name)
		if !o.begun && !l.OnLink {
			o.Begin(l.Name, now)
		}
		if l.Up && !o.isolated {
			up[l.Name] = now
			if since, was := o.up[l.Name]; was {
				up[l.Name] = since
			}
		}
	}
	o.begun, o.up = true, up
	devices = slices.AppendSeq(devices, maps.Keys(o.remember(links, gone)))
	slices.Sort(devices)
	o.See(devices, up, now)
	return devices
}

// remember adds the devices on which this node answers, and returns those of the gone ones that count as down.
func (o *onLink) remember(links []plan.Link, gone map[string]bool) map[string]bool {
	if len(gone) > goneMost {
		maps.DeleteFunc(o.answered, func(device string, _ bool) bool { return gone[device] })
		gone = nil
	}
	for _, l := range links {
		if !l.OnLink {
			continue
		}
		if o.answered == nil {
			o.answered = map[string]bool{}
		}
		o.answered[l.Name] = true
	}
	return gone
}

// answerOnLink has the speaker announce to neighbours the addresses for which this node begins to answer.
func (a *Agent) answerOnLink(ctx context.Context, c *config.Config, all sorted.List[plan.OnLink]) []cluster.Problem {
	err := a.speakers.AnswerOnLink(ctx, all)
	if err == nil || errors.Is(err, speaker.ErrAbsent) {
		return nil
	}
	return []cluster.Problem{{
		Kind: "Node", Object: c.Node, Field: "networks.onLink", Reason: reasonOnLinkSilent,
		Message: fmt.Sprintf("this node answers for addresses of EgressIPs, but cannot announce that to neighbours, which may send to the "+
			"former host until they ask again: %s; the speaker needs CAP_NET_RAW", err),
	}}
}
