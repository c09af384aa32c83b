// Package deploy holds the kustomize base and the Helm chart. Its tests compare both, apply them to an API
// server, and check the YAML of the guides.
package deploy

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	k8syaml "sigs.k8s.io/yaml"

	"github.com/egressway/egressway/internal/config"
)

const (
	namespace = "egressway-system"
	chart     = "helm/egressway"
	base      = "kustomize/base"
)

// objects are Kubernetes objects by kind, namespace and name.
type objects map[string]*unstructured.Unstructured

func (o objects) add(t *testing.T, manifest []byte) {
	t.Helper()
	in := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	for {
		var u unstructured.Unstructured
		err := in.Decode(&u)
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err, "%s", manifest)
		if len(u.Object) == 0 {
			continue
		}
		key := fmt.Sprintf("%s %s/%s", u.GetKind(), u.GetNamespace(), u.GetName())
		require.NotContains(t, o, key, "rendered twice")
		o[key] = &u
	}
}

// rendered returns the objects that helm renders from the chart with the values, in the release namespace.
func rendered(t *testing.T, values string) objects {
	t.Helper()
	o := objects{}
	o.add(t, run(t, "helm", "template", "egressway", chart, "--include-crds", "--namespace", namespace, "--values", file(t, values)))
	return o
}

// built returns the objects that kustomize builds from a folder.
func built(t *testing.T, folder string) objects {
	t.Helper()
	o := objects{}
	o.add(t, run(t, "kustomize", "build", folder))
	return o
}

// overlay returns a folder with a kustomization of the base and the components.
func overlay(t *testing.T, components ...string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	from := func(path string) string {
		abs, err := filepath.Abs(path)
		require.NoError(t, err)
		rel, err := filepath.Rel(dir, abs)
		require.NoError(t, err)
		return rel
	}
	k := map[string]any{"resources": []string{from(base)}}
	var in []string
	for _, c := range components {
		in = append(in, from("kustomize/components/"+c))
	}
	k["components"] = in
	b, err := k8syaml.Marshal(k)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), b, 0o644))
	return dir
}

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "values.yaml")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	return path
}

// run executes one of the tools that "make tools" builds, and returns its output.
func run(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	out, err := try(t, name, args...)
	require.NoError(t, err)
	return out
}

func try(t *testing.T, name string, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool(t, name), args...)
	cmd.Env = append(os.Environ(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %q: %w\n%s%s", name, args, err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes(), nil
}

// tool returns the path of a tool in the Makefile's version.
func tool(t *testing.T, name string) string {
	t.Helper()
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?im)^` + name + ` *:= *(v\S+)$`).FindSubmatch(makefile)
	require.NotNil(t, version, "the Makefile has no version of %s", name)
	path := filepath.Join(tools(t), name+"-"+string(version[1]))
	require.FileExists(t, path, `"make tools" builds it`)
	return path
}

// tools returns the folder where "make tools" puts its programs.
func tools(t *testing.T) string {
	t.Helper()
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		home, err := os.UserHomeDir()
		require.NoError(t, err)
		cache = filepath.Join(home, ".cache")
	}
	return filepath.Join(cache, "egressway", "tools")
}

// configOf returns the daemon's configuration from the objects, parsed by the daemon's own parser.
func configOf(t *testing.T, o objects) *config.Config {
	t.Helper()
	m := o["ConfigMap "+namespace+"/egressway-config"]
	require.NotNil(t, m)
	data, _, err := unstructured.NestedStringMap(m.Object, "data")
	require.NoError(t, err)
	require.Contains(t, data, "config.yaml")
	return judged(t, data["config.yaml"])
}

// judged parses a configuration as the daemon does, with its passwords, certificate and key present.
func judged(t *testing.T, text string) *config.Config {
	t.Helper()
	dir := t.TempDir()
	for _, m := range regexp.MustCompile(`passwordFile: ([a-z0-9]+)`).FindAllStringSubmatch(text, -1) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, m[1]), []byte("secret"), 0o600))
	}
	if strings.Contains(text, "metricsTLS") {
		public, private, err := ed25519.GenerateKey(nil)
		require.NoError(t, err)
		template := &x509.Certificate{SerialNumber: big.NewInt(1)}
		certificate, err := x509.CreateCertificate(nil, template, template, public, private)
		require.NoError(t, err)
		key, err := x509.MarshalPKCS8PrivateKey(private)
		require.NoError(t, err)
		for file, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: certificate}, "tls.key": {Type: "PRIVATE KEY", Bytes: key}} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600))
		}
	}
	c, err := config.Parse(filepath.Join(dir, "config.yaml"), []byte(text))
	require.NoError(t, err, text)
	return c.ForUnknown() // without the lines of the file
}
