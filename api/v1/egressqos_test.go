package v1_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestEgressQoSDefinition compares the CRD with the API reference: names, required fields and types are the same, so that no object
// that OVN-Kubernetes takes is refused.
func TestEgressQoSDefinition(t *testing.T) {
	data, err := os.ReadFile("../../config/crd/k8s.ovn.org_egressqoses.yaml")
	require.NoError(t, err)
	var crd map[string]any
	require.NoError(t, yaml.Unmarshal(data, &crd))
	require.Equal(t, "egressqoses.k8s.ovn.org", at(t, crd, "metadata", "name"))
	require.Equal(t, map[string]any{"kind": "EgressQoS", "listKind": "EgressQoSList", "plural": "egressqoses", "singular": "egressqos"},
		at(t, crd, "spec", "names"))
	require.Equal(t, "Namespaced", at(t, crd, "spec", "scope"))
	require.Len(t, at(t, crd, "spec", "versions"), 1)
	version := at(t, crd, "spec", "versions", 0)
	require.Equal(t, "v1", at(t, version, "name"))
	require.Equal(t, map[string]any{"status": map[string]any{}}, at(t, version, "subresources"))
	require.Equal(t, map[string]any{"name": "Status", "type": "string", "jsonPath": ".status.status"}, at(t, version, "additionalPrinterColumns", 0))
	schema := at(t, version, "schema", "openAPIV3Schema")
	require.Nil(t, at(t, schema, "required"))
	require.Equal(t, []any{"egress"}, at(t, schema, "properties", "spec", "required"))
	require.Nil(t, at(t, schema, "properties", "spec", "properties", "egress", "maxItems"))
	rule := at(t, schema, "properties", "spec", "properties", "egress", "items")
	require.Equal(t, []any{"dscp"}, at(t, rule, "required"))
	require.Equal(t, "integer", at(t, rule, "properties", "dscp", "type"))
	require.EqualValues(t, 0, at(t, rule, "properties", "dscp", "minimum"))
	require.EqualValues(t, 63, at(t, rule, "properties", "dscp", "maximum"))
	require.Equal(t, "string", at(t, rule, "properties", "dstCIDR", "type"))
	require.Equal(t, "cidr", at(t, rule, "properties", "dstCIDR", "format"))
	require.Nil(t, at(t, rule, "properties", "podSelector", "required"))
	require.Equal(t, []any{"key", "operator"},
		at(t, rule, "properties", "podSelector", "properties", "matchExpressions", "items", "required"))
	require.Len(t, at(t, rule, "properties"), 3)
	status := at(t, schema, "properties", "status")
	require.Nil(t, at(t, status, "required"))
	require.Equal(t, "string", at(t, status, "properties", "status", "type"))
	require.Equal(t, []any{"type"}, at(t, status, "properties", "conditions", "x-kubernetes-list-map-keys"))
}
