package names

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/queue"
)

// asQueued returns a packet as the queue has it: an answer by UDP.
func asQueued(id uint32, message []byte) queue.Packet {
	b := make([]byte, 28, 28+len(message))
	b[0], b[9] = 0x45, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(message)))
	binary.BigEndian.PutUint16(b[20:], 53)
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(message)))
	return queue.Packet{ID: id, Payload: append(b, message...)}
}

// calls stands for queue and sets, and records the calls in their order.
type calls struct {
	t *testing.T
	s *Service

	mu      sync.Mutex
	lines   []string
	write   func([]Element) error
	packets chan []queue.Packet
	closed  chan struct{}
	refusal error // of the queue
	wakes   atomic.Int32
}

func (c *calls) line(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, fmt.Sprintf(format, args...))
}

// done returns the calls since the last time, when all goroutines wait.
func (c *calls) done() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := c.lines
	c.lines = nil
	return lines
}

// next makes another queue, or none.
func (c *calls) next(refusal error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.packets, c.closed, c.refusal = make(chan []queue.Packet), make(chan struct{}), refusal
}

func (c *calls) open() (packets, error) {
	c.mu.Lock()
	refusal := c.refusal
	c.mu.Unlock()
	if refusal != nil {
		return nil, refusal
	}
	c.line("open")
	return c, nil
}

func (c *calls) channels() (chan []queue.Packet, chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.packets, c.closed
}

func (c *calls) Read() ([]queue.Packet, error) {
	all, closed := c.channels()
	select {
	case p, works := <-all:
		if !works {
			return nil, errors.New("the queue failed")
		}
		return p, nil
	case <-closed:
		return nil, os.ErrClosed
	}
}

func (c *calls) Accept(ids ...uint32) error {
	if len(ids) > 0 {
		c.line("accept %v", ids)
	}
	return nil
}

func (c *calls) Close() error {
	c.line("close")
	_, closed := c.channels()
	close(closed)
	return nil
}

func (c *calls) WriteNames(all []Element) error {
	var text string
	for _, e := range all {
		text += fmt.Sprintf(" %s+%s/%d", e.Set, e.Addr, e.Timeout/time.Second)
	}
	if len(all) > 10 {
		text = fmt.Sprintf(" %d elements", len(all))
	}
	c.line("write%s", text)
	c.mu.Lock()
	write := c.write
	c.mu.Unlock()
	if write == nil {
		return nil
	}
	return write(all)
}

func (c *calls) writes(f func([]Element) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write = f
}

var twoSets = []Set{{Name: "s1", Patterns: []string{"*.shop.example"}}, {Name: "s2", Patterns: []string{"*.shop.example"}}}

func settings(sets ...Set) Settings {
	return Settings{
		Sets: sets, Grace: grace, Wait: 200 * time.Millisecond,
		Inside: func(a netip.Addr) bool { return netip.MustParsePrefix("10.0.0.0/8").Contains(a) },
	}
}

// serving runs a service with such sets.
func serving(t *testing.T, run func(*testing.T, *calls), sets ...Set) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &calls{t: t}
		c.next(nil)
		c.s = newService(slog.New(slog.DiscardHandler), c, c.open, func() { c.wakes.Add(1) })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.s.Run(ctx) }()
		require.Empty(t, c.done(), "without names nothing happens")
		c.s.Serve(settings(sets...))
		require.Equal(t, []string{"open"}, c.done())
		run(t, c)
		cancel()
		require.NoError(t, <-ended)
	})
}

// answer hands in answers, with numbers from id on: each is "name TTL A address".
func (c *calls) answer(id uint32, records ...string) {
	c.t.Helper()
	var all []queue.Packet
	for i, r := range records {
		parsed := record(c.t, r)
		typ := dnsmessage.TypeA
		if _, is := parsed.Body.(*dnsmessage.AAAAResource); is {
			typ = dnsmessage.TypeAAAA
		}
		name := parsed.Header.Name.String()
		all = append(all, asQueued(id+uint32(i), packed(c.t, name[:len(name)-1], typ, r)))
	}
	packets, _ := c.channels()
	packets <- all
}

// pass lets the clock run.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // passes at once under synctest
	synctest.Wait()
}

func TestAnswersWaitForTheSets(t *testing.T) {
	serving(t, func(t *testing.T, c *calls) {
		c.answer(1, "a.shop.example 300 A 192.0.2.1")
		require.Equal(t, []string{"write s1+192.0.2.1/360 s2+192.0.2.1/360", "accept [1]"}, c.done())
		c.answer(2, "a.shop.example 300 A 192.0.2.1", "b.other 300 A 192.0.2.1", "c.shop.example 9 A 10.1.1.1", "d.shop.example 9 A 127.0.0.1",
			"e.shop.example 9 AAAA 2001:db8::1")
		require.Equal(t, []string{"accept [2 3 4 5 6]"}, c.done(), "known, without rule, twice inside, and without set of the family")
		require.Equal(t, Counts{Known: 1, Ignored: 4, Written: 1, Names: 1, Waits: c.s.Counts().Waits}, c.s.Counts())
		pass(31 * time.Second)
		c.answer(7, "a.shop.example 300 A 192.0.2.1")
		require.Equal(t, []string{"accept [7]"}, c.done())
		pass(renewWithin)
		require.Equal(t, []string{"write s1+192.0.2.1/359 s2+192.0.2.1/359"}, c.done(), "later")
		pass(time.Minute)
		require.Empty(t, c.done())
	}, twoSets...)
}

// TestOneTransaction hands in answers while a transaction is under way.
func TestOneTransaction(t *testing.T) {
	serving(t, func(t *testing.T, c *calls) {
		busy := make(chan struct{})
		c.writes(func([]Element) error { <-busy; return nil })
		c.answer(1, "a.shop.example 300 A 192.0.2.1")
		require.Equal(t, []string{"write s1+192.0.2.1/360"}, c.done())
		const count = 10_000
		var all []string
		for i := range count {
			all = append(all, fmt.Sprintf("n%d.shop.example 300 A 192.1.%d.%d", i, i>>8, i&255))
		}
		for part := range slices.Chunk(all[:1000], 100) {
			c.answer(10, part...)
		}
		c.answer(2, "a.shop.example 300 A 198.51.100.1")
		require.Empty(t, c.done())
		busy <- struct{}{}
		lines := c.done()
		require.Equal(t, []string{"accept [1]", "write 1001 elements"}, lines)
		busy <- struct{}{}
		lines = c.done()
		require.Len(t, lines, 1, "one call lets all go")
		require.Equal(t, uint64(1002), c.s.Counts().Written)

		c.writes(nil)
		for part := range slices.Chunk(all[1000:], 100) {
			c.answer(10, part...)
		}
		require.NotEmpty(t, c.done())
		require.Len(t, c.s.Known(), 9999, "one place is kept for nothing: no rule lists a name in full")
	}, Set{Name: "s1", Patterns: []string{"*.shop.example"}}, Set{Name: "s2", IPv6: true, Patterns: []string{"www.example"}})
}

func TestLateAnswers(t *testing.T) {
	serving(t, func(t *testing.T, c *calls) {
		busy := make(chan struct{})
		c.writes(func([]Element) error { <-busy; return nil })
		c.answer(1, "a.shop.example 300 A 192.0.2.1")
		pass(100 * time.Millisecond)
		c.answer(2, "b.shop.example 300 A 192.0.2.2", "a.shop.example 300 A 192.0.2.1")
		pass(99 * time.Millisecond)
		require.Equal(t, []string{"write s1+192.0.2.1/360 s2+192.0.2.1/360"}, c.done())
		pass(time.Millisecond)
		require.Equal(t, []string{"accept [1]"}, c.done())
		pass(100 * time.Millisecond)
		require.Equal(t, []string{"accept [2 3]"}, c.done())
		close(busy)
		require.Equal(t, []string{"write s1+192.0.2.2/359 s2+192.0.2.2/359"}, c.done(), "it is written all the same")
		require.Equal(t, Counts{Late: 3, Names: 2, Waits: Waits{Count: 3, Sum: 600 * time.Millisecond, Buckets: [9]uint64{7: 3, 8: 3}}}, c.s.Counts())
		require.Equal(t, uint64(3), (&Waits{Buckets: [9]uint64{7: 3}}).BySecond()[0.2])
	}, twoSets...)
}

func TestFailedWrites(t *testing.T) {
	serving(t, func(t *testing.T, c *calls) {
		fault := errors.New("busy")
		c.writes(func([]Element) error { return fault })
		c.answer(1, "a.shop.example 300 A 192.0.2.1")
		require.Equal(t, []string{"write s1+192.0.2.1/360 s2+192.0.2.1/360"}, c.done())
		c.writes(nil)
		pass(writeAgain)
		require.Equal(t, []string{"write s1+192.0.2.1/359 s2+192.0.2.1/359", "accept [1]"}, c.done(), "the second attempt")
		require.Equal(t, uint64(1), c.s.Counts().Written)

		c.writes(func([]Element) error { return fault })
		c.answer(2, "b.shop.example 300 A 192.0.2.2")
		pass(200 * time.Millisecond)
		require.Contains(t, c.done(), "accept [2]")
		require.Equal(t, uint64(1), c.s.Counts().Failed)
		c.writes(nil)
		pass(writeAgain)
		require.Equal(t, []string{"write s1+192.0.2.2/359 s2+192.0.2.2/359"}, c.done())
		pass(time.Minute)
		require.Empty(t, c.done())

		// The kernel refuses one set: the names of the others go on.
		refuse := func(set string) func([]Element) error {
			return func(all []Element) error {
				if slices.ContainsFunc(all, func(e Element) bool { return e.Set == set }) {
					return fmt.Errorf("write: %w", unix.ENFILE)
				}
				return nil
			}
		}
		c.s.Serve(settings(append(twoSets, Set{Name: "s3", Patterns: []string{"*.other"}})...))
		c.done()
		c.writes(refuse("s3"))
		c.answer(3, "a.other 300 A 192.0.2.3", "c.shop.example 300 A 192.0.2.3")
		require.Equal(t, []string{
			"write s1+192.0.2.3/360 s2+192.0.2.3/360 s3+192.0.2.3/360", "write s1+192.0.2.3/360", "write s2+192.0.2.3/360", "write s3+192.0.2.3/360",
			"accept [4]",
		}, c.done()[:5], "it may be tried again")
		pass(200 * time.Millisecond)
		require.Contains(t, c.done(), "accept [3]")
	}, twoSets...)
}

// gone refuses elements of a set that does not exist.
func gone(set string) func([]Element) error {
	return func(all []Element) error {
		if slices.ContainsFunc(all, func(e Element) bool { return e.Set == set }) {
			return fmt.Errorf("write: %w", unix.ENOENT)
		}
		return nil
	}
}

// TestSetsThatChange writes answers that come while the daemon replaces a set.
func TestSetsThatChange(t *testing.T) {
	serving(t, func(t *testing.T, c *calls) {
		c.answer(1, "a.shop.example 300 A 192.0.2.1")
		c.done()
		third := Set{Name: "s3", Patterns: []string{"*.other", "*.shop.example"}}
		require.Equal(t, []Element{{Set: "s3", Addr: netip.MustParseAddr("192.0.2.1"), Timeout: 6 * time.Minute}}, c.s.Contents(third))
		c.answer(2, "a.shop.example 300 A 192.0.2.1")
		require.Equal(t, []string{"accept [2]"}, c.done(), "the new set has it")
		c.answer(3, "a.shop.example 300 A 192.0.2.2")
		require.Equal(t, []string{"write s1+192.0.2.2/360 s2+192.0.2.2/360"}, c.done(), "the answer waits for the new set")
		c.answer(4, "b.other 300 A 192.0.2.2")
		require.Empty(t, c.done())
		c.writes(gone("s2")) // the daemon's transaction has ended
		c.answer(5, "a.shop.example 300 A 192.0.2.3")
		require.Equal(t, []string{"write s1+192.0.2.3/360 s2+192.0.2.3/360", "write s1+192.0.2.3/360", "write s2+192.0.2.3/360"}, c.done())
		c.s.Serve(settings(twoSets[0], third))
		require.Equal(t, []string{"write s3+192.0.2.2/360 s3+192.0.2.3/360", "accept [3 4 5]"}, c.done())
		require.Zero(t, c.s.Counts().Late+c.s.Counts().Failed)

		// A set is made again while a transaction of ours is under way: its elements may be lost.
		busy := make(chan struct{})
		c.writes(func([]Element) error { <-busy; return nil })
		c.answer(6, "c.shop.example 300 A 192.0.2.4")
		c.done()
		require.Len(t, c.s.Contents(third), 4, "the answer is known already")
		close(busy)
		require.Empty(t, c.done())
		c.s.Serve(settings(twoSets[0], third))
		require.Equal(t, []string{"accept [6]"}, c.done())
		c.s.Contents(third)
		c.s.Serve(settings(twoSets[0], third))
		require.Empty(t, c.done())

		// A set went away by another hand: its names wait for the daemon's next pass, and others do not.
		c.writes(gone("s3"))
		c.answer(7, "d.other 300 A 192.0.2.5")
		require.Equal(t, []string{"write s3+192.0.2.5/360"}, c.done())
		pass(200 * time.Millisecond)
		require.Equal(t, []string{"accept [7]"}, c.done())
		pass(time.Minute)
		require.Empty(t, c.done(), "it is not tried again before")
		c.writes(nil)
		c.s.Serve(settings(twoSets[0], third))
		require.Equal(t, []string{"write s3+192.0.2.5/299"}, c.done())

		// Names that no set needs any more wait for nothing.
		c.writes(func([]Element) error { return errors.New("busy") })
		c.answer(8, "e.other 300 A 192.0.2.6")
		c.done()
		c.s.Serve(settings(twoSets[0]))
		require.Equal(t, []string{"accept [8]"}, c.done())
	}, twoSets...)
}

// TestSetsThatCannotBeMade has pass after pass fail to write the table, for longer than addresses stay. The kernel keeps its sets.
func TestSetsThatCannotBeMade(t *testing.T) {
	third := Set{Name: "s3", Patterns: []string{"*.other", "*.shop.example"}}
	serving(t, func(t *testing.T, c *calls) {
		ends := map[string]time.Time{} // of the kernel's elements
		c.writes(func(all []Element) error {
			for _, e := range all {
				ends[e.Set+" "+e.Addr.String()] = time.Now().Add(e.Timeout)
			}
			return nil
		})
		c.answer(1, "a.shop.example 300 A 192.0.2.1")
		c.done()
		for second := range 400 {
			for _, set := range append(twoSets, third) {
				c.s.Contents(set)
			}
			if second%20 == 0 {
				c.answer(2, "a.shop.example 300 A 192.0.2.1") // the sets seem to have it
			}
			c.done()
			c.s.NotMade()
			c.done()
			if second == 100 {
				c.answer(3, "b.shop.example 300 A 192.0.2.2")
			}
			pass(time.Second)
			require.Greater(t, time.Until(ends["s1 192.0.2.1"]), 5*time.Minute, "second %d", second)
			require.Greater(t, time.Until(ends["s2 192.0.2.1"]), 5*time.Minute, "second %d", second)
		}
		require.Contains(t, ends, "s1 192.0.2.2")
		require.NotContains(t, ends, "s3 192.0.2.1", "it was never there")

		// The set is there after all: an earlier transaction of a pass that failed has made it.
		c.done()
		c.s.Serve(settings(append(twoSets, third)...))
		pass(renewWithin)
		require.Contains(t, ends, "s3 192.0.2.1")
		require.Contains(t, ends, "s3 192.0.2.2")
		c.answer(4, "c.shop.example 300 A 192.0.2.3")
		require.Equal(t, []string{"write s1+192.0.2.3/360 s2+192.0.2.3/360 s3+192.0.2.3/360", "accept [4]"}, c.done()[1:])
	}, twoSets...)
}

// TestServeComesFirst has a set go, and the daemon's pass end, while a transaction is under way.
func TestServeComesFirst(t *testing.T) {
	serving(t, func(t *testing.T, c *calls) {
		busy := make(chan struct{})
		c.writes(func(all []Element) error { <-busy; return gone("s2")(all) })
		c.answer(1, "a.shop.example 300 A 192.0.2.1")
		c.done()
		c.s.Serve(settings(twoSets...))
		c.writes(nil)
		close(busy)
		require.Equal(t, []string{
			"write s1+192.0.2.1/360", "write s2+192.0.2.1/360", "accept [1]",
		}, c.done())
	}, twoSets...)
}

// TestSetsAreReplacedMeanwhile has the daemon replace a set, and end its pass, while the former one is being written.
func TestSetsAreReplacedMeanwhile(t *testing.T) {
	serving(t, func(t *testing.T, c *calls) {
		c.answer(1, "a.shop.example 300 A 192.0.2.1")
		c.done()
		third := Set{Name: "s3", Patterns: []string{"*.shop.example"}}
		c.s.Contents(third)
		busy := make(chan struct{})
		c.writes(func([]Element) error { <-busy; return nil })
		c.answer(2, "b.shop.example 300 A 192.0.2.2")
		require.Equal(t, []string{"write s1+192.0.2.2/360 s2+192.0.2.2/360"}, c.done())
		c.s.Serve(settings(third))
		close(busy)
		require.Equal(t, []string{"write s3+192.0.2.2/360", "accept [2]"}, c.done())
	}, twoSets...)
}

func TestQueueOpensWhenNeeded(t *testing.T) {
	serving(t, func(t *testing.T, c *calls) {
		require.Empty(t, c.s.Problems("node"))
		c.answer(1, "a.shop.example 300 A 192.0.2.1")
		c.done()
		c.writes(func([]Element) error { return errors.New("busy") })
		c.answer(2, "a.shop.example 300 A 192.0.2.2")
		c.done()
		c.s.Serve(settings())
		require.Subset(t, []string{"accept [2]", "close"}, c.done(), "closing lets all go")
		pass(time.Hour)
		require.Empty(t, c.done())

		c.next(fmt.Errorf("read queue 3: %w", queue.ErrInUse))
		c.s.Serve(settings(twoSets...))
		require.Empty(t, c.done())
		problems := c.s.Problems("node")
		require.Len(t, problems, 1)
		require.Equal(t, ReasonNamesPolled, problems[0].Reason)
		require.Contains(t, problems[0].Message, "another program reads this queue")
		require.Equal(t, int32(1), c.wakes.Load())
		c.next(nil)
		pass(openAgain)
		require.Equal(t, []string{"open"}, c.done())
		require.Empty(t, c.s.Problems("node"))
		require.Equal(t, int32(2), c.wakes.Load())

		c.mu.Lock()
		c.refusal = queue.ErrUnsupported
		close(c.packets)
		c.mu.Unlock()
		require.Equal(t, []string{"close"}, c.done())
		require.Contains(t, c.s.Problems("node")[0].Message, "the queue failed")
		pass(openAgain)
		c.next(nil)
		pass(openAgainLate - time.Second)
		require.Empty(t, c.done())
		require.NotEmpty(t, c.s.Problems("node"))
		pass(time.Second)
		require.Equal(t, []string{"open"}, c.done())
	}, twoSets...)
}

func TestProblemsOfBounds(t *testing.T) {
	serving(t, func(t *testing.T, c *calls) {
		for i := range 5 {
			c.s.mu.Lock()
			c.s.learn(Answer{Name: fmt.Sprintf("n%d.shop.example", i), Addrs: numbered(0, mostAddrs+1, 100)}, time.Now())
			c.s.mu.Unlock()
		}
		c.s.mu.Lock()
		c.s.table.forceOf("s1").full, c.s.table.full = true, true
		c.s.mu.Unlock()
		notify(c.s.committing)
		c.done()
		require.Equal(t, int32(1), c.wakes.Load())
		problems := c.s.Problems("node")
		var values []string
		for _, p := range problems {
			require.Equal(t, ReasonNamesExhausted, p.Reason)
			values = append(values, fmt.Sprint(p.Value, "+", p.More))
		}
		require.Equal(t, []string{"+0", "n0.shop.example+0", "n1.shop.example+4"}, values)
	}, twoSets...)
}

// TestRoomWithoutPasses has the addresses of a name change all the time. Those that have run out leave room also when no pass comes.
func TestRoomWithoutPasses(t *testing.T) {
	serving(t, func(t *testing.T, c *calls) {
		c.s.mu.Lock()
		c.s.table.full = true
		c.s.mu.Unlock()
		for second := range 500 {
			records := make([]string, 0, 4)
			for i := range cap(records) {
				n := second*cap(records) + i
				records = append(records, fmt.Sprintf("a.shop.example 5 A 192.0.%d.%d", n>>8, n&255))
			}
			c.answer(1, records...)
			pass(time.Second)
		}
		require.Equal(t, Counts{Written: 2000, Names: 1, Waits: c.s.Counts().Waits}, c.s.Counts())
		require.Equal(t, int32(2), c.wakes.Load(), "a problem came and went")

		// A set that is being made keeps its addresses.
		third := Set{Name: "s3", Patterns: []string{"*.shop.example"}}
		require.NotEmpty(t, c.s.Contents(third))
		pass(sweepEvery)
		c.done()
		c.answer(1, "a.shop.example 5 A 192.0.7.207")
		require.Equal(t, []string{"accept [1]"}, c.done())
	}, twoSets...)
}

func TestServeIsCheapWithoutChange(t *testing.T) {
	patterns := make([]string, mostNames)
	for i := range patterns {
		patterns[i] = fmt.Sprintf("n%05d.example", i)
	}
	sets := make([]Set, 100)
	for i := range sets {
		sets[i] = Set{Name: fmt.Sprint("s", i), Patterns: patterns}
	}
	s := newService(slog.New(slog.DiscardHandler), nil, nil, nil)
	s.Serve(settings(sets...))
	allocations := testing.AllocsPerRun(10, func() { s.Serve(settings(sets...)) })
	require.Less(t, allocations, 5.0)
}
