package flows

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/plan"
)

const (
	// batchFor is how long the first record of a batch waits for others.
	batchFor = 5 * time.Millisecond
	// mostQueued limits the bytes queued in one channel. The last quarter is for flows that ended: the peer would keep
	// such a flow's port occupied.
	mostQueued = 4 << 20
	// pace limits a channel, in flows a second: that many cost each side about a fifth of a core.
	pace = 50000
	// beatEvery is the interval of keepalives on an idle channel.
	beatEvery = 5 * time.Second
	// writeWithin is how long the peer may accept no data.
	writeWithin = 5 * time.Second
	// soonAfter is the first pause before a channel is tried again: the other node may learn its role a moment later.
	soonAfter = 50 * time.Millisecond
	// dialWithin limits the setup of a channel.
	dialWithin = 3 * time.Second

	// tellEvery is the interval in which a UDP flow is sent again. Its entry at the standby sees no packets, and would
	// expire.
	tellEvery = time.Minute
	// tellTCPEvery is the interval for TCP flows, in multiples of tellEvery.
	tellTCPEvery = 15
	// keepTCP limits how long a standby keeps a TCP flow without a new record: longer than the interval of keepalives
	// (2 hours unless an application asks for less), much shorter than the kernel's timeout of five days.
	keepTCP = 3 * time.Hour
	// listAgainAfter is the shortest interval between two full lists after losses.
	listAgainAfter = 10 * time.Second
	// roomWithin is how long a list waits for room in one channel. All channels' lists come from one dump of the kernel.
	roomWithin = time.Second
)

// link identifies a channel by its addresses.
type link struct {
	local netip.Addr
	peer  netip.AddrPort
}

// channel sends flows to another node.
type channel struct {
	link
	filled chan struct{} // signals that the queue has records
	room   chan struct{} // signals room for a part of a list

	mu         sync.Mutex
	up         bool
	list       bool // a full list is due
	lost       bool // a full list is due, after listAgainAfter: records were lost
	queue      []byte
	lastListed time.Time // time of the last full list
}

func newChannel(l link) *channel {
	return &channel{link: l, filled: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// due requests a full list, since the channel has more roles now, and reports whether one is due.
func (ch *channel) due() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.list = ch.list || ch.up
	return ch.list
}

// listAgain requests full lists after one that failed, except for channels that are down by now.
func listAgain(channels map[*channel]bool) {
	for ch := range channels {
		ch.mu.Lock()
		ch.list = ch.up
		ch.mu.Unlock()
	}
}

// begin and end record that the channel is up or down.
func (ch *channel) begin() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.up, ch.list, ch.queue = true, true, nil
}

func (ch *channel) end() {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.up, ch.list, ch.lost, ch.queue = false, false, false, nil
	signal(ch.room)
}

// put queues a record. It reports false if there is no room; a channel that is down needs none.
func (ch *channel) put(r record) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	most := mostQueued
	if !r.ended {
		most = mostQueued / 4 * 3
	}
	switch {
	case !ch.up:
		return true
	case len(ch.queue) >= most:
		ch.lost = true
		return false
	}
	ch.queue = appendRecord(ch.queue, r)
	signal(ch.filled)
	return true
}

func (ch *channel) isUp() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.up
}

// putListed queues a record of a list, once events leave room for it. It reports false if there is none in time: then a full list is
// due, later.
func (ch *channel) putListed(ctx context.Context, r record) bool {
	var late <-chan time.Time
	for !ch.tryListed(r) {
		if late == nil {
			late = time.After(roomWithin)
		}
		select {
		case <-ch.room:
		case <-late:
			ch.noteLoss()
			return false
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// tryListed queues a record of a list. It reports false if events leave no room; a channel that is down needs none.
func (ch *channel) tryListed(r record) bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	switch {
	case !ch.up:
		return true
	case len(ch.queue) >= maxFrame:
		return false
	}
	ch.queue = appendRecord(ch.queue, r)
	signal(ch.filled)
	return true
}

func (ch *channel) take() []byte {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	b := ch.queue
	ch.queue = nil
	signal(ch.room)
	return b
}

// happened handles every event of the kernel.
func (c *Carrier) happened(e conntrack.FlowEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Kind == conntrack.FlowsLost {
		c.eventsLost()
		return
	}
	targets := c.view.receivers(e.Flow.SNAT.Addr())
	switch {
	case len(targets) == 0 || c.own(c.view, e.Flow):
	case e.Kind == conntrack.FlowEnded:
		c.flowEnded(targets, e.Flow)
	case !worth(e.Flow):
		c.pending.forget(e.Flow) // an answered query
	case !c.pending.add(e.Flow, time.Now()):
		c.counters.dropped.Add(1)
		for _, t := range targets {
			t.noteLoss()
		}
	}
}

// eventsLost requests full lists after the kernel had more events than were read. The caller holds c.mu.
func (c *Carrier) eventsLost() {
	for _, ch := range c.view.channels {
		if ch.noteLoss() {
			c.counters.lost.Add(1)
		}
	}
	signal(c.due)
}

// noteLoss requests a full list, unless the channel is down: it gets one when it comes up.
func (ch *channel) noteLoss() (up bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.lost = ch.up
	return ch.up
}

// flowEnded sends the end of a flow that was sent. The caller holds c.mu.
func (c *Carrier) flowEnded(targets []receiver, f conntrack.Flow) {
	if c.pending.forget(f) {
		return
	}
	// A flow that expired at a standby may still live at its host; only a close is certain.
	closed := f.State == conntrack.TCPTimeWait || f.State == conntrack.TCPClosed
	for _, t := range targets {
		if t.host || closed {
			c.enqueue(t, record{Flow: f, ended: true})
		}
	}
}

// worth reports whether a flow is sent: if it lasts, or waits for its first reply. An answered UDP query is over.
func worth(f conntrack.Flow) bool {
	if f.Proto == unix.IPPROTO_TCP {
		return f.Assured && f.State >= conntrack.TCPEstablished && f.State < conntrack.TCPTimeWait
	}
	return f.Assured || !f.Answered
}

// own reports whether a flow is of a local pod. Such a flow is not sent: the pod dies with the node, and while the node
// lives, the flow leaves here. If the other node had an entry for it, it would forward the remote's packets straight to
// the pod, bypassing the entry here.
func (c *Carrier) own(v *view, f conntrack.Flow) bool {
	e, ok := v.endpoint(f.Src.Addr())
	return ok && e.Node == c.node
}

// leaves reports whether a local pod's flow leaves by this node.
func (v *view) leaves(f conntrack.Flow) bool {
	e, _ := v.endpoint(f.Src.Addr())
	way := plan.Way{Path: f.Path, Source: f.SNAT.Addr()}
	return e.Kept == way || e.Way() == way
}

func (c *Carrier) enqueue(t receiver, r record) {
	if !t.put(r) {
		c.counters.dropped.Add(1)
	}
}

// alive returns the record of a live flow, with the time for which the peer keeps it.
func alive(f conntrack.Flow) record {
	switch {
	case f.Proto == unix.IPPROTO_UDP:
		f.Timeout += uint32(tellEvery / time.Second)
	case f.State == conntrack.TCPEstablished:
		f.Timeout = min(f.Timeout, uint32(keepTCP/time.Second))
	default: // one side has closed, the other may send for a long time
		f.Timeout = max(f.Timeout, uint32(2*tellTCPEvery*tellEvery/time.Second))
	}
	return record{Flow: f}
}

// release sends flows once they are old enough.
func (c *Carrier) release(ctx context.Context) {
	tick := time.NewTicker(releaseEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			c.tellRipe(now)
		}
	}
}

// tellRipe sends flows to standbys. Flows that began at a standby are not sent to the host: they come from nodes that
// do not reach the host, so it could not send them the remote's packets. As long as the host does not know such a flow,
// it hands these packets to the standby.
func (c *Carrier) tellRipe(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.pending.ripe(now) {
		for _, t := range c.view.receivers(f.SNAT.Addr()) {
			if t.host {
				c.enqueue(t, alive(f))
			}
		}
	}
}

// listAll sends all flows to channels where a full list is due, and some again in every round.
func (c *Carrier) listAll(ctx context.Context) {
	round := time.NewTicker(tellEvery)
	defer round.Stop()
	again := time.NewTicker(listAgainAfter)
	defer again.Stop()
	for number := uint16(0); ; {
		regular := false
		select {
		case <-ctx.Done():
			return
		case <-c.due:
		case <-again.C:
		case <-round.C:
			regular = true
			number++
			c.dropStale(time.Now())
		}
		if err := c.listOnce(ctx, regular, number); err != nil && ctx.Err() == nil {
			c.log.Warn("cannot list egress flows, trying again", "error", err)
			pause.For(ctx, restartAfter)
			signal(c.due)
		}
	}
}

// listing is one list of this node's flows.
type listing struct {
	view    *view
	full    map[*channel]bool // channels where a full list is due
	slow    map[*channel]bool // channels that had no room, and get no more of this list
	regular bool              // all other channels get the flows that may expire there
	round   uint16
}

// listOnce sends all flows to channels where a full list is due; with regular, it sends to the others the flows that
// may expire there.
func (c *Carrier) listOnce(ctx context.Context, regular bool, round uint16) error {
	l := c.dueLists(regular, round)
	if len(l.full) == 0 && !l.regular {
		return nil
	}
	err := conntrack.ListFlows(ctx, c.marks, func(f conntrack.Flow) bool {
		if worth(f) {
			c.sendListed(ctx, l, f)
		}
		return ctx.Err() == nil
	})
	if err != nil {
		listAgain(l.full)
	}
	return err
}

// sendListed sends a flow to the channels whose list has it.
func (c *Carrier) sendListed(ctx context.Context, l listing, f conntrack.Flow) {
	own, refresh := c.own(l.view, f), l.refreshes(f)
	for _, t := range l.view.receivers(f.SNAT.Addr()) {
		listed := true
		switch {
		case l.slow[t.channel]:
		case own && l.full[t.channel] && l.view.leaves(f):
			// The peer may have an entry from its time as host, and would forward the remote's packets past the
			// entry here.
			listed = t.putListed(ctx, record{Flow: f, ended: true})
		case !own && t.host && (l.full[t.channel] || refresh):
			listed = t.putListed(ctx, alive(f))
		}
		if !listed {
			l.slow[t.channel] = true
		}
	}
}

// refreshes reports whether a list sends a flow again: each TCP flow has its turn in one of tellTCPEvery rounds, UDP flows in
// every round.
func (l listing) refreshes(f conntrack.Flow) bool {
	hasTurn := f.Proto == unix.IPPROTO_UDP || (f.Src.Port()^f.Dst.Port())%tellTCPEvery == l.round%tellTCPEvery
	return l.regular && hasTurn
}

// dueLists returns the list that is due now, which it notes as done. It is not regular if no channel is up.
func (c *Carrier) dueLists(regular bool, round uint16) listing {
	l := listing{full: map[*channel]bool{}, slow: map[*channel]bool{}, round: round}
	c.mu.Lock()
	defer c.mu.Unlock()
	l.view = c.view
	for _, ch := range c.view.channels {
		full, up := ch.takeDue()
		if full {
			l.full[ch] = true
		}
		l.regular = l.regular || regular && up
	}
	return l
}

// takeDue reports whether a full list is due, which it notes as done, and whether the channel is up.
func (ch *channel) takeDue() (full, up bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.lost && time.Since(ch.lastListed) >= listAgainAfter {
		ch.list, ch.lost = true, false
	}
	full = ch.list
	if full {
		ch.lastListed = time.Now()
	}
	ch.list = false
	return full, ch.up
}

// send keeps a channel up until ctx ends.
func (c *Carrier) send(ctx context.Context, ch *channel) {
	log := c.log.With("peer", ch.peer.Addr())
	logged := "" // the last error logged
	for wait := soonAfter; ctx.Err() == nil; wait = min(2*wait, restartAfter) {
		err := c.tellOn(ctx, ch, func() {
			logged, wait = "", soonAfter
			log.Info("sending egress flows to host or standby")
		})
		if ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			log.Info("cannot send egress flows to host or standby, trying again", "error", err)
		}
		pause.For(ctx, wait)
	}
}

// tellOn sets up a channel and sends on it until it fails.
func (c *Carrier) tellOn(ctx context.Context, ch *channel, up func()) error {
	d := net.Dialer{Timeout: dialWithin, LocalAddr: &net.TCPAddr{IP: ch.local.AsSlice()}, Control: farthest}
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp", ch.peer.String())
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(dialWithin)); err != nil {
		return err
	}
	hello := make([]byte, helloSize)
	if _, err := io.ReadFull(conn, hello); err != nil {
		return fmt.Errorf("greet %s: %w", ch.peer, err)
	}
	if string(hello[:len(magic)]) != magic || hello[len(magic)] != version {
		return fmt.Errorf("greet %s: %w", ch.peer, errFormat)
	}
	if _, err := conn.Write(hello); err != nil {
		return fmt.Errorf("greet %s: %w", ch.peer, err)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	// The peer sends nothing more; when it closes the connection, the channel ends at once.
	var work sync.WaitGroup
	defer work.Wait()
	defer end()
	work.Go(func() {
		_, _ = conn.Read(make([]byte, 1))
		end()
	})
	up()
	ch.begin()
	defer ch.end()
	signal(c.due)
	return c.sendQueued(ctx, ch, conn)
}

var errHungUp = errors.New("the peer closed the connection")

func (c *Carrier) sendQueued(ctx context.Context, ch *channel, conn net.Conn) error {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	out := frameWriter{carrier: c, conn: conn, frame: make([]byte, 0, 2+maxFrame)}
	write := func(records []byte) error { return out.write(ctx, records) }
	for {
		var err error
		select {
		case <-ctx.Done():
			return errHungUp
		case <-beat.C:
			err = write(nil)
		case <-ch.filled:
			pause.For(ctx, batchFor)
			err = frames(ch.take(), write)
		}
		if err != nil {
			return err
		}
	}
}

// frameWriter writes frames at the pace of a channel.
type frameWriter struct {
	carrier *Carrier
	conn    net.Conn
	frame   []byte        // buffer
	ahead   time.Duration // of the pace
}

func (w *frameWriter) write(ctx context.Context, records []byte) error {
	w.frame = append(binary.BigEndian.AppendUint16(w.frame[:0], uint16(len(records))), records...)
	if err := w.conn.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil {
		return err
	}
	if _, err := w.conn.Write(w.frame); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	count := countRecords(records)
	w.carrier.counters.bytes.Add(uint64(len(w.frame)))
	w.carrier.counters.sent.Add(uint64(count))
	w.ahead += time.Duration(count) * time.Second / pace
	return w.rest(ctx)
}

// rest waits if the writer is ahead of the pace.
func (w *frameWriter) rest(ctx context.Context) error {
	if w.ahead <= batchFor {
		return nil
	}
	if !pause.For(ctx, w.ahead) {
		return errHungUp
	}
	w.ahead = 0
	return nil
}

func countRecords(records []byte) (count int) {
	for n := 0; n < len(records); n += 1 + int(records[n]) {
		count++
	}
	return count
}

// farthest sets the hop limit that only packets of a neighbour still have on arrival (RFC 5082), and a timeout for
// unacknowledged data.
func farthest(network, _ string, raw syscall.RawConn) error {
	return control(raw, func(fd int) error {
		if network == "tcp4" {
			return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TTL, 255), giveUp(fd))
		}
		return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 255), giveUp(fd))
	})
}

func giveUp(fd int) error {
	return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(writeWithin.Milliseconds()))
}

func control(raw syscall.RawConn, f func(fd int) error) error {
	var failed error
	err := raw.Control(func(fd uintptr) { failed = f(int(fd)) })
	return errors.Join(err, failed)
}
