package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/egressway/egressway/lab"
)

// fault is one way in which something goes wrong. Its name is the key in the table of limits.
type fault struct {
	inject func(context.Context, *run, *step) error
	heal   func(context.Context, *run, *step) error // nil: the daemon does
	hold   [2]time.Duration                         // the shortest and the longest time until the runner heals it

	moves bool // a host is left on purpose: it keeps some state for a while, which ends before the next fault

	// dead selects the questions that cannot be answered until it is healed, whichever way the daemon acts; nil: none.
	dead func(*run, *step) func(lab.Question) bool
}

// faults holds all kinds, by name. Nothing is one too: its losses are not losses by a fault.
var faults = merged(processFaults, kernelFaults, networkFaults, clusterFaults, map[string]fault{
	"nothing": {
		inject: func(context.Context, *run, *step) error { return nil },
		heal:   func(context.Context, *run, *step) error { return nil },
		hold:   [2]time.Duration{time.Second, 5 * time.Second},
	},
})

func merged(all ...map[string]fault) map[string]fault {
	m := map[string]fault{}
	for _, some := range all {
		maps.Copy(m, some)
	}
	return m
}

// kinds are the names of all kinds.
func kinds() []string { return slices.Sorted(maps.Keys(faults)) }

// shell has a node run lines that all must succeed.
func (r *run) shell(ctx context.Context, node string, lines ...string) error {
	_, err := r.Node(node).Run(ctx, "sh", "-ec", strings.Join(lines, "\n"))
	return err
}

// onNode is a fault that lines of a shell are, on the node.
func onNode(lines ...string) func(context.Context, *run, *step) error {
	return func(ctx context.Context, r *run, s *step) error { return r.shell(ctx, s.node, lines...) }
}

// podsOf selects the questions that pods of a step's node ask.
func podsOf(_ *run, s *step) func(lab.Question) bool {
	node := s.node
	return func(q lab.Question) bool { return nodeOf(q.Node) == node }
}

// Limit bounds the effects of a kind of fault. The zero value: nothing is lost, nothing breaks. No kind may leak.
type Limit struct {
	Down   time.Duration // new flows may be lost until so long after its beginning
	Back   time.Duration // and until so long after it is healed
	Change time.Duration // a change of objects made meanwhile is in force so long after it is healed
	Breaks bool          // sessions may break
}

// with returns the limit with some slack; a zero limit stays zero.
func (l Limit) with(slack time.Duration) Limit {
	for _, d := range []*time.Duration{&l.Down, &l.Back, &l.Change} {
		if *d > 0 {
			*d += slack
		}
	}
	return l
}

func (l Limit) String() string {
	if l == (Limit{}) {
		return "none lost"
	}
	var parts []string
	for _, p := range []struct {
		limit time.Duration
		after string
	}{{l.Down, "after it"}, {l.Back, "after its end"}, {l.Change, "for a change"}} {
		if p.limit > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.limit.Milliseconds(), p.after))
		}
	}
	if l.Breaks {
		parts = append(parts, "breaks sessions")
	}
	return strings.Join(parts, ", ")
}
