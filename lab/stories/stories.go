// Package stories reads the stories of internal/plan/testdata for tests of several packages. A story is a folder with a
// configuration, manifests and, if the story depends on them, facts about the kernel of a node (NODE.facts.yaml).
package stories

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/manifests"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
)

// Story is a story as one node sees it.
type Story struct {
	Snapshot plan.Snapshot
	Problems []cluster.Problem // of the manifests
	Assumed  bool              // no file has facts about the node's kernel
}

// Read reads the story in dir as node sees it.
func Read(dir, node string) (Story, error) {
	file := filepath.Join(dir, "config.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return Story{}, err
	}
	c, err := config.Parse(file, text)
	if err != nil {
		return Story{}, err
	}
	objects, problems := manifests.Read(filepath.Join(dir, "manifests"))
	if _, ok := objects.Nodes.Get(node); !ok {
		return Story{}, fmt.Errorf("%s: no manifest of node %s", dir, node)
	}
	c = c.For(objects.Nodes.At(node).Labels).Config
	s := Story{
		Snapshot: plan.Snapshot{Node: node, Config: c, Objects: objects, Hosts: election.Elect(objects, nil)},
		Problems: problems,
	}
	if err := readState(filepath.Join(dir, node+".state.yaml"), &s.Snapshot); err != nil {
		return Story{}, err
	}
	data, err := os.ReadFile(filepath.Join(dir, node+".facts.yaml"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		s.Assumed, s.Snapshot.Facts = true, plan.Assume(c, objects, node)
	case err != nil:
		return Story{}, err
	default:
		if s.Snapshot.Facts, err = plan.ReadFacts(data); err != nil {
			return Story{}, err
		}
	}
	return s, nil
}

// readState reads from file which announcements the daemon suppresses, if there is such a file.
func readState(file string, into *plan.Snapshot) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var state struct {
		Draining, Leaving bool
		HeldDown          []string `yaml:"heldDown"`
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&state); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	into.Draining, into.Leaving, into.HeldDown = state.Draining, state.Leaving, state.HeldDown
	return nil
}
