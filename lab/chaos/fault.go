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
	hold   [2]time.Duration                         // from when and until when somebody heals it

	moves bool // a host is left on purpose: what it keeps for a while ends before anything else happens

	// dead tells what cannot be answered until it is healed, whatever a daemon does; nil: nothing.
	dead func(*run, *step) func(lab.Question) bool
}

// faults are all kinds, by name. Nothing is one too: what is lost then is not lost by a fault.
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

// podsOf tells the questions that pods of a step's node ask.
func podsOf(_ *run, s *step) func(lab.Question) bool {
	node := s.node
	return func(q lab.Question) bool { return nodeOf(q.Node) == node }
}

// Limit says what a kind of fault may do. The zero value: nothing is lost, nothing breaks. No kind may leak.
type Limit struct {
	Down   time.Duration // new flows may be lost until so long after its beginning
	Back   time.Duration // and until so long after it is healed
	Change time.Duration // a change of objects made meanwhile is in force so long after it is healed
	Breaks bool          // sessions may break
}

// with is the limit with some slack: what may not be felt at all may not with it either.
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
