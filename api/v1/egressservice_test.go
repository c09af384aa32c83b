package v1_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	v1 "github.com/egressway/egressway/api/v1"
)

const crdFile = "../../config/crd/k8s.ovn.org_egressservices.yaml"

func decode(t *testing.T, data []byte) *v1.EgressService {
	t.Helper()
	var e v1.EgressService
	strict, err := kjson.UnmarshalStrict(data, &e)
	require.NoError(t, err)
	require.Empty(t, strict)
	return &e
}

func TestSamplesRoundTrip(t *testing.T) {
	var files []string
	for _, pattern := range []string{"../../config/samples/*.yaml", "../../config/upstream/*.yaml"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		files = append(files, found...)
	}
	count := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for doc := range bytes.SplitSeq(data, []byte("\n---\n")) {
			if !bytes.Contains(doc, []byte("kind: EgressService\n")) {
				continue
			}
			count++
			t.Run(filepath.Base(file), func(t *testing.T) {
				text, err := yaml.YAMLToJSONStrict(doc)
				require.NoError(t, err)
				first := decode(t, text)
				require.Equal(t, v1.GroupVersion.String(), first.APIVersion)
				again, err := yaml.Marshal(first)
				require.NoError(t, err)
				text, err = yaml.YAMLToJSONStrict(again)
				require.NoError(t, err)
				require.Equal(t, first, decode(t, text))
				require.Equal(t, first, first.DeepCopy())
			})
		}
	}
	require.Equal(t, 8, count)
}

// Clients built from the original types send empty structs where nothing is set.
func TestEmptyStructsAreAccepted(t *testing.T) {
	e := decode(t, []byte(`{"spec":{"nodeSelector":{}},"status":{"host":""}}`))
	require.Equal(t, &v1.EgressService{}, e)
	require.Equal(t, &v1.EgressService{}, decode(t, []byte(`{}`)))
}

func TestScheme(t *testing.T) {
	s := runtime.NewScheme()
	require.NoError(t, v1.AddToScheme(s))
	for _, kind := range []string{"EgressService", "EgressServiceList"} {
		require.True(t, s.Recognizes(v1.GroupVersion.WithKind(kind)), kind)
	}
	require.Equal(t, "egressservices.k8s.ovn.org", v1.Resource("egressservices").String())
}

// at follows keys into decoded YAML.
func at(t *testing.T, v any, keys ...any) any {
	t.Helper()
	for _, k := range keys {
		switch k := k.(type) {
		case string:
			m, ok := v.(map[string]any)
			require.True(t, ok, "%v", keys)
			v = m[k]
		case int:
			l, ok := v.([]any)
			require.True(t, ok, "%v", keys)
			v = l[k]
		}
	}
	return v
}

// The definition is the original's, and a strict superset: no object that either takes is refused by the other.
func TestDefinitionIsCompatible(t *testing.T) {
	data, err := os.ReadFile(crdFile)
	require.NoError(t, err)
	var crd map[string]any
	require.NoError(t, yaml.Unmarshal(data, &crd))
	require.Equal(t, "egressservices.k8s.ovn.org", at(t, crd, "metadata", "name"))
	require.Equal(t, map[string]any{
		"kind": "EgressService", "listKind": "EgressServiceList", "plural": "egressservices", "singular": "egressservice",
		"shortNames": []any{"egsvc"},
	}, at(t, crd, "spec", "names"))
	require.Equal(t, "Namespaced", at(t, crd, "spec", "scope"))
	require.Nil(t, at(t, crd, "spec", "conversion"))
	require.Len(t, at(t, crd, "spec", "versions"), 1)
	version := at(t, crd, "spec", "versions", 0)
	require.Equal(t, "v1", at(t, version, "name"))
	require.Equal(t, true, at(t, version, "served"))
	require.Equal(t, true, at(t, version, "storage"))
	require.Equal(t, map[string]any{"status": map[string]any{}}, at(t, version, "subresources"))
	require.Equal(t, map[string]any{"name": "Assigned Host", "type": "string", "jsonPath": ".status.host"}, at(t, version, "additionalPrinterColumns", 0))
	schema := at(t, version, "schema", "openAPIV3Schema")
	require.Nil(t, at(t, schema, "required"))
	spec := at(t, schema, "properties", "spec")
	require.Nil(t, at(t, spec, "required"))
	require.Equal(t, []any{"LoadBalancerIP", "Network"}, at(t, spec, "properties", "sourceIPBy", "enum"))
	require.Equal(t, "atomic", at(t, spec, "properties", "nodeSelector", "x-kubernetes-map-type"))
	require.Equal(t, []any{"host"}, at(t, schema, "properties", "status", "required"))
	// The original bounds no name of a network; the configuration can list none beyond these bounds (docs/decisions/0043).
	network := at(t, spec, "properties", "network").(map[string]any)
	require.EqualValues(t, 63, network["maxLength"])
	require.Equal(t, "^[!-~]*$", network["pattern"])
	delete(network, "maxLength")
	delete(network, "pattern")
	text, err := yaml.Marshal(spec)
	require.NoError(t, err)
	for _, word := range []string{"default:", "pattern:", "x-kubernetes-validations", "maxLength"} {
		require.NotContains(t, string(text), word)
	}
}

func TestGeneratedFilesAreCurrent(t *testing.T) {
	dir := t.TempDir()
	// The version is the one that go:generate names.
	cmd := exec.Command("go", "run", "sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0",
		"object", "crd", "paths=.", "output:crd:dir="+dir, "output:object:dir="+dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for generated, current := range map[string]string{
		"k8s.ovn.org_egressservices.yaml": crdFile,
		"zz_generated.deepcopy.go":        "zz_generated.deepcopy.go",
	} {
		want, err := os.ReadFile(filepath.Join(dir, generated))
		require.NoError(t, err)
		got, err := os.ReadFile(current)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "run go generate ./api/...")
	}
}
