package plan

import (
	"fmt"

	"github.com/egressway/egressway/internal/cluster"
)

// fewProblems bounds the problems of one object that say the same of different values. An owner of EndpointSlices can make up a
// hundred thousand of them; the first few say what is wrong, and the last of these says how many more there are.
const fewProblems = 3

// findings are problems that one part of the plan finds.
type findings struct {
	problems []cluster.Problem
	seen     map[sameProblem]*samples // nil where nothing is counted
}

// sameProblem is what problems have in common that are counted together.
type sameProblem struct {
	object cluster.Key
	field  string
	reason cluster.Reason
	format string
}

// samples counts problems, and has the index of the last one that is listed.
type samples struct{ count, last int }

func (f *findings) problem(kind, object, field, value string, reason cluster.Reason, format string, args ...any) {
	f.problems = append(f.problems, cluster.Problem{
		Kind: kind, Object: object, Field: field, Value: cluster.Clip(value), Reason: reason, Message: fmt.Sprintf(format, args...),
	})
}

// sample adds a problem of an EgressService, or counts it where there are enough that say the same. The values should come in an
// order that depends on nothing but themselves.
func (f *findings) sample(object cluster.Key, field, value string, reason cluster.Reason, format string, args ...any) {
	same := sameProblem{object, field, reason, format}
	of := f.seen[same]
	if of == nil {
		if f.seen == nil {
			f.seen = map[sameProblem]*samples{}
		}
		of = &samples{}
		f.seen[same] = of
	}
	if of.count++; of.count <= fewProblems {
		of.last = len(f.problems)
		f.problem("EgressService", object.String(), field, value, reason, format, args...)
	}
}

// summarize has the last one that is listed say how many more there are.
func (f *findings) summarize() {
	for _, of := range f.seen {
		if more := of.count - fewProblems; more > 0 {
			f.problems[of.last].More = more
		}
	}
	f.seen = nil
}
