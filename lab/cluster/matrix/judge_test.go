package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestJudge holds records of three pods against their ways: one leaks, one is at the wrong network, one has no way.
func TestJudge(t *testing.T) {
	ways := map[string]way{
		"a": {host: "outside", sources: [2]string{"203.0.113.10", "2001:db8:203::10"}},
		"b": {host: "outside-red", sources: [2]string{"203.0.113.20", "2001:db8:203::20"}},
	}
	w := wire{}
	w.add("outside", []record{
		{Stream: "a/4/kept", Sources: map[string]int{"203.0.113.10": 3}, Lost: 1, SilentMS: 100},
		{Stream: "a/6/kept", Sources: map[string]int{"2001:db8:203::10": 5}},
		{Stream: "a/4/new", Sources: map[string]int{"203.0.113.10": 5}},
		{Stream: "a/6/new", Sources: map[string]int{"2001:db8:203::10": 5}},
	})
	w.add("outside", []record{{Stream: "a/4/kept", Sources: map[string]int{"203.0.113.10": 4}, Lost: 1, Missing: 2, SilentMS: 50}})
	require.Empty(t, w.wrong(ways))
	total, silent := w.sum(ways, []string{"a"})
	require.Empty(t, silent)
	require.Equal(t, []int{2, 2, 100, 22}, []int{total.Lost, total.Missing, total.SilentMS, total.received()})
	require.Equal(t, 5, w.least(ways, []string{"a"}))
	require.Equal(t, 0, w.least(ways, []string{"a", "b"}))
	_, silent = w.sum(ways, []string{"b"})
	require.Equal(t, streamsOf("b"), silent)

	w.add("outside", []record{
		{Stream: "a/4/new", Sources: map[string]int{"172.18.0.11": 1}},
		{Stream: "b/6/new", Sources: map[string]int{"2001:db8:203::20": 1}},
		{Stream: "c/4/new", Sources: map[string]int{"172.18.0.12": 2}},
	})
	require.Equal(t, []string{
		"1 of a/4/new at outside from 172.18.0.11, not at outside from 203.0.113.10",
		"1 of b/6/new at outside from 2001:db8:203::20, not at outside-red from 2001:db8:203::20",
		"2 of c/4/new at outside from 172.18.0.12, not at  from ",
	}, w.wrong(ways))
}

// TestJudgeOfAChange allows the sources from before a change and those after it, each of its own family, and no other.
func TestJudgeOfAChange(t *testing.T) {
	ways := map[string]way{"red-a": {
		host: "outside-red", sources: [2]string{"203.0.113.21", "2001:db8:203::21"}, former: [2]string{"203.0.113.20", "2001:db8:203::20"},
	}}
	found := func(host, family, source string) []string {
		w := wire{}
		w.add(host, []record{{Stream: "red-a/" + family + "/kept", Sources: map[string]int{source: 1}}})
		return w.wrong(ways)
	}
	require.Empty(t, found("outside-red", "4", "203.0.113.20"))
	require.Empty(t, found("outside-red", "4", "203.0.113.21"))
	require.Empty(t, found("outside-red", "6", "2001:db8:203::20"))
	require.NotEmpty(t, found("outside-red", "4", "203.0.113.10"))
	require.NotEmpty(t, found("outside", "4", "203.0.113.20"))
}
