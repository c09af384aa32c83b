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

// marks returns the bits of packet and connection marks that are ours. They change with a restart only.
func marks(c *config.Config) plan.Marks {
	return plan.Marks{Mask: c.Marks.Mask, Priority: c.Marks.RulePriority}
}
