package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// everywhere is web with a pod on c too, and with hosts that a selector chooses.
func everywhere(t *testing.T, hosts string) map[string]string {
	t.Helper()
	const b4, b6 = "  - {addresses: [10.244.2.11], nodeName: b, conditions: {ready: true}}\n", `  - {addresses: ["fd44:2::11"], nodeName: b, conditions: {ready: true}}` + "\n"
	return written(t, []string{"web.yaml"},
		b4, b4+"  - {addresses: [10.244.3.11], nodeName: c, conditions: {ready: true}}\n",
		b6, b6+`  - {addresses: ["fd44:3::11"], nodeName: c, conditions: {ready: true}}`+"\n",
		"  network: red\n", "  network: red\n  nodeSelector: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: ["+hosts+"]}]}\n")
}

func tunnelled(config string) string { return config + "steering: {mode: vxlan}\n" }

// reboots are the ways in which a node goes.
func reboots(s *stage.Stage) map[string]func(context.Context, string) error {
	return map[string]func(context.Context, string) error{"power lost": s.PowerOff, "shut down": s.ShutDown}
}

// TestHostReboots has the only host reboot: its kernel and its CNI are up before its daemon. Pods on other nodes get no answer
// meanwhile, and nothing of them leaves by the host's default route.
func TestHostReboots(t *testing.T) {
	for name, edit := range map[string]func(string) string{"direct": nil, "tunnel": tunnelled} {
		t.Run(name, func(t *testing.T) {
			s := play(t, stage.Options{API: true, Nodes: stage.Nodes, Manifests: everywhere(t, "a"), Config: edit})
			ctx := t.Context()
			pods := identities{"b-p1": web, "c-p1": web}
			require.NoError(t, s.AwaitHost(ctx, "shop", "web", "a", ""))
			awaitServed(t, s, pods)
			for name, end := range reboots(s) {
				t.Logf("%s", name)
				awaitWatched(t, s, "a", "b", "c")
				awaitWays(t, s, pods)
				traffic := ask(t, s, "b-p1", "c-p1")
				traffic.answered(t, 5, pods)
				old := talk(t, s, pods)
				require.NoError(t, end(ctx, "a"))
				awaitProblem(t, s, "b", cluster.ReasonHostSilent, "", true)
				awaitProblem(t, s, "c", cluster.ReasonHostSilent, "", true)
				_, err := s.AwaitStatus(ctx, "shop", "web", func(e egressv1.EgressServiceStatus) error {
					if c := meta.FindStatusCondition(e.Conditions, "Programmed"); c == nil || c.Reason != "HostSilent" && c.Reason != "NoHost" {
						return fmt.Errorf("want it not to be programmed: %+v", c)
					}
					return nil
				})
				require.NoError(t, err)
				require.NoError(t, s.Boot("a"))
				traffic.unanswered(t, 20)
				old.unheard(t, pods)
				require.NoError(t, s.StartDaemon("a"))
				traffic.answered(t, 5, pods)
				require.NoError(t, s.AwaitHost(ctx, "shop", "web", "a", ""))
				traffic.stop(t, pods, pods.nobody())
				requireInnocent(t, s, pods)
			}
		})
	}
}

// TestNodesReboot has each node reboot in turn where there is a host and a standby. Pods on nodes that run leave by whichever of the two
// runs, and by nothing else.
func TestNodesReboot(t *testing.T) {
	for name, edit := range map[string]func(string) string{"direct": nil, "tunnel": tunnelled} {
		t.Run(name, func(t *testing.T) {
			s := play(t, stage.Options{Nodes: stage.Nodes, Manifests: everywhere(t, "a, b"), Config: edit})
			ctx := t.Context()
			pods := identities{"c-p1": web}
			awaitServed(t, s, pods)
			awaitWatched(t, s, "a", "b", "c")
			for _, node := range []string{"a", "b"} {
				traffic := ask(t, s, "c-p1")
				traffic.answered(t, 5, pods)
				require.NoError(t, s.PowerOff(ctx, node))
				traffic.answered(t, 5, pods) // soon at the latest
				replaceSpeaker(t, s, "c")    // the next one has never heard the node
				traffic.answered(t, 40, pods)
				require.NoError(t, s.Boot(node))
				traffic.answered(t, 20, pods)
				require.NoError(t, s.StartDaemon(node))
				awaitWatched(t, s, node, "c")
				traffic.answered(t, 20, pods)
				traffic.stop(t, pods, pods.nobody())
				requireInnocent(t, s, pods)
			}

			// c and both hosts boot at once, and c's daemon starts first: it has never heard the hosts.
			for _, node := range stage.Nodes {
				require.NoError(t, s.PowerOff(ctx, node))
			}
			for _, node := range stage.Nodes {
				require.NoError(t, s.Boot(node))
			}
			require.NoError(t, s.StartDaemon("c"))
			awaitProblem(t, s, "c", cluster.ReasonHostSilent, "", true)
			s.Witness.Reset() // c's own pods have left as the CNI has it before its daemon started
			traffic := ask(t, s, "c-p1")
			traffic.unanswered(t, 20)
			require.NoError(t, s.StartDaemon("a"))
			require.NoError(t, s.StartDaemon("b"))
			traffic.answered(t, 5, pods)
			traffic.stop(t, pods, pods.nobody())
			requireInnocent(t, s, pods)
		})
	}
}

// TestCleanupOfAHost has the host cleaned away while others steer to it: they stop before its packet filter is gone.
func TestCleanupOfAHost(t *testing.T) {
	s := play(t, stage.Options{Nodes: stage.Nodes, Manifests: everywhere(t, "a"), Config: tunnelled})
	ctx := t.Context()
	pods := identities{"b-p1": web, "c-p1": web}
	awaitServed(t, s, pods)
	awaitWatched(t, s, "a", "b", "c")
	traffic := ask(t, s, "b-p1", "c-p1")
	traffic.answered(t, 5, pods)
	require.NoError(t, s.Daemons["a"].Stop(ctx))
	_, err := s.Egressway(ctx, "a", "cleanup", "--config", "/etc/egressway/config.yaml")
	require.NoError(t, err)
	traffic.unanswered(t, 20)
	traffic.stop(t, pods, pods.nobody())
	requireInnocent(t, s, pods)
}

// TestBootDrop has a node's own pods wait for its daemon after a boot, by the file that packages install as an example.
func TestBootDrop(t *testing.T) {
	file, err := os.ReadFile("../../deploy/systemd/boot.nft")
	require.NoError(t, err)

	s := play(t, stage.Options{Nodes: stage.Nodes, Manifests: everywhere(t, "a")})
	ctx := t.Context()
	pods := identities{"c-p1": web}
	awaitServed(t, s, pods)
	require.NoError(t, s.PowerOff(ctx, "c"))
	_, err = s.Node("c").Input(ctx, string(file), "nft", "-f", "-")
	require.NoError(t, err)
	require.NoError(t, s.Boot("c"))
	traffic := ask(t, s, "c-p1")
	traffic.unanswered(t, 20)
	require.NoError(t, s.StartDaemon("c"))
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		return s.Node("c").Do(func() error {
			conn, err := net.Dial("tcp", "127.0.0.1:9479")
			if err != nil {
				return err
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, "GET /readyz HTTP/1.0\r\n\r\n"); err != nil {
				return err
			}
			answer, err := io.ReadAll(conn)
			if err == nil && !strings.Contains(string(answer), " 200 ") {
				err = fmt.Errorf("not ready: %s", answer)
			}
			return err
		})
	}))
	_, err = s.Node("c").Run(ctx, "nft", "delete", "table", "inet", "egressway-boot")
	require.NoError(t, err)
	traffic.answered(t, 5, pods)
	traffic.stop(t, pods, pods.nobody())
	requireInnocent(t, s, pods)
}

// unanswered waits until every flow got no answer n times more.
func (all flows) unanswered(t *testing.T, n int) {
	t.Helper()
	require.NoError(t, atOnce(all, func(f flow) error {
		before := f.stream.Tally().Failed
		return lab.Wait(t.Context(), patience, func() error {
			if got := f.stream.Tally().Failed - before; got < n {
				return fmt.Errorf("pod %s to %s: %d questions without an answer: %+v", f.pod, f.to, got, f.stream.Tally())
			}
			return nil
		})
	}))
}
