package agent

import (
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/flows"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// roles are this node's roles for the ingress IPs.
type roles struct {
	plan *plan.NodePlan // that the roles were found in; nil: none
	flows.Roles
}

// find returns the roles in a plan.
func (r *roles) find(c *config.Config, objects cluster.Objects, changed cluster.Changed, p *plan.NodePlan) sorted.List[flows.Role] {
	before := r.plan
	if !c.Failover.Flows.Enabled {
		r.plan = nil
		return sorted.List[flows.Role]{}
	}
	r.plan = p
	return r.Find(p, objects.Nodes, before == nil || changed.All || !slices.EqualFunc(before.DataPlane.Paths, p.DataPlane.Paths, samePath))
}

func samePath(a, b plan.Path) bool { return a.ID == b.ID && a.Key == b.Key }

// carry sets this node's roles in flow replication before they are in force, so that established flows continue when a
// host changes.
func (a *Agent) carry(c *config.Config, objects cluster.Objects, changed cluster.Changed, desired *plan.NodePlan) {
	a.flows.Set(c.Failover.Flows.Port, a.last.roles.find(c, objects, changed, desired), desired.DataPlane)
}

// countFlows adds the counters of flow replication to the metrics.
func (a *Agent) countFlows() {
	for _, c := range []struct {
		name, help string
		of         func(flows.Counters) uint64
	}{
		{"flows_sent", "Egress flows sent to the standby of their ingress IP.", func(c flows.Counters) uint64 { return c.Sent }},
		{"flows_sent_bytes", "Bytes sent for that, without headers of TCP and IP.", func(c flows.Counters) uint64 { return c.Bytes }},
		{"flows_received", "Egress flows received from other nodes.", func(c flows.Counters) uint64 { return c.Received }},
		{"flows_injected", "Of the received flows, those that got a new conntrack entry here.", func(c flows.Counters) uint64 { return c.Injected }},
		{"flows_refused", "Of the received flows, those that are not planned here, or that an entry here prevents.", func(c flows.Counters) uint64 { return c.Refused }},
		{"flows_dropped", "Flows that were not sent at first, because too many were waiting.", func(c flows.Counters) uint64 { return c.Dropped }},
		{"flows_events_lost", "Times that the kernel had more events of connections than could be read; all connections are then listed.", func(c flows.Counters) uint64 { return c.Lost }},
	} {
		a.status.Count(c.name, c.help, func() uint64 { return c.of(a.flows.Counters()) })
	}
}

// marks returns the bits of packet and connection marks that are ours. They change with a restart only.
func marks(c *config.Config) plan.Marks {
	return plan.Marks{Mask: c.Marks.Mask, Priority: c.Marks.RulePriority}
}
