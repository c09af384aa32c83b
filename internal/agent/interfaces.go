package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/egressway/egressway/api/v1alpha1"
	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/kernel"
	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/internal/source"
)

// nodeKernel is the part of kernel.Node that passes use. The agent keeps the Record between passes.
type nodeKernel interface {
	Facts(ctx context.Context, held kernel.Record, tables ...uint32) (f plan.Facts, lost bool, err error)
	Restore(ctx context.Context, held kernel.Record) (kernel.Record, error)
	Problems(held kernel.Record, node string, devices []string) ([]cluster.Problem, error)
	Apply(ctx context.Context, held kernel.Record, p *plan.NodePlan) (kernel.Result, error)
	// EndContradictions is for after an Apply whose Result is Contradicted.
	EndContradictions(ctx context.Context, d plan.DataPlane) (uint, error)

	Resumed() (map[netip.Addr]bool, error)
	SharedHosts() (map[plan.MAC]bool, error)
	Connections() (conntrack.Connections, error)
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

	AnswerOnLink(ctx context.Context, all sorted.List[plan.OnLink]) error
}

// nodeSource provides the objects and their hosts.
type nodeSource interface {
	// Run follows the objects until ctx ends.
	Run(ctx context.Context)
	// Objects returns the known objects, and the changes since the previous call: the first call returns Everything. ok
	// is false until all objects have been known once. The problems are the same slice as before while none differs.
	Objects() (o cluster.Objects, changed cluster.Changed, problems []cluster.Problem, ok bool)
	// Hosts returns the elected choices, and the seats of those that changed since the last call. change lists the
	// changed objects.
	Hosts(
		o cluster.Objects, change cluster.Changed, policy election.Policy,
	) (elected map[election.Seat]election.Choice, changed []election.Seat)
	// Follow makes Objects hold the kinds that a configuration serves, and the Pods of this node if these are needed.
	Follow(c *config.Config)
}

// following is a source whose leader elects the hosts for all nodes: an API server.
type following interface {
	nodeSource
	// Reached returns the addresses at which the API server has answered.
	Reached() []netip.Addr
	// Current returns nil where Objects holds the EgressServices that the API server has now.
	Current(ctx context.Context) error
	// Report publishes the state of this node to the leader.
	Report(r cluster.Report)
	// DrainReported reports whether the leader can read that this node drains.
	DrainReported() bool
	// ReportNode publishes the state of this node to people.
	ReportNode(s v1alpha1.EgressNodeStatus)
	// MayGet returns the user of a token, and whether that user may get a path of the daemon.
	MayGet(ctx context.Context, token, path string) (user string, allowed bool, err error)
	// ShareAddresses publishes the secondary addresses of this node to the other nodes.
	ShareAddresses(s cluster.Secondary)
}

// setSource makes passes read objects from a source.
func (a *Agent) setSource(s nodeSource) {
	a.source = s
	a.server, _ = s.(following)
}

// openSource opens the source that the configuration names.
func openSource(log *slog.Logger, c *config.Config, version string, wake func()) nodeSource {
	if c.Source.Manifests != "" {
		return source.NewFolder(log, c.Source.Manifests, wake)
	}
	return source.NewServer(log, c, version, wake)
}
