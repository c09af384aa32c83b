package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
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
`+file+`:2: nod: unknown key: is node meant? Known here: node, source, clusterCIDRs, podCIDRs, onNoPath, steering, marks, bgp, networks, allowUnlisted, hold, firewall, kinds, election, moves, onStop, failover, speaker, status, flowLog, log
`+manifest+`:4: EgressService default/x: spec.network: "5": a number, but a string is needed
`, out)

	_, err = runCheck(t, "--config", filepath.Join(dir, "none"))
	require.EqualError(t, err, "1 error")
}

// TestCheckReadsStandardInput checks the ways to name standard input, and the errors of a configuration that came from there.
func TestCheckReadsStandardInput(t *testing.T) {
	check := func(text string, args ...string) (string, error) {
		c := newCheckCommand()
		var out bytes.Buffer
		c.SetIn(strings.NewReader(text))
		c.SetOut(&out)
		c.SetErr(&out)
		c.SetArgs(args)
		err := c.Execute()
		return out.String(), err
	}
	for _, args := range [][]string{{"-"}, {"--config", "-"}, {"-", "--config=-"}} {
		out, err := check("bgp: {asn: 64512}\n", args...)
		require.NoError(t, err, args)
		require.Equal(t, "ok: 1 networks\n", out)

		out, err = check("bgp:\n  asnn: 64512\n", args...)
		require.EqualError(t, err, "1 error", args)
		require.Equal(t, "standard input:2: bgp.asnn: unknown key: is asn meant? Known here: asn, routerID, overrides, listenPort, gracefulRestart, bfdProfiles\n", out)
	}
	out, err := check("bgp: {asn: 64512}\n", "-", "--manifests", "../../config/samples")
	require.ErrorAs(t, err, new(invalidError))
	require.Contains(t, out, "EgressService shop/web: spec.network: ", "the samples' networks are missing")
	out, err = check(strings.Repeat("#", 1<<20+1), "-")
	require.EqualError(t, err, "1 error")
	require.Equal(t, "standard input: larger than 1 MiB: not a configuration\n", out)
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("red1", []byte("secret"), 0o600))
	const peer = "bgp: {asn: 1}\nnetworks: [{name: red, vrf: red, peers: [{address: 10.1.0.1, asn: 2, passwordFile: red1}]}]\n"
	out, err = check(peer, "-")
	require.NoError(t, err, "a relative path is relative to the working directory: %s", out)
	require.NoError(t, os.Remove("red1"))
	elsewhere := peer + "status: {metricsTLS: {certFile: /nowhere/tls.crt, keyFile: /nowhere/tls.key}}\n"
	_, err = check(elsewhere, "-")
	require.EqualError(t, err, "3 errors")
	out, err = check(elsewhere, "-", "--no-files")
	require.NoError(t, err, out)

	for want, args := range map[string][]string{
		"no configuration: --config FILE is needed, or - to read it from standard input":    nil,
		`"c.yaml": a file is named by --config; the only argument is -, for standard input`: {"c.yaml"},
		`--config "c.yaml" and -: one of both is needed`:                                    {"-", "--config", "c.yaml"},
		"accepts at most 1 arg(s), received 2":                                              {"-", "-"},
	} {
		_, err := check("", args...)
		require.EqualError(t, err, want)
	}
}

// TestCheckWarnsOfVariables checks that a variable of the environment without a key is a warning, not an error.
func TestCheckWarnsOfVariables(t *testing.T) {
	t.Setenv("EGRESSWAY_LOG_LEVL", "secret")
	const want = "$EGRESSWAY_LOG_LEVL: no key of the configuration has this variable: is EGRESSWAY_LOG_LEVEL meant?"
	out, err := runCheck(t, "--config", "../../config/egressway.yaml")
	require.NoError(t, err)
	require.Equal(t, "warning: "+want+"\nok: 3 networks\n", out)

	out, err = runCheck(t, "--config", "../../config/egressway.yaml", "-o", "json")
	require.NoError(t, err)
	var got struct {
		OK       bool
		Errors   []checked
		Warnings []checked
	}
	require.NoError(t, json.Unmarshal([]byte(out), &got))
	require.True(t, got.OK)
	require.Empty(t, got.Errors)
	where, message, _ := strings.Cut(want, ": ")
	require.Equal(t, []checked{{Where: where, Message: message}}, got.Warnings)
	require.NotContains(t, out, "secret")
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

// TestRunWarnsOfVariables checks that the daemon's log names a variable without a key, and the nearest one.
func TestRunWarnsOfVariables(t *testing.T) {
	t.Setenv("EGRESSWAY_BGP_ROUTER_ID", "10.0.0.1")
	var out bytes.Buffer
	warnOfVariables(newLogger(&out, config.Log{Level: "info", Format: "json"}))
	var line struct{ Level, Warning string }
	require.NoError(t, json.Unmarshal(out.Bytes(), &line), out.String())
	require.Equal(t, "WARN", line.Level)
	require.Equal(t, "$EGRESSWAY_BGP_ROUTER_ID: no key of the configuration has this variable: is EGRESSWAY_BGP_ROUTERID meant?", line.Warning)
}

// TestCheckWarnsOfDeniedAPIServer checks that an EgressFirewall which denies the API server is a warning.
func TestCheckWarnsOfDeniedAPIServer(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "all.yaml"), []byte(`
{apiVersion: v1, kind: Node, metadata: {name: a}, status: {addresses: [{type: InternalIP, address: 10.0.0.11}]}}
---
{apiVersion: v1, kind: Service, metadata: {namespace: default, name: kubernetes}, spec: {clusterIP: 10.96.0.1, ports: [{protocol: TCP, port: 443, targetPort: 6443}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: kubernetes, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.11], conditions: {ready: true}}]
---
{apiVersion: k8s.ovn.org/v1, kind: EgressFirewall, metadata: {namespace: shop, name: default}, spec: {egress: [{type: Deny, to: {cidrSelector: 0.0.0.0/0}}]}}
`), 0o600))
	out, err := runCheck(t, "--config", "../../config/egressway.yaml", "--manifests", folder)
	require.NoError(t, err, out)
	require.Contains(t, out, "warning: EgressFirewall shop/default: denies the API server at 10.0.0.11:6443, by rule 1 (Deny 0.0.0.0/0): pods")
}
