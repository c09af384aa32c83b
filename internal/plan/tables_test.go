package plan_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
)

// TestNetworksOfOneTable has VRF devices come whose table another network has: one network keeps it, whatever the order of the
// configuration and of events, and the other has it back when the device is gone.
func TestNetworksOfOneTable(t *testing.T) {
	amber, blue := config.Network{Name: "amber", VRF: "vrf-amber"}, config.Network{Name: "blue", Table: 1001}
	green := config.Network{Name: "green", VRF: "vrf-green", Table: 1001, Interfaces: []config.Interface{{Name: "eth3"}}}
	red := config.Network{Name: "red", VRF: "vrf-red"}
	const keeps = " and keeps it: give each network a table of its own"
	for name, c := range map[string]struct {
		networks []config.Network
		comes    []plan.Link // after all others
		want     string
		absent   string
	}{
		"bare table": {
			[]config.Network{blue, red},
			[]plan.Link{{Name: "vrf-red", Up: true, VRFTable: 1001}},
			`Network blue: table: "1001": on node a, network red has table 1001, that of VRF device vrf-red,` + keeps, "network red has its table",
		},
		"two devices": {
			[]config.Network{amber, red},
			[]plan.Link{{Name: "vrf-amber", Up: true, VRFTable: 1001}, {Name: "vrf-red", Up: true, VRFTable: 1001}},
			`Network red: vrf: "vrf-red": on node a, network amber has table 1001, that of VRF device vrf-amber,` + keeps, "network amber has its table",
		},
		"a VRF of ours": {
			[]config.Network{amber, green},
			[]plan.Link{{Name: "vrf-amber", Up: true, VRFTable: 1001}},
			`Network amber: vrf: "vrf-amber": on node a, network green has table 1001, that of VRF device vrf-green,` + keeps, "network green has its table",
		},
		"main table": {
			[]config.Network{red},
			[]plan.Link{{Name: "vrf-red", Up: true, VRFTable: 254}},
			`Network red: vrf: "vrf-red": on node a, network default has table 254` + keeps, "network default has its table",
		},
		"refused for another reason": {
			[]config.Network{blue, {Name: "red", VRF: "vrf-red", Table: 7}},
			[]plan.Link{{Name: "vrf-red", Up: true, VRFTable: 1001}},
			`Network red: table: "7": VRF device vrf-red has table 1001: set that one, or leave table out`,
			"its VRF device is missing, or is not the configured one",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := storyOf(t, "one-table")
			s.Config.Networks = c.networks
			before := slices.DeleteFunc(slices.Clone(s.Facts.Links), func(l plan.Link) bool { return l.VRFTable != 0 })
			var planner plan.Planner
			for _, links := range [][]plan.Link{before, slices.Concat(c.comes, before), before, slices.Concat(before, c.comes)} {
				s.Facts.Links = links
				desired, problems := planner.Plan(s, cluster.Changed{})
				turned := s
				other := *s.Config
				other.Networks = slices.Clone(other.Networks)
				slices.Reverse(other.Networks)
				turned.Config = &other
				full, all := plan.Build(turned)
				requireSame(t, textOf(t, full, all), textOf(t, desired, problems), "%d links", len(links))
				mismatches := slices.DeleteFunc(slices.Clone(problems), func(p cluster.Problem) bool { return p.Reason != plan.ReasonTableMismatch })
				if len(links) == len(before) {
					require.Empty(t, mismatches)
					continue
				}
				require.Len(t, mismatches, 1)
				require.Equal(t, c.want, mismatches[0].Error())
				require.Equal(t, c.absent, desired.AbsenceOf(mismatches[0].Object))
			}
		})
	}
}

// TestTableOfRefusedNetwork has an EgressService name the table of two networks: it belongs to the one that keeps it, whose path alone
// leads there.
func TestTableOfRefusedNetwork(t *testing.T) {
	s := storyOf(t, "one-table")
	s.Config.AllowUnlisted = true
	key := cluster.Key{Namespace: "shop", Name: "web"}
	e := s.Objects.EgressServices.At(key)
	e.Network = "1001"
	s.Objects.EgressServices = s.Objects.EgressServices.With(key, e)
	desired, problems := plan.Build(s)
	require.Len(t, desired.Speakers, 1)
	for _, p := range desired.DataPlane.Paths {
		require.Equal(t, p.Key == plan.PathKey{Kind: plan.PathNetwork, Name: "red"}, p.Table == 1001, "%v", p)
	}
	require.True(t, slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Message == "belongs to network red: name that one" }), "%v", problems)
}
