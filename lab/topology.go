// Package lab builds a containerlab topology file out of network namespaces of the running kernel, and looks at what
// happens in it: who answers, from which source, and which packets pass where. Users give the same file to
// containerlab.
//
// It needs root and a kernel with VRF devices, which labexec provides. A node is not a process but three namespaces
// (network, mount, UTS), so that its sockets can be opened by the test itself, without starting anything.
package lab

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Topology is the subset of containerlab's format that the lab builds. Any other field is an error.
type Topology struct {
	Name   string  `yaml:"name"`
	Prefix *string `yaml:"prefix,omitempty"` // containerlab's alone
	Mgmt   any     `yaml:"mgmt,omitempty"`   // containerlab's alone
	Graph  Graph   `yaml:"topology"`
}

// Graph holds the nodes, their links, and the settings that nodes inherit: from their kind first, then from the
// defaults.
type Graph struct {
	Defaults Definition            `yaml:"defaults,omitempty"`
	Kinds    map[string]Definition `yaml:"kinds,omitempty"`
	Nodes    map[string]Definition `yaml:"nodes"`
	Links    []Link                `yaml:"links,omitempty"`
}

// Kinds of nodes.
const (
	Linux        = "linux"
	ExtContainer = "ext-container" // a container that runs already, which Deploy refuses
)

// Definition holds the settings of one node, or settings that nodes inherit. Lists are appended to the inherited ones,
// maps merged.
type Definition struct {
	Kind        string            `yaml:"kind,omitempty"` // Linux or ExtContainer
	Image       string            `yaml:"image,omitempty"`
	Binds       []string          `yaml:"binds,omitempty"` // source:target[:options], the source relative to the file
	Exec        []string          `yaml:"exec,omitempty"`
	Env         map[string]string `yaml:"env,omitempty"`
	Sysctls     map[string]any    `yaml:"sysctls,omitempty"`
	Cmd         string            `yaml:"cmd,omitempty"`          // for containers: tests start programs themselves
	Entrypoint  string            `yaml:"entrypoint,omitempty"`   // for containers
	NetworkMode string            `yaml:"network-mode,omitempty"` // for containers
	Labels      map[string]string `yaml:"labels,omitempty"`       // containerlab's alone
}

// Link is a cable between two interfaces, each written node:interface.
type Link struct {
	Endpoints []string `yaml:"endpoints"`
	MTU       int      `yaml:"mtu,omitempty"`
}

// Load reads a topology file strictly and resolves inherited settings.
func Load(path string) (*Topology, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read topology: %w", err)
	}
	t, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

func parse(b []byte) (*Topology, error) {
	var t Topology
	in := yaml.NewDecoder(bytes.NewReader(b))
	in.KnownFields(true)
	if err := in.Decode(&t); err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(t.Graph.Nodes)) {
		d := t.Graph.Nodes[name]
		kind := cmp.Or(d.Kind, t.Graph.Defaults.Kind)
		d = d.inherit(t.Graph.Kinds[kind]).inherit(t.Graph.Defaults)
		t.Graph.Nodes[name] = d
		if d.Kind != Linux && d.Kind != ExtContainer {
			errs = append(errs, fmt.Errorf("node %s: kind %q: must be linux or ext-container", name, d.Kind))
		}
		for _, bind := range d.Binds {
			if n := strings.Count(bind, ":"); n < 1 || n > 2 {
				errs = append(errs, fmt.Errorf("node %s: bind %q: must be source:target", name, bind))
			}
		}
	}
	used := map[string]bool{}
	for i, l := range t.Graph.Links {
		if len(l.Endpoints) != 2 {
			errs = append(errs, fmt.Errorf("link %d: %d endpoints: must be two", i, len(l.Endpoints)))
		}
		for _, e := range l.Endpoints {
			node, device, ok := strings.Cut(e, ":")
			if _, known := t.Graph.Nodes[node]; !ok || !known || device == "" {
				errs = append(errs, fmt.Errorf("link %d: endpoint %q: must be node:interface of a known node", i, e))
			}
			if used[e] {
				errs = append(errs, fmt.Errorf("link %d: endpoint %q is taken", i, e))
			}
			used[e] = true
		}
	}
	return &t, errors.Join(errs...)
}

// inherit fills in the settings that d does not have.
func (d Definition) inherit(from Definition) Definition {
	d.Kind = cmp.Or(d.Kind, from.Kind)
	d.Image = cmp.Or(d.Image, from.Image)
	d.Binds = slices.Concat(from.Binds, d.Binds)
	d.Exec = slices.Concat(from.Exec, d.Exec)
	d.Env = merged(from.Env, d.Env)
	d.Sysctls = merged(from.Sysctls, d.Sysctls)
	d.Cmd = cmp.Or(d.Cmd, from.Cmd)
	d.Entrypoint = cmp.Or(d.Entrypoint, from.Entrypoint)
	d.NetworkMode = cmp.Or(d.NetworkMode, from.NetworkMode)
	return d
}

func merged[V any](from, over map[string]V) map[string]V {
	all := map[string]V{}
	maps.Copy(all, from)
	maps.Copy(all, over)
	return all
}

// repository is an image's name without its tag.
func repository(image string) string {
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		return image[:i]
	}
	return image
}
