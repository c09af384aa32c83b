package deploy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab/kubetest"
)

const (
	releaseVersion = "v0.0.9-test.1"
	releaseNumber  = "0.0.9-test.1"
)

// releasedFiles are the files of a release.
var releasedFiles = []string{
	"SHA256SUMS", "egressway-image.tar", "egressway-chart-" + releaseNumber + ".tgz",
	"egressway-0.0.9+test.1-amd64.deb", "egressway-0.0.9+test.1-amd64.rpm", "egressway-0.0.9+test.1-arm64.deb", "egressway-0.0.9+test.1-arm64.rpm",
	"egressway-linux-amd64", "egressway-linux-amd64.licenses.txt", "egressway-linux-amd64.spdx.json",
	"egressway-linux-arm64", "egressway-linux-arm64.licenses.txt", "egressway-linux-arm64.spdx.json",
	"egressway_" + releaseVersion + "_linux_amd64.tar.gz", "egressway_" + releaseVersion + "_linux_arm64.tar.gz",
}

// TestRelease builds a release twice and compares every byte, publishes it to a registry of its own, pulls the image of each platform, and
// installs the chart from there on an API server, over an installation by a chart with fewer values.
func TestRelease(t *testing.T) {
	var folders [2]string
	for i := range folders {
		folders[i] = t.TempDir()
		command(t, "..", "make", "release", "VERSION="+releaseVersion, "DIST="+folders[i])
	}
	require.ElementsMatch(t, releasedFiles, files(t, folders[0]))
	content := map[string][]byte{}
	for _, name := range releasedFiles {
		var both [2][]byte
		for i, folder := range folders {
			var err error
			both[i], err = os.ReadFile(filepath.Join(folder, name))
			require.NoError(t, err)
		}
		require.True(t, bytes.Equal(both[0], both[1]), "two builds of %s differ", name)
		content[name] = both[0]
	}
	number := command(t, folders[0], "dpkg-deb", "--field", "egressway-0.0.9+test.1-amd64.deb", "Version")
	require.Equal(t, "0.0.9~test.1\n", number, "it is older than 0.0.9")
	for _, name := range releasedFiles[1:] {
		sum := sha256.Sum256(content[name])
		require.Contains(t, string(content["SHA256SUMS"]), hex.EncodeToString(sum[:])+"  "+name+"\n")
	}
	for _, arch := range []string{"amd64", "arm64"} {
		archive := filepath.Join(folders[0], "egressway_"+releaseVersion+"_linux_"+arch+".tar.gz")
		require.Equal(t, "CHANGELOG.md LICENSE egressway licenses.txt", strings.Join(strings.Fields(command(t, ".", "tar", "-tf", archive)), " "))
		require.True(t, bytes.Equal(content["egressway-linux-"+arch], []byte(command(t, ".", "tar", "-xOf", archive, "egressway"))))
	}

	registry := serveRegistry(t)
	out := command(t, "..", "make", "--no-print-directory", "publish", "VERSION="+releaseVersion, "DIST="+folders[0], "REGISTRY="+registry, "PLAIN=1")
	image := regexp.MustCompile(`(?m)^image (` + registry + `/egressway@sha256:[0-9a-f]{64})$`).FindStringSubmatch(out)
	require.NotNil(t, image, out)
	require.Regexp(t, `(?m)^chart `+registry+`/charts/egressway@sha256:[0-9a-f]{64}$`, out)
	for _, arch := range []string{"amd64", "arm64"} {
		root := t.TempDir()
		pulled := filepath.Join(root, "root.tar")
		run(t, "crane", "export", "--insecure", "--platform", "linux/"+arch, image[1], pulled)
		command(t, root, "tar", "-xf", pulled)
		program, err := os.ReadFile(root + "/usr/local/bin/egressway")
		require.NoError(t, err)
		require.True(t, bytes.Equal(content["egressway-linux-"+arch], program), "the image of %s has another program", arch)
		require.FileExists(t, root+"/licenses/stdlib/LICENSE")
		if arch == runtime.GOARCH {
			require.Contains(t, command(t, ".", root+"/usr/local/bin/egressway", "--version"), releaseVersion)
		}
	}
	upgraded(t, registry)
}

// upgraded installs a chart that has the values of an earlier one, and upgrades that by the published chart in the ways of helm: with the
// values in force, with those and the new defaults, and with a file.
func upgraded(t *testing.T, registry string) {
	t.Helper()
	server := kubetest.Start(t, kubetest.Options{})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, server.Kubeconfig(), 0o600))
	helm := func(args ...string) string {
		return string(run(t, "helm", append(args, "--kubeconfig", kubeconfig, "--namespace", namespace)...))
	}
	former := filepath.Join(t.TempDir(), "egressway")
	require.NoError(t, os.CopyFS(former, os.DirFS(chart)))
	require.NoError(t, os.WriteFile(former+"/values.yaml", []byte(formerValues), 0o600))
	values := file(t, operatorsValues)
	helm("install", "egressway", former, "--create-namespace", "--values", values)
	at := []string{"oci://" + registry + "/charts/egressway", "--plain-http", "--version", releaseNumber}
	for _, way := range [][]string{{"--reuse-values"}, {"--reset-then-reuse-values"}, {"--values", values}} {
		helm(append(append([]string{"upgrade", "egressway"}, at...), way...)...)
		o := objects{}
		o.add(t, []byte(helm("get", "manifest", "egressway")))
		require.Equal(t, "ghcr.io/egressway/egressway:"+releaseVersion, daemonSet(t, o, "egressway").Spec.Template.Spec.Containers[0].Image)
		require.Equal(t, "red", configOf(t, o).Networks[0].Name, way)
		require.Contains(t, o, "ClusterRole /egressway-edit")
		server.AwaitCRD(t, "egressnodes.egressway.io")
	}
	helm("uninstall", "egressway")
}

// operatorsValues is the file that an operator gives to helm.
const operatorsValues = `config: {bgp: {asn: 64512}, networks: [{name: red, vrf: vrf-red, table: 1001, interfaces: [eth2], peers: [{address: 10.1.0.1, asn: 64601, receive: [{prefix: 0.0.0.0/0}]}]}]}`

// formerValues are the values of an earlier chart, without the newer ones.
const formerValues = `
config: {clusterCIDRs: [], networks: []}
passwordSecret: egressway-passwords
image: {repository: ghcr.io/egressway/egressway, tag: "", digest: "", pullPolicy: IfNotPresent}
imagePullSecrets: []
labelHosts: false
podMonitor: {enabled: false, interval: 30s, labels: {}}
prometheusRule: {enabled: false, labels: {}}
resources: {requests: {cpu: 50m, memory: 100Mi}, limits: {memory: 512Mi}}
speaker: {resources: {requests: {cpu: 50m, memory: 100Mi}, limits: {memory: 512Mi}}}
priorityClassName: system-node-critical
tolerations: [{operator: Exists}]
nodeSelector: {kubernetes.io/os: linux}
affinity: {}
updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 1}}
`

// serveRegistry starts a registry on the loopback interface until the end of the test, and returns its address.
func serveRegistry(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	require.NoError(t, l.Close())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, tool(t, "crane"), "registry", "serve", "--address", address)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // which was killed
	})
	require.Eventually(t, func() bool {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, time.Minute, 20*time.Millisecond, "the registry does not answer")
	return address
}
