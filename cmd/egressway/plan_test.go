package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

func runCommand(t *testing.T, c *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

func TestPlanSamples(t *testing.T) {
	args := []string{"--config", "../../config/egressway.yaml", "--manifests", "../../config/samples", "--node", "a"}
	out, err := runCommand(t, newPlanCommand(), args...)
	require.NoError(t, err)
	require.Regexp(t, `(?m)^  shop/web +LoadBalancerIP +network red `, out)
	require.NotContains(t, out, "Problems")

	out, err = runCommand(t, newPlanCommand(), append(args, "-o", "json")...)
	require.NoError(t, err)
	var got struct {
		Plan struct {
			Node     string
			Services []struct {
				Key     struct{ Namespace, Name string }
				Network string
			}
		}
		Problems []any
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.Equal(t, "a", got.Plan.Node)
	require.Len(t, got.Plan.Services, 3)
	require.Equal(t, "batch", got.Plan.Services[0].Key.Name)
	require.Equal(t, "blue", got.Plan.Services[0].Network)
	require.NotNil(t, got.Problems)
	require.Empty(t, got.Problems)
}

func TestPlanTakesFacts(t *testing.T) {
	facts := filepath.Join(t.TempDir(), "facts.yaml")
	args := []string{"--config", "../../config/egressway.yaml", "--manifests", "../../config/samples", "--node", "a", "--facts", facts}
	_, err := runCommand(t, newPlanCommand(), args...)
	require.ErrorIs(t, err, os.ErrNotExist)

	require.NoError(t, os.WriteFile(facts, []byte("links: [{name: eth0, addrs: [10.0.0.11/24]}, {name: vrf-red, vrfTable: 7}]\npaths: [{kind: network, name: blue, id: 9}]\n"), 0o600))
	out, err := runCommand(t, newPlanCommand(), args...)
	require.NoError(t, err)
	require.Contains(t, out, "TableMismatch: Network red")
	require.Regexp(t, `0x2900/0x3f00 .* network blue`, out)

	for text, want := range map[string]string{
		"link: []":                   "field link not found",
		"links: [{name: x, mut: 5}]": "field mut not found",
		"links: [{mtu: 5}]":          "links[0] has no name",
		"paths: [{kind: road}]":      `path kind "road": one of network, steer`,
	} {
		require.NoError(t, os.WriteFile(facts, []byte(text), 0o600))
		_, err = runCommand(t, newPlanCommand(), args...)
		require.ErrorContains(t, err, facts)
		require.ErrorContains(t, err, want)
	}
}

func TestPlanRefuses(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	require.NoError(t, os.WriteFile(bad, []byte("log: {level: loud}\nnod: x\n"), 0o600))
	const config, samples = "../../config/egressway.yaml", "../../config/samples"

	out, err := runCommand(t, newPlanCommand(), "--config", bad, "--manifests", samples, "--node", "a")
	require.EqualError(t, err, "2 errors")
	require.ErrorAs(t, err, new(invalidError))
	require.Equal(t, 2, strings.Count(out, bad))

	_, err = runCommand(t, newPlanCommand(), "--config", config, "--manifests", samples, "--node", "z")
	require.EqualError(t, err, `--node "z": no such node in ../../config/samples; there are: a, b, c`)
	_, err = runCommand(t, newPlanCommand(), "--config", config, "--manifests", dir+"/none", "--node", "a")
	require.ErrorContains(t, err, "no such file or directory")
	_, err = runCommand(t, newPlanCommand(), "--config", config, "--manifests", samples, "--node", "a", "-o", "xml")
	require.EqualError(t, err, `-o "xml": one of text, json, yaml`)
	_, err = runCommand(t, newPlanCommand(), "--config", config)
	require.ErrorContains(t, err, `required flag(s) "manifests", "node" not set`)
}
