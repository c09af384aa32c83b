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

	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/pause"
	"github.com/egressway/egressway/internal/plan"
)

const (
	// batchFor is how long the first of a batch waits for others.
	batchFor = 5 * time.Millisecond
	// mostQueued bounds what waits to be sent by one channel, in bytes. The last quarter is for flows that ended: to keep
	// one here that is over would take its port from another.
	mostQueued = 4 << 20
	// pace bounds a channel, in flows a second: what costs each side about a fifth of a core.
	pace = 50000
	// beatEvery is how often a channel shows that it lives, where there is nothing to tell.
	beatEvery = 5 * time.Second
	// writeWithin is how long the other side may take none of what is sent.
	writeWithin = 5 * time.Second
	// soonAfter is the pause before a channel is tried again at first: the other node may learn its role a moment later.
	soonAfter = 50 * time.Millisecond
	// dialWithin bounds the start of a channel.
	dialWithin = 3 * time.Second

	// tellEvery is how often a UDP flow is told of again. Its entry at the standby sees no packets, and would run out.
	tellEvery = time.Minute
	// tellTCPEvery is that of TCP, in such rounds.
	tellTCPEvery = 15
	// keepTCP bounds for how long a standby keeps a TCP flow that it hears no more of: longer than connections send
	// keepalives (2 hours unless an application asks for less), much shorter than the kernel's five days.
	keepTCP = 3 * time.Hour
	// listAgainAfter is the least time between two full lists because something was lost.
	listAgainAfter = 10 * time.Second
)

// link is the way of a channel.
type link struct {
	local netip.Addr
	peer  netip.AddrPort
}

// channel tells another node of flows.
type channel struct {
	link
	filled chan struct{} // there is something to send
	room   chan struct{} // there is room for a part of a list

	mu       sync.Mutex
	up       bool
	list     bool // a full list is due
	lost     bool // and not at once: something had no room
	queue    []byte
	lastTold time.Time // the last full list
}

func newChannel(l link) *channel {
	return &channel{link: l, filled: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// due says whether a full list is due, since the channel is to tell of more now.
func (ch *channel) due() bool {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.list = ch.list || ch.up
	return ch.list
}

// begin and end say whether somebody hears.
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

// put queues a record. It says whether there was room, which a channel that is down needs none for.
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

// putListed queues a record of a list, once there is room for it beside what happens.
func (ch *channel) putListed(ctx context.Context, r record) {
	for {
		ch.mu.Lock()
		if !ch.up || len(ch.queue) < maxFrame {
			if ch.up {
				ch.queue = appendRecord(ch.queue, r)
				signal(ch.filled)
			}
			ch.mu.Unlock()
			return
		}
		ch.mu.Unlock()
		select {
		case <-ch.room:
		case <-ctx.Done():
			return
		}
	}
}

func (ch *channel) take() []byte {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	b := ch.queue
	ch.queue = nil
	signal(ch.room)
	return b
}

// happened is called for every event of the kernel.
func (c *Carrier) happened(e kernel.FlowEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Kind == kernel.FlowsLost {
		for _, ch := range c.view.channels {
			ch.mu.Lock()
			if ch.up { // else the list comes with it
				c.counters.lost.Add(1)
				ch.lost = true
			}
			ch.mu.Unlock()
		}
		signal(c.due)
		return
	}
	targets := c.view.tell(e.Flow.SNAT.Addr())
	switch {
	case len(targets) == 0 || c.own(c.view, e.Flow):
	case e.Kind == kernel.FlowEnded:
		if c.pending.forget(e.Flow) {
			return
		}
		// What ran out here may live there: packets may have gone by the standby for longer than we know.
		closed := e.Flow.State == kernel.TCPTimeWait || e.Flow.State == kernel.TCPClosed
		for _, t := range targets {
			if t.host || closed {
				c.tell(t, record{Flow: e.Flow, ended: true})
			}
		}
	case !worth(e.Flow):
		c.pending.forget(e.Flow) // a question that was answered
	case !c.pending.add(e.Flow, time.Now()):
		c.counters.dropped.Add(1)
		for _, t := range targets {
			t.mu.Lock()
			t.lost = t.up
			t.mu.Unlock()
		}
	}
}

// worth says whether a flow is told of: if it lasts, or waits for its first answer. A UDP question that was answered is done.
func worth(f kernel.Flow) bool {
	if f.Proto == unix.IPPROTO_TCP {
		return f.Assured && f.State >= kernel.TCPEstablished && f.State < kernel.TCPTimeWait
	}
	return f.Assured || !f.Answered
}

// own says whether a flow is of a pod of this node, which is not told of: the pod dies with the node. While the node lives,
// the flow leaves here, and if the other node knew of it, it would send what the remote answers to the pod itself, past the
// entry here.
func (c *Carrier) own(v *view, f kernel.Flow) bool {
	e, ok := v.endpoint(f.Src.Addr())
	return ok && e.Node == c.node
}

// leaves says whether a flow of a pod of this node goes on by this node.
func (v *view) leaves(f kernel.Flow) bool {
	e, _ := v.endpoint(f.Src.Addr())
	way := plan.Way{Path: f.Path, Source: f.SNAT.Addr()}
	return e.Kept == way || e.Path == way.Path && e.Source == way.Source
}

func (c *Carrier) tell(t told, r record) {
	if !t.put(r) {
		c.counters.dropped.Add(1)
	}
}

// alive is what is told of a flow: for how long it is to be kept.
func alive(f kernel.Flow) record {
	switch {
	case f.Proto == unix.IPPROTO_UDP:
		f.Timeout += uint32(tellEvery / time.Second)
	case f.State == kernel.TCPEstablished:
		f.Timeout = min(f.Timeout, uint32(keepTCP/time.Second))
	default: // one side has closed, the other may send for long
		f.Timeout = max(f.Timeout, uint32(2*tellTCPEvery*tellEvery/time.Second))
	}
	return record{Flow: f}
}

// release tells of flows that have lived long enough.
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

// tellRipe tells the standbys. A host hears nothing of flows that began at its standby: those come from nodes that do not
// reach the host, and it could not send them what the remote answers. It hands that to the standby as long as it does not
// know whose it is.
func (c *Carrier) tellRipe(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.pending.ripe(now) {
		for _, t := range c.view.tell(f.SNAT.Addr()) {
			if t.host {
				c.tell(t, alive(f))
			}
		}
	}
}

// listAll tells of all flows where that is due, and of some again in every round.
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
			c.log.Warn("egress flows cannot be listed, trying again", "error", err)
			pause.For(ctx, restartAfter)
			signal(c.due)
		}
	}
}

// listOnce tells of all flows by the channels where that is due; with regular, by the others of those that may run out there.
func (c *Carrier) listOnce(ctx context.Context, regular bool, number uint16) (err error) {
	full := map[*channel]bool{}
	c.mu.Lock()
	v, some := c.view, false
	for _, ch := range v.channels {
		ch.mu.Lock()
		if ch.lost && time.Since(ch.lastTold) >= listAgainAfter {
			ch.list, ch.lost = true, false
		}
		if ch.list {
			full[ch], ch.lastTold = true, time.Now()
		}
		some = some || ch.up
		ch.list = false
		ch.mu.Unlock()
	}
	c.mu.Unlock()
	if len(full) == 0 && (!regular || !some) {
		return nil
	}
	defer func() {
		for ch := range full {
			if err != nil {
				ch.mu.Lock()
				ch.list = ch.up
				ch.mu.Unlock()
			}
		}
	}()
	return kernel.ListFlows(ctx, c.marks, func(f kernel.Flow) bool {
		if !worth(f) {
			return ctx.Err() == nil
		}
		own := c.own(v, f)
		// Rounds share the TCP flows out among them; no two rounds in a row tell of the same.
		turn := f.Proto == unix.IPPROTO_UDP || (f.Src.Port()^f.Dst.Port())%tellTCPEvery == number%tellTCPEvery
		for _, t := range v.tell(f.SNAT.Addr()) {
			switch {
			case own && full[t.channel] && v.leaves(f):
				// The other may have it from when it was the host, and would send what the remote answers past the entry here.
				t.putListed(ctx, record{Flow: f, ended: true})
			case !own && t.host && (full[t.channel] || regular && turn):
				t.putListed(ctx, alive(f))
			}
		}
		return ctx.Err() == nil
	})
}

// send keeps a channel up until ctx ends.
func (c *Carrier) send(ctx context.Context, ch *channel) {
	log := c.log.With("peer", ch.peer.Addr())
	told := "" // the last error
	for wait := soonAfter; ctx.Err() == nil; wait = min(2*wait, restartAfter) {
		err := c.tellOn(ctx, ch, func() {
			told, wait = "", soonAfter
			log.Info("egress flows are told to host or standby")
		})
		if ctx.Err() == nil && err.Error() != told {
			told = err.Error()
			log.Info("egress flows cannot be told to host or standby, trying again", "error", err)
		}
		pause.For(ctx, wait)
	}
}

// tellOn sets a channel up and sends by it until it fails.
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
	// Nothing more comes; the end of it ends the channel at once.
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

var errHungUp = errors.New("the other side hung up")

func (c *Carrier) sendQueued(ctx context.Context, ch *channel, conn net.Conn) error {
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	frame := make([]byte, 0, 2+maxFrame)
	var ahead time.Duration // of the pace
	write := func(records []byte) error {
		frame = append(binary.BigEndian.AppendUint16(frame[:0], uint16(len(records))), records...)
		if err := conn.SetWriteDeadline(time.Now().Add(writeWithin)); err != nil {
			return err
		}
		if _, err := conn.Write(frame); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		count := 0
		for n := 0; n < len(records); n += 1 + int(records[n]) {
			count++
		}
		c.counters.bytes.Add(uint64(len(frame)))
		c.counters.sent.Add(uint64(count))
		if ahead += time.Duration(count) * time.Second / pace; ahead > batchFor {
			if !pause.For(ctx, ahead) {
				return errHungUp
			}
			ahead = 0
		}
		return nil
	}
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

// farthest sets the hop limit that only a neighbour's packets arrive with (RFC 5082), and ends a connection that nobody
// acknowledges.
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
