package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/lab"
	"github.com/egressway/egressway/internal/lab/stage"
)

// singles are questions of one datagram each, asked again and again. Nothing repeats one that was lost.
type singles struct {
	stop     context.CancelFunc
	work     sync.WaitGroup
	asked    atomic.Int64
	answered atomic.Int64
	mu       sync.Mutex
	wrong    []string
}

// askSingly has pods ask the outside. A question has as long as a busy machine may take.
func askSingly(t *testing.T, s *stage.Stage, pods identities) *singles {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	q := &singles{stop: stop}
	for pod, who := range pods {
		for _, to := range outside {
			q.work.Go(func() {
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for ctx.Err() == nil {
					q.work.Go(func() { q.ask(t.Context(), s.Node(pod), who, to) })
					<-tick.C
				}
			})
		}
	}
	t.Cleanup(stop)
	return q
}

func (q *singles) ask(ctx context.Context, pod *lab.Node, who identity, to netip.AddrPort) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	q.asked.Add(1)
	at := time.Now()
	a, err := pod.AskUDP(ctx, to, 1)
	if err == nil {
		err = stage.Check(a, who.host, who.source(to))
	}
	if err == nil {
		q.answered.Add(1)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wrong = append(q.wrong, fmt.Sprintf("asked at %s: %v", at.Format(time.RFC3339Nano), err))
}

// end waits for the answers to all questions.
func (q *singles) end(t *testing.T) {
	t.Helper()
	q.stop()
	q.work.Wait()
	t.Logf("%d questions", q.asked.Load())
	require.Empty(t, q.wrong)
}

// more waits until so many more were answered.
func (q *singles) more(t *testing.T, n int64) {
	t.Helper()
	before := q.answered.Load()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		if got := q.answered.Load() - before; got < n {
			return fmt.Errorf("%d more answers, want %d", got, n)
		}
		return nil
	}))
}

// TestSlowStart starts the host's daemon on a machine that is so busy that it stands still again and again. Not one datagram is lost.
func TestSlowStart(t *testing.T) {
	s := play(t, stage.Options{Nodes: stage.Nodes, Manifests: oneFile(t), Config: steady})
	ctx := t.Context()
	all := asDeployed()
	pods := identities{"a-p1": web, "b-p1": web, "a-p2": batchA}
	awaitServed(t, s, all)
	awaitLearned(t, s)
	for round := range 2 {
		require.NoError(t, s.Daemons["a"].Stop(ctx))
		before := dropsOf(t, s)
		q := askSingly(t, s, pods)
		q.more(t, 20)
		require.NoError(t, s.StartDaemon("a"))
		daemon := s.Daemons["a"]
		halting, halt := context.WithCancel(ctx)
		var halts sync.WaitGroup
		halts.Go(func() {
			for halting.Err() == nil {
				_ = daemon.Signal(syscall.SIGSTOP)
				wait(halting, time.Duration(rand.N(400))*time.Millisecond)
				_ = daemon.Signal(syscall.SIGCONT)
				wait(halting, time.Duration(rand.N(20))*time.Millisecond)
			}
		})
		for range 5 {
			q.more(t, 100)
		}
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			if !strings.Contains(daemon.Log(), "objects known") {
				return fmt.Errorf("round %d: no pass yet: %s", round, daemon.Log())
			}
			return nil
		}))
		q.more(t, 200)
		halt()
		halts.Wait()
		q.more(t, 400)
		q.end(t)
		require.Equal(t, before, dropsOf(t, s))
		requireInnocent(t, s, all)
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// dropsOf is what nodes have dropped.
func dropsOf(t *testing.T, s *stage.Stage) (all []string) {
	t.Helper()
	for _, node := range stage.Nodes {
		for _, l := range inKernel(t, s, node, "nft list counters table inet egressway | tr '\\n' ' ' | sed 's/counter/\\n/g'") {
			if !strings.Contains(l, "packets 0 ") {
				all = append(all, node+": "+strings.Join(strings.Fields(l), " "))
			}
		}
	}
	slices.Sort(all)
	return all
}
