package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/egressway/egressway/internal/status"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/kubetest"
	"github.com/egressway/egressway/lab/stage"
)

// operator is a user with no other rights than those that docs/commands.md names.
const operator = `
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: egressway-system, name: operator}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {namespace: egressway-system, name: operator}
rules:
- {apiGroups: [""], resources: [pods], verbs: [list]}
- {apiGroups: [""], resources: [pods/exec], verbs: [create, get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {namespace: shop, name: operator}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get]}
`

func bindOperator(namespace string) string {
	return fmt.Sprintf(`{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {namespace: %s, name: operator},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: operator},
  subjects: [{kind: ServiceAccount, namespace: egressway-system, name: operator}]}`, namespace)
}

// plugin runs "kubectl egressway" as kubectl does: the program under the plugin's name. It returns the exit code.
type plugin struct{ program, kubeconfig string }

func (p plugin) run(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), p.program, append(args, "--kubeconfig", p.kubeconfig)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Dir = &stdout, &stderr, t.TempDir()
	err := cmd.Run()
	if ended := (*exec.ExitError)(nil); err != nil && !errors.As(err, &ended) {
		require.NoError(t, err)
	}
	t.Logf("kubectl egressway %s: %d\n%s%s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), stdout.String(), stderr.String())
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

// kubelets gives each node a kubelet that runs commands there, and the daemon's pod.
func kubelets(t *testing.T, s *stage.Stage, program string) map[string]*httptest.Server {
	t.Helper()
	const kubeletPort = 10250
	servers := map[string]*httptest.Server{}
	client, err := kubernetes.NewForConfig(s.API.Config())
	require.NoError(t, err)
	nodes := client.CoreV1().Nodes()
	for _, node := range []string{"a", "b", "c"} {
		n := s.Node(node)
		var on net.Listener
		require.NoError(t, n.Do(func() (err error) {
			on, err = net.Listen("tcp", netip.AddrPortFrom(n.Management, kubeletPort).String())
			return err
		}))
		servers[node] = kubetest.Kubelet(on, func(ctx context.Context, pod, container string, command []string, out, errs io.Writer) error {
			if pod != "egressway-"+node || container != "egressway" || command[0] != "egressway" {
				return fmt.Errorf("there is no %s in %s of pod %s", command[0], container, pod)
			}
			cmd := n.Command(ctx, append([]string{program}, command[1:]...)...)
			cmd.Stdout, cmd.Stderr = out, errs
			return cmd.Run()
		})
		t.Cleanup(servers[node].Close)
		require.NoError(t, s.API.Apply(t.Context(), fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {namespace: egressway-system, name: egressway-%s, labels: {app.kubernetes.io/name: egressway}},
  spec: {nodeName: %[1]s, hostNetwork: true, containers: [{name: egressway, image: egressway}]}, status: {phase: Running}}`, node)))
		o, err := nodes.Get(t.Context(), node, metav1.GetOptions{})
		require.NoError(t, err)
		o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: n.Management.String()})
		o.Status.DaemonEndpoints.KubeletEndpoint.Port = kubeletPort
		_, err = nodes.UpdateStatus(t.Context(), o, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	return servers
}

var redUp = regexp.MustCompile(`(?m)^[ab] +red +10\.1\.0\.1 +64601 +established `)

// TestFleet runs every command of "kubectl egressway" against an API server and three daemons.
func TestFleet(t *testing.T) {
	s := play(t, stage.Options{API: true, Objects: []string{operator, bindOperator("egressway-system"), bindOperator("shop")}})
	ctx := t.Context()
	require.NoError(t, s.StartDaemon("c"))
	host, standby := hosts(t, s)
	binary, err := lab.Binary()
	require.NoError(t, err)
	servers := kubelets(t, s, binary)
	require.NoError(t, s.API.Apply(ctx, `{apiVersion: v1, kind: Pod, metadata: {namespace: shop, name: web-1},
  spec: {nodeName: a, containers: [{name: web, image: web}]}, status: {phase: Running, podIP: 10.244.1.11, podIPs: [{ip: 10.244.1.11}, {ip: "fd44:1::11"}]}}`))

	p := plugin{filepath.Join(t.TempDir(), "kubectl-egressway"), filepath.Join(t.TempDir(), "kubeconfig")}
	require.NoError(t, os.Symlink(binary, p.program))
	_, kubeconfig, err := s.API.ServiceAccountConfig(ctx, "egressway-system", "operator")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(p.kubeconfig, kubeconfig, 0o600))

	answers := func(command string, want int) map[string]status.Answer {
		t.Helper()
		out, errs, code := p.run(t, command, "-o", "json")
		require.Equal(t, want, code, errs)
		var all []status.Answer
		require.NoError(t, json.Unmarshal([]byte(out), &all), out)
		by := map[string]status.Answer{}
		for _, a := range all {
			by[a.Node] = a
		}
		require.Len(t, by, 3)
		return by
	}

	require.NoError(t, lab.Wait(ctx, patience, func() error {
		if out, errs, code := p.run(t, "status"); code != 0 || strings.Count(out, " yes ") != 3 {
			return errors.New("the daemons have just begun: " + errs)
		}
		return nil
	}))
	t.Run("status", func(t *testing.T) {
		out, errs, code := p.run(t, "status")
		require.Zero(t, code, errs)
		require.Regexp(t, `(?m)^NODE +READY +NETWORKS +SESSIONS +HOST OF +STANDBY OF +PROBLEMS$`, out)
		require.Regexp(t, `(?m)^`+host+` +yes +\d/\d +\d/\d +1 +0 `, out)
		require.Regexp(t, `(?m)^`+standby+` +yes +\d/\d +\d/\d +0 +1 `, out)
		out, _, _ = p.run(t, "status", "-o", "wide")
		require.Contains(t, out, "egressway-"+host)
		for node, a := range answers("status", 0) {
			require.Equal(t, node, a.Summary.Node)
			require.Equal(t, 2, a.Summary.EgressServices)
		}
	})
	t.Run("sessions", func(t *testing.T) {
		// A router that dialed at the same time ends one of both connections, even if that was established.
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			out, errs, code := p.run(t, "sessions")
			if n := len(redUp.FindAllString(out, -1)); code != 0 || n != 2 {
				return fmt.Errorf("%d sessions of a and b with 10.1.0.1 are established: %s", n, errs)
			}
			return nil
		}))
		out, _, code := p.run(t, "sessions", "-o", "wide")
		require.Zero(t, code)
		require.Contains(t, out, "RECEIVED")
	})
	t.Run("trace", func(t *testing.T) {
		out, errs, code := p.run(t, "trace", "--from", "shop/web-1", "--to", "198.51.100.10")
		require.Zero(t, code, errs)
		require.Contains(t, out, "10.244.1.11 to 198.51.100.10, tcp, on node a")
		way := "network red"
		if host != "a" { // the pod's node
			way = "host " + host
		}
		require.Contains(t, out, way+", EgressService shop/web")
		out, errs, code = p.run(t, "trace", "-n", "shop", "--from", "web-1", "--to", "2001:db8:100::10", "-o", "json")
		require.Zero(t, code, errs)
		require.Contains(t, out, `"fd44:1::11"`)
		out, errs, code = p.run(t, "trace", "--from", "shop/web-1")
		require.Zero(t, code, errs)
		require.Contains(t, out, "10.244.1.11 to 198.51.100.1,")
		_, errs, code = p.run(t, "trace", "--from", "shop/gone")
		require.Equal(t, 1, code)
		require.Contains(t, errs, "namespace shop has no pod gone")
	})
	t.Run("drain", func(t *testing.T) {
		out, errs, code := p.run(t, "drain", host, "--timeout", "90s")
		require.Zero(t, code, errs)
		require.Contains(t, out, "node "+host+" is drained")
		require.True(t, answers("status", 0)[host].Summary.Draining)
		require.Zero(t, answers("status", 0)[host].Summary.HostOf)
		_, errs, code = p.run(t, "undrain", host)
		require.Zero(t, code, errs)
		require.False(t, answers("status", 0)[host].Summary.Draining)
		_, errs, code = p.run(t, "drain", "nowhere")
		require.Equal(t, 1, code)
		require.Contains(t, errs, "node nowhere has no pod of a daemon")
	})
	t.Run("diagnose", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "all.tar")
		_, errs, code := p.run(t, "diagnose", "--all", "-f", file)
		require.Zero(t, code, errs)
		f, err := os.Open(file)
		require.NoError(t, err)
		defer f.Close()
		var nodes []string
		for r := tar.NewReader(f); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			nodes = append(nodes, strings.TrimSuffix(filepath.Base(h.Name), ".tar.gz"))
			unpacked, err := gzip.NewReader(r)
			require.NoError(t, err)
			_, err = tar.NewReader(unpacked).Next()
			require.NoError(t, err)
		}
		require.ElementsMatch(t, []string{"a", "b", "c"}, nodes)
	})
	t.Run("a node that does not answer", func(t *testing.T) {
		servers["c"].Close()
		out, errs, code := p.run(t, "status")
		require.Equal(t, 1, code)
		require.Contains(t, errs, "1 of 3 nodes did not answer")
		require.Regexp(t, `(?m)^c +no answer$`, out)
		require.Regexp(t, `(?m)^a +yes`, out)
		all := answers("sessions", 1)
		require.NotEmpty(t, all["c"].Error)
		require.Nil(t, all["c"].Summary)
		require.NotNil(t, all["b"].Summary)
	})
}
