package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube"
	"github.com/egressway/egressway/internal/cluster/manifests"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/pause"
)

// source provides the objects and their hosts.
type source interface {
	// Run follows the objects until ctx ends.
	Run(ctx context.Context)
	// Objects returns the known objects, and the changes since the previous call: the first call returns Everything. ok
	// is false until all objects have been known once. The problems are the same slice as before while none differs.
	Objects() (o cluster.Objects, changed cluster.Changed, problems []cluster.Problem, ok bool)
	// hosts returns the elected choices, and the keys of those that changed since the last call. change lists the
	// changed objects.
	hosts(o cluster.Objects, change cluster.Changed) (elected map[cluster.Key]election.Choice, changed []cluster.Key)
	// FollowPods includes the Pods of this node in the objects, as soon as they are known, or excludes them.
	FollowPods(want bool)
}

// following is a source whose leader elects the hosts for all nodes: an API server.
type following interface {
	source
	// Reached returns the addresses at which the API server has answered.
	Reached() []netip.Addr
	// Current returns nil where Objects holds the EgressServices that the API server has now.
	Current(ctx context.Context) error
	// Report publishes the state of this node to the leader.
	Report(r cluster.Report)
}

func newSource(log *slog.Logger, c *config.Config, version string, wake func()) source {
	if c.Source.Manifests != "" {
		return &folder{log: log, wake: wake, path: c.Source.Manifests, files: manifests.Open(c.Source.Manifests)}
	}
	return apiServer{Cluster: kube.New(log, kube.Options{
		Kubeconfig: c.Source.Kubernetes.Kubeconfig, Namespace: c.Source.Kubernetes.Namespace,
		Node: c.Node, LabelHosts: c.Source.Kubernetes.LabelHosts, Version: version, Pods: len(c.Hold) > 0,
	}, wake), obeyed: new(election.Obeyed)}
}

// apiServer is a cluster's API server. The leader elects the hosts, all other daemons read them from it.
type apiServer struct {
	*kube.Cluster
	obeyed *election.Obeyed
}

func (s apiServer) hosts(o cluster.Objects, change cluster.Changed) (map[cluster.Key]election.Choice, []cluster.Key) {
	return s.obeyed.Update(o, change)
}

// folder is a folder of manifests. Every daemon elects the hosts for itself.
type folder struct {
	log  *slog.Logger
	wake func()
	path string

	files   *manifests.Folder // used by Run
	elected election.Elected  // used by the loop

	mu       sync.Mutex
	known    bool
	latest   cluster.Objects
	changed  cluster.Changed // since the last call of Objects
	problems []cluster.Problem
}

func (f *folder) hosts(o cluster.Objects, change cluster.Changed) (map[cluster.Key]election.Choice, []cluster.Key) {
	return f.elected.Update(o, nil, change)
}

func (f *folder) Objects() (o cluster.Objects, changed cluster.Changed, problems []cluster.Problem, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed, f.changed = f.changed, cluster.Changed{}
	return f.latest, changed, f.problems, f.known
}

// FollowPods does nothing: everything in the folder is read.
func (*folder) FollowPods(bool) {}

// Run follows the folder. If the folder vanishes, everything stays in force.
func (f *folder) Run(ctx context.Context) {
	for {
		err := manifests.Watch(ctx, f.path, f.read)
		if ctx.Err() != nil {
			return
		}
		f.log.Warn("watch ended, starting it again", "watch", f.path, "error", err)
		f.read(true)
		if !pause.For(ctx, restartAfter) {
			return
		}
	}
}

// read reads the changed files, and returns when to read again. Until the folder has settled, a missing object may be
// on its way from one file to another.
func (f *folder) read(settled bool) (again time.Duration) {
	var (
		objects  cluster.Objects
		changed  cluster.Changed
		problems []cluster.Problem
	)
	if settled {
		objects, changed, problems = f.files.Read()
	} else {
		var ok bool
		if objects, changed, problems, ok = f.files.Glance(); !ok {
			return 0
		}
	}
	again = f.files.Again()
	f.mu.Lock()
	defer f.mu.Unlock()
	same := slices.Equal(problems, f.problems)
	f.problems = problems
	missing := f.files.Missing()
	if !missing {
		f.latest = objects
		f.changed.Join(changed)
	}
	switch {
	case !f.known && (missing || f.files.Unsure()):
		f.log.Warn("no objects yet: nothing is changed on this node", "problem", problems[0].Error())
	case !missing && f.known && changed.Empty() && same:
		return again // it was reported before
	case !missing:
		f.known = true
	}
	f.wake()
	return again
}
