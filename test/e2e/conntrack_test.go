package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// conntrackLimit bounds the table of connections of every node, one by one. Only who starts the nodes may set it.
const conntrackLimit = "/proc/sys/net/netfilter/nf_conntrack_max"

// limitConnections sets that limit until the test ends.
func limitConnections(t *testing.T, limit int) {
	t.Helper()
	before, err := os.ReadFile(conntrackLimit)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(conntrackLimit, []byte(strconv.Itoa(limit)), 0o644))
	t.Cleanup(func() { require.NoError(t, os.WriteFile(conntrackLimit, before, 0o644)) })
}

// connections is how many a node tracks.
func connections(t *testing.T, s *stage.Stage, node string) int {
	t.Helper()
	n, err := strconv.Atoi(inKernel(t, s, node, "cat /proc/sys/net/netfilter/nf_conntrack_count")[0])
	require.NoError(t, err)
	return n
}

// metrics is what a node's daemon tells Prometheus.
func metrics(t *testing.T, s *stage.Stage, node string) string {
	t.Helper()
	var body []byte
	require.NoError(t, s.Node(node).Do(func() error {
		c, err := net.Dial("tcp", "127.0.0.1:9479")
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /metrics HTTP/1.0\r\n\r\n"); err != nil {
			return err
		}
		body, err = io.ReadAll(c)
		return err
	}))
	return string(body)
}

// TestConntrackFills has a pod open so many flows that its node cannot remember more: that is told in time, and what is
// established goes on.
func TestConntrackFills(t *testing.T) {
	s := play(t, stage.Options{Manifests: oneFile(t), Config: steady})
	ctx := t.Context()
	all := asDeployed()
	awaitServed(t, s, all)
	old := talk(t, s, all)
	limit := connections(t, s, "a") + 1000
	limitConnections(t, limit)
	port := 20_000
	open := func(flows int) {
		t.Helper()
		require.NoError(t, s.Node("a-p1").Do(func() error {
			for range flows {
				port++
				c, err := net.Dial("udp", fmt.Sprintf("198.51.100.10:%d", port))
				if err != nil {
					return err
				}
				if _, err = c.Write([]byte("x")); err != nil {
					return err
				}
				if err := c.Close(); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	for connections(t, s, "a") < limit*85/100 {
		open(100)
	}
	awaitProblem(t, s, "a", "ConntrackTableFilling", fmt.Sprintf("of %d", limit), true)
	require.Equal(t, 1, strings.Count(s.Daemons["a"].Log(), "reason=ConntrackTableFilling"))
	require.Regexp(t, fmt.Sprintf(`(?m)^egressway_conntrack_entries [0-9.e+]+$(.|\n)*^egressway_conntrack_entries_limit %d$`, limit), metrics(t, s, "a"))
	open(limit) // more than there is room for
	old.goOn(t, all, all)
	requireInnocent(t, s, all)

	require.NoError(t, os.WriteFile(conntrackLimit, []byte("65536"), 0o644))
	awaitProblem(t, s, "a", "ConntrackTableFilling", "", false)
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		_, err := s.Node("a-p1").AskTCP(ctx, stage.Outside4)
		return err
	}))
	old.goOn(t, all, all)
}
