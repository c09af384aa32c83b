// Package v1 holds the types EgressService, EgressIP, EgressQoS and EgressFirewall of the API group k8s.ovn.org, version v1, as its
// API reference has them, with additions to their status.
//
// +kubebuilder:object:generate=true
// +groupName=k8s.ovn.org
package v1

//go:generate go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.23.0 object crd paths=. output:crd:dir=../../config/crd
