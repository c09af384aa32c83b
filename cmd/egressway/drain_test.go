package main

import (
	"bytes"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/lab"
)

// served returns a report of a draining node a whose services have this host and standby, one letter each.
func served(hosts ...string) status.Report {
	p := &plan.NodePlan{}
	for i, h := range hosts {
		p.Services = p.Services.With([]plan.Service{{
			Key: cluster.Key{Namespace: "shop", Name: string(rune('k' + i))}, Host: h[:1], Standby: strings.TrimSpace(h[1:]),
		}}, nil)
	}
	now := time.Now()
	r := status.From(p, nil, nil, status.Pass{Began: now, Ended: now, InForce: true, Draining: true, DrainReported: true})
	r.Node = "a"
	return r
}

func TestDrainProgress(t *testing.T) {
	var out strings.Builder
	began := time.Now()
	p := progress{out: &out}
	says := func(after time.Duration, r status.Report, want string) {
		t.Helper()
		out.Reset()
		done := p.update(r, began.Add(after))
		require.Equal(t, want, out.String())
		require.Equal(t, strings.HasSuffix(want, "drained\n"), done)
	}
	says(0, served("ab", "ac", "bc", "ca"), "2 services moving\n")
	says(time.Second, served("ab", "ac", "bc", "ca"), "")
	says(2*time.Second, served("ab", "ba", "bc", "c "), "1 service moving\n")
	says(3*time.Second, served("ba", "ca"), "waiting for the flows of 2 services (0s)\n")
	says(9*time.Second, served("ba", "ca"), "")
	says(13*time.Second, served("ba", "ca"), "waiting for the flows of 2 services (10s)\n")
	says(14*time.Second, served("ba", "cb"), "waiting for the flows of 1 service (11s)\n")
	says(15*time.Second, served("ab", "cb"), "1 service moving\n")
	says(16*time.Second, served("bc", "cb"), "") // other nodes may still send packets to it
	says(18*time.Second, served("bc", "cb"), "node a is drained\n")

	p = progress{out: &out}
	unreported := served()
	unreported.DrainReported = false
	says(0, unreported, "")
	says(time.Minute, unreported, "")
	require.Equal(t, "the API server does not have its report that it drains, so the leader does not know", remaining(unreported))
	says(time.Minute, served(), "")
	says(time.Minute+time.Second, served("ab"), "1 service moving\n") // the leader had just elected it
	says(time.Minute+2*time.Second, served(), "")
	says(time.Minute+4*time.Second, served(), "node a is drained\n")

	p = progress{out: &out} // after a restart, the kernel serves what no report lists
	unknowing := served()
	unknowing.Unknowing = true
	says(time.Minute, unknowing, "waiting: the daemon does not know all objects yet since its start\n")
	says(2*time.Minute, served(), "")
	says(2*time.Minute+quietFor, served(), "node a is drained\n")
}

func TestDrainRemaining(t *testing.T) {
	require.Equal(t, "the daemon does not know all objects yet", remaining(status.Report{Unknowing: true, Draining: true}))
	require.Equal(t, "it is still host of shop/k, and standby of shop/l", remaining(served("ab", "ba")))
	require.Equal(t, "it is still host of shop/k, shop/l, shop/m, shop/n, shop/o and 2 more", remaining(served("a ", "a ", "a ", "a ", "a ", "a ", "a ")))
}

func TestDrain(t *testing.T) {
	run := func(args ...string) (code int, out, errs string) {
		var o, e bytes.Buffer
		code = execute(append([]string{"drain"}, args...), &o, &e)
		return code, o.String(), e.String()
	}
	s, socket := status.New("v0.1.0", "a"), filepath.Join(t.TempDir(), "e.sock")
	orders := make(chan bool, 1)
	s.OnDrain(func(yes bool) error {
		orders <- yes
		return nil
	})
	serveStatus(t, s, socket)

	publish(s, served("bc"))
	code, out, errs := run("--socket", socket)
	require.Zero(t, code, errs)
	require.Equal(t, "node a is drained\n", out)
	require.True(t, <-orders)

	code, out, errs = run("--undo", "--socket", socket)
	require.Zero(t, code, errs)
	require.Empty(t, out)
	require.False(t, <-orders)

	publish(s, served("ab"))
	code, out, errs = run("--timeout", "1s", "--socket", socket)
	require.Equal(t, 1, code)
	require.Equal(t, "1 service moving\n", out)
	require.Equal(t, "egressway: node a is not drained after 1s: it is still host of shop/k; it continues to drain\n", errs)
	require.True(t, <-orders)

	code, _, errs = run("--timeout", "0s", "--socket", socket)
	require.Equal(t, 1, code)
	require.Contains(t, errs, "within 0s")
	require.True(t, <-orders, "the order is given though the command does not wait")

	code, _, errs = run("--socket", socket+"x")
	require.Equal(t, 1, code)
	require.True(t, strings.HasPrefix(errs, "egressway: no daemon answers on socket "+socket+"x: is it running? "), errs)
}

// TestDrainUnanswered drains by a daemon that listens and does not answer, such as one that is stopped in a debugger.
func TestDrainUnanswered(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "e.sock")
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	defer listener.Close()
	ended := make(chan int, 1)
	var out, errs bytes.Buffer
	go func() { ended <- execute([]string{"drain", "--timeout", "50ms", "--socket", socket}, &out, &errs) }()
	select {
	case code := <-ended:
		require.Equal(t, 1, code)
	case <-time.After(lab.Patience):
		require.FailNow(t, "drain does not end")
	}
	require.Equal(t, "egressway: the daemon on socket "+socket+" did not answer within 50ms: see its log; it may have the order nevertheless\n", errs.String())
}

func TestDrainRefused(t *testing.T) {
	s, socket := status.New("v0.1.0", "a"), filepath.Join(t.TempDir(), "e.sock")
	s.OnDrain(func(bool) error { return errors.New("nobody moves services here") })
	serveStatus(t, s, socket)
	var out, errs bytes.Buffer
	require.Equal(t, 1, execute([]string{"drain", "--socket", socket}, &out, &errs))
	require.Equal(t, "egressway: the daemon refuses: nobody moves services here\n", errs.String())
}
