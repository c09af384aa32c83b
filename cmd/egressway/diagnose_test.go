package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/lab"
)

// unpack returns the files of an archive by their names without the folder.
func unpack(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(bytes.NewReader(archive))
	require.NoError(t, err)
	files := map[string]string{}
	for r := tar.NewReader(zipped); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		require.Equal(t, int64(0o600), h.Mode)
		b, err := io.ReadAll(r)
		require.NoError(t, err)
		_, name, _ := strings.Cut(h.Name, "/")
		files[name] = string(b)
	}
}

// tool writes a program into a folder.
func tool(t *testing.T, dir, name, script string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o700))
}

// TestDiagnoseKeepsSecrets puts a canary in every place where secrets may be: the archive has none of them.
func TestDiagnoseKeepsSecrets(t *testing.T) {
	dir := t.TempDir()
	n := 0
	canary := func() string { n++; return fmt.Sprintf("CANARY%dx", n) }
	put := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	jwtOf := func(s string) string { return "eyJhbGciOiJSUzI1NiJ9." + s + "." + s }
	password := put("peer.password", canary())
	kubeconfig := put("kubeconfig", "users: [{name: x, user: {token: "+canary()+", client-key-data: "+canary()+"}}]")
	conf := put("config.yaml", `source: {kubernetes: {kubeconfig: `+kubeconfig+`}}
status: {socket: `+filepath.Join(dir, "egressway.sock")+`}
bgp: {asn: 64512}
networks:
- name: red
  vrf: vrf-red
  peers:
  - address: 10.1.0.1
    asn: 64601
    passwordFile: `+password+`
    password: `+canary()+` and `+canary()+`   # somebody tried
    authPassword: "`+canary()+`\" `+canary()+`"
    secret: |  # a block
      `+canary()+`
        `+canary()+`

      #`+canary()+`

    port: 1179
    token: >-

      `+canary()+`
    holdTime: 30s
    otherToken: `+canary()+`
      `+canary()+`
    tokens:
    - `+canary()+`
    - `+canary()+`
    "credentials": !!str |+
      `+canary()+`
    ttlSecurity: 1
  - passphrase: |
      `+canary()+`
    # password: |
    #   `+canary()+`
    #   `+canary()+`
    # maxPrefixes: 5
  - address: 10.1.0.2
# api_key = '`+canary()+`'
# https://user:`+canary()+`@api.example.com/
`)
	t.Setenv("EGRESSWAY_BGP_PASSWORD", canary())
	t.Setenv("SOMETHING", canary())
	tools := filepath.Join(dir, "bin")
	require.NoError(t, os.Mkdir(tools, 0o700))
	var log strings.Builder
	for _, line := range []string{
		"level=INFO msg=\"password=" + canary() + " is wrong\"", "level=ERROR password=" + canary() + " more " + canary(),
		"Authorization: Bearer " + canary(), "sent bearer " + canary() + ", got 401", `{"msg":"x","token":"` + canary() + `","node":"a"}`,
		`error="{\"secret\": \"` + canary() + `\"}"`, "using " + jwtOf(canary()), "GET https://u:" + canary() + "@host/path",
		"-----BEGIN RSA PRIVATE KEY-----\n" + canary() + "\n-----END RSA PRIVATE KEY-----", "Set-Cookie: a=" + canary(),
		"env: EGRESSWAY_X_PASSWD=" + canary(), "clientSecret: " + canary(),
	} {
		log.WriteString(line + "\n")
	}
	tool(t, tools, "journalctl", "cat <<'END'\nnode a is host of shop/web\n"+log.String()+"END\n")
	tool(t, tools, "nft", "echo no right >&2; exit 1")
	tool(t, tools, "ip", "env; echo "+strings.Repeat("x", 100))
	t.Setenv("PATH", tools+":/usr/bin:/bin")

	archive := filepath.Join(dir, "report.tar.gz")
	out, err := runCommand(t, newDiagnoseCommand(), "--config", conf, "--socket", filepath.Join(dir, "egressway.sock"), "-f", archive)
	require.NoError(t, err, out)
	require.Regexp(t, `^wrote .*report\.tar\.gz, [0-9.]+ KiB; \d+ parts are missing: see errors\.txt in it\n$`, out)
	info, err := os.Stat(archive)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	b, err := os.ReadFile(archive)
	require.NoError(t, err)
	files := unpack(t, b)
	for name, content := range files {
		require.NotContains(t, content, "CANARY", "%s:\n%s", name, content)
	}
	require.Greater(t, n, 20)

	// Other text stays.
	require.Contains(t, files["config.yaml"], "passwordFile: "+password+"\n")
	for _, stays := range []string{"address: 10.1.0.1", "port: 1179", "holdTime: 30s", "ttlSecurity: 1", "# maxPrefixes: 5", "- address: 10.1.0.2"} {
		require.Contains(t, files["config.yaml"], stays)
	}
	require.Contains(t, files["log.txt"], "node a is host of shop/web")
	require.Contains(t, files["log.txt"], `"node":"a"`)
	require.Contains(t, files["config-check.txt"], "networks[red].peers[10.1.0.1].password: [removed]")
	require.Contains(t, files["env.txt"], "EGRESSWAY_BGP_PASSWORD, ")
	require.Contains(t, files["version.txt"], "egressway devel")
	require.Contains(t, files["sysctl.txt"], "net/ipv4/ip_forward = ")
	require.Contains(t, files["ip-rule-4.txt"], "xxxx")
	require.Contains(t, files["errors.txt"], "nft-table.txt: nft list table inet egressway: exit status 1: no right\n")
	require.Contains(t, files["errors.txt"], "status.json: no daemon answers on socket "+filepath.Join(dir, "egressway.sock")+"\n")
}

// TestWriteArchive writes to a file that others could read until now, to standard output, and where no file can be.
func TestWriteArchive(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.tar")
	require.NoError(t, os.WriteFile(file, []byte("of an earlier run"), 0o644))
	var out bytes.Buffer
	write := func(to io.Writer) error {
		if file != "-" {
			info, err := os.Stat(file)
			require.NoError(t, err)
			require.Equal(t, os.FileMode(0o600), info.Mode(), "while it is written")
		}
		_, err := to.Write([]byte("archive"))
		return err
	}
	require.NoError(t, writeArchive(file, &out, write))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "archive", string(text))
	require.Empty(t, out.String())

	file = "-"
	require.NoError(t, writeArchive(file, &out, write))
	require.Equal(t, "archive", out.String())

	file = t.TempDir()
	require.ErrorContains(t, writeArchive(file, &out, write), "name a file that can be written, or - for standard output")
}

// TestFailure has a command in a daemon's pod that says why it failed, and one that is killed.
func TestFailure(t *testing.T) {
	require.EqualError(t, failure(exitError, "egressway: no room\n"), "no room")
	require.ErrorContains(t, failure(137, ""), "ended with code 137")
}

// TestDiagnoseAsksTheDaemon runs diagnose with a daemon that answers.
func TestDiagnoseAsksTheDaemon(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	s := status.New("v1.2.3", "a")
	done := make(chan error, 1)
	ctx := t.Context()
	go func() { done <- s.Serve(ctx, config.Status{Socket: socket}) }()
	require.Eventually(t, func() bool { return running(socket) }, lab.Patience, 10*time.Millisecond)

	var out, said bytes.Buffer
	c := newDiagnoseCommand()
	c.SetOut(&out)
	c.SetErr(&said)
	c.SetArgs([]string{"--config", filepath.Join(dir, "none"), "--socket", socket, "-f", "-"})
	require.NoError(t, c.Execute())
	files := unpack(t, out.Bytes())
	require.Contains(t, files["status.json"], `"version": "v1.2.3"`)
	require.Contains(t, files["metrics.txt"], "egressway_passes_total")
	require.Contains(t, files["goroutines.txt"], "goroutine profile: total")
	require.Contains(t, files["errors.txt"], "config.yaml: open ")
	require.Contains(t, said.String(), "wrote ")
}

// TestDiagnoseIsBounded runs diagnose with a tool that prints too much, and one that does not end.
func TestDiagnoseIsBounded(t *testing.T) {
	dir := t.TempDir()
	tool(t, dir, "nft", "yes | head -c 5000000")
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	d := diagnosis{dir: "d"}
	var b bytes.Buffer
	d.out = tar.NewWriter(&b)
	require.NoError(t, d.step(t.Context(), step{"nft-table.txt", command("nft", "list", "table", "inet", "egressway")}))
	require.Equal(t, []string{"nft-table.txt: longer than 4.0 MiB: the rest is cut off\n"}, d.errs)
	require.Less(t, b.Len(), stepSize+2000)

	out, err := runCommand(t, newDiagnoseCommand(), "-f", filepath.Join(dir, "no", "such"))
	require.ErrorContains(t, err, "name a file that can be written, or - for standard output", out)
}
