package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/egressway/egressway/lab"
)

// proxyAccount is kube-proxy's, with the rights that Kubernetes has for it.
const proxyAccount = `{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: ` + Namespace + `, name: kube-proxy}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kube-proxy}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:node-proxier}
subjects: [{kind: ServiceAccount, namespace: ` + Namespace + `, name: kube-proxy}]
`

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: %s
hostnameOverride: %s
clusterCIDR: 10.244.0.0/16,fd44::/16
clientConnection: {kubeconfig: %s}
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
ipvs: {strictARP: true}
`

// startProxies starts kube-proxy on each node, or its stand-in.
func (s *Stage) startProxies(ctx context.Context) error {
	if s.kubeProxy == "" {
		return s.proxy(ctx)
	}
	program := os.Getenv("KUBEBIN")
	if program == "" || s.API == nil {
		return errors.New("kube-proxy needs an API server, and KUBEBIN to be the path that lab/cluster/kubebin/build.sh prints")
	}
	if err := s.API.Apply(ctx, proxyAccount); err != nil {
		return err
	}
	_, kubeconfig, err := s.API.ServiceAccountConfig(ctx, Namespace, "kube-proxy")
	if err != nil {
		return err
	}
	access := filepath.Join(s.dir, "kube-proxy.kubeconfig")
	if err := os.WriteFile(access, kubeconfig, 0o600); err != nil {
		return err
	}
	s.Proxies = map[string]*lab.Daemon{}
	for _, node := range Nodes {
		config := filepath.Join(s.dir, "kube-proxy-"+node+".yaml")
		if err := os.WriteFile(config, fmt.Appendf(nil, proxyConfig, s.kubeProxy, node, access), 0o600); err != nil {
			return err
		}
		if s.Proxies[node], err = s.Start(s.Node(node), program, "kube-proxy", "--config", config); err != nil {
			return err
		}
	}
	return nil
}
