package agent

import (
	"slices"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/flows"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// roles are this node's roles for the ingress IPs, in the last plan.
type roles struct {
	known bool // false: flow replication was off, or there was no plan
	flows.Roles
}

// find returns the roles in a plan. former is the plan before it.
func (r *roles) find(
	c *config.Config, objects cluster.Objects, changed cluster.Changed, former, p *plan.NodePlan,
) sorted.List[flows.Role] {
	known := r.known
	if r.known = c.Failover.Flows.Enabled; !r.known {
		return sorted.List[flows.Role]{}
	}
	if !known || changed.All || !slices.EqualFunc(former.DataPlane.Paths, p.DataPlane.Paths, samePath) {
		former = nil
	}
	return r.Find(former, p, objects.Nodes)
}

func samePath(a, b plan.Path) bool { return a.ID == b.ID && a.Key == b.Key }

// carry sets this node's roles in flow replication before they are in force, so that established flows continue when a
// host changes.
func (a *Agent) carry(c *config.Config, objects cluster.Objects, changed cluster.Changed, former, desired *plan.NodePlan) {
	a.flows.Set(c.Failover.Flows.Port, a.last.roles.find(c, objects, changed, former, desired), desired.DataPlane)
}

// marks returns the bits of packet and connection marks that are ours. They change with a restart only.
func marks(c *config.Config) plan.Marks {
	return plan.Marks{Mask: c.Marks.Mask, Priority: c.Marks.RulePriority}
}
