package names

import (
	"context"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"
)

// mostAtOnce bounds the names that are asked at the same time.
const mostAtOnce = 50

// ask asks resolvers for the names that rules list in full, when they are due.
func (s *Service) ask(ctx context.Context) error {
	var g errgroup.Group
	ended := make(chan struct{}, mostAtOnce)
	timer := time.NewTimer(leastPause)
	defer timer.Stop()
	for under := 0; ; {
		for under < mostAtOnce && ctx.Err() == nil {
			q, due := s.nextQuestion(time.Now())
			if q.name == "" {
				if !due.IsZero() {
					timer.Reset(time.Until(due))
				}
				break
			}
			under++
			g.Go(func() error {
				s.resolve(ctx, q)
				ended <- struct{}{}
				return nil
			})
		}
		select {
		case <-ctx.Done():
			return g.Wait()
		case <-s.asking:
		case <-timer.C:
		case <-ended:
			under--
		}
	}
}

// inquiry is a name that is due.
type inquiry struct {
	name      string
	types     []dnsmessage.Type
	resolvers []netip.AddrPort
}

// nextQuestion returns a name that is due, or the time when one is.
func (s *Service) nextQuestion(at time.Time) (q inquiry, due time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, due := s.schedule.next(at)
	if name == "" {
		return inquiry{}, due
	}
	has := map[dnsmessage.Type]bool{}
	for _, set := range s.index.exact[name] {
		if set.IPv6 {
			has[dnsmessage.TypeAAAA] = true
		} else {
			has[dnsmessage.TypeA] = true
		}
	}
	q = inquiry{name: name, resolvers: s.settings.Resolvers}
	for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
		if has[typ] {
			q.types = append(q.types, typ)
		}
	}
	return q, due
}

// resolve asks for a name, and learns from the answers.
func (s *Service) resolve(ctx context.Context, q inquiry) {
	addrs, ttl, fault := lookup(ctx, q.resolvers, q.name, q.types)
	if ctx.Err() != nil {
		return
	}
	at := time.Now()
	s.mu.Lock()
	s.learn(Answer{Name: q.name, Addrs: addrs}, at)
	changed := s.schedule.done(q.name, ttl, fault, at)
	s.mu.Unlock()
	if changed {
		s.wake()
	}
}
