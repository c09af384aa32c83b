package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// datagrams is a UDP flow of a pod that stays: a question every 10 ms, from one port.
type datagrams struct {
	pod            string
	asked, answers atomic.Int64
	underWay       atomic.Int64 // the most questions that had no answer yet
	conn           *net.UDPConn
	stop           chan struct{}
	stopped        chan struct{}
}

// stream begins a flow, which ends with the test.
func stream(t *testing.T, s *stage.Stage, pod string, to netip.AddrPort) *datagrams {
	t.Helper()
	d := &datagrams{pod: pod, stop: make(chan struct{}), stopped: make(chan struct{})}
	require.NoError(t, s.Node(pod).Do(func() (err error) {
		d.conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	}))
	t.Cleanup(func() { require.NoError(t, d.conn.Close()) })
	go d.ask()
	go func() {
		answer := make([]byte, 1500)
		for {
			if _, err := d.conn.Read(answer); errors.Is(err, net.ErrClosed) {
				return
			} else if err == nil {
				d.answers.Add(1)
			}
		}
	}()
	return d
}

func (d *datagrams) ask() {
	defer close(d.stopped)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-d.stop:
			return
		case <-tick.C:
			if _, err := d.conn.Write([]byte{0}); err == nil {
				d.underWay.Store(max(d.underWay.Load(), d.asked.Add(1)-d.answers.Load()))
			}
		}
	}
}

// flows waits until so many more questions were answered.
func (d *datagrams) flows(t *testing.T, more int64) {
	t.Helper()
	enough := d.answers.Load() + more
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		if n := d.answers.Load(); n < enough {
			return fmt.Errorf("%s: %d answers, want %d", d.pod, n, enough)
		}
		return nil
	}))
}

// lost ends the questions, and returns how many of them had no answer.
func (d *datagrams) lost(t *testing.T) int64 {
	t.Helper()
	close(d.stop)
	<-d.stopped
	_ = lab.Wait(t.Context(), 5*time.Second, func() error {
		if d.asked.Load() > d.answers.Load() {
			return errors.New("not answered")
		}
		return nil
	})
	return d.asked.Load() - d.answers.Load()
}

// TestKeptFlowsEnd has the host move twice. Flows stay at the former host for a while, go on at the host when that time is over, or when
// another move begins before, and lose nothing. Where the pod is on the former or the next host, its flow may lose what is under way when it
// goes on elsewhere: the pod's node has only one connection for both ways. That is one answer, or as many as a slow machine has under way of
// flows that stay where they are. If another move begins before, it may lose more.
func TestKeptFlowsEnd(t *testing.T) {
	s := play(t, stage.Options{API: true, Nodes: []string{"a", "b", "c"}, Config: keeping("4s")})
	ctx := t.Context()
	host, standby := hosts(t, s)
	hostAt(t, s, host)
	moves := func(t *testing.T, over bool) {
		t.Helper()
		var all []*datagrams
		for _, pod := range []string{"a-p1", "b-p1", "c-p1"} { // the last one is not selected
			for _, to := range outside {
				all = append(all, stream(t, s, pod, to))
			}
		}
		for _, d := range all {
			d.flows(t, 300) // UDP is established after 2 s
		}
		was := host
		editNode(t, s, was, "spec:\n", "spec:\n  unschedulable: true\n")
		_, err := s.AwaitStatus(ctx, "shop", "web", hostIs(standby))
		require.NoError(t, err)
		host, standby = standby, host
		next := host
		for _, d := range all {
			d.flows(t, 20)
		}
		if over {
			_, err := s.AwaitStatus(ctx, "shop", "web", standbyIsNot(was))
			require.NoError(t, err)
		} else {
			second := host
			editNode(t, s, second, "spec:\n", "spec:\n  unschedulable: true\n")
			third := map[string]string{"ab": "c", "ba": "c", "ac": "b", "ca": "b", "bc": "a", "cb": "a"}[host+standby]
			_, err := s.AwaitStatus(ctx, "shop", "web", hostIs(third))
			require.NoError(t, err)
			host, standby = third, host
			defer editNode(t, s, second, "  unschedulable: true\n", "")
		}
		for _, d := range all {
			d.flows(t, 100)
		}
		lost := make([]int64, len(all))
		var ending sync.WaitGroup
		for i, d := range all {
			ending.Go(func() { lost[i] = d.lost(t) })
		}
		ending.Wait()
		underWay := int64(1)
		for _, d := range all {
			if d.pod == "c-p1" {
				underWay = max(underWay, d.underWay.Load())
			}
		}
		for i, d := range all {
			most := int64(0)
			if on := d.pod[:1]; d.pod != "c-p1" && (on == was || on == next) {
				if !over {
					continue
				}
				most = underWay
			}
			require.LessOrEqual(t, lost[i], most, "%s, %d questions; moved from %s to %s", d.pod, d.asked.Load(), was, next)
		}
		editNode(t, s, was, "  unschedulable: true\n", "")
	}
	t.Run("the time is over", func(t *testing.T) { moves(t, true) })
	e, err := s.AwaitStatus(ctx, "shop", "web", standbyIsNot(""))
	require.NoError(t, err)
	standby = e.Status.Standby
	t.Run("another move begins", func(t *testing.T) { moves(t, false) })
}

// hostIs is a status with a host, and any standby: the former host is it for a few seconds only.
func hostIs(node string) func(egressv1.EgressServiceStatus) error {
	return func(e egressv1.EgressServiceStatus) error {
		if e.Host != node {
			return fmt.Errorf("the host is %q", e.Host)
		}
		return nil
	}
}

// standbyIsNot is a status with a standby that is another node, or none.
func standbyIsNot(node string) func(egressv1.EgressServiceStatus) error {
	return func(e egressv1.EgressServiceStatus) error {
		if e.Standby == node {
			return fmt.Errorf("the standby is %q still", node)
		}
		return nil
	}
}

// TestOwnConnectionsGoOn has connections of the former host's own pods go on by the next host once their time at the former one is over, with
// the ports that they had, also where bytes are under way.
func TestOwnConnectionsGoOn(t *testing.T) {
	s := play(t, stage.Options{API: true, Nodes: []string{"a", "b", "c"}, Config: keeping("4s")})
	ctx := t.Context()
	host, standby := hosts(t, s)
	if host == "c" { // which has no pod of web
		editNode(t, s, "c", "spec:\n", "spec:\n  unschedulable: true\n")
		e, err := s.AwaitStatus(ctx, "shop", "web", func(e egressv1.EgressServiceStatus) error {
			if e.Host == "c" || e.Standby == "c" || e.Standby == "" {
				return fmt.Errorf("host %s and standby %q", e.Host, e.Standby)
			}
			return nil
		})
		require.NoError(t, err)
		host, standby = e.Status.Host, e.Status.Standby
		editNode(t, s, "c", "  unschedulable: true\n", "")
	}
	hostAt(t, s, host)
	all := asDeployed()
	awaitServed(t, s, all)
	var busy []*flowSession
	var up []bool
	own, others := host+"-p1", other(host)+"-p1"
	for i, sends := range []bool{true, false} {
		for _, f := range shifted(t, s, own, others, 40001+uint16(i)) {
			busy, up = append(busy, f), append(up, sends)
		}
	}
	idle := shifted(t, s, own, others, 40000)
	s.Witness.Reset()
	poured := pour(t, busy, up)
	allMove(t, busy)
	editNode(t, s, host, "spec:\n", "spec:\n  unschedulable: true\n")
	_, err := s.AwaitStatus(ctx, "shop", "web", func(e egressv1.EgressServiceStatus) error {
		if e.Host != standby || e.Standby == host {
			return fmt.Errorf("host %s and standby %q", e.Host, e.Standby)
		}
		return nil
	})
	require.NoError(t, err)
	for _, f := range busy {
		knows(t, s, standby, f.seen)
	}
	allMove(t, busy)
	require.NoError(t, poured())
	requireAlive(t, busy)
	requireAlive(t, idle)
	requireInnocent(t, s, all)
}
