package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	for _, e := range os.Environ() { // the test's own variables
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "EGRESSWAY_") {
			_ = os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

func runCheck(t *testing.T, args ...string) (string, error) {
	t.Helper()
	c := newCheckCommand()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

func TestCheckSamples(t *testing.T) {
	for _, args := range [][]string{
		{"--config", "../../config/egressway.yaml"},
		{"--config", "../../config/egressway.yaml", "--manifests", "../../config/samples"},
		{"--config", "../../config/egressway-full.yaml", "--manifests", "../../config/samples"},
		{"--config", "../../config/egressway-full.yaml", "--manifests", "../../config/upstream"},
	} {
		out, err := runCheck(t, args...)
		require.NoError(t, err, out)
		require.Regexp(t, `^ok: [34] networks(, 3 nodes, [35] EgressServices)?\n$`, out)
	}
}

func TestCheckPrintsEveryError(t *testing.T) {
	dir := t.TempDir()
	file, manifest := filepath.Join(dir, "c.yaml"), filepath.Join(dir, "m", "m.yaml")
	require.NoError(t, os.Mkdir(filepath.Dir(manifest), 0o700))
	require.NoError(t, os.WriteFile(file, []byte("log: {level: loud}\nnod: x\n"), 0o600))
	require.NoError(t, os.WriteFile(manifest, []byte("apiVersion: k8s.ovn.org/v1\nkind: EgressService\nmetadata: {name: x}\nspec: {network: 5}\n"), 0o600))
	out, err := runCheck(t, "--config", file, "--manifests", filepath.Dir(manifest))
	require.ErrorAs(t, err, new(invalidError))
	require.EqualError(t, err, "3 errors")
	require.Equal(t, file+`:1: log.level: "loud": one of debug, info, warn, error
`+file+`:2: nod: unknown key: is node meant? Known here: node, source, clusterCIDRs, onNoPath, steering, marks, bgp, networks, allowUnlisted, hold, election, moves, onStop, failover, speaker, status, log
`+manifest+`:4: EgressService default/x: spec.network: "5": a number, but a string is needed
`, out)

	_, err = runCheck(t, "--config", filepath.Join(dir, "none"))
	require.EqualError(t, err, "1 error")
}

// TestCheckRefusesFIFO checks that a FIFO, which may never have a writer, is refused at once.
func TestCheckRefusesFIFO(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo.yaml")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	out, err := runCheck(t, "--config", fifo, "--manifests", dir)
	require.EqualError(t, err, "2 errors", out)
	require.Contains(t, out, "read the configuration: "+fifo+": not a regular file\n")
	require.Contains(t, out, fifo+": Manifest fifo.yaml: not a regular file\n")
}
