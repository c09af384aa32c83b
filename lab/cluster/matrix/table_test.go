package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMarkdown makes a table of two clusters, of which one was checked in part.
func TestMarkdown(t *testing.T) {
	text := markdown([]column{
		{"static", "nftables", []result{
			{Name: rows[0].name, Seen: "480 packets of 3 pods, 0 lost"},
			{Name: rows[1].name, Seen: "LEAK: 1 of a/4/new at outside", Failed: true},
			{Name: rows[2].name, Seen: "12 questions, each pod answered"},
			{Name: rows[3].name, Seen: "480 packets of 3 pods, 7 lost (3 of them answers), silent for up to 412 ms; and more"},
			{Name: rows[4].name, Seen: "not without loss: 9 packets of 1 pods, 7 lost (3 of them answers), silent for up to 99 ms", Failed: true},
			{Name: rows[5].name, Seen: "no answer", Failed: true},
			{Name: rows[6].name, Seen: lacking},
		}},
		{"flannel-vxlan", "iptables", nil},
	})
	lines := strings.Split(text, "\n")
	require.Len(t, lines, len(rows)+3)
	require.Equal(t, "| | static, nftables | flannel-vxlan, iptables |", lines[0])
	require.Equal(t, []string{
		"| " + rows[0].name + " | yes, 0 lost | not run |",
		"| " + rows[1].name + " | **LEAK** | not run |",
		"| " + rows[2].name + " | yes | not run |",
		"| " + rows[3].name + " | yes, 7 lost, silent for up to 412 ms | not run |",
		"| " + rows[4].name + " | **no**: 7 lost, silent for up to 99 ms | not run |",
		"| " + rows[5].name + " | **failed** | not run |",
		"| " + rows[6].name + " | the CNI has none | not run |",
	}, lines[2:9])
}

// TestPage requires that the tables of docs/compatibility.md have all rows, and that no packet was wrong.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/compatibility.md")
	require.NoError(t, err)
	tables := ""
	for _, name := range []string{"cluster-matrix", "cluster-matrix-calico", "cluster-matrix-cilium", "cluster-lab"} {
		_, block, found := strings.Cut(string(page), "<!-- bench:"+name+" -->")
		require.True(t, found)
		block, _, _ = strings.Cut(block, "<!-- end -->")
		tables += block
	}
	for _, row := range rows {
		require.Contains(t, tables, "| "+row.name+" | ", "make cluster-matrix writes the tables")
	}
	require.NotContains(t, tables, "LEAK")
	require.NotContains(t, tables, "not run")
}
