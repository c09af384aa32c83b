package plan

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"go.yaml.in/yaml/v3"
)

// ReadFacts parses facts that a person wrote or copied from a node, as YAML. A link without "up" and "mtu" is up and has
// an MTU of 1500.
func ReadFacts(data []byte) (Facts, error) {
	var file struct {
		Links []struct {
			Name     string         `yaml:"name"`
			Up       *bool          `yaml:"up"`
			Master   string         `yaml:"master"`
			VRFTable uint32         `yaml:"vrfTable"`
			MTU      int            `yaml:"mtu"`
			Addrs    []netip.Prefix `yaml:"addrs"`
		} `yaml:"links"`
		Paths []struct {
			Kind PathKind `yaml:"kind"`
			Name string   `yaml:"name"`
			ID   PathID   `yaml:"id"`
		} `yaml:"paths"`
		Gateways []netip.Addr `yaml:"gateways"`
		Routed   []struct {
			Table uint32 `yaml:"table"`
			IPv4  bool   `yaml:"ipv4"`
			IPv6  bool   `yaml:"ipv6"`
		} `yaml:"routed"`
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return Facts{}, fmt.Errorf("decode facts: %w", err)
	}
	f := Facts{Paths: map[PathKey]PathID{}, Routed: map[uint32]Families{}, Gateways: file.Gateways}
	for i, l := range file.Links {
		if l.Name == "" {
			return Facts{}, fmt.Errorf("decode facts: links[%d] has no name", i)
		}
		f.Links = append(f.Links, Link{
			Name: l.Name, Index: i + 1, Up: l.Up == nil || *l.Up, Master: l.Master, VRFTable: l.VRFTable, MTU: cmp.Or(l.MTU, 1500), Addrs: l.Addrs,
		})
	}
	for _, p := range file.Paths {
		if p.Kind != PathNetwork && p.Kind != PathSteer {
			return Facts{}, fmt.Errorf("decode facts: path kind %q: one of %s, %s", p.Kind, PathNetwork, PathSteer)
		}
		f.Paths[PathKey{p.Kind, p.Name}] = p.ID
	}
	for _, r := range file.Routed {
		f.Routed[r.Table] = Families{r.IPv4, r.IPv6}
	}
	return f, nil
}
