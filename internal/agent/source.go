package agent

import (
	"context"
	"log/slog"
	"sync"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube"
	"github.com/egressway/egressway/internal/cluster/manifests"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/pause"
)

// source tells the objects and who their hosts are.
type source interface {
	// Run follows the objects until ctx ends.
	Run(ctx context.Context)
	// Objects is what is known now; ok is false while not everything ever was.
	Objects() (o cluster.Objects, problems []cluster.Problem, ok bool)
	hosts(o cluster.Objects) map[cluster.Key]election.Choice
}

func newSource(log *slog.Logger, c *config.Config, version string, wake func()) source {
	if c.Source.Manifests != "" {
		return &folder{log: log, wake: wake, path: c.Source.Manifests}
	}
	return apiServer{kube.New(log, kube.Options{
		Kubeconfig: c.Source.Kubernetes.Kubeconfig, Namespace: c.Source.Kubernetes.Namespace,
		Node: c.Node, LabelHosts: c.Source.Kubernetes.LabelHosts, Version: version,
	}, wake)}
}

// apiServer is a cluster's API server. One daemon elects the hosts, all others read them from it.
type apiServer struct{ *kube.Cluster }

func (apiServer) hosts(o cluster.Objects) map[cluster.Key]election.Choice { return election.Obey(o) }

// folder is a folder of manifests. Every daemon elects the hosts for itself.
type folder struct {
	log  *slog.Logger
	wake func()
	path string

	mu       sync.Mutex
	known    bool
	latest   cluster.Objects
	problems []cluster.Problem
}

// hosts gives a term to hosts that were written down without one: a standby that takes over must be able to announce a
// later one.
func (*folder) hosts(o cluster.Objects) map[cluster.Key]election.Choice {
	choices := election.Elect(o, nil)
	for key, c := range choices {
		if c.Host != "" && c.Host != cluster.AllHosts && c.Term == 0 {
			c.Term = 1
			choices[key] = c
		}
	}
	return choices
}

func (f *folder) Objects() (o cluster.Objects, problems []cluster.Problem, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.latest, f.problems, f.known
}

// Run follows the folder. One that vanishes changes nothing that is in force.
func (f *folder) Run(ctx context.Context) {
	for {
		err := manifests.Watch(ctx, f.path, f.read)
		if ctx.Err() != nil {
			return
		}
		f.log.Warn("watch ended, starting it again", "watch", f.path, "error", err)
		f.read()
		if !pause.For(ctx, restartAfter) {
			return
		}
	}
}

func (f *folder) read() {
	objects, problems := manifests.Read(f.path)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problems = problems
	missing := len(problems) == 1 && problems[0].Reason == cluster.ReasonNoFolder
	if !missing {
		f.latest, f.known = objects, true
	} else if !f.known {
		f.log.Warn("no objects yet: nothing is changed on this node", "problem", problems[0].Error())
	}
	f.wake()
}
