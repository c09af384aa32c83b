package kernel

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/kernel/ruleset"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// TestLargeTransactionsMakeNoEvents writes a table with many elements, of which the kernel tells no socket; afterwards events about
// the table come as before.
func TestLargeTransactionsMakeNoEvents(t *testing.T) {
	netns.Enter(t)
	netns.Uplink(t, "eth1", "10.1.0.2/24", "2001:db8:1::2/64")
	n, err := openKept()
	require.NoError(t, err)
	t.Cleanup(n.Close)
	woken := watchHere(t, nl.ReceiveBuffer, n.Node)
	drain(t, woken)
	var listening []int
	pause := n.nft.Pause
	n.nft.Pause = func() func(bool) {
		resume := pause()
		listening = append(listening, listeners(t))
		return resume
	}
	before := n.stirs.now()
	d := stories.DataPlane()
	d.Endpoints = sorted.Of(stories.ManyEndpoints(10_000, 2)...)
	p := &plan.NodePlan{DataPlane: d}
	_, err = n.Apply(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, []int{0, 0}, listening, "sockets that listen during the transactions of ranges and of all else")
	require.Equal(t, 1, listeners(t))
	require.Equal(t, before.table, n.stirs.now().table, "no other program changed a table")

	small := *p
	small.DataPlane.Endpoints = p.DataPlane.Endpoints.With(nil, p.DataPlane.Endpoints.Slice()[:1])
	_, err = n.Apply(t.Context(), &small)
	require.NoError(t, err)
	require.Len(t, listening, 2, "a small transaction does not pause events")

	drain(t, woken)
	netns.MustNFT(t, "add table ip6 "+ruleset.TableName)
	awaitWoken(t, woken, "an event after the pause")
}

// TestChangesDuringAPauseCount expects changes of others to count as missed events if no event reports them, and nothing else.
func TestChangesDuringAPauseCount(t *testing.T) {
	netns.Enter(t)
	n, err := Open()
	require.NoError(t, err)
	t.Cleanup(n.Close)
	woken := watchHere(t, nl.ReceiveBuffer, n)
	for _, c := range []struct {
		name      string
		foreign   int
		committed bool
		missed    uint64
	}{
		{"no change", 0, false, 0},
		{"ours failed, and another", 1, false, 1},
		{"two others, and ours", 2, true, 1},
		{"ours", 1, true, 0},
	} {
		drain(t, woken)
		before := n.stirs.now()
		resume := n.stirs.pause()
		require.NotNil(t, resume)
		for i := range c.foreign {
			netns.MustNFT(t, fmt.Sprintf("add table inet x%d; delete table inet x%d", i, i))
		}
		resume(c.committed)
		require.Equal(t, before.table+c.missed, n.stirs.now().table, c.name)
		if c.missed > 0 {
			awaitWoken(t, woken, c.name)
		}
	}
}

func awaitWoken(t *testing.T, woken <-chan struct{}, why string) {
	t.Helper()
	select {
	case <-woken:
	case <-time.After(netns.Patience):
		t.Fatal("not woken by " + why)
	}
}

// listeners counts the sockets of this network namespace that listen to events about nftables.
func listeners(t *testing.T) (n int) {
	t.Helper()
	b, err := os.ReadFile("/proc/thread-self/net/netlink")
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if f[1] != strconv.Itoa(unix.NETLINK_NETFILTER) {
			continue
		}
		groups, err := strconv.ParseUint(f[3], 16, 64)
		require.NoError(t, err)
		if groups&(1<<(unix.NFNLGRP_NFTABLES-1)) != 0 {
			n++
		}
	}
	return n
}
