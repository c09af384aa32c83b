package trace

import (
	"fmt"

	"github.com/egressway/egressway/internal/kernel/walk"
	"github.com/egressway/egressway/internal/plan"
)

// known explains the existing connections of the pair, which keep their paths where they may. path is that of the new packet; its id is 0
// if it has none.
func (e *explainer) known(path walk.LivePath) {
	for _, k := range e.Flows {
		f := Flow{Kind: e.kindOf(k)}
		f.Text = fmt.Sprintf("%s %s to %s, %s, as %s", e.Proto, k.Src, k.Dst, e.pathOf(k), k.Leaves.Addr())
		switch d := k.Flight.Dropped(); {
		case d != nil:
			f.Kind = Dropped
			f.Text += fmt.Sprintf(": its next packet is dropped (chain %s)", d.Decided)
		case k.Flight.Unrouted():
			f.Kind = Dropped
			f.Text += ": its next packet has no route"
		case path.ID != 0 && k.Mark&e.Live.Marks.Mask == e.Live.Marks.Egress(path.ID):
			f.Text += ": stays on this path"
		default:
			f.Text += ": continues" + byWay(k.Flight.Route)
		}
		e.out.Flows = append(e.out.Flows, f)
	}
}

// kindOf returns the outcome for an existing connection whose next packet passes, by the connection's path.
func (e *explainer) kindOf(k KnownFlow) Kind {
	switch path, egress := e.flowPath(k); {
	case egress && path.Key.Kind == plan.PathNetwork:
		return Leaves
	case egress:
		return Handed
	case e.out.Verdict.Kind == Cluster:
		return Cluster
	}
	return Unselected
}

// flowPath returns the path of an existing connection, if it has one: its key is empty otherwise. egress reports that a selected pod's
// packet began the connection there.
func (e *explainer) flowPath(k KnownFlow) (path walk.LivePath, egress bool) {
	mark := k.Mark & e.Live.Marks.Mask
	path, ok := e.Live.Path(e.Live.Marks.Path(mark))
	return path, ok && mark&e.Live.Marks.EgressBit() != 0
}

// pathOf describes the path of an existing connection.
func (e *explainer) pathOf(k KnownFlow) string {
	switch p, egress := e.flowPath(k); {
	case p.ID == 0:
		return "on no path of ours"
	case !egress:
		return "which came in by " + pathName(p.Key)
	default:
		return "on path " + fmt.Sprint(p.ID) + " (" + pathName(p.Key) + ")"
	}
}
