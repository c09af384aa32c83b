package flows

import (
	"context"
	"net/netip"
	"time"

	"github.com/egressway/egressway/internal/kernel/conntrack"
)

// handedOverWithin is how long the host may take to confirm flows that are handed over. The daemon waits meanwhile; most take 20 ms.
const handedOverWithin = time.Second

// handing holds the flows that are being handed over and not confirmed yet.
type handing struct {
	flows map[key]bool
	done  chan struct{} // closed once all are confirmed
}

// HandOver sends flows of this node's pods to the host, which is not this node any more, and waits until the host has made their entries.
// It returns the flows that the host has confirmed.
func (c *Carrier) HandOver(ctx context.Context, flows []conntrack.Flow) (confirmed []conntrack.Flow) {
	sent, done := c.sendHanded(flows)
	if len(sent) == 0 {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, handedOverWithin)
	defer cancel()
	select {
	case <-done:
	case <-within.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range sent {
		if !c.handing.flows[keyOf(f)] {
			confirmed = append(confirmed, f)
		}
	}
	c.handing = handing{}
	return confirmed
}

// sendHanded sends flows that are handed over, as far as channels lead to their hosts. It returns these, and a channel that is closed once
// all of them are confirmed.
func (c *Carrier) sendHanded(flows []conntrack.Flow) (sent []conntrack.Flow, done <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handing = handing{map[key]bool{}, make(chan struct{})}
	for _, f := range flows {
		if worth(f) && c.own(c.view, f) && c.toHost(f) {
			c.handing.flows[keyOf(f)] = true
			sent = append(sent, f)
		}
	}
	return sent, c.handing.done
}

// toHost sends a flow to the host of its ingress IP, and reports whether a channel leads there. c.mu is held.
func (c *Carrier) toHost(f conntrack.Flow) (sent bool) {
	for r := range c.view.about(f.SNAT.Addr()) {
		if ch := c.view.channels[c.view.of(r)]; !r.Host && ch.isUp() && ch.put(alive(f)) {
			sent = true
		}
	}
	return sent
}

// confirmed notes that the host has a flow that was handed over, and reports whether it was one.
func (c *Carrier) confirmed(f conntrack.Flow) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := keyOf(f)
	if !c.handing.flows[k] {
		return false
	}
	if delete(c.handing.flows, k); len(c.handing.flows) == 0 {
		close(c.handing.done)
	}
	return true
}

// passOn sends flows that a former host handed over, and that have their entries, to the standby, since the kernel reports no entries that
// this process made. It sends them back to the former host, too, which waits for that. Only flows of that node's own pods are handed over.
// Others come from a node that believes it is the host, as this one does: it would send them back again, and so on.
func (c *Carrier) passOn(from netip.Addr, flows []conntrack.Flow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range flows {
		if !c.view.ofPeer(from, f) {
			continue
		}
		for r := range c.view.about(f.SNAT.Addr()) {
			if r.Host && (r.Peer == from || !r.Parted) {
				c.enqueue(receiver{c.view.channels[c.view.of(r)], true}, alive(f))
			}
		}
	}
}

// ofPeer reports whether a flow is of a pod of a peer's node.
func (v *view) ofPeer(peer netip.Addr, f conntrack.Flow) bool {
	role, known := v.role(peer, f.SNAT.Addr())
	e, _ := v.endpoint(f.Src.Addr())
	return known && e.Node == role.Node
}
