package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// keeping has flows kept for a time, and services moved when a daemon gets SIGTERM, for as long as a slow machine needs.
func keeping(flows string) func(string) string {
	return func(c string) string { return c + "moves: {keepFlows: " + flows + ", within: 60s}\nonStop: drain\n" }
}

// editNode changes the Node of that name, and no other, as it is in the manifest.
func editNode(t *testing.T, s *stage.Stage, name string, fromTo ...string) {
	t.Helper()
	all, err := s.Manifest("cluster.yaml")
	require.NoError(t, err)
	documents := strings.Split(all, "---\n")
	for i, d := range documents {
		if strings.Contains(d, "name: "+name+"\n") {
			for j := 0; j+1 < len(fromTo); j += 2 {
				require.Contains(t, d, fromTo[j])
				d = strings.Replace(d, fromTo[j], fromTo[j+1], 1)
			}
			documents[i] = d
		}
	}
	require.NoError(t, s.Write(t.Context(), "cluster.yaml", strings.Join(documents, "---\n")))
}

// awaitEvent waits for the Event that tells of the last move of a service, with why.
func awaitEvent(t *testing.T, s *stage.Stage, service, from, to, why string) {
	t.Helper()
	want := fmt.Sprintf("from %s to %s: %s", from, to, why)
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		var list corev1.EventList
		if err := s.API.List(t.Context(), "{apiVersion: v1, kind: Event, metadata: {namespace: shop, name: any}}", &list); err != nil {
			return err
		}
		var said []string
		for _, e := range list.Items {
			if e.InvolvedObject.Name == service && e.Reason == "HostMoved" {
				said = append(said, e.Message)
				if e.Message == want {
					return nil
				}
			}
		}
		return fmt.Errorf("no event says %q, but %q", want, said)
	}))
}

// reserve waits until routers of red have exactly these nodes in reserve for the ingress IPs of web.
func reserve(t *testing.T, s *stage.Stage, nodes ...string) {
	t.Helper()
	var v4, v6 []string
	for _, n := range nodes {
		v4, v6 = append(v4, inRedOf(n)[0]), append(v6, inRedOf(n)[1])
	}
	for _, router := range []string{"red1", "red2"} {
		require.NoError(t, s.AwaitStandby(t.Context(), router, "192.0.2.10/32", v4...))
		require.NoError(t, s.AwaitStandby(t.Context(), router, "2001:db8:2::10/128", v6...))
	}
}

// requireStill fails where web's host, or who announces it, has become another.
func requireStill(t *testing.T, s *stage.Stage, node string) {
	t.Helper()
	e, err := s.EgressService(t.Context(), "shop", "web")
	require.NoError(t, err)
	require.Equal(t, node, e.Status.Host)
	hostAt(t, s, node)
}

// TestPlannedMoves has the host of a service left on purpose: it serves until the next one does, then stands by for the flows
// that go by it, and then goes.
func TestPlannedMoves(t *testing.T) {
	s := play(t, stage.Options{API: true, Config: keeping("10s")}) // for so long, the former host can be seen to stand by
	ctx := t.Context()
	host, standby := hosts(t, s)
	hostAt(t, s, host)
	reserve(t, s, standby)
	// moved follows a move from the host, after which nobody stands by.
	moved := func(t *testing.T, why string) {
		t.Helper()
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, host), "the former host is kept")
		hostAt(t, s, standby)
		reserve(t, s, host)
		e, err := s.AwaitStatus(ctx, "shop", "web", func(e egressv1.EgressServiceStatus) error {
			if e.Standby != "" {
				return errors.New("want no standby, when the time is over")
			}
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, standby, e.Status.Host)
		reserve(t, s)
		awaitEvent(t, s, "web", host, standby, why)
	}
	// back sees the former host become the standby, and nothing else.
	back := func(t *testing.T) {
		t.Helper()
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, host))
		reserve(t, s, host)
		requireStill(t, s, standby)
		host, standby = standby, host
	}

	t.Run("cordon", func(t *testing.T) {
		was := host
		editNode(t, s, was, "spec:\n", "spec:\n  unschedulable: true\n")
		moved(t, "node "+was+" is cordoned")
		editNode(t, s, was, "  unschedulable: true\n", "")
		back(t)
	})
	t.Run("label", func(t *testing.T) {
		const free = "network: red\n"
		selective := free + "  nodeSelector: {matchLabels: {egress: here}}\n"
		was := host
		for _, n := range []string{"a", "b"} {
			editNode(t, s, n, "hostname: "+n, "hostname: "+n+", egress: here")
		}
		require.NoError(t, s.Edit(ctx, "web.yaml", free, selective))
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", host, standby))
		editNode(t, s, was, ", egress: here", "")
		moved(t, "node "+was+" does not match spec.nodeSelector any more")
		editNode(t, s, was, "hostname: "+was, "hostname: "+was+", egress: here")
		back(t)
		require.NoError(t, s.Edit(ctx, "web.yaml", selective, free))
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", host, standby))
	})
	t.Run("drain", func(t *testing.T) {
		was := host
		out, err := s.Egressway(ctx, was, "drain", "--timeout", "60s")
		require.NoError(t, err)
		require.Contains(t, out, "waiting for the flows of 1 service")
		require.True(t, strings.HasSuffix(out, "node "+was+" is drained\n"), out)
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, ""))
		hostAt(t, s, standby)
		reserve(t, s)
		awaitEvent(t, s, "web", was, standby, "node "+was+" is draining")
		out, err = s.Egressway(ctx, was, "status")
		require.NoError(t, err)
		require.Contains(t, out, "draining")

		out, err = s.Egressway(ctx, standby, "drain", "--timeout", "10s")
		require.ErrorContains(t, err, "is still host of shop/web", "there is nobody else")
		require.Contains(t, out+err.Error(), "1 service moving")
		_, err = s.AwaitStatus(ctx, "shop", "web", func(e egressv1.EgressServiceStatus) error {
			c := meta.FindStatusCondition(e.Conditions, "HostAssigned")
			if want := "node " + standby + " is draining, but no other node would be better"; c == nil || !strings.Contains(c.Message, want) {
				return fmt.Errorf("want it to say that %s", want)
			}
			return nil
		})
		require.NoError(t, err)
		for _, node := range []string{standby, was} {
			_, err = s.Egressway(ctx, node, "drain", "--undo")
			require.NoError(t, err)
		}
		back(t)
	})
	t.Run("stop", func(t *testing.T) {
		was := host
		stopping, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		require.NoError(t, s.Daemons[was].Stop(stopping))
		require.Contains(t, s.Daemons[was].Log(), "services have moved, nothing is announced any more")
		e, err := s.EgressService(ctx, "shop", "web")
		require.NoError(t, err)
		require.Equal(t, standby, e.Status.Host)
		hostAt(t, s, standby)
		reserve(t, s)
		awaitEvent(t, s, "web", was, standby, "node "+was+" is draining")
		require.NoError(t, s.StartDaemon(was))
		back(t)
	})
}

// TestManifestsDoNotDrain has nobody to move services.
func TestManifestsDoNotDrain(t *testing.T) {
	s := play(t, stage.Options{Nodes: []string{"a"}})
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		_, err := s.Egressway(t.Context(), "a", "drain")
		if err == nil || !strings.Contains(err.Error(), "draining needs an API server") {
			return fmt.Errorf("want it to be refused, got %w", err)
		}
		return nil
	}))
}

// inBlue is a Service beside web, that leaves by blue, and by one node only.
func inBlue(node string) string {
	return strings.NewReplacer("network: red", "network: blue\n  nodeSelector: {matchLabels: {kubernetes.io/hostname: "+node+"}}").Replace(lateManifest)
}

// TestPathHealth takes parts of a network from its host: what belongs to that network moves, the rest stays, and nothing
// comes back when all is well again.
func TestPathHealth(t *testing.T) {
	s := play(t, stage.Options{API: true, Config: func(c string) string { return c + "moves: {keepFlows: 2s}\n" }})
	ctx := t.Context()
	host, standby := hosts(t, s)
	hostAt(t, s, host)
	blue := map[string]string{"a": "10.2.0.11", "b": "10.2.0.12"}
	// ill breaks something of red on the host, which mend makes well again.
	ill := func(name, why string, harm, mend func(t *testing.T, node string)) {
		t.Run(name, func(t *testing.T) {
			was := host
			require.NoError(t, s.Write(ctx, "zoo.yaml", inBlue(was)))
			require.NoError(t, s.AwaitHost(ctx, "shop", "zoo", was, ""))
			require.NoError(t, s.AwaitRoute(ctx, "blue1", "192.0.2.30/32", blue[was]))
			before, err := s.EgressService(ctx, "shop", "zoo")
			require.NoError(t, err)

			harm(t, was)
			_, err = s.AwaitStatus(ctx, "shop", "web", func(e egressv1.EgressServiceStatus) error {
				if e.Host != standby {
					return errors.New("want another host")
				}
				return nil
			})
			require.NoError(t, err)
			hostAt(t, s, standby)
			awaitEvent(t, s, "web", was, standby, strings.ReplaceAll(why, "NODE", was))
			require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, ""))

			mend(t, was)
			require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, was), "it is well again, and stands by")
			reserve(t, s, was)
			requireStill(t, s, standby)
			after, err := s.EgressService(ctx, "shop", "zoo")
			require.NoError(t, err)
			require.Equal(t, before.Status.Host, after.Status.Host, "blue is another network")
			require.Equal(t, before.Status.Term, after.Status.Term, "blue has not moved meanwhile")
			host, standby = standby, host
		})
	}
	run := func(node string, lines ...string) func(t *testing.T, node string) {
		return func(t *testing.T, on string) {
			t.Helper()
			if node != "" {
				on = node
			}
			for _, l := range lines {
				_, err := s.Node(on).Run(ctx, "sh", "-ec", strings.ReplaceAll(l, "NODE", on))
				require.NoError(t, err, l)
			}
		}
	}
	for _, n := range []string{"a", "b"} {
		run(n, "echo 1 > /proc/sys/net/ipv6/conf/eth2/keep_addr_on_down")(t, n)
	}
	ill("uplink down", "network red has no IPv4 nor IPv6 route on node NODE", func(t *testing.T, node string) {
		run("", "ip link set eth2 down")(t, node)
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			out, err := s.Egressway(ctx, node, "status", "-o", "json")
			if err == nil && !strings.Contains(out, "link eth2 is down") {
				err = errors.New("no session is down since its link is")
			}
			return err
		}))
	}, run("", "ip link set eth2 up"))

	sessions := func(command string) func(t *testing.T, node string) {
		return func(t *testing.T, node string) {
			t.Helper()
			for _, router := range []string{"red1", "red2"} {
				_, err := s.Node(router).VTY("bgpd", "configure terminal", "router bgp 64601", fmt.Sprintf(command, inRedOf(node)[0]))
				require.NoError(t, err)
			}
		}
	}
	ill("sessions down", "no BGP session of network red is up on NODE", sessions("neighbor %s shutdown"), sessions("no neighbor %s shutdown"))

	const untold, told = "neighbor %s default-originate route-map NONE", "neighbor %s default-originate"
	routes := func(policy string) func(t *testing.T, node string) {
		return func(t *testing.T, node string) {
			t.Helper()
			for _, router := range []string{"red1", "red2"} {
				_, err := s.Node(router).VTY("bgpd", "configure terminal", "route-map NONE deny 10", "exit", "router bgp 64601",
					"address-family ipv6 unicast", fmt.Sprintf(policy, inRedOf(node)[0]))
				require.NoError(t, err)
			}
		}
	}
	ill("peers tell no IPv6 route", "network red has no IPv6 route on node NODE",
		routes(untold), routes(told))

	t.Run("no node has a route", func(t *testing.T) {
		before, err := s.EgressService(ctx, "shop", "web")
		require.NoError(t, err)
		// The host is the last to lose it: while another node has it, a move would help.
		routes(untold)(t, standby)
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", host, ""))
		routes(untold)(t, host)
		says := func(despite bool) func(egressv1.EgressServiceStatus) error {
			return func(e egressv1.EgressServiceStatus) error {
				const text = "network red has no IPv6 route on node "
				c := meta.FindStatusCondition(e.Conditions, "HostAssigned")
				if c == nil || strings.Contains(c.Message, text) != despite {
					return fmt.Errorf("want it to say that %s: %t", text, despite)
				}
				return nil
			}
		}
		during, err := s.AwaitStatus(ctx, "shop", "web", says(true))
		require.NoError(t, err)
		require.Equal(t, before.Status.Term, during.Status.Term, "all have lost it: no move would help")
		routes(told)(t, host)
		after, err := s.AwaitStatus(ctx, "shop", "web", says(false))
		require.NoError(t, err)
		require.Equal(t, before.Status.Term, after.Status.Term)
		routes(told)(t, standby)
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", host, standby))
	})
}
