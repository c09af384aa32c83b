package agent

import (
	"context"
	"net/netip"
	"time"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// nodeKernel is the part of kernel.Node that passes use.
type nodeKernel interface {
	// Facts, Problems and Apply belong to one pass, in this order.
	Facts(ctx context.Context, tables ...uint32) (plan.Facts, error)
	Problems(node string, devices []string) ([]cluster.Problem, error)
	Apply(ctx context.Context, p *plan.NodePlan) (kernel.Result, error)
	// EndContradictions is for after an Apply whose Result is Contradicted.
	EndContradictions(ctx context.Context, d plan.DataPlane) (uint, error)

	Forget()
	Resumed() (map[netip.Addr]bool, error)
	Connections() (conntrack.Connections, error)
	NextLook() time.Time
	ForeignHands() uint64
	Watch(ctx context.Context, wake func()) error
}

// nodeSpeakers is the part of speaker.Client that passes use: the BGP speakers of all networks, and BFD with other nodes.
type nodeSpeakers interface {
	Run(ctx context.Context)
	Ready() <-chan struct{}
	Problem() error
	Started() time.Time

	Withdraw(ctx context.Context, desired []plan.Speaker) error
	Apply(ctx context.Context, desired []plan.Speaker) error
	Announced() map[string]sorted.List[plan.Announcement]
	Learned() []plan.NetworkRoutes
	Sessions() []bgp.Session

	Watch(ctx context.Context, o bfd.Options, peers []bfd.Peer) error
	Nodes() []bfd.Session
}
