package main

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
)

func TestEachTopologyHasPromises(t *testing.T) {
	files, err := filepath.Glob("../../containerlab/*.clab.yml")
	require.NoError(t, err)
	files = append(files, "../../containerlab/kind/tors.clab.yml")
	left := maps.Clone(promises)
	for _, file := range files {
		topology, err := lab.Load(file)
		require.NoError(t, err)
		p, ok := promises[topology.Name]
		require.True(t, ok, "%s needs an entry in promises", file)
		delete(left, topology.Name)
		for router := range p.announced {
			require.Contains(t, topology.Graph.Nodes, router)
		}
		for _, node := range append(p.daemons, p.hosts...) {
			require.Contains(t, topology.Graph.Nodes, node)
		}
	}
	require.Empty(t, left)
}

func TestRunIsWhatTheFileSays(t *testing.T) {
	topology, err := lab.Load("../../containerlab/vrf-egress.clab.yml")
	require.NoError(t, err)
	args := deployment{topology, "/srv"}.run("a")
	for _, want := range [][]string{
		{"--name", "clab-vrf-egress-a"},
		{"--network", "none"},
		{"--sysctl", "net.ipv4.ip_forward=1"},
		{"--volume", "/srv/vrf-egress/config.yaml:/etc/egressway/config.yaml"},
		{"egressway:dev", "run", "--config", "/etc/egressway/config.yaml"},
	} {
		require.Subset(t, args, want)
	}
}

func TestASchemaRefusesUnknownKeys(t *testing.T) {
	schema := filepath.Join(t.TempDir(), "schema.json")
	write := func(text string) { require.NoError(t, os.WriteFile(schema, []byte(text), 0o600)) }
	files := []string{"../../containerlab/twin.clab.yml"}

	write(`{"properties": {"name": {"type": "string"}, "topology": {"type": "object"}}, "required": ["topology"], "additionalProperties": false}`)
	require.NoError(t, valid(schema, files))

	write(`{"properties": {"name": {"type": "string"}}, "additionalProperties": false}`)
	err := valid(schema, files)
	require.ErrorContains(t, err, files[0])
	require.ErrorContains(t, err, "'topology' not allowed")
}
