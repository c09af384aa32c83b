package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"
)

// seedOptions make a large cluster without asking the API for it. To create a Service costs kube-apiserver a walk over
// every cluster IP in use, so that 10,000 take minutes; written to etcd before the server starts they take a second.
// Nothing validates them.
type seedOptions struct {
	services   int // each with an EndpointSlice and an EgressService, named seed-N
	endpoints  int // of each slice
	nodes      int // node-N
	networks   int // vrf0 and on, over which the EgressServices are spread
	namespaces int // team-0 and on, over which all is spread; 0: everything is in default
	hosts      int // the first so many nodes are hosts in turn, each the standby of the one before it; 0: nothing is elected, every node may be
}

// namespace is that of the i-th Service.
func (o seedOptions) namespace(i int) string {
	if o.namespaces == 0 {
		return metav1.NamespaceDefault
	}
	return fmt.Sprintf("team-%d", i%o.namespaces)
}

type seeder struct {
	kv      clientv3.KV
	encoder runtime.Encoder
	batch   []clientv3.Op
}

func seed(ctx context.Context, kv clientv3.KV, o seedOptions) error {
	s := &seeder{kv: kv, encoder: protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)}
	for i := range o.nodes {
		n := seedNode(i)
		if o.hosts > 0 && i >= o.hosts {
			delete(n.Labels, egressLabel)
		}
		if err := s.put(ctx, "minions/"+n.Name, n, corev1.SchemeGroupVersion.WithKind("Node")); err != nil {
			return err
		}
	}
	for i := range o.namespaces {
		n := &corev1.Namespace{ObjectMeta: meta("", o.namespace(i)), Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
		n.Labels[corev1.LabelMetadataName] = n.Name
		if err := s.put(ctx, "namespaces/"+n.Name, n, corev1.SchemeGroupVersion.WithKind("Namespace")); err != nil {
			return err
		}
	}
	for i := range o.services {
		if err := s.service(ctx, i, o); err != nil {
			return err
		}
	}
	return s.flush(ctx)
}

func (s *seeder) service(ctx context.Context, i int, o seedOptions) error {
	name, clusterIP := fmt.Sprintf("seed-%d", i), address("10.100.0.1", i)
	in := o.namespace(i)
	service := &corev1.Service{
		ObjectMeta: meta(in, name),
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": name},
			ClusterIP: clusterIP, ClusterIPs: []string{clusterIP},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
			AllocateLoadBalancerNodePorts: new(false), SessionAffinity: corev1.ServiceAffinityNone,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster, // Local would need a NodePort each, of 2768
			Ports:                 []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
			{IP: address("198.18.0.0", i), IPMode: new(corev1.LoadBalancerIPModeVIP)},
		}}},
	}
	allocated := &networkingv1.IPAddress{ObjectMeta: meta("", clusterIP), Spec: networkingv1.IPAddressSpec{
		ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: service.Namespace, Name: name},
	}}
	allocated.Labels = map[string]string{networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: "ipallocator.k8s.io"}
	for _, x := range []struct {
		key    string
		object runtime.Object
		kind   schema.GroupVersionKind
	}{
		{"services/specs/" + in + "/" + name, service, corev1.SchemeGroupVersion.WithKind("Service")},
		{"ipaddresses/" + clusterIP, allocated, networkingv1.SchemeGroupVersion.WithKind("IPAddress")},
		{"endpointslices/" + in + "/" + name, seedSlice(name, i, o), discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice")},
	} {
		if err := s.put(ctx, x.key, x.object, x.kind); err != nil {
			return err
		}
	}
	// Custom resources are stored as JSON.
	return s.add(ctx, "k8s.ovn.org/egressservices/"+in+"/"+name, fmt.Sprintf(`{
		"apiVersion": "k8s.ovn.org/v1", "kind": "EgressService",
		"metadata": {"name": %q, "namespace": %q, "uid": %q, "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"},
		"spec": {"sourceIPBy": "LoadBalancerIP", "network": "vrf%d", "nodeSelector": {"matchLabels": {%q: "true"}}}%s
	}`, name, in, uuid.NewUUID(), i%max(o.networks, 1), egressLabel, o.status(i)))
}

// egressLabel is on the nodes that may be hosts.
const egressLabel = "egress"

// status is what a leader has written, where hosts are elected.
func (o seedOptions) status(i int) string {
	if o.hosts == 0 {
		return ""
	}
	host, standby := nodeName(i%o.hosts), nodeName((i+1)%o.hosts)
	condition := func(kind, reason, message string) string {
		return fmt.Sprintf(`{"type": %q, "status": "True", "reason": %q, "message": %q, "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:01Z"}`,
			kind, reason, message)
	}
	return fmt.Sprintf(`, "status": {"host": %q, "standby": %q, "term": 1, "conditions": [%s, %s, %s]}`, host, standby,
		condition("HostAssigned", "Elected", host+" is the host, "+standby+" the standby"),
		condition("Valid", "Valid", "nothing is wrong"), condition("Programmed", "Programmed", "all nodes concerned serve it"))
}

// put adds an object of a kind that kube-apiserver stores as protobuf.
func (s *seeder) put(ctx context.Context, key string, o runtime.Object, kind schema.GroupVersionKind) error {
	o.GetObjectKind().SetGroupVersionKind(kind)
	var b bytes.Buffer
	if err := s.encoder.Encode(o, &b); err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	return s.add(ctx, key, b.String())
}

// add writes in batches of a size that etcd allows.
func (s *seeder) add(ctx context.Context, key, value string) error {
	if s.batch = append(s.batch, clientv3.OpPut("/registry/"+key, value)); len(s.batch) < 100 {
		return nil
	}
	return s.flush(ctx)
}

func (s *seeder) flush(ctx context.Context) error {
	if len(s.batch) == 0 {
		return nil
	}
	_, err := s.kv.Txn(ctx).Then(s.batch...).Commit()
	s.batch = s.batch[:0]
	return err
}

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: namespace, UID: uuid.NewUUID(), Generation: 1,
		CreationTimestamp: metav1.Now(), Labels: map[string]string{"app": name},
	}
}

// address is the i-th from one on, for fewer than 2^24.
func address(from string, i int) string {
	a := netip.MustParseAddr(from).As4()
	n := int(a[1])<<16 + int(a[2])<<8 + int(a[3]) + i
	return netip.AddrFrom4([4]byte{a[0], byte(n >> 16), byte(n >> 8), byte(n)}).String()
}

func seedSlice(name string, i int, o seedOptions) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: meta(o.namespace(i), name), AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "kubelab"}
	for e := range o.endpoints {
		k := i*o.endpoints + e
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{address("10.128.0.0", k)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   new(nodeName(k % max(o.nodes, 1))),
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: s.Namespace, Name: fmt.Sprintf("%s-%d", name, e), UID: uuid.NewUUID()},
		})
	}
	return s
}

// seedNode carries what makes real Nodes large: conditions and 50 images.
func seedNode(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: meta("", nodeName(i))}
	n.Labels = map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux", egressLabel: "true"}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress(i)}}
	for kind, status := range map[corev1.NodeConditionType]corev1.ConditionStatus{
		corev1.NodeMemoryPressure: corev1.ConditionFalse, corev1.NodeDiskPressure: corev1.ConditionFalse,
		corev1.NodePIDPressure: corev1.ConditionFalse, corev1.NodeReady: corev1.ConditionTrue,
	} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: "Seeded", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		})
	}
	for k := range 50 {
		image := fmt.Sprintf("registry.example/team/component-%d", k)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			SizeBytes: 1 << 27, Names: []string{fmt.Sprintf("%s@sha256:%064d", image, k), fmt.Sprintf("%s:v1.2.%d", image, k)},
		})
	}
	return n
}
