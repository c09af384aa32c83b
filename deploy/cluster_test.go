package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab/kubetest"
)

const clusterFolder = "../lab/cluster"

// TestClusterObjects applies the objects of "make cluster" to an API server. It starts no node.
func TestClusterObjects(t *testing.T) {
	require.Equal(t, "egressway:dev", daemonSet(t, built(t, clusterFolder+"/egressway"), "egressway").Spec.Template.Spec.Containers[0].Image, `"make image" makes it`)
	server := kubetest.Start(t, kubetest.Options{})
	server.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: kube-system}\n") // which the server makes a moment after its start
	server.Apply(t, string(run(t, "kustomize", "build", clusterFolder+"/egressway")))
	for _, name := range []string{"kube-proxy.yaml", "web.yaml"} {
		b, err := os.ReadFile(filepath.Join(clusterFolder, name))
		require.NoError(t, err)
		server.Apply(t, string(b))
	}
}

// TestClusterRefusesUnknownChoices gives "make cluster" a CNI and a mode of kube-proxy that it lacks.
func TestClusterRefusesUnknownChoices(t *testing.T) {
	for _, c := range []struct{ cni, proxy, refused string }{
		{"weave", "nftables", "CNI: weave: must be one of: calico cilium flannel-host-gw flannel static"},
		{"static", "userspace", "PROXY: userspace: must be one of: nftables iptables ipvs"},
	} {
		out, err := exec.CommandContext(t.Context(), clusterFolder+"/up.sh", c.cni, c.proxy).CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), c.refused)
	}
}
