package agent

import (
	"context"
	"log/slog"
	"sync"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/manifests"
	"github.com/egressway/egressway/internal/config"
)

// source holds what the source of objects said last.
type source struct {
	log  *slog.Logger
	wake func()

	mu       sync.Mutex
	known    bool
	latest   cluster.Objects
	problems []cluster.Problem
}

func newSource(log *slog.Logger, wake func()) *source { return &source{log: log, wake: wake} }

// objects is what is known now; ok is false while nothing ever was.
func (s *source) objects() (o cluster.Objects, problems []cluster.Problem, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest, s.problems, s.known
}

// run follows the folder of manifests until ctx ends. A folder that vanishes changes nothing that is in force.
func (s *source) run(ctx context.Context, c config.Source) {
	for {
		err := manifests.Watch(ctx, c.Manifests, func() { s.read(c.Manifests) })
		if ctx.Err() != nil {
			return
		}
		s.log.Warn("watch ended, starting it again", "watch", c.Manifests, "error", err)
		s.read(c.Manifests)
		if !sleep(ctx, restartAfter) {
			return
		}
	}
}

func (s *source) read(folder string) {
	objects, problems := manifests.Read(folder)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = problems
	missing := len(problems) == 1 && problems[0].Reason == cluster.ReasonNoFolder
	if !missing {
		s.latest, s.known = objects, true
	} else if !s.known {
		s.log.Warn("no objects yet: nothing is changed on this node", "problem", problems[0].Error())
	}
	s.wake()
}
