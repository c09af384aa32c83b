package plan

import (
	"fmt"

	"github.com/egressway/egressway/internal/cluster"
)

// fewProblems bounds the problems of one object that differ in their values only. A user who may write EndpointSlices can
// cause a hundred thousand of them. The first few are listed, and the last listed one carries the number of the others.
const fewProblems = 3

// findings are problems that one part of the plan finds.
type findings struct {
	problems []cluster.Problem
	seen     map[sameProblem]*samples // nil where nothing is counted
}

// sameProblem is the key under which problems are counted together.
type sameProblem struct {
	object cluster.Key
	field  string
	reason cluster.Reason
	format string
}

// samples counts problems and holds the index of the last listed one.
type samples struct{ count, last int }

func (f *findings) problem(kind, object, field, value string, reason cluster.Reason, format string, args ...any) {
	f.problems = append(f.problems, cluster.Problem{
		Kind: kind, Object: object, Field: field, Value: cluster.Clip(value), Reason: reason, Message: fmt.Sprintf(format, args...),
	})
}

// sample adds a problem of an EgressService, or only counts it once fewProblems of its kind are listed. Callers should pass
// the values in an order that depends on the values only.
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

// summarize stores in the last listed problem of each kind how many more there are.
func (f *findings) summarize() {
	for _, of := range f.seen {
		if more := of.count - fewProblems; more > 0 {
			f.problems[of.last].More = more
		}
	}
	f.seen = nil
}

// Reasons of problems that planning finds.
const (
	ReasonPathsExhausted    cluster.Reason = "PathsExhausted"
	ReasonVRFMissing        cluster.Reason = "VRFMissing"
	ReasonInterfaceMissing  cluster.Reason = "InterfaceMissing"
	ReasonTableMismatch     cluster.Reason = "TableMismatch"
	ReasonNetworkNotFound   cluster.Reason = "NetworkNotFound"
	ReasonNetworkNotAllowed cluster.Reason = "NetworkNotAllowed"
	ReasonInvalidAddress    cluster.Reason = "InvalidAddress"
	ReasonIngressConflict   cluster.Reason = "IngressConflict"
	ReasonForeignEndpoint   cluster.Reason = "ForeignEndpoint"
	ReasonEndpointConflict  cluster.Reason = "EndpointConflict"
	ReasonUnknownNode       cluster.Reason = "UnknownNode"
	ReasonOutsidePodRanges  cluster.Reason = "OutsidePodRanges"
	ReasonNoRoute           cluster.Reason = "NoRoute"
	ReasonHostUnreachable   cluster.Reason = "HostUnreachable"
	ReasonNoRouterID        cluster.Reason = "NoRouterID"
)
