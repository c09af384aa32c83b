package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/bench/internal/figures"
)

// announcing measures how long a router waits for all ingress IPs.
func (b *bed) announcing(ctx context.Context, out io.Writer) error {
	all := func(n int) bool { return n == b.services }
	progress("the daemon reads %d Services", b.services)
	began := time.Now()
	if err := b.write("services.yaml", b.manifest()); err != nil {
		return err
	}
	full, err := b.untilHeard(ctx, all)
	if err != nil {
		return err
	}
	read := full.Sub(began)
	var first, told, session, agent, speaker figures.Times
	for round := range b.rounds {
		progress("announcing, round %d of %d", round+1, b.rounds)
		if err := b.write("nodes.yaml", manifestOfNode(false)); err != nil {
			return err
		}
		if _, err := b.untilHeard(ctx, func(n int) bool { return n == 0 }); err != nil {
			return err
		}
		before, err := b.use()
		if err != nil {
			return err
		}
		began := time.Now()
		if err := b.write("nodes.yaml", manifestOfNode(true)); err != nil {
			return err
		}
		some, err := b.untilHeard(ctx, func(n int) bool { return n > 0 })
		if err != nil {
			return err
		}
		full, err := b.untilHeard(ctx, all)
		if err != nil {
			return err
		}
		after, err := b.use()
		if err != nil {
			return err
		}
		agent.Add(after.agent.CPU - before.agent.CPU)
		speaker.Add(after.speaker.CPU - before.speaker.CPU)
		first.Add(some.Sub(began))
		told.Add(full.Sub(began))

		restarted := time.Now()
		if err := b.restartRouter(ctx); err != nil {
			return err
		}
		established, err := b.logged(ctx, "BGP session established", "blue", restarted)
		if err != nil {
			return err
		}
		if full, err = b.untilHeard(ctx, all); err != nil {
			return err
		}
		session.Add(full.Sub(established))
	}
	n := figures.Count(b.services)
	fmt.Fprintf(out, "### Announced\n\n%s ingress IPs, to FRR; %d rounds: median, least and most. A file with the Services, which the "+
		"daemon had not read before, took %s until the router had all.\n\n",
		n, b.rounds, figures.Duration(read))
	t := figures.NewTable("from", "to", "time")
	t.Add("the node becomes Ready, and with it host of all", "the router has the first prefix", first.String())
	t.Add("the same", "the router has all", told.String())
	t.Add("processor time of the daemon meanwhile", "", agent.String())
	t.Add("of its speaker", "", speaker.String())
	t.Add("a session with the router, whose bgpd was killed and started again", "the router has all", session.String())
	t.Print(out)
	return nil
}

// restartRouter kills the router's bgpd, and starts it again.
func (b *bed) restartRouter(ctx context.Context) error {
	_, err := b.router.Run(ctx, "sh", "-ec", `
pid=$(cat /run/frr/bgpd.pid)
kill -9 $pid
while kill -0 $pid 2>/dev/null; do sleep 0.02; done
rm -f /run/frr/bgpd.*
/usr/lib/frr/bgpd -d -F traditional -A 127.0.0.1`)
	return err
}

// prefix is the i-th of the peer.
func prefix(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{20 + byte(i>>16), byte(i >> 8), byte(i), 0}), 24)
}

// everything returns the peer's first announcements.
func (b *bed) everything(hop netip.Addr) []route {
	all := make([]route, b.prefixes)
	for i := range all {
		all[i] = route{prefix(i), hop}
	}
	return all
}

// learn connects a learner's peer, which announces everything, and returns how long the routes took to the kernel's
// table.
func (b *bed) learn(ctx context.Context, l learner) (time.Duration, error) {
	if err := l.peer.come(ctx, within); err != nil {
		return 0, fmt.Errorf("%s: %w", l.name, err)
	}
	routes, full := b.everything(l.peer.address), l.fib.reaches(b.prefixes)
	began := time.Now()
	if err := l.peer.announce(routes); err != nil {
		return 0, fmt.Errorf("%s: %w", l.name, err)
	}
	at, err := l.fib.await(ctx, full)
	if err != nil {
		return 0, err
	}
	return at.Sub(began), same(l, routes)
}

// same compares the last announcements of a peer with the kernel's routes.
func same(l learner, routes []route) error {
	have, err := l.fib.dump()
	if err != nil {
		return fmt.Errorf("%s: %w", l.name, err)
	}
	count := 0
	for _, r := range routes {
		if !r.hop.IsValid() {
			continue
		}
		if count++; have[r.prefix] != r.hop {
			return fmt.Errorf("%s: the kernel has %s via %s, the peer announced it via %s", l.name, r.prefix, have[r.prefix], r.hop)
		}
	}
	if count != len(have) {
		return fmt.Errorf("%s: the kernel has %d routes, the peer announced %d", l.name, len(have), count)
	}
	return nil
}

// settle waits until a new speaker has settled: until a peer has had its time to announce all its routes, the routes of
// an earlier speaker stay, also those withdrawn meanwhile.
func (b *bed) settle(ctx context.Context) error {
	const tells = 15 * time.Second // it looks every ten seconds whether it has
	progress("the peer's first session")
	if _, err := b.learn(ctx, b.ours); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(tells):
	}
	empty := b.ours.fib.reaches(0)
	b.ours.peer.hangUp()
	_, err := b.ours.fib.await(ctx, empty)
	return err
}

// learning measures how long routes take to the kernel's table, and out of it when the peer dies, in turn with FRR.
func (b *bed) learning(ctx context.Context, out io.Writer) error {
	if err := b.settle(ctx); err != nil {
		return err
	}
	learned, lost := map[string]*figures.Times{}, map[string]*figures.Times{}
	for round := range b.rounds {
		progress("learning, round %d of %d", round+1, b.rounds)
		for _, l := range []learner{b.ours, b.theirs} {
			if learned[l.name] == nil {
				learned[l.name], lost[l.name] = &figures.Times{}, &figures.Times{}
			}
			took, err := b.learn(ctx, l)
			if err != nil {
				return err
			}
			learned[l.name].Add(took)
			empty := l.fib.reaches(0)
			began := time.Now()
			l.peer.hangUp()
			at, err := l.fib.await(ctx, empty)
			if err != nil {
				return err
			}
			lost[l.name].Add(at.Sub(began))
		}
	}
	n := figures.Count(b.prefixes)
	fmt.Fprintf(out, "### Learned\n\n%s routes of a peer, at most %d prefixes in an UPDATE, by the daemon and, in turn with it, by FRR's "+
		"bgpd and zebra; %d rounds: median, least and most; of the ratio, quartiles.\n\n",
		n, b.perMsg, b.rounds)
	t := figures.NewTable("from", "to", b.ours.name, b.theirs.name, b.ours.name+" : "+b.theirs.name)
	row := func(from, to string, of map[string]*figures.Times) {
		ours, theirs := *of[b.ours.name], *of[b.theirs.name]
		t.Add(from, to, ours.String(), theirs.String(), figures.Ratio(figures.Ratios(ours, theirs)))
	}
	row("the peer begins to tell", "all "+n+" routes are in the kernel's table", learned)
	row("the peer is killed", "none is", lost)
	t.Print(out)
	return nil
}

// silence measures how long routes outlive a peer whose kernel gives no sign of its death.
func (b *bed) silence(ctx context.Context, out io.Writer) error {
	var notice, gone figures.Times
	for i := range b.silences {
		progress("a silent death, %d of %d", i+1, b.silences)
		if _, err := b.learn(ctx, b.ours); err != nil {
			return err
		}
		empty := b.ours.fib.reaches(0)
		began := time.Now()
		b.ours.peer.fallSilent()
		at, err := b.ours.fib.await(ctx, empty)
		if err != nil {
			return err
		}
		lost, err := b.logged(ctx, "BGP session lost", "red", began)
		if err != nil {
			return err
		}
		notice.Add(lost.Sub(began))
		gone.Add(at.Sub(lost))
		b.ours.peer.hangUp()
	}
	if b.silences == 0 {
		return nil
	}
	fmt.Fprintf(out, "The peer falls silent, without a word of its kernel; hold time %s, no BFD; %d times.\n\n", holdTime, b.silences)
	t := figures.NewTable("from", "to", "time")
	t.Add("silence", "the session is lost, by the log", notice.String())
	t.Add("the session is lost", "none of the "+figures.Count(b.prefixes)+" routes is in the kernel's table", gone.String())
	t.Print(out)
	return nil
}

// batchEvery is how often the peer changes its mind.
const batchEvery = 100 * time.Millisecond

// churning changes routes at random, and holds the kernel's table against the peer's in the end.
func (b *bed) churning(ctx context.Context, out io.Writer) error {
	if b.churn <= 0 {
		return nil
	}
	if _, err := b.learn(ctx, b.ours); err != nil {
		return err
	}
	progress("routes change for %s", b.churn)
	first := b.ours.peer.address
	hops := []netip.Addr{first, first.Next().Next()} // the node itself has the address in between
	routes := b.everything(first)
	random := rand.New(rand.NewPCG(b.seed, 0))
	before, err := b.use()
	if err != nil {
		return err
	}
	tick := time.NewTicker(batchEvery)
	defer tick.Stop()
	var changed, batches int
	began := time.Now()
	for time.Since(began) < b.churn {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		// The rate is kept on average, however late a tick is.
		due := int(time.Since(began).Seconds()*float64(b.rate)) - changed
		batch := b.change(random, routes, hops, random.IntN(2*max(due, 1)))
		if err := b.ours.peer.announce(batch); err != nil {
			return fmt.Errorf("after %s of changes: %w\n%s", time.Since(began).Round(time.Second), err, tail(b.daemon.Log()))
		}
		changed += len(batch)
		batches++
	}
	took, last := time.Since(began), time.Now()
	want := map[netip.Prefix]netip.Addr{}
	for _, r := range routes {
		if r.hop.IsValid() {
			want[r.prefix] = r.hop
		}
	}
	err = lab.Wait(ctx, within, func() error {
		if !maps.Equal(b.ours.fib.now(), want) {
			return errors.New("the kernel's table differs from the last announcements of the peer")
		}
		return nil
	})
	settled := time.Since(last)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		err = same(b.ours, routes)
	}
	if err != nil {
		return err
	}
	after, err := b.use()
	if err != nil {
		return err
	}
	b.printChurn(out, before, after, took)
	fmt.Fprintf(out, "%s changes in %s batches, %.0f a second. The kernel's table was equal to what the peer has, %s routes, %s after "+
		"the last one.\n",
		figures.Count(changed), figures.Count(batches), float64(changed)/took.Seconds(), figures.Count(len(want)),
		figures.Duration(settled))
	return nil
}

// change changes n routes at random: withdraws some, gives others another next hop, and announces withdrawn ones again.
func (*bed) change(random *rand.Rand, routes []route, hops []netip.Addr, n int) []route {
	batch := make([]route, 0, n)
	for range n {
		r := &routes[random.IntN(len(routes))]
		switch {
		case !r.hop.IsValid():
			r.hop = hops[random.IntN(len(hops))]
		case random.IntN(3) == 0:
			r.hop = netip.Addr{}
		case r.hop == hops[0]:
			r.hop = hops[1]
		default:
			r.hop = hops[0]
		}
		batch = append(batch, *r)
	}
	return batch
}

// use holds the resources that the daemon and its speaker have used.
type use struct {
	at             time.Time
	agent, speaker figures.Process
}

func (b *bed) use() (u use, err error) {
	u.at = time.Now()
	if u.agent, err = figures.ReadProcess(b.daemon.PID()); err != nil {
		return u, err
	}
	u.speaker, err = figures.ReadProcess(b.speaker())
	return u, err
}

func (b *bed) printChurn(out io.Writer, before, after use, took time.Duration) {
	fmt.Fprintf(out, "### Changes of learned routes\n\nFor %s, %s routes change at random: of those told, a third is withdrawn, the "+
		"others get another next hop; those withdrawn are told again.\n\n",
		took.Round(time.Second), figures.Count(b.prefixes))
	share := func(from, to figures.Process) string {
		return fmt.Sprintf("%.1f %% of one", 100*(to.CPU-from.CPU).Seconds()/after.at.Sub(before.at).Seconds())
	}
	t := figures.NewTable("", "daemon", "its speaker")
	t.Add("processor", share(before.agent, after.agent), share(before.speaker, after.speaker))
	t.Add("RSS before", figures.Mebi(before.agent.Now), figures.Mebi(before.speaker.Now))
	t.Add("RSS after", figures.Mebi(after.agent.Now), figures.Mebi(after.speaker.Now))
	t.Add("RSS, most since its start", figures.Mebi(after.agent.Peak), figures.Mebi(after.speaker.Peak))
	t.Print(out)
}
