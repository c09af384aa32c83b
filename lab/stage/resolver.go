package stage

import "net/netip"

// ResolverPod is where ResolverManifest has the cluster's resolver. Lab.Resolve starts one there.
const ResolverPod = "b-p2"

// ResolverManifest is the Service of the cluster's resolver.
const ResolverManifest = `apiVersion: v1
kind: Service
metadata: {namespace: kube-system, name: kube-dns}
spec:
  ipFamilyPolicy: RequireDualStack
  clusterIP: 10.96.0.53
  clusterIPs: [10.96.0.53, "fd96::53"]
  selector: {app: dns}
  ports: [{name: udp, protocol: UDP, port: 53, targetPort: 53}, {name: tcp, protocol: TCP, port: 53, targetPort: 53}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: kube-system, name: kube-dns-4, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: udp, protocol: UDP, port: 53}, {name: tcp, protocol: TCP, port: 53}]
endpoints: [{addresses: [10.244.2.12], nodeName: b, conditions: {ready: true}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: kube-system, name: kube-dns-6, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv6
ports: [{name: udp, protocol: UDP, port: 53}, {name: tcp, protocol: TCP, port: 53}]
endpoints: [{addresses: ["fd44:2::12"], nodeName: b, conditions: {ready: true}}]
`

// Resolvers are its ClusterIPs.
var Resolvers = []netip.AddrPort{netip.MustParseAddrPort("10.96.0.53:53"), netip.MustParseAddrPort("[fd96::53]:53")}
