package flows

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/plan"
)

const (
	// silentFor is how long a channel may be silent.
	silentFor = 4 * beatEvery
	// mostStrangers limits connections that have not completed the greeting.
	mostStrangers = 16
	// mostHeld limits the held flows to some 10 MiB.
	mostHeld = 50000
)

// held is a flow of a local pod, as the host reported it. A conntrack entry here would conflict with the one that
// steers the pod's packets to the host, so it is created only when this node takes over.
type held struct {
	conntrack.Flow
	steered plan.PathID // path that steers it to the host
	until   time.Time
}

var (
	errNoRole   = errors.New("the peer and this node are not host and standby of an ingress IP")
	errReplaced = errors.New("the peer has opened another channel")
)

// listen accepts channels from other nodes until ctx ends.
func (c *Carrier) listen(ctx context.Context, at netip.AddrPort) {
	logged := ""
	for ctx.Err() == nil {
		if err := c.accept(ctx, at); ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			c.log.Warn("cannot receive egress flows from other nodes, trying again", "address", at, "error", err)
		}
		pause.For(ctx, restartAfter)
	}
}

func (c *Carrier) accept(ctx context.Context, at netip.AddrPort) error {
	config := net.ListenConfig{Control: farthest}
	config.SetMultipathTCP(false)
	l, err := config.Listen(ctx, "tcp", at.String())
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer end() // when the listener fails, channels start over with the next one
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	strangers := make(chan struct{}, mostStrangers)
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		peer := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		select {
		case strangers <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		if !c.now().hears(peer) {
			<-strangers
			conn.Close()
			continue
		}
		work.Go(func() {
			known := sync.OnceFunc(func() { <-strangers })
			defer known()
			defer conn.Close()
			if err := c.hear(ctx, peer, conn, known); err != nil && ctx.Err() == nil {
				c.log.Info("channel for egress flows ended", "peer", peer, "why", err)
			}
		})
	}
}

// hear receives a node's flows until the node closes the channel.
func (c *Carrier) hear(ctx context.Context, peer netip.Addr, conn net.Conn, known func()) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if onLink(peer) {
		if err := onlyNeighbours(conn, peer); err != nil {
			return err
		}
	}
	// A peer that echoes this receives at its claimed address, and sent the echo after the hop limit was set.
	hello := append([]byte(magic), version)
	hello = append(hello, make([]byte, helloSize-len(hello))...)
	if _, err := rand.Read(hello[len(magic)+1:]); err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(dialWithin)); err != nil {
		return err
	}
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	in := bufio.NewReaderSize(conn, 2+maxFrame)
	greeting := make([]byte, helloSize)
	if _, err := io.ReadFull(in, greeting); err != nil {
		return fmt.Errorf("greeting: %w", err)
	}
	if !bytes.Equal(greeting, hello) {
		return fmt.Errorf("greeting: %w", errFormat)
	}
	known()
	c.mu.Lock()
	if before := c.senders[peer]; before != nil {
		before(errReplaced)
	}
	c.senders[peer] = end
	c.mu.Unlock()
	err := c.hearFrames(peer, conn, in)
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil { // replaced, no role any more, or shutting down
		return context.Cause(ctx)
	}
	delete(c.senders, peer)
	return err
}

func (c *Carrier) hearFrames(peer netip.Addr, conn net.Conn, in io.Reader) error {
	frame := make([]byte, maxFrame)
	for {
		if err := conn.SetReadDeadline(time.Now().Add(silentFor)); err != nil {
			return err
		}
		n, err := readFrame(in, frame)
		if err != nil {
			return err
		}
		var records []record
		if err := decodeRecords(frame[:n], func(r record) { records = append(records, r) }); err != nil {
			return err
		}
		c.received(peer, records)
	}
}

// readFrame reads a frame of n bytes.
func readFrame(in io.Reader, frame []byte) (n int, err error) {
	var size [2]byte
	if _, err := io.ReadFull(in, size[:]); err != nil {
		return 0, err
	}
	n = int(binary.BigEndian.Uint16(size[:]))
	if n > len(frame) {
		return 0, fmt.Errorf("%w: a frame of %d bytes", errFormat, n)
	}
	_, err = io.ReadFull(in, frame[:n])
	return n, err
}

// received applies the records of a frame, as far as this node's plan agrees.
func (c *Carrier) received(peer netip.Addr, records []record) {
	c.counters.received.Add(uint64(len(records)))
	c.inject.Lock()
	defer c.inject.Unlock()
	v := c.now()
	var b batch
	for _, r := range lasts(records) {
		if !r.ended && c.confirmed(r.Flow) {
			continue
		}
		role, here, ok := v.judge(peer, &r.Flow)
		if r.ended {
			c.letGo(r.Flow)
		}
		switch {
		case !ok:
			c.counters.refused.Add(1)
		case here:
			b.add(r, role.Host)
		case !r.ended:
			e, _ := v.endpoint(r.Src.Addr())
			c.hold(held{r.Flow, e.Path, time.Now().Add(time.Duration(r.Timeout) * time.Second)})
		}
	}
	c.counters.removed.Add(uint64(len(b.ended)))
	ofEnded := conntrack.RemoveFlows(b.ended)
	_, ofAlive := c.injected(v, true, b.alive)
	handed, ofWeaker := c.injected(v, false, b.weaker)
	err := errors.Join(ofEnded, ofAlive, ofWeaker)
	if now := c.now(); now != v { // this node may have taken over before the flows were held
		_, ofHeld := c.injected(now, true, c.takeHeld(now, time.Now()))
		err = errors.Join(err, ofHeld)
	}
	if err != nil {
		c.log.Debug("cannot create entries for egress flows of another node", "peer", peer, "error", err)
	}
	c.passOn(peer, handed)
}

// batch holds the flows of a frame that have their entries here.
type batch struct {
	ended, alive []conntrack.Flow
	weaker       []conntrack.Flow // alive; from the standby, whose flows do not replace ours
}

// add adds a record. host: this node is the host of its ingress IP.
func (b *batch) add(r record, host bool) {
	switch {
	case r.ended:
		b.ended = append(b.ended, r.Flow)
	case host:
		b.weaker = append(b.weaker, r.Flow)
	default:
		b.alive = append(b.alive, r.Flow)
	}
}

// injected creates entries for flows, and returns the flows that have theirs.
func (c *Carrier) injected(v *view, replace bool, flows []conntrack.Flow) (here []conntrack.Flow, err error) {
	// A connection from a path that is not a network is a stray, even if the path is gone.
	steering := func(id plan.PathID) bool { return !v.network(id) }
	r, err := conntrack.InjectFlows(conntrack.Injection{Marks: c.marks, Steering: steering, Replace: replace}, flows)
	c.counters.injected.Add(uint64(r.Created + r.Replaced))
	c.counters.refreshed.Add(uint64(r.Refreshed))
	c.counters.refused.Add(uint64(r.Refused))
	return r.Here, err
}

// lasts returns the last record of each flow, in order: a flow that ended comes before one that began later with its
// port.
func lasts(records []record) []record {
	last := make(map[key]int, len(records))
	for i, r := range records {
		last[keyOf(r.Flow)] = i
	}
	all := records[:0]
	for i, r := range records {
		if last[keyOf(r.Flow)] == i {
			all = append(all, r)
		}
	}
	return all
}

// judge checks a flow received from a peer against the plan, and fills in its path. With here the flow gets a conntrack
// entry; otherwise it is a flow of a local pod that is steered to the peer.
func (v *view) judge(peer netip.Addr, f *conntrack.Flow) (role Role, here, ok bool) {
	role, ok = v.role(peer, f.SNAT.Addr())
	if !ok || role.Parted && !role.Host {
		return role, false, false
	}
	e, selected := v.endpoint(f.Src.Addr())
	way := plan.Way{Path: role.Path, Source: role.Ingress}
	f.Path = role.Path
	switch {
	case !selected:
		return role, false, false
	case e.Way() == way:
		return role, true, true
	case e.Kept == way, !role.Host && v.steersToOne(e):
		return role, false, true
	}
	return role, false, false
}

// steersToOne reports whether an endpoint is steered to a host without a way by its standby: its address is on the link. Whether the flows
// are of that address shows when this node takes over.
func (v *view) steersToOne(e plan.Endpoint) bool {
	return e.Kept == plan.Way{} && e.Path != 0 && e.Source == e.Addr && !v.network(e.Path)
}

func (v *view) endpoint(a netip.Addr) (plan.Endpoint, bool) {
	return v.endpoints.Get(plan.Endpoint{Addr: a})
}

// hold keeps a flow of a local pod.
func (c *Carrier) hold(h held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := keyOf(h.Flow)
	if _, had := c.held[k]; !had {
		if len(c.held) >= mostHeld {
			c.counters.refused.Add(1)
			return
		}
		c.sources[k.src.Addr()]++
	}
	c.counters.held.Add(1)
	c.held[k] = h
}

func (c *Carrier) letGo(f conntrack.Flow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(keyOf(f))
}

// forget removes a held flow. The caller holds c.mu.
func (c *Carrier) forget(k key) {
	if _, had := c.held[k]; !had {
		return
	}
	delete(c.held, k)
	if a := k.src.Addr(); c.sources[a] > 1 {
		c.sources[a]--
	} else {
		delete(c.sources, a)
	}
}

// takeOver creates entries for the held flows of local pods that leave by this node in a new view. Flows that may stay
// on the former host, which is the standby now, stay there.
func (c *Carrier) takeOver(before, v *view) {
	c.mu.Lock()
	nothing := len(c.held) == 0 || !c.concerned(before, v)
	c.mu.Unlock()
	if nothing {
		return // flows that are being received are judged by the new view in the end
	}
	c.inject.Lock()
	defer c.inject.Unlock()
	flows := c.takeHeld(v, time.Now())
	if len(flows) == 0 {
		return
	}
	if _, err := c.injected(v, true, flows); err != nil {
		c.log.Warn("cannot take over some egress flows of pods of this node", "error", err)
	}
	c.log.Info("took over egress flows of pods of this node", "flows", len(flows))
}

// takeHeld returns the held flows that leave by this node in a new view. It removes these, and those that do not concern this
// node any more.
func (c *Carrier) takeHeld(v *view, now time.Time) (flows []conntrack.Flow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, h := range c.held {
		e, selected := v.endpoint(h.Src.Addr())
		switch {
		case !selected:
			c.forget(k)
		case h.staysAtFormer(e):
		case e.Source == h.SNAT.Addr() && v.network(e.Path):
			flows = h.appendLiving(flows, e.Path, now)
			c.forget(k)
		case e.Kept.Source != h.SNAT.Addr() && !h.mayComeHere(e):
			c.forget(k)
		}
	}
	return flows
}

// staysAtFormer reports whether the flow of an endpoint may stay on the former host.
func (h held) staysAtFormer(e plan.Endpoint) bool {
	return e.Kept.Path == h.steered && e.Kept.Source == e.Addr
}

// mayComeHere reports whether an endpoint without a way by a standby may leave by this node next: it is steered as before, or its host is
// silent.
func (h held) mayComeHere(e plan.Endpoint) bool {
	return e.Kept == plan.Way{} && (e.Path == 0 || e.Path == h.steered)
}

// appendLiving appends the flow with the path by which it leaves now, unless it has expired.
func (h held) appendLiving(flows []conntrack.Flow, path plan.PathID, now time.Time) []conntrack.Flow {
	left := h.until.Sub(now)
	if left <= 0 {
		return flows
	}
	h.Path, h.Timeout = path, uint32(left/time.Second)
	return append(flows, h.Flow)
}

// concerned reports whether a view differs from the one before in anything about the sources of held flows. The caller
// holds c.mu.
func (c *Carrier) concerned(before, v *view) bool {
	if !slices.EqualFunc(before.paths, v.paths, func(a, b plan.Path) bool { return a.ID == b.ID && a.Key == b.Key }) {
		return true
	}
	for was, is := range before.endpoints.Changes(v.endpoints) {
		if was != nil && c.sources[was.Addr] > 0 || is != nil && c.sources[is.Addr] > 0 {
			return true
		}
	}
	return false
}

func (v *view) network(id plan.PathID) bool {
	return slices.ContainsFunc(v.paths, func(p plan.Path) bool { return p.ID == id && p.Key.Kind == plan.PathNetwork })
}

// dropStale removes held flows that have expired.
func (c *Carrier) dropStale(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, h := range c.held {
		if h.until.Before(now) {
			c.forget(k)
		}
	}
}

// onLink reports whether this node reaches an address without a router.
func onLink(a netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(addrs, func(n net.Addr) bool {
		p, err := netip.ParsePrefix(n.String())
		return err == nil && p.Masked().Contains(a)
	})
}

// onlyNeighbours makes the kernel drop packets that a router forwarded (RFC 5082), above all those of a pod to which a
// CNI gave its node's address.
func onlyNeighbours(conn net.Conn, peer netip.Addr) error {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, func(fd int) error {
		if peer.Is4() {
			return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MINTTL, 255)
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MINHOPCOUNT, 255)
	})
}
