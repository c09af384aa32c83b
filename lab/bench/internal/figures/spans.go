package figures

import (
	"math"
	"slices"
	"strconv"
	"time"
)

// Spans are times between two moments.
type Spans []time.Duration

// Add adds the time between two moments, unless one of them is zero, which was not seen.
func (s *Spans) Add(from, to time.Time) {
	if !from.IsZero() && !to.IsZero() {
		*s = append(*s, to.Sub(from))
	}
}

// Columns returns n, p50, p90, p99 and the most, which are empty without any span.
func (s Spans) Columns() []string {
	if len(s) == 0 {
		return []string{"0", "", "", "", ""}
	}
	slices.Sort(s)
	at := func(share float64) string {
		return Duration(s[min(len(s)-1, int(math.Ceil(share*float64(len(s))))-1)])
	}
	return []string{strconv.Itoa(len(s)), at(0.5), at(0.9), at(0.99), at(1)}
}
