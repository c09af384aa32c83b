package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// random makes Services, their slices and their EgressServices, good ones and bad ones.
type random struct{ *rand.Rand }

const randomNames = 6

func (r *random) pick(from ...string) string { return from[r.IntN(len(from))] }

// service is a Service with what may be in its status.
func (r *random) service(name string) string {
	ingress := r.pick("", "{ip: 192.0.2.4%d}", "{ip: 192.0.2.4%[1]d}, {ip: \"2001:db8:2::4%[1]d\"}", "{ip: \"2001:db8:2::4%d\"}", "{hostname: \"x%d.example\"}", "{ip: 192.0.2.40}")
	number, _ := strconv.Atoi(name[1:])
	if strings.Contains(ingress, "%") {
		ingress = fmt.Sprintf(ingress, number)
	}
	kind := r.pick("LoadBalancer", "LoadBalancer", "LoadBalancer", "NodePort")
	if kind == "NodePort" {
		ingress = ""
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {namespace: shop, name: %s}
spec:
  type: %s
  ipFamilyPolicy: PreferDualStack
  externalTrafficPolicy: %s
  ports: [{name: tcp, protocol: TCP, port: 80, targetPort: 8080}]
status:
  loadBalancer: {ingress: [%s]}
`, name, kind, r.pick("Cluster", "Cluster", "Local"), ingress)
}

// endpoints is a slice of one family with some of the addresses that pods, nodes and others have.
func (r *random) endpoints(name, family string) string {
	pool := map[string][]string{
		"IPv4": {"10.244.1.21 a", "10.244.1.22 a", "10.244.2.21 b", "10.244.2.22 b", "10.244.3.21 c", "10.0.0.11 a", "10.244.2.23 ", "10.244.1.11 a"},
		"IPv6": {"fd44:1::21 a", "fd44:2::21 b", "fd44:3::21 c", "fd00::12 b", "fd44:2::23 "},
	}[family]
	text := fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {namespace: shop, name: %s-%s, labels: {kubernetes.io/service-name: %[1]s}}\naddressType: %[3]s\nendpoints:\n",
		name, strings.ToLower(family), family)
	for _, e := range pool {
		if r.IntN(3) > 0 {
			continue
		}
		addr, node, _ := strings.Cut(e, " ")
		if node != "" {
			node = ", nodeName: " + node
		}
		text += fmt.Sprintf("  - {targetRef: {kind: Pod, name: pod}, addresses: [%q]%s, conditions: {ready: %t, serving: true, terminating: %t}}\n", addr, node, r.IntN(2) > 0, r.IntN(4) == 0)
	}
	if head, none := strings.CutSuffix(text, "endpoints:\n"); none {
		return head + "endpoints: []\n"
	}
	return text
}

func (r *random) egress(name string) string {
	return fmt.Sprintf("apiVersion: k8s.ovn.org/v1\nkind: EgressService\nmetadata: {namespace: shop, name: %s}\nspec: {sourceIPBy: %s, network: %s, nodeSelector: %s}\n",
		name, r.pick("LoadBalancerIP", "LoadBalancerIP", "Network"), r.pick("red", "blue", `""`, "nowhere"),
		r.pick("{}", "{}", "{matchLabels: {kubernetes.io/hostname: a}}", "{matchLabels: {kubernetes.io/hostname: b}}", "{matchExpressions: [{key: x, operator: Near}]}"))
}

// step makes one change of the API server's objects.
func (r *random) step(t *testing.T, s *stage.Stage) {
	t.Helper()
	ctx := t.Context()
	name := "r" + strconv.Itoa(r.IntN(randomNames))
	apply := func(document string) { require.NoError(t, s.API.Apply(ctx, document)) }
	remove := func(document string) {
		if err := s.API.Delete(ctx, document); err != nil {
			require.Contains(t, err.Error(), "not found")
		}
	}
	named := func(kind, name string) string {
		return fmt.Sprintf("{%s, metadata: {namespace: shop, name: %s}}", kind, name)
	}
	switch n := r.IntN(20); {
	case n < 5:
		apply(r.service(name))
	case n < 9:
		apply(r.egress(name))
	case n < 14:
		apply(r.endpoints(name, r.pick("IPv4", "IPv6")))
	case n < 15:
		remove(named("apiVersion: v1, kind: Service", name))
	case n < 16:
		remove(named("apiVersion: k8s.ovn.org/v1, kind: EgressService", name))
	case n < 17:
		remove(named("apiVersion: discovery.k8s.io/v1, kind: EndpointSlice", name+"-ipv4"))
	default:
		node := r.pick("a", "b", "c")
		all, err := s.Manifest("cluster.yaml")
		require.NoError(t, err)
		for d := range strings.SplitSeq(all, "---\n") {
			switch {
			case !strings.Contains(d, "name: "+node+"\n"):
			case node == "c" && r.IntN(3) == 0:
				remove(d)
			default:
				apply(strings.Replace(d, `{type: Ready, status: "True"}`, fmt.Sprintf(`{type: Ready, status: %q}`, r.pick("True", "True", "False", "Unknown")), 1))
			}
		}
	}
}

// made is what our daemon has made of a node's kernel: all but what runs out by itself.
func made(t *testing.T, s *stage.Stage, node string) string {
	t.Helper()
	run := func(args ...string) string {
		out, err := s.Node(node).Run(t.Context(), args...)
		require.NoError(t, err)
		return out
	}
	nft := regexp.MustCompile(`(?s)\n\tset former\d \{.*?\n\t\}`).ReplaceAllString(run("nft", "-s", "list", "table", "inet", "egressway"), "")
	lines := strings.Split(run("ip", "rule"), "\n")
	lines = append(lines, strings.Split(run("ip", "-6", "rule"), "\n")...)
	// In which order sets and chains stand is a matter of history too.
	blocks := regexp.MustCompile(`(?s)\n\t(set|map|chain) .*?\n\t\}`).FindAllString(sortElements(nft), -1)
	slices.Sort(blocks)
	return strings.Join(blocks, "") + strings.Join(lines, "\n") +
		run("ip", "route", "show", "table", "all", "proto", "142") + run("ip", "-6", "route", "show", "table", "all", "proto", "142")
}

// sortElements puts elements of nftables sets in order: the kernel tells them as they were hashed.
func sortElements(nft string) string {
	return regexp.MustCompile(`(?s)elements = \{.*?\}`).ReplaceAllStringFunc(nft, func(elements string) string {
		list := strings.Split(strings.TrimSuffix(strings.TrimPrefix(elements, "elements = {"), "}"), ",")
		for i := range list {
			list[i] = strings.TrimSpace(list[i])
		}
		slices.Sort(list)
		return "elements = { " + strings.Join(list, ", ") + " }"
	})
}

// told is what a router knows from our speakers: prefixes, and of every path next hop, preference and whether it is used.
func told(t *testing.T, s *stage.Stage, router string) (all []string) {
	t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		var table struct {
			Routes map[string][]struct {
				Valid, Bestpath, Multipath bool
				Metric                     int
				Path                       string
				Nexthops                   []struct{ IP, Scope string }
			}
		}
		require.NoError(t, s.Node(router).VTYJSON(&table, "bgpd", "show bgp "+family+" unicast json"))
		for prefix, paths := range table.Routes {
			for _, p := range paths {
				if !strings.Contains(p.Path, "64512") {
					continue
				}
				// Which of several that are used alike is called the best one depends on which came first.
				p.Multipath, p.Bestpath = p.Multipath || p.Bestpath, false
				b, err := json.Marshal(p)
				require.NoError(t, err)
				all = append(all, prefix+" "+string(b))
			}
		}
	}
	slices.Sort(all)
	return all
}

// settled waits until every EgressService is where it should be and nothing changes any more.
func settled(t *testing.T, s *stage.Stage, of func() string) (state string) {
	t.Helper()
	same := 0
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		var list egressv1.EgressServiceList
		if err := s.API.List(t.Context(), "{apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {name: any}}", &list); err != nil {
			return err
		}
		for _, e := range list.Items {
			c := meta.FindStatusCondition(e.Status.Conditions, "Programmed")
			// Node c, which has endpoints too, has no daemon that could report.
			pending := c != nil && c.Reason == "Pending" && !strings.HasSuffix(c.Message, " by c")
			if c == nil || c.ObservedGeneration != e.Generation || pending {
				same = 0
				return fmt.Errorf("EgressService %s: %+v", e.Name, e.Status)
			}
		}
		now := of()
		if now != state {
			state, same = now, 0
			return errors.New("it still changes")
		}
		const calm = 40 // looks in a row; the lab looks every 20 ms or so
		if same++; same < calm {
			return errors.New("it may still change")
		}
		return nil
	}))
	return state
}

// TestRandomChanges makes two hundred changes, after which kernels and routers have what daemons that start on bare nodes
// make.
func TestRandomChanges(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("SEED=%d repeats this", seed)
	// A former host that stands by for its flows would go in the midst of the comparison.
	s := play(t, stage.Options{API: true, Config: func(c string) string { return c + "moves: {keepFlows: 0s}\n" }})
	ctx := t.Context()
	host, _ := hosts(t, s)
	hostAt(t, s, host)
	r := &random{rand.New(rand.NewPCG(seed, 0))}
	for range 200 {
		r.step(t, s)
	}
	// Nodes end as Ready, or nothing would be left to compare.
	nodes, err := s.Manifest("cluster.yaml")
	require.NoError(t, err)
	require.NoError(t, s.Write(ctx, "cluster.yaml", nodes))

	state := func() string {
		all := made(t, s, "a") + made(t, s, "b")
		for _, router := range []string{"red1", "red2", "blue1", "blue2", "gw"} {
			all += router + "\n" + strings.Join(told(t, s, router), "\n") + "\n"
		}
		return all
	}
	before := settled(t, s, state)
	// Which number a path has, and which standby was the host before, is a matter of history.
	history := map[string]string{}
	for _, node := range []string{"a", "b"} {
		for _, set := range []string{"paths", "resumed4", "resumed6"} {
			out, err := s.Node(node).Run(ctx, "nft", "-s", "list", "set", "inet", "egressway", set)
			require.NoError(t, err)
			history[node] += out
		}
	}
	for _, node := range []string{"a", "b"} {
		require.NoError(t, s.Daemons[node].Stop(ctx))
	}
	for _, node := range []string{"a", "b"} {
		_, err := s.Egressway(ctx, node, "cleanup")
		require.NoError(t, err)
		_, err = s.Node(node).Input(ctx, history[node], "nft", "-f", "-")
		require.NoError(t, err)
		require.NoError(t, s.StartDaemon(node))
	}
	require.Equal(t, strings.Split(before, "\n"), strings.Split(settled(t, s, state), "\n"), "SEED=%d", seed)
}
