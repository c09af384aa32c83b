package chaos

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// team is the identity of the guest while web does not select it: that of an EgressIP.
var team = identity{"ext-red", "192.0.2.33", "2001:db8:2::33"}

const egressIP = `apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: team}
spec:
  egressIPs: [192.0.2.33, "2001:db8:2::33"]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}
  podSelector: {matchLabels: {app: guest}}
`

// denied are addresses that no packet of a pod reaches: an EgressFirewall denies them, by one set of rules or another.
var denied = []netip.AddrPort{netip.MustParseAddrPort("198.51.100.66:8080"), netip.MustParseAddrPort("[2001:db8:100::66]:8080")}

// firewalls are the sets of rules. They differ in all but the outcome for the addresses that pods ask; in the second one, a name alone
// allows the address outside.
var firewalls = [...]string{`apiVersion: k8s.ovn.org/v1
kind: EgressFirewall
metadata: {namespace: shop, name: default}
spec:
  egress:
` + allowNames("") + `  - {type: Deny, to: {cidrSelector: 198.51.100.64/29}}
  - {type: Deny, to: {cidrSelector: "2001:db8:100::66/128"}}
`, `apiVersion: k8s.ovn.org/v1
kind: EgressFirewall
metadata: {namespace: shop, name: default}
spec:
  egress:
` + allowNames(", ports: [{protocol: TCP, port: 8080}]") + `  - {type: Deny, to: {cidrSelector: 198.51.100.0/24}}
  - {type: Deny, to: {cidrSelector: "2001:db8:100::/64"}}
`}

// values are the DSCP values that an EgressQoS gives to packets to the world outside, of all pods but those of batch.
var values = [len(firewalls)]uint8{46, 34}

// ofBatch is the value that it gives to packets of batch's pods.
const ofBatch = 10

func egressQoS(rules int) string {
	return fmt.Sprintf(`apiVersion: k8s.ovn.org/v1
kind: EgressQoS
metadata: {namespace: shop, name: default}
spec:
  egress:
  - {dscp: %d, podSelector: {matchLabels: {app: batch}}}
  - {dscp: %d, dstCIDR: 198.51.100.0/24}
  - {dscp: %[2]d, dstCIDR: "2001:db8:100::/64"}
`, ofBatch, values[rules])
}

// rulesManifest holds the objects whose rules one fault changes.
func rulesManifest(rules int) string { return firewalls[rules] + "---\n" + egressQoS(rules) }

// podsManifest holds the Pods of the topology.
func podsManifest() string {
	var all []string
	for _, pod := range stage.Pods {
		app := map[string]string{"1": "web", "2": "batch"}[pod[len(pod)-1:]]
		if pod == guest {
			app = "guest"
		}
		n := strings.IndexByte("abc", pod[0]) + 1
		four, six := fmt.Sprintf("10.244.%d.1%s", n, pod[len(pod)-1:]), fmt.Sprintf("fd44:%d::1%s", n, pod[len(pod)-1:])
		all = append(all, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: %s, labels: {app: %s}, annotations: {kubelab/pod-ip: "%s,%s"}}
spec: {nodeName: %s, automountServiceAccountToken: false, containers: [{name: it, image: it}]}
status: {phase: Running, podIPs: [{ip: %[3]s}, {ip: "%[4]s"}]}
`, pod, app, four, six, pod[:1]))
	}
	return strings.Join(all, "---\n")
}

// furnish adds the kinds that select pods to a stage, and objects of each.
func furnish(containerlab string, o *stage.Options) error {
	o.Exec = freshRoutes()
	o.Manifests = map[string]string{
		"egressip.yaml": egressIP, "pods.yaml": podsManifest(), "rules.yaml": rulesManifest(0), "dns.yaml": stage.ResolverManifest,
	}
	paths, err := filepath.Glob(filepath.Join(containerlab, "vrf-egress", "manifests", "*.yaml"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		o.Manifests[filepath.Base(path)] = string(text)
	}
	for _, node := range stage.Nodes { // any may be the host of an egress IP
		labels := fmt.Sprintf("{kubernetes.io/hostname: %s}", node)
		o.Manifests["cluster.yaml"] = strings.Replace(o.Manifests["cluster.yaml"], labels, nodeLabels(node), 1)
	}
	for _, kind := range []string{"egressips", "egressqoses", "egressfirewalls"} {
		text, err := os.ReadFile(filepath.Join(containerlab, "..", "config", "crd", "k8s.ovn.org_"+kind+".yaml"))
		if err != nil {
			return fmt.Errorf("read a CRD: %w", err)
		}
		o.Objects = append(o.Objects, string(text))
	}
	return nil
}

// withEgressIPs gives the addresses of EgressIPs to the network red.
func withEgressIPs(config string) string {
	const red = "    vrf: vrf-red\n"
	return strings.Replace(config, red, red+"    egressIPs: [192.0.2.32/27, \"2001:db8:2::/64\"]\n", 1)
}

func nodeLabels(node string) string {
	return fmt.Sprintf("{kubernetes.io/hostname: %s, k8s.ovn.org/egress-assignable: \"\"}", node)
}

// isDenied reports whether a question is to a denied address.
func isDenied(q lab.Question) bool { return slices.Contains(denied, q.To) }

// changeRules replaces the rules of the EgressFirewall and of the EgressQoS.
func changeRules(ctx context.Context, r *run, _ *step) error {
	r.rulesBefore, r.rules = r.rules, 1-r.rules
	return r.Write(ctx, "rules.yaml", rulesManifest(r.rules))
}

// trespassers are packets that an EgressFirewall denies, at routers that should not see them.
func (r *run) trespassers() lab.Packets {
	return r.Witness.Find(func(p lab.Packet) bool {
		return slices.ContainsFunc(denied, func(d netip.AddrPort) bool { return p.Dst == d.Addr() })
	})
}

// miscolored are packets with another DSCP value than the one that the EgressQoS gives them now, or gave before the present fault.
func (r *run) miscolored() lab.Packets {
	var batch []string
	for pod, id := range asDeployed() {
		if strings.HasSuffix(pod, "-p2") {
			batch = append(batch, id.source4, id.source6)
		}
	}
	return r.Witness.Find(func(p lab.Packet) bool {
		switch {
		case p.Dst != stage.Outside4.Addr() && p.Dst != stage.Outside6.Addr(), p.Fresh: // a reset that a node sends itself is fresh
			return false
		case slices.Contains(batch, p.Src.String()):
			return p.DSCP != ofBatch
		default:
			return p.DSCP != values[r.rules] && p.DSCP != values[r.rulesBefore]
		}
	})
}

// rulesInForce is an error unless all nodes have the rules of the EgressFirewall and the EgressQoS in force.
func (r *run) rulesInForce(ctx context.Context) error {
	var f egressv1.EgressFirewall
	var q egressv1.EgressQoS
	const object = "{apiVersion: k8s.ovn.org/v1, kind: %s, metadata: {namespace: shop, name: default}}"
	if err := r.API.Get(ctx, fmt.Sprintf(object, "EgressFirewall"), &f); err != nil {
		return err
	}
	if err := r.API.Get(ctx, fmt.Sprintf(object, "EgressQoS"), &q); err != nil {
		return err
	}
	return errors.Join(
		holds("EgressFirewall", "Programmed", f.Status.Conditions, f.Generation),
		holds("EgressQoS", "Ready", q.Status.Conditions, q.Generation))
}

// holds is an error unless an object is in force, as one of its conditions says; generation 0: of any.
func holds(kind, condition string, conditions []metav1.Condition, generation int64) error {
	c := meta.FindStatusCondition(conditions, condition)
	if c == nil || c.Status != metav1.ConditionTrue || c.ObservedGeneration != generation && generation != 0 {
		return fmt.Errorf("%s of generation %d is not in force: %+v", kind, generation, conditions)
	}
	return nil
}

// egressIPInForce is an error unless each address of the EgressIP has a host and a standby, all is in force, and the routers of red
// use the host.
func (r *run) egressIPInForce(ctx context.Context) error {
	var e egressv1.EgressIP
	if err := r.API.Get(ctx, "{apiVersion: k8s.ovn.org/v1, kind: EgressIP, metadata: {name: team}}", &e); err != nil {
		return err
	}
	const whichever = 0 // its generation grows with each write of its status
	if err := holds("EgressIP", "Programmed", e.Status.Conditions, whichever); err != nil {
		return err
	}
	if n := len(e.Status.Items); n != len(e.Spec.EgressIPs) {
		return fmt.Errorf("EgressIP has %d of %d addresses at hosts", n, len(e.Spec.EgressIPs))
	}
	for _, item := range e.Status.Items {
		if item.Standby == "" {
			return fmt.Errorf("egress IP %s, host %s, has no standby", item.EgressIP, item.Node)
		}
		a, err := netip.ParseAddr(item.EgressIP)
		if err != nil {
			return err
		}
		family := map[bool]int{true: 0, false: 1}[a.Is4()]
		for _, router := range []string{"red1", "red2"} {
			used, err := r.NextHops(router, netip.PrefixFrom(a, a.BitLen()))
			if err != nil {
				return err
			}
			want := []string{inRed(item.Node)[family]}
			if r.now[guest] != team { // no pod leaves by it
				want = nil
			}
			if !slices.Equal(used, want) {
				return fmt.Errorf("%s has %s by %v, want %v", router, a, used, want)
			}
		}
	}
	return nil
}
