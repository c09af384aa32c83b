package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
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
				d.asked.Add(1)
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
func (d *datagrams) lost(t *testing.T) (n int64) {
	t.Helper()
	close(d.stop)
	<-d.stopped
	_ = lab.Wait(t.Context(), time.Second, func() error {
		if n = d.asked.Load() - d.answers.Load(); n > 0 {
			return errors.New("not answered")
		}
		return nil
	})
	return n
}

// TestKeptFlowsEnd has the host move twice. Flows of pods on other nodes stay at the former host for a while, go on at the host when
// that time is over, or when another move begins before, and lose nothing. A flow whose pod is on the next host may lose some.
func TestKeptFlowsEnd(t *testing.T) {
	s := play(t, stage.Options{API: true, Nodes: []string{"a", "b", "c"}, Config: keeping("4s")})
	ctx := t.Context()
	host, standby := hosts(t, s)
	hostAt(t, s, host)
	moves := func(t *testing.T, over bool) {
		t.Helper()
		var all []*datagrams
		for _, pod := range []string{"a-p1", "b-p1"} {
			for _, to := range outside {
				if pod[:1] != host {
					all = append(all, stream(t, s, pod, to))
				}
			}
		}
		for _, d := range all {
			d.flows(t, 300) // UDP is established after 2 s
		}
		was := host
		editNode(t, s, was, "spec:\n", "spec:\n  unschedulable: true\n")
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, host))
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
			require.NoError(t, s.AwaitHost(ctx, "shop", "web", third, host))
			host, standby = third, host
			defer editNode(t, s, second, "  unschedulable: true\n", "")
		}
		for _, d := range all {
			d.flows(t, 100)
		}
		for _, d := range all {
			if lost := d.lost(t); d.pod[:1] != next { // the next host takes over its own pods' flows when they end at the former one
				require.Zero(t, lost, "%s, %d questions", d.pod, d.asked.Load())
			}
		}
		editNode(t, s, was, "  unschedulable: true\n", "")
	}
	t.Run("the time is over", func(t *testing.T) { moves(t, true) })
	e, err := s.AwaitStatus(ctx, "shop", "web", standbyIsNot(""))
	require.NoError(t, err)
	standby = e.Status.Standby
	t.Run("another move begins", func(t *testing.T) { moves(t, false) })
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
