package agent

import (
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/flows"
	"github.com/egressway/egressway/internal/plan"
)

// carry tells what this node is about to be, so that established flows go on where a host changes.
func (a *Agent) carry(c *config.Config, objects cluster.Objects, desired *plan.NodePlan) {
	var roles []flows.Role
	if c.Failover.Flows.Enabled {
		roles = flows.Roles(desired, objects.Nodes)
	}
	a.flows.Set(c.Failover.Flows.Port, roles, desired.DataPlane)
}

// marks are the bits of packets and connections that are ours. They change with a restart only.
func marks(c *config.Config) plan.Marks {
	return plan.Marks{Mask: c.Marks.Mask, Priority: c.Marks.RulePriority}
}
