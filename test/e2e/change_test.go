package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab/stage"
)

// oneFile puts both Services of the topology into one file: a change that concerns both is then seen at once.
func oneFile(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{"cluster.yaml": manifest(t, "cluster.yaml")}
	files["shop.yaml"] = manifest(t, "batch.yaml") + "---\n" + manifest(t, "web.yaml")
	return files
}

const (
	webEgress    = "---\napiVersion: k8s.ovn.org/v1\nkind: EgressService\nmetadata:\n  namespace: shop\n  name: web\nspec:\n  sourceIPBy: LoadBalancerIP\n  network: red\n"
	webEndpoint4 = "  - {addresses: [10.244.2.11], nodeName: b, conditions: {ready: true}}\n"
	webEndpoint6 = "  - {addresses: [\"fd44:2::11\"], nodeName: b, conditions: {ready: true}}\n"
	podA2of4     = "  - {addresses: [10.244.1.12], nodeName: a, conditions: {ready: true}}\n"
	podA2of6     = "  - {addresses: [\"fd44:1::12\"], nodeName: a, conditions: {ready: true}}\n"
)

// TestChange changes what pods are to the outside world, in every way that objects can, under their traffic.
func TestChange(t *testing.T) {
	s := play(t, stage.Options{Manifests: oneFile(t)})
	ctx := t.Context()
	route := func(router, prefix string, hops ...string) {
		require.NoError(t, s.AwaitRoute(ctx, router, prefix, hops...))
	}
	route("red1", "192.0.2.10/32", "10.1.0.11")
	route("red1", "2001:db8:2::10/128", "fd01::11")
	now := asDeployed()
	awaitServed(t, s, now)

	change := changer(t, s, now)
	webAs := func(i identity) identities { return identities{"a-p1": i, "b-p1": i} }
	moved := identity{"ext-red", "192.0.2.11", "2001:db8:2::11"}

	change("ingress IP", webAs(moved), func(t *testing.T) {
		route("red1", "192.0.2.11/32", "10.1.0.11")
		route("red1", "192.0.2.10/32")
		route("red2", "2001:db8:2::10/128")
	}, "ip: 192.0.2.10", "ip: 192.0.2.11", `ip: "2001:db8:2::10"`, `ip: "2001:db8:2::11"`)
	change("ingress IP back", webAs(web), nil,
		"ip: 192.0.2.11", "ip: 192.0.2.10", `ip: "2001:db8:2::11"`, `ip: "2001:db8:2::10"`)

	change("network", webAs(identity{"ext-blue", web.source4, web.source6}), func(t *testing.T) {
		route("blue1", "192.0.2.10/32", "10.2.0.11")
		route("red1", "192.0.2.10/32")
	}, "network: red", "network: blue # of web")
	change("network back", webAs(web), func(t *testing.T) {
		route("red1", "192.0.2.10/32", "10.1.0.11")
		route("blue1", "192.0.2.10/32")
	}, "network: blue # of web", "network: red")

	move := func(name, to string, fromTo ...string) {
		t.Helper()
		t.Run(name, func(t *testing.T) {
			moving(t, s, now, func() {
				require.NoError(t, s.Edit(ctx, "shop.yaml", fromTo...))
				route("red1", "192.0.2.10/32", "10.1.0."+to)
				route("red2", "2001:db8:2::10/128", "fd01::"+to)
			}, "a-p1", "b-p1")
		})
	}
	move("host", "12", "network: red\n", "network: red\nstatus:\n  host: b\n")
	move("host back", "11", "status:\n  host: b\n", "status:\n  host: a\n")
	change("host named no more", nil, nil, "status:\n  host: a\n", "")

	change("mode", identities{
		"a-p1": {"ext-red", "10.1.0.11", "fd01::11"}, "b-p1": {"ext-red", "10.1.0.12", "fd01::12"},
	}, func(t *testing.T) {
		route("red1", "192.0.2.10/32", "10.1.0.11", "10.1.0.12")
	}, "sourceIPBy: LoadBalancerIP", "sourceIPBy: Network # of web")
	change("mode back", webAs(web), func(t *testing.T) {
		route("red1", "192.0.2.10/32", "10.1.0.11")
	}, "sourceIPBy: Network # of web", "sourceIPBy: LoadBalancerIP")

	change("object deleted", identities{"a-p1": nodeA, "b-p1": nodeB}, func(t *testing.T) {
		route("red1", "192.0.2.10/32")
		route("red2", "2001:db8:2::10/128")
	}, webEgress, "# no web\n")
	change("object created", webAs(web), nil, "# no web\n", webEgress)

	change("endpoint removed", identities{"b-p1": nodeB}, nil, webEndpoint4, "# 4\n", webEndpoint6, "# 6\n")
	change("endpoint added", identities{"b-p1": web}, nil, "# 4\n", webEndpoint4, "# 6\n", webEndpoint6)
	change("endpoint of the other service", identities{"a-p2": web}, nil,
		podA2of4, "# b4\n", podA2of6, "# b6\n", webEndpoint4, webEndpoint4+podA2of4, webEndpoint6, webEndpoint6+podA2of6)
	change("endpoint back", identities{"a-p2": batchA}, nil,
		podA2of4, "", podA2of6, "", "# b4\n", podA2of4, "# b6\n", podA2of6)

	// Two pods end, and each is followed by one of the other service with its address.
	swap := func(x, y string) []string { return []string{x, "\x00", y, x, "\x00", y} }
	change("address used again", identities{"a-p1": batchA, "a-p2": web}, nil,
		append(swap("[10.244.1.11]", "[10.244.1.12]"), swap(`["fd44:1::11"]`, `["fd44:1::12"]`)...)...)

	require.NotContains(t, strings.ToLower(s.Daemons["a"].Log()), "pass failed", "the daemon had no trouble")
	require.NotContains(t, strings.ToLower(s.Daemons["b"].Log()), "pass failed")
}
