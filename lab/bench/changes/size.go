package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/egressway/egressway/lab/bench/internal/figures"
)

// use holds the resources that the daemon and its speaker have used.
type use struct {
	at              time.Time
	agent, speaker  figures.Process
	heap            float64 // bytes in use, of the agent
	goroutines      float64
	passes, seconds float64 // of the agent's loop
}

// use asks the daemon too, which makes its report for that.
func (b *bed) use(ctx context.Context) (u use, err error) {
	u.at = time.Now()
	if u.agent, err = figures.ReadProcess(b.daemon.PID()); err != nil {
		return u, err
	}
	if pid := b.speaker(); pid != 0 {
		if u.speaker, err = figures.ReadProcess(pid); err != nil {
			return u, err
		}
	}
	metrics, err := b.metrics(ctx)
	if err != nil {
		return u, err
	}
	u.heap, u.goroutines = metrics["go_memstats_heap_inuse_bytes"], metrics["go_goroutines"]
	u.passes, u.seconds = metrics["egressway_pass_duration_seconds_count"], metrics["egressway_pass_duration_seconds_sum"]
	return u, nil
}

func (b *bed) metrics(ctx context.Context) (map[string]float64, error) {
	client := &http.Client{Transport: &http.Transport{DialContext: b.dial, DisableKeepAlives: true}}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metricsAddress+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	r, err := client.Do(q)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	all := map[string]float64{}
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseFloat(value, 64); ok && err == nil {
			all[name] = n
		}
	}
	return all, nil
}

// cost prints how much the daemon used between two moments.
func (*bed) cost(out io.Writer, before, after use, when string) {
	share := func(from, to figures.Process) float64 {
		return 100 * (to.CPU - from.CPU).Seconds() / after.at.Sub(before.at).Seconds()
	}
	t := figures.NewTable("", "daemon", "its speaker")
	t.Add("processor, "+when, fmt.Sprintf("%.1f %% of one", share(before.agent, after.agent)),
		fmt.Sprintf("%.1f %%", share(before.speaker, after.speaker)))
	t.Add("RSS before", figures.Mebi(before.agent.Now), figures.Mebi(before.speaker.Now))
	t.Add("RSS after", figures.Mebi(after.agent.Now), figures.Mebi(after.speaker.Now))
	t.Add("RSS, most since its start", figures.Mebi(after.agent.Peak), figures.Mebi(after.speaker.Peak))
	t.Add("heap in use after", figures.Mebi(int(after.heap/1024)), "")
	t.Add("goroutines before, after", fmt.Sprintf("%g, %g", before.goroutines, after.goroutines), "")
	if n := after.passes - before.passes; n > 0 {
		each := func(total time.Duration) string { return figures.Duration(time.Duration(float64(total) / n)) }
		t.Add("passes", fmt.Sprintf("%g", n), "")
		t.Add("time of a pass, on average", each(time.Duration((after.seconds-before.seconds)*float64(time.Second))), "")
		t.Add("processor time for each pass, with all else that the process does", each(after.agent.CPU-before.agent.CPU),
			each(after.speaker.CPU-before.speaker.CPU))
	}
	t.Print(out)
}

// coldStarts measures starts of the daemon on a node without any of its state.
func (b *bed) coldStarts(ctx context.Context, out io.Writer) error {
	if err := b.configure(b.fromAPI()); err != nil {
		return err
	}
	t := figures.NewTable("cold start", "all objects known", "in force", "all announced at the peer", "RSS, most", "of the speaker")
	for i := range b.starts {
		if err := b.stop(ctx); err != nil {
			return err
		}
		s, err := b.start(ctx)
		if err != nil {
			return err
		}
		u, err := b.use(ctx)
		if err != nil {
			return err
		}
		synced := "?"
		if s.synced > 0 {
			synced = figures.Duration(s.synced)
		}
		t.Add(strconv.Itoa(i+1), synced, figures.Duration(s.ready), s.announcedAfter(), figures.Mebi(u.agent.Peak),
			figures.Mebi(u.speaker.Peak))
	}
	fmt.Fprintf(out, "### Cold starts\n\nTimes are from the start of the process; in force is `/readyz`; the peer is told %d "+
		"prefixes.\n\n", b.cluster.announcedHere())
	t.Print(out)
	return nil
}

// atRest measures a daemon to which nothing happens.
func (b *bed) atRest(ctx context.Context, out io.Writer) error {
	const calm = 30 * time.Second // the start's garbage is collected, and its memory given back
	if err := wait(ctx, min(calm, b.rest)); err != nil {
		return err
	}
	before, err := b.use(ctx)
	if err == nil {
		err = wait(ctx, b.rest)
	}
	if err != nil {
		return err
	}
	after, err := b.use(ctx)
	if err != nil {
		return err
	}
	b.cost(out, before, after, "at rest")
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
