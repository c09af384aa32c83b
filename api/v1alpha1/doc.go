// Package v1alpha1 holds the type EgressNode of the API group egressway.io, version v1alpha1: the state of a node, as its daemon
// reports it.
//
// +kubebuilder:object:generate=true
// +groupName=egressway.io
package v1alpha1

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 object crd paths=. output:crd:dir=../../config/crd
