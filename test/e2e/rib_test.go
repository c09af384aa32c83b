package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// routes is what a routing table of a node holds for a destination: the sorted gateways.
func routes(t *testing.T, s *stage.Stage, node string, f ipFamily, table, destination string) []string {
	t.Helper()
	family := map[string]string{"ipv4": "-4", "ipv6": "-6"}[f.name]
	out, err := s.Node(node).Run(t.Context(), "ip", "-j", family, "route", "show", "table", table)
	if err != nil && strings.Contains(err.Error(), "FIB table does not exist") {
		return nil // no route yet
	}
	require.NoError(t, err)
	var all []struct {
		Dst, Type, Gateway string
		NextHops           []struct{ Gateway string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &all))
	var gateways []string
	for _, r := range all {
		if r.Dst != destination || r.Type == "unreachable" {
			continue
		}
		if r.Gateway != "" {
			gateways = append(gateways, r.Gateway)
		}
		for _, h := range r.NextHops {
			gateways = append(gateways, h.Gateway)
		}
	}
	slices.Sort(gateways)
	return gateways
}

// expectRIBs waits until the routers have exactly these prefixes by these next hops, in both families.
func expectRIBs(t *testing.T, s *stage.Stage, want map[string]map[string][]string) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error { return checkRIBs(s, want) }))
}

func checkRIBs(s *stage.Stage, want map[string]map[string][]string) error {
	var errs []error
	for _, router := range []string{"red1", "red2", "blue1", "blue2", "gw"} {
		var have []string
		for _, f := range ipFamilies {
			prefixes, err := s.Prefixes(router, f.name)
			errs = append(errs, err)
			have = append(have, prefixes...)
		}
		slices.Sort(have)
		if expected := slices.Sorted(maps.Keys(want[router])); !slices.Equal(have, expected) {
			errs = append(errs, fmt.Errorf("%s has %v, want %v", router, have, expected))
			continue
		}
		for prefix, hops := range want[router] {
			now, err := s.NextHops(router, netip.MustParsePrefix(prefix))
			if err == nil && !slices.Equal(now, hops) {
				err = fmt.Errorf("%s has %s by %v, want %v", router, prefix, now, hops)
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func TestRIB(t *testing.T) {
	s := play(t, stage.Options{})
	await(t, s)
	ctx := t.Context()
	red, blue := map[string][]string{}, map[string][]string{}
	for _, f := range ipFamilies {
		red[host(f.web)] = []string{f.of(f.red, "a").String()}
		blue[host(f.batch)] = []string{f.of(f.blue, "a").String(), f.of(f.blue, "b").String()}
	}
	wanted := map[string]map[string][]string{"red1": red, "red2": red, "blue1": blue, "blue2": blue}
	t.Run("ingress IPs and nothing else", func(t *testing.T) { expectRIBs(t, s, wanted) })

	learned := func(f ipFamily, node string, gateways ...string) error {
		if have := routes(t, s, node, f, "1001", "default"); !slices.Equal(have, gateways) {
			return fmt.Errorf("%s leaves red by %v, want %v", node, have, gateways)
		}
		return nil
	}
	routers := map[string][]string{"ipv4": {"10.1.0.1", "10.1.0.2"}, "ipv6": {"fd01::1", "fd01::2"}}
	t.Run("routes of all routers, in the network's table alone", func(t *testing.T) {
		for _, f := range ipFamilies {
			for _, node := range []string{"a", "b"} {
				require.NoError(t, lab.Wait(ctx, patience, func() error { return learned(f, node, routers[f.name]...) }))
				gw := map[string]string{"ipv4": "10.0.0.1", "ipv6": "fd00::1"}[f.name]
				require.Equal(t, []string{gw}, routes(t, s, node, f, "main", "default"))
			}
		}
	})

	// passed counts what red's routers forwarded for web.
	passed := func(router string) int {
		return s.Witness.Find(func(p lab.Packet) bool {
			return p.Node == router && !p.Out && (p.Dst == stage.Outside4.Addr() || p.Dst == stage.Outside6.Addr())
		}).Total()
	}
	// ask has every pod of web ask often enough for both routers to be chosen.
	ask := func() error {
		for _, f := range ipFamilies {
			for _, pod := range []string{"a-p1", "b-p1"} {
				for range 8 {
					a, err := s.Node(pod).AskTCP(ctx, f.outside)
					if err == nil {
						err = stage.Check(a, "ext-red", f.web.String())
					}
					if err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	t.Run("a router restarts", func(t *testing.T) {
		require.NoError(t, lab.KillFRR(ctx, s.Node("red1")))
		// The network behind red1 learns it too.
		run(t, s, "ext-red", "ip route replace default src 203.0.113.1 via 172.31.12.1", "ip -6 route replace default src 2001:db8:113::1 via fd31:12::1")
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			s.Witness.Reset()
			if err := ask(); err != nil {
				return err
			}
			if n := passed("red1"); n > 0 {
				return fmt.Errorf("%d packets still went to red1", n)
			}
			return nil
		}), "all goes by red2")
		require.NoError(t, lab.FRR.Start(ctx, s.Node("red1")))
		expectRIBs(t, s, wanted)
		run(t, s, "ext-red", "ip route replace default src 203.0.113.1 nexthop via 172.31.11.1 nexthop via 172.31.12.1",
			"ip -6 route replace default src 2001:db8:113::1 nexthop via fd31:11::1 nexthop via fd31:12::1")
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			s.Witness.Reset()
			if err := ask(); err != nil {
				return err
			}
			if passed("red1") == 0 || passed("red2") == 0 {
				return errors.New("not by both routers yet")
			}
			return nil
		}))
		require.Empty(t, s.Wrong(asWritten()))
		for _, f := range ipFamilies {
			require.NoError(t, lab.Wait(ctx, patience, func() error { return learned(f, "a", routers[f.name]...) }))
		}
	})
}
