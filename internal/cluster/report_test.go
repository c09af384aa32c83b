package cluster

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReportIsReadAsItWasWritten(t *testing.T) {
	for _, r := range []Report{
		{},
		{Draining: true, Applied: 7, Hosts: map[string]bool{"a": true, "b": false}},
		{Networks: map[string]NetworkState{"red": {Usable: true, IPv4: true, Sessions: 2, Up: 1}, "blue": {IPv6: true}, "none": {}, "grey": {Sessions: 1, Restarting: true}}},
	} {
		text, err := json.Marshal(r)
		require.NoError(t, err)
		var again Report
		require.NoError(t, json.Unmarshal(text, &again))
		require.Equal(t, r, again, "%s", text)
	}
}

func TestReportOfAnEarlierVersion(t *testing.T) {
	var r Report
	require.NoError(t, json.Unmarshal([]byte(`{"networks":{"red":{"usable":true,"sessions":2,"up":2}},"applied":4}`), &r))
	require.Equal(t, Report{Networks: map[string]NetworkState{"red": {Usable: true, IPv4: true, IPv6: true, Sessions: 2, Up: 2}}, Applied: 4}, r)
	require.Error(t, json.Unmarshal([]byte(`{"networks":{"red":{"usable":"yes"}}}`), &r))
}

func TestFit(t *testing.T) {
	for state, fit := range map[NetworkState]bool{
		{}:                                 false,
		{Usable: true}:                     true,
		{Usable: true, Sessions: 2}:        false,
		{Usable: true, Sessions: 2, Up: 1}: true,
		{IPv4: true, Sessions: 2, Up: 2}:   false,

		{Usable: true, Sessions: 2, Restarting: true}: true,
	} {
		require.Equal(t, fit, state.Fit(), "%+v", state)
	}
}

func TestElectable(t *testing.T) {
	ready, unready := Node{Ready: true}, Node{}
	require.True(t, Electable(ready, Report{}, false))
	require.True(t, Electable(ready, Report{Old: true}, true))
	require.True(t, Electable(unready, Report{}, true))
	require.False(t, Electable(unready, Report{Old: true}, true), "a machine that is off")
	require.False(t, Electable(unready, Report{}, false))
}
