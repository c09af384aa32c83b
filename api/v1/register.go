package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of this package's types.
const GroupName = "k8s.ovn.org"

// GroupVersion is the group and version of this package's types.
var GroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1"}

// SchemeBuilder collects what AddToScheme registers.
var SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

// AddToScheme registers this package's types.
var AddToScheme = SchemeBuilder.AddToScheme

// Resource qualifies a resource name with this package's group.
func Resource(resource string) schema.GroupResource {
	return GroupVersion.WithResource(resource).GroupResource()
}

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &EgressService{}, &EgressServiceList{}, &EgressIP{}, &EgressIPList{}, &EgressQoS{}, &EgressQoSList{},
		&EgressFirewall{}, &EgressFirewallList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
