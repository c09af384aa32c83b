package v1_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestEgressFirewallDefinition compares the CRD with that of OVN-Kubernetes: it has all that one has, and refuses no more objects than
// those whose cidrSelector is no prefix.
func TestEgressFirewallDefinition(t *testing.T) {
	read := func(path string) (crd any) {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(data, &crd))
		return crd
	}
	theirs := read("../../internal/cluster/kube/testdata/upstream-egressfirewalls.yaml")
	ours := read("../../config/crd/k8s.ovn.org_egressfirewalls.yaml")
	schema := func(crd any) map[string]any {
		m, ok := at(t, crd, "spec", "versions", 0, "schema", "openAPIV3Schema").(map[string]any)
		require.True(t, ok)
		return m
	}
	// A pattern for the name there, a rule with a message here.
	delete(at(t, schema(theirs), "properties", "metadata").(map[string]any), "properties")
	require.Equal(t, "self.metadata.name == 'default'", at(t, schema(ours), "x-kubernetes-validations", 0, "rule"))
	delete(schema(ours), "x-kubernetes-validations")
	requireSuperset(t, "", theirs, ours)
	to := at(t, schema(ours), "properties", "spec", "properties", "egress", "items", "properties", "to", "properties", "cidrSelector")
	require.Equal(t, "cidr", at(t, to, "format"))
}

// requireSuperset fails unless a part of our CRD has all values of that of OVN-Kubernetes. Beside them it may have descriptions,
// more properties, and formats: no value that refuses objects.
func requireSuperset(t *testing.T, path string, theirs, ours any) {
	t.Helper()
	switch theirs := theirs.(type) {
	case map[string]any:
		ours, ok := ours.(map[string]any)
		require.True(t, ok, path)
		for key, value := range theirs {
			requireSuperset(t, path+"."+key, value, ours[key])
		}
		for _, refuses := range []string{"required", "pattern", "enum", "minimum", "maximum", "maxItems", "maxLength", "maxProperties", "x-kubernetes-validations"} {
			if _, both := theirs[refuses]; !both && theirs["type"] != nil {
				require.NotContains(t, ours, refuses, path)
			}
		}
	case []any:
		ours, ok := ours.([]any)
		require.True(t, ok, path)
		require.Len(t, ours, len(theirs), path)
		for i, value := range theirs {
			requireSuperset(t, fmt.Sprintf("%s[%d]", path, i), value, ours[i])
		}
	default:
		require.Equal(t, theirs, ours, path)
	}
}
