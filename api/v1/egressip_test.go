package v1_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// schema is the part of a schema that is compared.
type schema struct {
	Required   []string          `json:"required"`
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`
}

// names are the names of a custom resource.
type names struct {
	Plural     string   `json:"plural"`
	Singular   string   `json:"singular"`
	ShortNames []string `json:"shortNames"`
	Kind       string   `json:"kind"`
	ListKind   string   `json:"listKind"`
}

// definition is the part of a CRD that is compared.
type definition struct {
	Spec struct {
		Group    string `json:"group"`
		Scope    string `json:"scope"`
		Names    names  `json:"names"`
		Versions []struct {
			Name         string         `json:"name"`
			Subresources map[string]any `json:"subresources"`
			Columns      []struct {
				Name     string `json:"name"`
				Path     string `json:"jsonPath"`
				Priority int    `json:"priority"`
			} `json:"additionalPrinterColumns"`
			Schema struct {
				Schema schema `json:"openAPIV3Schema"`
			} `json:"schema"`
		} `json:"versions"`
	} `json:"spec"`
}

// TestEgressIPCRD compares the CRD of EgressIPs with the API reference: names, required fields, columns. Other parts are ours, and
// come in addition.
func TestEgressIPCRD(t *testing.T) {
	b, err := os.ReadFile("../../config/crd/k8s.ovn.org_egressips.yaml")
	require.NoError(t, err)
	var crd definition
	require.NoError(t, yaml.Unmarshal(b, &crd))
	require.Equal(t, []string{"k8s.ovn.org", "Cluster"}, []string{crd.Spec.Group, crd.Spec.Scope})
	require.Equal(t, names{Plural: "egressips", Singular: "egressip", ShortNames: []string{"eip"}, Kind: "EgressIP", ListKind: "EgressIPList"},
		crd.Spec.Names)
	require.Len(t, crd.Spec.Versions, 1)
	v := crd.Spec.Versions[0]
	require.Equal(t, "v1", v.Name)
	require.Empty(t, v.Subresources, "the status is a part of the object")
	columns := map[string]string{}
	for _, c := range v.Columns {
		if c.Priority == 0 {
			columns[c.Name] = c.Path
		}
	}
	require.Equal(t, map[string]string{
		"EgressIPs": ".spec.egressIPs[*]", "Assigned Node": ".status.items[*].node", "Assigned EgressIPs": ".status.items[*].egressIP",
	}, columns)
	whole := v.Schema.Schema
	require.Equal(t, []string{"spec"}, whole.Required)
	spec, status := whole.Properties["spec"], whole.Properties["status"]
	require.Equal(t, []string{"egressIPs", "namespaceSelector"}, spec.Required)
	require.Len(t, spec.Properties, 3)
	require.Contains(t, spec.Properties, "podSelector")
	require.Equal(t, []string{"items"}, status.Required)
	require.Equal(t, []string{"egressIP", "node"}, status.Properties["items"].Items.Required)
}
