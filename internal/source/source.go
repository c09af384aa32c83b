// Package source provides the objects of the cluster and their hosts: from an API server, whose leader elects for all
// nodes, or from a folder of manifests, where every daemon elects by itself.
package source

import (
	"context"
	"log/slog"
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

// restartAfter is the pause before a watch of a folder that failed is started again.
const restartAfter = time.Second

// Server is a cluster's API server. The leader elects the hosts, all other daemons read them from it.
type Server struct {
	*kube.Cluster
	obeyed election.Obeyed
}

// NewServer returns the API server that a configuration names. It calls wake after a change.
func NewServer(log *slog.Logger, c *config.Config, version string, wake func()) *Server {
	return &Server{Cluster: kube.New(log, kube.Options{
		Kubeconfig: c.Source.Kubernetes.Kubeconfig, Namespace: c.Source.Kubernetes.Namespace,
		Node: c.Node, LabelHosts: c.Source.Kubernetes.LabelHosts, Version: version, Pods: len(c.Hold) > 0, Off: off(c.Kinds),
	}, wake)}
}

// off returns the kinds that a configuration switches off.
func off(k config.Kinds) (kinds cluster.KindSet) {
	kinds[cluster.KindEgressQoS] = k.EgressQoS == config.KindOff
	kinds[cluster.KindEgressFirewall] = k.EgressFirewall == config.KindOff
	kinds[cluster.KindEgressIP] = k.EgressIP == config.KindOff
	return kinds
}

// Follow makes Objects hold the kinds that a configuration serves, and the Pods of this node if it has hold.
func (s *Server) Follow(c *config.Config) {
	s.TurnOff(off(c.Kinds))
	s.FollowPods(len(c.Hold) > 0)
}

// Hosts returns the choices in the objects' status, and the seats of those that changed since the last call. change lists
// the changed objects.
func (s *Server) Hosts(o cluster.Objects, change cluster.Changed, _ election.Policy) (map[election.Seat]election.Choice, []election.Seat) {
	return s.obeyed.Update(o, change)
}

// Folder is a folder of manifests. Every daemon elects the hosts for itself.
type Folder struct {
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
	off      cluster.KindSet
	served   []cluster.Problem // those of problems that are not of kinds in off
}

// NewFolder returns the folder at a path. It calls wake after a change.
func NewFolder(log *slog.Logger, path string, wake func()) *Folder {
	return &Folder{log: log, wake: wake, path: path, files: manifests.Open(path)}
}

// Hosts returns the choices that this daemon elects, and the seats of those that changed since the last call. change lists
// the changed objects.
func (f *Folder) Hosts(
	o cluster.Objects, change cluster.Changed, policy election.Policy,
) (map[election.Seat]election.Choice, []election.Seat) {
	return f.elected.Update(o, nil, change, policy)
}

// Objects returns the known objects, and the changes and problems since the last call. ok is false until all objects were
// known once.
func (f *Folder) Objects() (o cluster.Objects, changed cluster.Changed, problems []cluster.Problem, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed, f.changed = f.changed, cluster.Changed{}
	return f.latest.Without(f.off), changed, f.served, f.known
}

// Follow makes Objects hold the kinds that a configuration serves.
func (f *Folder) Follow(c *config.Config) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if kinds := off(c.Kinds); kinds != f.off {
		f.off, f.changed, f.served = kinds, cluster.Everything(), servedProblems(f.problems, kinds)
	}
}

// Read returns the objects in a folder of the kinds that a configuration serves, with their problems. c may be nil: all kinds.
func Read(folder string, c *config.Config) (cluster.Objects, []cluster.Problem) {
	objects, problems := manifests.Read(folder)
	if c == nil {
		return objects, problems
	}
	kinds := off(c.Kinds)
	return objects.Without(kinds), servedProblems(problems, kinds)
}

// servedProblems returns the problems except those of objects of some kinds.
func servedProblems(problems []cluster.Problem, off cluster.KindSet) []cluster.Problem {
	if off == (cluster.KindSet{}) {
		return problems
	}
	return slices.DeleteFunc(slices.Clone(problems), func(p cluster.Problem) bool {
		for kind, is := range off {
			if is && p.Kind == cluster.Kind(kind).String() { //nolint:gosec // an index of kinds
				return true
			}
		}
		return false
	})
}

// Run follows the folder. If the folder vanishes, everything stays in force.
func (f *Folder) Run(ctx context.Context) {
	for {
		err := f.files.Watch(ctx, f.read)
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

// read reads the changed files, and returns when to read again.
func (f *Folder) read(settled bool) (again time.Duration) {
	objects, changed, problems, ok := f.readFiles(settled)
	if !ok {
		return 0
	}
	again = f.files.Again()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.record(objects, changed, problems) {
		f.wake()
	}
	return again
}

// readFiles reads the changed files; until the folder has settled, only those that are whole.
func (f *Folder) readFiles(settled bool) (o cluster.Objects, changed cluster.Changed, problems []cluster.Problem, ok bool) {
	if !settled {
		return f.files.Glance()
	}
	o, changed, problems = f.files.Read()
	return o, changed, problems, true
}

// record records the objects and problems of the folder, and reports whether that is news. The caller holds f.mu.
func (f *Folder) record(objects cluster.Objects, changed cluster.Changed, problems []cluster.Problem) (news bool) {
	same := slices.Equal(problems, f.problems)
	if !same {
		f.problems, f.served = problems, servedProblems(problems, f.off)
	}
	missing := f.files.Missing()
	if !missing {
		f.latest = objects
		f.changed.Join(changed)
	}
	if !f.known {
		f.know(!missing && !f.files.Unsure())
		return true
	}
	return missing || !same || !changed.Empty()
}

// know records whether all objects are known. The caller holds f.mu.
func (f *Folder) know(all bool) {
	f.known = all
	if !all {
		f.log.Warn("no objects yet: nothing is changed on this node", "problem", f.problems[0].Error())
	}
}
