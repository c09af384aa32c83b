package e2e

import (
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// lone is a Service with one endpoint on node a, and its EgressService. n tells its addresses from others'.
func lone(namespace, name string, n int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {namespace: %[1]s, name: %[2]s}
spec:
  type: LoadBalancer
  clusterIP: 10.96.1.%[3]d
  ports: [{name: tcp, protocol: TCP, port: 80, targetPort: 8080}]
status:
  loadBalancer:
    ingress: [{ip: 192.0.2.%[3]d}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: %[1]s, name: %[2]s, labels: {kubernetes.io/service-name: %[2]s}}
addressType: IPv4
endpoints:
  - {targetRef: {kind: Pod, name: pod}, addresses: [10.244.1.%[3]d], nodeName: a}
---
apiVersion: k8s.ovn.org/v1
kind: EgressService
metadata: {namespace: %[1]s, name: %[2]s}
spec:
  sourceIPBy: LoadBalancerIP
  network: red
`, namespace, name, n)
}

// condition waits until an EgressService, namespace/name, has a condition of a type, status and reason, whose message holds all words, for
// the generation that it has.
func condition(t *testing.T, s *stage.Stage, key, kind string, status metav1.ConditionStatus, reason string, words ...string) {
	t.Helper()
	namespace, name, _ := strings.Cut(key, "/")
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		e, err := s.EgressService(t.Context(), namespace, name)
		if err != nil {
			return err
		}
		c := meta.FindStatusCondition(e.Status.Conditions, kind)
		switch {
		case c == nil || c.Status != status || c.Reason != reason:
		case c.ObservedGeneration != e.Generation || c.LastTransitionTime.IsZero():
		case slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(c.Message, w) }):
		default:
			return nil
		}
		return fmt.Errorf("%s: want %s %s %s %q, has %+v", key, kind, status, reason, words, e.Status.Conditions)
	}))
}

// TestMalformedObjects gives running daemons what an API server lets pass and nobody can serve: its own object says so,
// all others stay served, and what is mended is served.
func TestMalformedObjects(t *testing.T) {
	s := play(t, stage.Options{API: true})
	ctx := t.Context()
	now := asDeployed()
	hosts(t, s)
	awaitServed(t, s, now)
	traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
	const valid, assigned = "Valid", "HostAssigned"
	cases := []struct {
		name, title  string
		from, to     string
		kind, reason string
		words        []string
	}{
		{"operator", "selector with an unknown operator", "network: red", "network: red\n  nodeSelector: {matchExpressions: [{key: x, operator: Near}]}", assigned, "InvalidSelector", []string{"spec.nodeSelector", "Near"}},
		{"nowhere", "selector that matches no node", "network: red", "network: red\n  nodeSelector: {matchLabels: {no: where}}", assigned, "NoEligibleNode", []string{"spec.nodeSelector", "matches no Ready node"}},
		{"green", "unknown network", "network: red", "network: green", valid, "NetworkNotFound", []string{"spec.network", `"green"`, "no such network"}},
		{"table254", "table as network", "network: red", `network: "254"`, valid, "NetworkNotFound", []string{"spec.network", `"254"`}},
		{"table0", "no table as network", "network: red", `network: "0"`, valid, "NetworkNotFound", []string{"spec.network", `"0"`}},
		{"hostname", "host name as ingress", "{ip: 192.0.2.", "{hostname: shop.example} # ", assigned, "HostnameIngress", []string{"shop.example", "an IP is needed"}},
		{"noingress", "no ingress", "ingress: [", "ingress: [] # ", assigned, "NoIngressIP", []string{"no usable ingress IP yet", "MetalLB"}},
		{"nodeip", "node's address as ingress", "{ip: 192.0.2.", "{ip: 10.0.0.11} # ", valid, "InvalidAddress", []string{`"10.0.0.11"`, "address of node a"}},
		{"clusterip", "ClusterIP as ingress", "{ip: 192.0.2.", "{ip: 10.96.0.10} # ", valid, "InvalidAddress", []string{`"10.96.0.10"`, "ClusterIP of Service shop/web"}},
		{"podrange", "pod's address as ingress", "{ip: 192.0.2.", "{ip: 10.244.2.77} # ", valid, "InvalidAddress", []string{`"10.244.2.77"`, "pod"}},
		{"othernet", "ingress of another network", "{ip: 192.0.2.", "{ip: 192.0.2.20} # ", valid, "IngressConflict", []string{`"192.0.2.20"`, "shop/batch", "blue"}},
		{"loopback", "loopback as ingress", "{ip: 192.0.2.", "{ip: 127.0.0.9} # ", valid, "InvalidAddress", []string{`"127.0.0.9"`}},
		{"multicast", "multicast as ingress", "{ip: 192.0.2.", "{ip: 224.0.0.9} # ", valid, "InvalidAddress", []string{`"224.0.0.9"`}},
		{"nodeend", "node's address as endpoint", "[10.244.1.", "[10.0.0.12] # ", valid, "InvalidAddress", []string{`"10.0.0.12"`, "address of node b"}},
		{"clusterend", "ClusterIP as endpoint", "[10.244.1.", "[10.96.0.10] # ", valid, "InvalidAddress", []string{`"10.96.0.10"`, "ClusterIP"}},
		{"foreign", "endpoint of another namespace", "{kind: Pod, name: pod}, addresses", "{kind: Pod, namespace: kube-system, name: dns}, addresses", valid, "ForeignEndpoint", []string{`"10.244.1.`, "namespace shop"}},
		{"nobodys", "endpoint that nobody says a word of", "targetRef: {kind: Pod, name: pod}, addresses", "addresses", valid, "ForeignEndpoint", []string{`"10.244.1.`, "targetRef"}},
		{"taken", "endpoint of an older object", "[10.244.1.", "[10.244.1.11] # ", valid, "EndpointConflict", []string{`"10.244.1.11"`, "shop/web"}},
		{"endless", "no endpoint", "  - {targetRef: {kind: Pod, name: pod}, addresses: [10.244.1.", "  [] # ", assigned, "NoEndpoints", []string{"no endpoint"}},
		{"internal", "Service of another type", "type: LoadBalancer", "type: ClusterIP", assigned, "NotLoadBalancer", []string{"LoadBalancer"}},
	}
	for i, c := range cases {
		good := lone("shop", c.name, 100+i)
		require.Contains(t, good, c.from)
		bad := ""
		for line := range strings.Lines(good) {
			if before, after, ok := strings.Cut(line, c.from); ok && strings.Contains(c.to, "#") {
				// A list closes before the comment that hides the rest of its line.
				to, rest, _ := strings.Cut(c.to, "#")
				switch {
				case strings.HasPrefix(c.from, "{ip"):
					to += "]"
				case strings.HasPrefix(c.from, "["):
					to += ", nodeName: a}"
				}
				line = before + to + " #" + rest + after
			} else if ok {
				line = before + c.to + after
			}
			bad += line
		}
		if strings.Contains(c.to, "type: ClusterIP") {
			bad = strings.Replace(bad, fmt.Sprintf("ingress: [{ip: 192.0.2.%d}]", 100+i), "{}", 1)
			bad = strings.Replace(bad, "status:\n  loadBalancer:\n    {}\n", "", 1)
		}
		require.NoError(t, s.API.Apply(ctx, bad), "%s:\n%s", c.title, bad)
	}
	require.NoError(t, s.API.Apply(ctx, "{apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {namespace: shop, name: a.b}, spec: {sourceIPBy: LoadBalancerIP, network: red}}"))
	for _, c := range cases {
		t.Run(c.title, func(t *testing.T) {
			condition(t, s, "shop/"+c.name, c.kind, metav1.ConditionFalse, c.reason, c.words...)
		})
	}
	t.Run("name that no Service has", func(t *testing.T) {
		condition(t, s, "shop/a.b", assigned, metav1.ConditionFalse, "ServiceNotFound", "Service")
	})
	t.Run("events", func(t *testing.T) {
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			var events corev1.EventList
			if err := s.API.List(ctx, "{apiVersion: v1, kind: Event, metadata: {name: all}}", &events); err != nil {
				return err
			}
			var unsaid []string
			for _, c := range cases {
				if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
					return e.InvolvedObject.Name == c.name && e.Type == corev1.EventTypeWarning && e.Reason == c.reason
				}) {
					unsaid = append(unsaid, c.name+" "+c.reason)
				}
			}
			if len(unsaid) > 0 {
				return fmt.Errorf("no Event tells of %q", unsaid)
			}
			return nil
		}))
	})
	traffic.answered(t, 3, now)

	for i, c := range cases {
		require.NoError(t, s.API.Apply(ctx, lone("shop", c.name, 100+i)))
	}
	for i, c := range cases {
		t.Run(c.title+" mended", func(t *testing.T) {
			condition(t, s, "shop/"+c.name, valid, metav1.ConditionTrue, "Accepted")
			condition(t, s, "shop/"+c.name, "Programmed", metav1.ConditionTrue, "InForce")
			e, err := s.EgressService(ctx, "shop", c.name)
			require.NoError(t, err)
			require.NoError(t, s.AwaitRoute(ctx, "red1", fmt.Sprintf("192.0.2.%d/32", 100+i), inRedOf(e.Status.Host)[0]))
		})
	}
	traffic.answered(t, 3, now)
	traffic.stop(t, now)
	requireInnocent(t, s, now)
}

// TestUpstreamCRD serves by the CRD of OVN-Kubernetes, which keeps the host alone of a status, until ours is applied.
func TestUpstreamCRD(t *testing.T) {
	crd, err := os.ReadFile("../../internal/cluster/kube/testdata/upstream-crd.yaml")
	require.NoError(t, err)
	s := play(t, stage.Options{API: true, CRD: string(crd)})
	ctx := t.Context()
	now := asDeployed()
	hostIs := func(wanted func(string) bool) egressv1.EgressService {
		t.Helper()
		e, err := s.AwaitStatus(ctx, "shop", "web", func(e egressv1.EgressServiceStatus) error {
			if !wanted(e.Host) {
				return errors.New("want another host")
			}
			return nil
		})
		require.NoError(t, err)
		require.Empty(t, e.Status.Standby)
		require.Empty(t, e.Status.Conditions)
		return e
	}
	before := hostIs(func(host string) bool { return host != "" }).Status.Host
	hostAt(t, s, before)
	awaitServed(t, s, now)
	traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
	traffic.answered(t, 3, now)

	next := other(before)
	require.NoError(t, s.Edit(ctx, "web.yaml", "network: red\n", "network: red\n  nodeSelector: {matchLabels: {kubernetes.io/hostname: "+next+"}}\n"))
	hostIs(func(host string) bool { return host == next })
	hostAt(t, s, next)
	traffic.answered(t, 3, now)
	settled, err := s.EgressService(ctx, "shop", "web")
	require.NoError(t, err)
	traffic.answered(t, 40, now) // some seconds
	later, err := s.EgressService(ctx, "shop", "web")
	require.NoError(t, err)
	require.Equal(t, settled.ResourceVersion, later.ResourceVersion, "nothing changed, nothing is written")
	said := func(what string) (n int) {
		for _, d := range s.Daemons {
			n += strings.Count(d.Log(), what)
		}
		return n
	}
	require.Equal(t, 1, said("drops standby, term and conditions"))

	ours, err := os.ReadFile("../../config/crd/k8s.ovn.org_egressservices.yaml")
	require.NoError(t, err)
	require.NoError(t, s.API.Apply(ctx, string(ours)))
	// The server may go by the former CRD a little longer; the first move that it keeps whole tells that ours is there.
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		at := next
		next = other(next)
		if err := s.Edit(ctx, "web.yaml", "hostname: "+at, "hostname: "+next); err != nil {
			return err
		}
		e, err := s.AwaitStatus(ctx, "shop", "web", func(e egressv1.EgressServiceStatus) error {
			if e.Host != next {
				return errors.New("want another host")
			}
			return nil
		})
		if err == nil && len(e.Status.Conditions) == 0 {
			err = errors.New("the status has no conditions")
		}
		return err
	}))
	require.NoError(t, s.Edit(ctx, "web.yaml", "  nodeSelector: {matchLabels: {kubernetes.io/hostname: "+next+"}}\n", ""))
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", next, other(next)))
	condition(t, s, "shop/web", "Valid", metav1.ConditionTrue, "Accepted")
	require.Equal(t, 1, said("keeps the whole status now"))
	hostAt(t, s, next)
	traffic.answered(t, 3, now)
	traffic.stop(t, now, now.nobody()) // a move by the other CRD is not make-before-break
	requireInnocent(t, s, now)
}

// labelRight is the right that the component host-label adds, for every daemon.
const labelRight = `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: host-label}, rules: [{apiGroups: [""], resources: [nodes], verbs: [patch]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: host-label}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: host-label}, subjects: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: "system:serviceaccounts:` + stage.Namespace + `"}]}`

// TestHostLabels reads at the nodes which EgressServices they are the host of.
func TestHostLabels(t *testing.T) {
	component, err := os.ReadFile("../../deploy/kustomize/components/host-label/kustomization.yaml")
	require.NoError(t, err)
	require.Contains(t, string(component), `{apiGroups: [""], resources: [nodes], verbs: [patch]}`)
	long := strings.Repeat("z", 60)
	s := play(t, stage.Options{API: true, LabelHosts: true, Objects: []string{
		labelRight, "{apiVersion: v1, kind: Namespace, metadata: {name: a-b}}", "{apiVersion: v1, kind: Namespace, metadata: {name: a}}",
		lone("shop", long, 150), lone("a-b", "c", 151),
	}})
	ctx := t.Context()
	client, err := kubernetes.NewForConfig(s.API.Config())
	require.NoError(t, err)
	const prefix = "egress-service.k8s.ovn.org/"
	labelled := func(want map[string]string) { // label: node
		t.Helper()
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			have := map[string]string{}
			for _, n := range nodes.Items {
				for name, value := range n.Labels {
					if name, ours := strings.CutPrefix(name, prefix); ours {
						have[name] += n.Name + value
					}
				}
			}
			if !maps.Equal(have, want) {
				return fmt.Errorf("nodes have the labels %v, want %v", have, want)
			}
			return nil
		}))
	}
	hostOf := func(namespace, name string) string {
		t.Helper()
		e, err := s.AwaitStatus(ctx, namespace, name, func(e egressv1.EgressServiceStatus) error {
			if e.Host == "" {
				return errors.New("want a host")
			}
			return nil
		})
		require.NoError(t, err)
		return e.Status.Host
	}
	host, standby := hosts(t, s)
	older := hostOf("a-b", "c")
	labelled(map[string]string{"shop-web": host, "a-b-c": older})
	condition(t, s, "shop/"+long, "Valid", metav1.ConditionFalse, "LabelTooLong", "metadata.name", "62 bytes", "64")

	// An object made in a later second is younger.
	first, err := s.EgressService(ctx, "a-b", "c")
	require.NoError(t, err)
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		if time.Since(first.CreationTimestamp.Time) < time.Second {
			return errors.New("the same second")
		}
		return nil
	}))
	require.NoError(t, s.API.Apply(ctx, lone("a", "b-c", 152)))
	condition(t, s, "a/b-c", "Valid", metav1.ConditionFalse, "LabelConflict", "metadata.name", "a-b/c", "a-b-c")
	hostOf("a", "b-c")
	labelled(map[string]string{"shop-web": host, "a-b-c": older})

	require.NoError(t, s.Edit(ctx, "web.yaml", "network: red\n", "network: red\n  nodeSelector: {matchLabels: {kubernetes.io/hostname: "+standby+"}}\n"))
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, host))
	labelled(map[string]string{"shop-web": standby, "a-b-c": older})

	for node, labels := range map[string]string{
		standby: `{"` + prefix + `shop-web": null}`,
		host:    `{"` + prefix + `shop-web": "", "` + prefix + `shop-gone": "x"}`,
	} {
		_, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(`{"metadata": {"labels": `+labels+`}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		labelled(map[string]string{"shop-web": standby, "a-b-c": older})
	}
	require.NoError(t, s.API.Delete(ctx, "{apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {namespace: a-b, name: c}}"))
	labelled(map[string]string{"shop-web": standby, "a-b-c": hostOf("a", "b-c")})
	condition(t, s, "a/b-c", "Valid", metav1.ConditionTrue, "Accepted")
}

// TestMendedLater starts a daemon that lacks something it needs, on a node where an earlier one left all in force: it says
// what lacks, changes nothing, and goes on by itself once it is there.
func TestMendedLater(t *testing.T) {
	s := play(t, stage.Options{API: true})
	ctx := t.Context()
	now := asDeployed()
	host, standby := hosts(t, s)
	awaitServed(t, s, now)
	traffic := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
	traffic.answered(t, 3, now)
	restart := func(t *testing.T, between func()) {
		t.Helper()
		require.NoError(t, s.Daemons[standby].Stop(ctx))
		between()
		require.NoError(t, s.StartDaemon(standby))
	}
	tells := func(t *testing.T, reason string) {
		t.Helper()
		awaitLog(t, s, "msg=problem kind=API object=", nil, standby)
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			out, err := s.Egressway(ctx, standby, "status", "-o", "json")
			if err == nil && !strings.Contains(out, `"`+reason+`"`) {
				err = fmt.Errorf("no %s in %s", reason, out)
			}
			return err
		}))
		traffic.answered(t, 3, now)
	}
	recovers := func(t *testing.T) {
		t.Helper()
		awaitLog(t, s, `msg="problem gone" kind=API`, nil, standby)
		require.NoError(t, s.AwaitHost(ctx, "shop", "web", host, standby))
		traffic.answered(t, 3, now)
	}

	path := s.Kubeconfig(standby)
	right, err := os.ReadFile(path)
	require.NoError(t, err)
	wrong := func(edit func(*clientcmdapi.Config)) string {
		k, err := clientcmd.Load(right)
		require.NoError(t, err)
		edit(k)
		b, err := clientcmd.Write(*k)
		require.NoError(t, err)
		return string(b)
	}
	stranger := httptest.NewTLSServer(nil)
	defer stranger.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: stranger.Certificate().Raw})
	for _, c := range []struct{ name, reason, content string }{
		{"no kubeconfig", "BadKubeconfig", ""},
		{"garbage", "BadKubeconfig", "clusters: [\n"},
		{"another CA", "UntrustedServer", wrong(func(k *clientcmdapi.Config) {
			for _, c := range k.Clusters {
				c.CertificateAuthorityData = authority
			}
		})},
		{"another token", "Unauthorized", wrong(func(k *clientcmdapi.Config) {
			for _, a := range k.AuthInfos {
				a.Token = "none"
			}
		})},
	} {
		t.Run(c.name, func(t *testing.T) {
			restart(t, func() {
				if c.content == "" {
					require.NoError(t, os.Remove(path))
					return
				}
				require.NoError(t, os.WriteFile(path, []byte(c.content), 0o600))
			})
			tells(t, c.reason)
			require.NoError(t, os.WriteFile(path, right, 0o600))
			recovers(t)
		})
	}
	t.Run("no right to one kind", func(t *testing.T) {
		role := func(slices string) string {
			const all = "[endpointslices]"
			b, err := os.ReadFile("../../deploy/kustomize/base/rbac.yaml")
			require.NoError(t, err)
			for document := range strings.SplitSeq(string(b), "\n---\n") {
				if strings.Contains(document, "kind: ClusterRole\nmetadata") {
					require.Contains(t, document, all)
					return strings.Replace(document, all, slices, 1)
				}
			}
			require.Fail(t, "no ClusterRole is shipped")
			return ""
		}
		require.NoError(t, s.API.Apply(ctx, role("[nothing]")))
		as := s.API.Config()
		as.Impersonate.UserName = stage.User(standby)
		client, err := kubernetes.NewForConfig(as)
		require.NoError(t, err)
		require.NoError(t, lab.Wait(ctx, patience, func() error {
			_, err := client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
			if !apierrors.IsForbidden(err) {
				return fmt.Errorf("the right is still there: %w", err)
			}
			return nil
		}))
		restart(t, func() {})
		tells(t, "Forbidden")
		require.Contains(t, s.Daemons[standby].Log(), "endpointslices")
		require.NoError(t, s.API.Apply(ctx, role("[endpointslices]")))
		recovers(t)
	})
	traffic.stop(t, now)
	requireInnocent(t, s, now)

	t.Run("no CRD", func(t *testing.T) {
		before := ask(t, s, "a-p1", "b-p1", "a-p2", "b-p2", "c-p1")
		for _, d := range s.Daemons {
			require.NoError(t, d.Stop(ctx))
		}
		crd, err := os.ReadFile("../../config/crd/k8s.ovn.org_egressservices.yaml")
		require.NoError(t, err)
		require.NoError(t, s.API.Delete(ctx, string(crd)))
		for node := range s.Daemons {
			require.NoError(t, s.StartDaemon(node))
		}
		awaitLog(t, s, "reason=CRDMissing", nil, "a", "b")
		before.answered(t, 10, now)
		before.stop(t, now)
		requireInnocent(t, s, now)
		require.NoError(t, s.API.Apply(ctx, string(crd)))
		for _, name := range []string{"web.yaml", "batch.yaml"} {
			content, err := s.Manifest(name)
			require.NoError(t, err)
			require.NoError(t, s.Write(ctx, name, content))
		}
		for _, node := range []string{"a", "b"} {
			// A CRD that was just applied may be served, and not, and served again (apiextensions-apiserver).
			require.NoError(t, lab.Wait(ctx, patience, func() error {
				log := s.Daemons[node].Log()
				if told, gone := strings.Count(log, "msg=problem kind=API"), strings.Count(log, `msg="problem gone" kind=API`); gone != told {
					return fmt.Errorf("%s has told %d problems, of which %d are gone", node, told, gone)
				}
				return nil
			}))
		}
		awaitAll(t, s, now)
		hosts(t, s)
	})
}

// TestRefusesBesideOVN starts a daemon where OVN-Kubernetes serves EgressServices.
func TestRefusesBesideOVN(t *testing.T) {
	s := play(t, stage.Options{API: true, Nodes: []string{"b"}, Exec: map[string][]string{
		"a": {"nft add table inet ovn-kubernetes", "nft add chain inet ovn-kubernetes egress-services"},
	}})
	ctx := t.Context()
	state := func() (all string) {
		for _, args := range [][]string{
			{"nft", "list", "ruleset"},
			{"ip", "rule"},
			{"ip", "-6", "rule"},
			{"ip", "route", "show", "table", "all"},
			{"ip", "-o", "link", "show", "type", "vrf"},
		} {
			out, err := s.Node("a").Run(ctx, args...)
			require.NoError(t, err)
			all += out
		}
		return all
	}
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", "b", ""))
	before := state()
	require.NoError(t, s.StartDaemon("a"))
	d := s.Daemons["a"]
	select {
	case <-d.Done():
	case <-time.After(patience):
		require.Fail(t, "the daemon goes on", d.Log())
	}
	require.ErrorContains(t, d.Err(), "exit status 1")
	require.Equal(t, 1, strings.Count(d.Log(), "nft delete chain inet ovn-kubernetes egress-services"), d.Log())
	require.Equal(t, 1, strings.Count(strings.TrimSpace(d.Log()), "\n")+1, d.Log())
	require.Equal(t, before, state(), "nothing of ours is on the node")

	_, err := s.Node("a").Run(ctx, "nft", "delete", "chain", "inet", "ovn-kubernetes", "egress-services")
	require.NoError(t, err)
	require.NoError(t, s.StartDaemon("a"))
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", "b", "a"))
	awaitAll(t, s, asDeployed())
}
