package chaos

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"time"
)

// The roles that a node may have for web.
const (
	theHost = iota
	theStandby
	theThird
)

var roles = [...]string{"host", "standby", "third node"}

// step is one fault of a schedule.
type step struct {
	kind  string
	role  int           // of the node that it happens to
	hold  time.Duration // how long it lasts, if the runner has to end it
	pause time.Duration // after the lab is whole again
	dice  uint64        // for a kind's random choices

	node   string    // that has the role when its time has come
	healed time.Time // when healing began, or was done where that takes its time
}

func (s step) String() string {
	node := ""
	if s.node != "" {
		node = " " + s.node
	}
	return fmt.Sprintf("%s, %s%s", s.kind, roles[s.role], node)
}

// draw is the endless schedule of a seed: all kinds come, in random order, before any comes again. Every step takes the same
// number of draws, so that a change of one kind leaves the others as they are.
func draw(seed uint64, kinds []string) iter.Seq2[int, step] {
	return func(yield func(int, step) bool) {
		r := rand.New(rand.NewPCG(seed, 0))
		for n := 0; len(kinds) > 0; {
			for _, k := range r.Perm(len(kinds)) {
				s := step{kind: kinds[k], role: r.IntN(len(roles)), pause: between(r.Float64(), 500*time.Millisecond, 3*time.Second)}
				f, fraction := faults[s.kind], r.Float64()
				s.hold = between(fraction, f.hold[0], f.hold[1])
				s.dice = r.Uint64()
				if !yield(n, s) {
					return
				}
				n++
			}
		}
	}
}

// between is the point at a fraction of the way.
func between(fraction float64, least, most time.Duration) time.Duration {
	return least + time.Duration(fraction*float64(most-least))
}
