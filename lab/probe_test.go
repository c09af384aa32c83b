package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestProbe has a probe see a path that is there, is gone, and is there again.
func TestProbe(t *testing.T) {
	l := deploy(t, vrfEgress, Options{})
	ctx := t.Context()
	require.NoError(t, l.RespondOn(ctx, "ext-default", "a-p1"))
	node := Answerer{"ext-default", netip.MustParseAddr("10.0.0.11")}
	var questions []Question
	for _, to := range []netip.AddrPort{at("198.51.100.10", ResponderPort), at("2001:db8:100::10", ResponderPort)} {
		for _, protocol := range []Protocol{UDP, TCP} {
			questions = append(questions, Question{Node: "a-p1", To: to, Protocol: protocol, Every: 20 * time.Millisecond})
		}
		questions = append(questions, Question{Node: "a-p1", To: to, Protocol: TCP, Session: true, Every: 100 * time.Millisecond})
	}
	expect := func(q Question) []Answerer {
		if q.To.Addr().Is4() {
			return []Answerer{node}
		}
		return []Answerer{{Name: "ext-default"}}
	}
	for i, q := range questions {
		questions[i].Want = expect(q)
	}
	p, err := l.Probe(questions...)
	require.NoError(t, err)
	all := func(Question) bool { return true }
	steady := func(wanted func(Question) bool) time.Time {
		t.Helper()
		since := time.Now()
		require.NoError(t, Wait(ctx, Patience, func() error { return p.Steady(since, 10, wanted) }))
		return time.Now()
	}
	var began, before time.Time
	require.NoError(t, Wait(ctx, Patience, func() error {
		began, before = steady(all), steady(all)
		if late := p.Delays(began, before); len(late) > 0 { // what comes late may look lost
			return fmt.Errorf("rounds came late: %v", late)
		}
		return nil
	}))
	for _, r := range p.Between(began, before) {
		require.Empty(t, r.Lost, "%s", r.Question)
		require.Empty(t, r.Wrong, "%s", r.Question)
		require.Empty(t, r.Broken, "%s", r.Question)
		require.GreaterOrEqual(t, r.Answered, 20, "%s", r.Question)
	}

	// Nobody sees the cable being cut.
	require.NoError(t, l.Unplug("a:eth1"))
	require.ErrorContains(t, l.Unplug("a:eth9"), "a:eth9")
	lost := func(from time.Time, wanted func(Report) error) error {
		return Wait(ctx, Patience, func() error {
			var errs []error
			for _, r := range p.Between(from, time.Now()) {
				errs = append(errs, wanted(r))
			}
			return errors.Join(errs...)
		})
	}
	require.NoError(t, lost(before, func(r Report) error {
		if !r.Question.Session && len(r.Lost) < 20 {
			return errors.New("lost less than was asked")
		}
		return nil
	}))
	require.Error(t, p.Steady(before, 1, all))
	require.NoError(t, l.Plug("a:eth1"))
	after := steady(all)
	for _, r := range p.Between(before, after) {
		require.True(t, slices.IsSortedFunc(r.Lost, time.Time.Compare))
		require.Empty(t, r.Wrong, "%s", r.Question)
		if r.Question.Session {
			require.True(t, len(r.Broken) > 0 || r.Stalled > time.Second/2, "%s", r)
		}
	}

	// Who answers is known.
	p.Expect(func(q Question) []Answerer {
		if q.Protocol == UDP && q.To.Addr().Is4() {
			return []Answerer{{Name: "ext-red"}}
		}
		return expect(q)
	})
	require.NoError(t, lost(after, func(r Report) error {
		switch ip4 := r.Question.Protocol == UDP && r.Question.To.Addr().Is4(); {
		case ip4 && len(r.Wrong) == 0:
			return errors.New("nothing was wrong")
		case ip4:
			require.Equal(t, node, r.Wrong[0].Seen)
		}
		return nil
	}))
	require.NoError(t, p.Stop())

	for what, q := range map[string]Question{
		"no node":  {Node: "z", Protocol: UDP, Every: time.Second},
		"multiple": {Node: "a-p1", Protocol: UDP, Every: time.Millisecond},
		"protocol": {Node: "a-p1", Protocol: ICMP, Every: time.Second},
	} {
		_, err := l.Probe(q)
		require.Error(t, err)
		require.True(t, strings.Contains(err.Error(), what), err.Error())
	}
}
