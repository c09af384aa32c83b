package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/egressway/egressway/lab/bench/internal/apiserver"
	"github.com/egressway/egressway/lab/bench/internal/figures"
)

// settleWithin is how long the last changes may take to be seen.
const settleWithin = 30 * time.Second

// changes measures changes at the API server, lone ones and many.
func (b *bed) changes(ctx context.Context, out io.Writer) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	for _, path := range []string{apiserver.AllSlices, apiserver.AllServices, apiserver.AllEgressServices} {
		if err := b.api.Watch(ctx, path); err != nil {
			return err
		}
	}
	send := func(ctx context.Context, r apiserver.Request, x *change) {
		x.sent = time.Now()
		x.version, x.err = b.api.Ask(ctx, r)
		x.answered = time.Now()
		if x.what == egressDeleted {
			x.version = x.service.namespace + "/" + x.service.name
		}
	}
	lone, err := b.alone(ctx, func(x *change) { send(ctx, b.cluster.request(x), x) }, false)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "### Lone changes\n\n%d changes of objects at the API server, one a second.\n\n", len(lone))
	b.table(out, lone, true)
	before, err := b.use(ctx)
	if err != nil {
		return err
	}
	var sending sync.WaitGroup
	began := time.Now()
	many := b.paced(ctx, func(x *change) {
		r := b.cluster.request(x)
		sending.Go(func() { send(ctx, r, x) })
	}, false)
	sending.Wait()
	took := time.Since(began)
	b.await(ctx, many)
	after, err := b.use(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "### Changes at %g a second\n\n%d changes of objects at the API server in %s.\n\n", b.rate, len(many),
		took.Round(time.Second))
	b.table(out, many, true)
	b.cost(out, before, after, "while they came")
	return nil
}

// alone makes changes one at a time, a second apart.
func (b *bed) alone(ctx context.Context, send func(*change), folder bool) (all []*change, err error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for len(all) < b.lone {
		x := b.cluster.next(time.Now(), folder)
		if x == nil {
			x = b.cluster.next(time.Now(), folder)
		}
		if x != nil {
			send(x)
			all = append(all, x)
			b.await(ctx, []*change{x})
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
	return all, nil
}

// paced makes changes at the rate, without waiting for their results.
func (b *bed) paced(ctx context.Context, send func(*change), folder bool) (all []*change) {
	began, every := time.Now(), time.Duration(float64(time.Second)/b.rate)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 1; time.Since(began) < b.churn && ctx.Err() == nil; n++ {
		if x := b.cluster.next(time.Now(), folder); x != nil {
			send(x)
			all = append(all, x)
		}
		if wait := time.Until(began.Add(time.Duration(n) * every)); wait > 0 {
			tick.Reset(wait)
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}
	return all
}

// await waits until all changes were seen, or are not seen in time.
func (b *bed) await(ctx context.Context, all []*change) {
	late := time.After(settleWithin)
	for {
		next := b.seen.next()
		if !slices.ContainsFunc(all, b.missing) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-late:
			return
		case <-next:
		}
	}
}

// missing reports whether an expected effect of a change was not seen yet.
func (b *bed) missing(x *change) bool {
	unseen := func(s sight) bool { return b.seen.first(s, x.sent).IsZero() }
	return x.err == nil && (unseen(x.commit) || x.update.addr.IsValid() && unseen(x.update))
}

// timings holds how long changes took, from one moment to another.
type timings struct {
	answer, event, commit, commitFromAnswer, commitFromEvent, update, updateFromAnswer, updateFromEvent figures.Spans

	commits, updates       map[string]*figures.Spans // by kind of change
	failed, unseen, untold int
}

// timings sums up changes.
func (b *bed) timings(all []*change) *timings {
	t := &timings{commits: map[string]*figures.Spans{}, updates: map[string]*figures.Spans{}}
	for _, x := range all {
		if x.err == nil {
			b.add(t, x)
		} else if t.failed++; t.failed == 1 {
			fmt.Fprintln(os.Stderr, "changes:", x.err)
		}
	}
	return t
}

// add adds one change to the timings.
func (b *bed) add(t *timings, x *change) {
	if t.commits[x.what] == nil {
		t.commits[x.what], t.updates[x.what] = &figures.Spans{}, &figures.Spans{}
	}
	watched := b.watched(x)
	t.answer.Add(x.sent, x.answered)
	t.event.Add(x.sent, watched)
	if at := b.seen.first(x.commit, x.sent); at.IsZero() {
		t.unseen++
	} else {
		t.commit.Add(x.sent, at)
		t.commitFromAnswer.Add(x.answered, at)
		t.commitFromEvent.Add(watched, at)
		t.commits[x.what].Add(x.sent, at)
	}
	if !x.update.addr.IsValid() {
		return
	}
	if at := b.seen.first(x.update, x.sent); at.IsZero() {
		t.untold++
	} else {
		t.update.Add(x.sent, at)
		t.updateFromAnswer.Add(x.answered, at)
		t.updateFromEvent.Add(watched, at)
		t.updates[x.what].Add(x.sent, at)
	}
}

// table prints how long changes took.
func (b *bed) table(out io.Writer, all []*change, asked bool) {
	s := b.timings(all)
	t := figures.NewTable("from", "to", "n", "p50", "p90", "p99", "most")
	row := func(from, to string, v figures.Spans) {
		if len(v) > 0 {
			t.Add(append([]string{from, to}, v.Columns()...)...)
		}
	}
	first := "request"
	if asked {
		row("request", "answer of the API server", s.answer)
		row("request", "event at a watch beside the daemon's", s.event)
	} else {
		first = "rename"
	}
	row(first, "nft commit", s.commit)
	if asked {
		row("answer", "nft commit", s.commitFromAnswer)
		row("event", "nft commit", s.commitFromEvent)
	}
	row(first, "BGP UPDATE", s.update)
	if asked {
		row("answer", "BGP UPDATE", s.updateFromAnswer)
		row("event", "BGP UPDATE", s.updateFromEvent)
	}
	for _, what := range kinds {
		if s.commits[what] != nil {
			row(first+": "+what, "nft commit", *s.commits[what])
			row(first+": "+what, "BGP UPDATE", *s.updates[what])
		}
	}
	t.Print(out)
	if s.failed+s.unseen+s.untold > 0 {
		fmt.Fprintf(out, "%d requests failed; of %d changes no commit was seen, of %d no UPDATE, "+
			"as they were undone before or took more than %s.\n\n", s.failed, s.unseen, s.untold, settleWithin)
	}
}

// watched returns when the watch beside the daemon's received a change; zero: it did not, or no such watch runs.
func (b *bed) watched(x *change) time.Time {
	if x.version == "" {
		return time.Time{}
	}
	return b.api.Told(x.version, x.sent)
}

// manifests measures the same from a folder.
func (b *bed) manifests(ctx context.Context, out io.Writer) error {
	if err := b.stop(ctx); err != nil {
		return err
	}
	b.cluster = newCluster(b.options)
	folder, aside := b.path("manifests"), b.path("aside")
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	write := func(name, content string) error { // a watcher sees a file only when it is whole
		if err := os.WriteFile(aside, []byte(content), 0o600); err != nil {
			return err
		}
		return os.Rename(aside, folder+"/"+name)
	}
	if err := write("nodes.yaml", b.cluster.nodesFile()); err != nil {
		return err
	}
	for i := 0; i < b.services; i += b.perFile {
		if err := write(b.cluster.file(b.cluster.services[i])); err != nil {
			return err
		}
	}
	if err := b.configure("{manifests: " + folder + "}"); err != nil {
		return err
	}
	s, err := b.start(ctx)
	if err != nil {
		return err
	}
	send := func(x *change) {
		name, content := b.cluster.file(x.service)
		if x.err = os.WriteFile(aside, []byte(content), 0o600); x.err != nil {
			return
		}
		x.sent = time.Now()
		x.err = os.Rename(aside, folder+"/"+name)
	}
	fmt.Fprintf(out, "### From a folder of manifests\n\n%d files of %d Services. Start: in force after %s, all announced after %s.\n\n",
		(b.services+b.perFile-1)/b.perFile, b.perFile, figures.Duration(s.ready), s.announcedAfter())
	lone, err := b.alone(ctx, send, true)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d lone changes, one a second:\n\n", len(lone))
	b.table(out, lone, false)
	before, err := b.use(ctx)
	if err != nil {
		return err
	}
	many := b.paced(ctx, send, true)
	b.await(ctx, many)
	after, err := b.use(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d changes, up to %g a second:\n\n", len(many), b.rate)
	b.table(out, many, false)
	b.cost(out, before, after, "while they came")
	return b.stop(ctx)
}
