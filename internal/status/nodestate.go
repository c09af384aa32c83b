package status

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/api/v1alpha1"
	"github.com/egressway/egressway/internal/pause"
)

// nodeStateEvery is the least time between two states of the node that FollowNode passes on.
const nodeStateEvery = 2 * time.Second

// Bounds of the lists and texts of a node's state.
const (
	nodeSessionsMost = 256
	nodeTextMost     = 256
)

// FollowNode calls take with the state of this node after each report, until ctx ends. Some reports are left out if they come fast.
func (s *Status) FollowNode(ctx context.Context, take func(v1alpha1.EgressNodeStatus)) {
	var last v1alpha1.EgressNodeStatus
	for {
		p := s.current.Load()
		if r := p.report(); !r.Applied.IsZero() {
			last = r.nodeState(s.unready(), last.Sessions)
			take(last)
		}
		select {
		case <-p.superseded:
		case <-ctx.Done():
			return
		}
		if !pause.For(ctx, nodeStateEvery) {
			return
		}
	}
}

// nodeState returns the state of the node for an EgressNode, without times of conditions. unready is why the node is not ready. former
// has the sessions of the state before: a session that stays down keeps its time, whatever it tries meanwhile.
func (r *Report) nodeState(unready string, former []v1alpha1.EgressNodeSession) v1alpha1.EgressNodeStatus {
	usable, up := tally(new(r.Summary()))
	state := v1alpha1.EgressNodeStatus{
		Version: r.Version, Draining: r.Draining, HostOf: int32(len(r.Hosted())), StandbyOf: int32(len(r.Backed())), //nolint:gosec // small
		NetworksUsable: usable, SessionsUp: up, Down: []string{},
		Networks: make([]v1alpha1.EgressNodeNetwork, 0, len(r.Networks)), Sessions: make([]v1alpha1.EgressNodeSession, 0, len(r.Sessions)),
	}
	for _, n := range r.Networks {
		state.Networks = append(state.Networks, v1alpha1.EgressNodeNetwork{Name: n.Name, Usable: n.Usable, Lacks: shortened(n.Lacks)})
	}
	since := make(map[[2]string]v1alpha1.EgressNodeSession, len(former))
	for _, s := range former {
		since[[2]string{s.Network, s.Peer}] = s
	}
	for i := range r.Sessions[:min(len(r.Sessions), nodeSessionsMost)] {
		s := &r.Sessions[i]
		row := v1alpha1.EgressNodeSession{
			Network: s.Network, Peer: s.Peer, ASN: int64(s.ASN), Up: s.Up,
			Since: metav1.NewTime(s.Since), LastError: shortened(s.LastError),
		}
		if before, known := since[[2]string{s.Network, s.Peer}]; known && !s.Up && !before.Up {
			row.Since = before.Since
		}
		if !s.Up {
			state.Down = append(state.Down, fmt.Sprintf("%s/%s", s.Network, s.Peer))
		}
		state.Sessions = append(state.Sessions, row)
	}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonInForce}
	switch {
	case r.Unknowing:
		ready.Status, ready.Reason = metav1.ConditionFalse, v1alpha1.ReasonObjectsUnknown
		ready.Message = "not all objects are known yet: the former state stays in force"
	case unready != "":
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v1alpha1.ReasonNotInForce, unready
	}
	state.Conditions = []metav1.Condition{ready}
	return state
}

// shortened cuts a text to the length that a node's state may have.
func shortened(s string) string {
	if len(s) > nodeTextMost {
		return s[:nodeTextMost] + "…"
	}
	return s
}
