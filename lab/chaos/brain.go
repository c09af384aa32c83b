package chaos

import (
	"bufio"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressway/egressway/lab/stage"
)

// Brains is how long, at most, a router sent packets for one ingress IP by two nodes at a time.
type Brains struct {
	Longest time.Duration
	Where   string
	Times   int
}

// splitLimit is how long that may be: as long as a router that hears of both needs to hear of the better one.
const splitLimit = time.Second

// brains watches the routes of the routers of red, by their kernels' notifications.
type brains struct {
	stop context.CancelFunc
	work sync.WaitGroup

	mu    sync.Mutex
	split map[string]time.Time // router and prefix: since when
	seen  Brains
}

func watchBrains(ctx context.Context, s *stage.Stage) (*brains, error) {
	ctx, stop := context.WithCancel(ctx)
	b := &brains{stop: stop, split: map[string]time.Time{}}
	for _, router := range []string{"red1", "red2"} {
		cmd := s.Node(router).Command(ctx, "ip", "-o", "monitor", "route")
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			stop()
			return nil, fmt.Errorf("watch routes of %s: %w", router, err)
		}
		b.work.Go(func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				b.hear(router, lines.Text(), time.Now())
			}
			_ = cmd.Wait() // it ends by being killed
		})
	}
	return b, nil
}

var (
	ofHost     = regexp.MustCompile(`^(?:Deleted )?(192\.0\.2\.[13]\d|2001:db8:2::[13]\d) `)
	viaGateway = regexp.MustCompile(`via (?:inet6 )?(\S+)`)
)

// hear takes one line of ip(8).
func (b *brains) hear(router, line string, now time.Time) {
	m := ofHost.FindStringSubmatch(line)
	if m == nil {
		return
	}
	var gateways []string
	for _, via := range viaGateway.FindAllStringSubmatch(line, -1) {
		gateways = append(gateways, via[1])
	}
	slices.Sort(gateways)
	two := len(slices.Compact(gateways)) > 1 && !strings.HasPrefix(line, "Deleted ")
	b.mu.Lock()
	defer b.mu.Unlock()
	where := router + " " + m[1]
	since, was := b.split[where]
	switch {
	case two && !was:
		b.split[where] = now
	case !two && was:
		b.over(where, since, now)
		delete(b.split, where)
	}
}

func (b *brains) over(where string, since, now time.Time) {
	b.seen.Times++
	if took := now.Sub(since); took > b.seen.Longest {
		b.seen.Longest, b.seen.Where = took, where
	}
}

// longest returns the longest times so far.
func (b *brains) longest() Brains {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := b.seen
	for where, since := range b.split {
		b.over(where, since, time.Now())
	}
	seen, b.seen = b.seen, seen
	return seen
}

// end ends the watch.
func (b *brains) end() {
	b.stop()
	b.work.Wait()
}
