package kube

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/custom"
)

const (
	firewallCRD = "../../../config/crd/k8s.ovn.org_egressfirewalls.yaml"
	qosCRD      = "../../../config/crd/k8s.ovn.org_egressqoses.yaml"
	qosResource = "egressqoses." + egressv1.GroupName
)

var qosKey = cluster.Key{Namespace: "default", Name: cluster.NameEgressQoS}

// anEgressQoS returns the EgressQoS of the default namespace with a rule for each value.
func anEgressQoS(values ...int) string {
	var rules []string
	for _, v := range values {
		rules = append(rules, fmt.Sprintf("{dscp: %d}", v))
	}
	return fmt.Sprintf(`{apiVersion: k8s.ovn.org/v1, kind: EgressQoS, metadata: {name: default, namespace: default}, spec: {egress: [%s]}}`,
		strings.Join(rules, ", "))
}

// valuesAre waits for an EgressQoS with such values, and for the Pods that it needs; without values, for none, and no Pods.
func valuesAre(want ...int) func(o cluster.Objects, _ []cluster.Problem, synced bool) bool {
	return func(o cluster.Objects, _ []cluster.Problem, synced bool) bool {
		q, there := o.EgressQoSes.Get(qosKey)
		var have []int
		for _, r := range q.Rules {
			have = append(have, int(r.DSCP))
		}
		return synced && there == (len(want) > 0) && slices.Equal(have, want) && o.PodsKnown == there
	}
}

// optional checks that a kind is served while its CRD is there, without a restart, and that objects stay in force if they vanish with
// their CRD.
func (s *site) optional(t *testing.T) {
	r := read(t, s.kubeconfig)
	r.untilWell(t)
	r.until(t, "no CRD", valuesAre())
	absent := func(problems []cluster.Problem) bool {
		return slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Object == qosResource && p.Reason == ReasonCRDMissing })
	}
	gone := func() {
		t.Helper()
		s.Delete(t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: `+qosResource+`}}`)
		require.True(t, waitFor(t, func() bool {
			return apierrors.IsNotFound(s.raw.Get().Resource("egressqoses").Do(t.Context()).Error())
		}))
	}

	// The CRD comes.
	s.applyCRD(t, qosCRD)
	s.Apply(t, anEgressQoS(46, 0))
	_, _, _, _ = r.Objects()
	r.until(t, "served", valuesAre(46, 0))
	var changed cluster.Changed
	s.Apply(t, anEgressQoS(12))
	require.True(t, waitFor(t, func() bool {
		_, c, _, _ := r.Objects()
		changed.Join(c)
		return changed.Of[cluster.KindEgressQoS][qosKey]
	}))
	require.False(t, changed.All)
	require.Empty(t, changed.Of[cluster.KindEgressService])

	// It goes without objects.
	s.Delete(t, anEgressQoS())
	r.until(t, "no object", valuesAre())
	gone()
	r.untilWell(t)

	// It comes back, and goes with an object: this stays in force, even while a daemon that starts knows of none.
	s.applyCRD(t, qosCRD)
	s.Apply(t, anEgressQoS(46))
	r.until(t, "served again", valuesAre(46))
	gone()
	r.until(t, "missed", func(o cluster.Objects, problems []cluster.Problem, synced bool) bool {
		require.True(t, valuesAre(46)(o, problems, synced))
		return absent(problems)
	})
	later := read(t, s.kubeconfig)
	later.untilWell(t)
	later.until(t, "none", valuesAre())

	// The server ends each watch of the CRD, and the problem stays.
	refused := func() (n int) {
		for _, e := range s.Audit(t) {
			if e.Verb == "list" && e.Resource == "egressqoses" && e.Code == http.StatusNotFound {
				n++
			}
		}
		return n
	}
	require.True(t, waitFor(t, func() bool {
		r.complaints.mu.Lock()
		defer r.complaints.mu.Unlock()
		_, waits := r.complaints.by[r.egressQoSes.about("absent")]
		return waits
	}))
	complaints, begin := r.complaints.count(), refused()
	require.True(t, waitFor(t, func() bool { return refused() >= begin+6 }), "two daemons list again")
	require.Equal(t, complaints, r.complaints.count())

	// It comes back without its objects.
	s.applyCRD(t, qosCRD)
	r.until(t, "gone now", valuesAre())
	r.untilWell(t)
	s.Apply(t, anEgressQoS(7))
	for _, of := range []*reader{r, later} {
		of.until(t, "the new one", valuesAre(7))
		of.untilWell(t)
	}
	require.Zero(t, r.log.count("level=ERROR"), r.log)

	// The configuration switches the kind off, and on.
	r.TurnOff(cluster.KindSet{cluster.KindEgressQoS: true})
	r.until(t, "off", valuesAre())
	s.Apply(t, anEgressQoS(8))
	r.TurnOff(cluster.KindSet{})
	r.until(t, "on", valuesAre(8))
	off := read(t, s.kubeconfig, func(o *Options) { o.Off[cluster.KindEgressQoS] = true })
	off.untilWell(t)
	off.until(t, "off from the start", valuesAre())
	s.Delete(t, anEgressQoS())
	r.until(t, "no object", valuesAre())
}

// TestMissingCRDIsWithdrawn ends the problem of objects without their CRD by a list, and by the switch of the kind.
func TestMissingCRDIsWithdrawn(t *testing.T) {
	for name, end := range map[string]func(c *toldCluster) error{
		"list": func(c *toldCluster) error { return c.egressQoSes.Replace(nil, "") },
		"off": func(c *toldCluster) error {
			c.TurnOff(cluster.KindSet{cluster.KindEgressQoS: true})
			c.egressQoSes.forget()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTold(t)
			o := &custom.Object{Spec: []byte(`{"egress": [{"dscp": 46}]}`)}
			o.Namespace, o.Name = qosKey.Namespace, qosKey.Name
			require.NoError(t, c.egressQoSes.Replace([]any{o}, ""))
			c.complain(c.egressQoSes.about("absent"), c.egressQoSes.orphaned())
			require.Equal(t, ReasonCRDMissing, c.complaints.all()[0].Reason)
			require.NoError(t, end(c))
			require.Empty(t, c.complaints.all())
		})
	}
}

// firstSnapshot checks that a daemon that starts knows the objects of an optional kind, and the Pods that they select, before it
// acts.
func (s *site) firstSnapshot(t *testing.T) {
	pod := aPod("mine", "own", "{ip: 10.244.9.1}")
	s.Apply(t, pod)
	defer s.Delete(t, pod)
	for _, of := range []struct {
		crd, kind, object string
		known             func(cluster.Objects) bool
	}{
		{qosCRD, "egressqoses", anEgressQoS(46), func(o cluster.Objects) bool { return valuesAre(46)(o, nil, true) }},
		{firewallCRD, "egressfirewalls", anEgressFirewall, func(o cluster.Objects) bool {
			return len(o.EgressFirewalls.At(firewallKey).Rules) == 1
		}},
		{ipCRD, "egressips", anEgressIP("default"), func(o cluster.Objects) bool { return len(o.EgressIPs.At(teamKey).Addresses) == 2 }},
	} {
		s.applyCRD(t, of.crd)
		s.Apply(t, of.object)
		// A server answers first lists from its cache, which knows an object a moment after its creation.
		cached := read(t, s.kubeconfig)
		cached.until(t, "cached", func(o cluster.Objects, _ []cluster.Problem, synced bool) bool {
			return synced && of.known(o) && o.PodsKnown && o.Pods.Len() == 1
		})
		cached.stop()
		for _, kind := range []string{of.kind, podResource} {
			p := newProxy(t, s)
			p.set(func() { p.blind = kind })
			r := read(t, p.kubeconfig)
			r.untilProblem(t, "server", ReasonServerFails)
			_, synced := r.latest()
			require.False(t, synced, kind)
			p.set(func() { p.blind = "" })
			r.until(t, "known", func(o cluster.Objects, _ []cluster.Problem, synced bool) bool {
				if synced {
					require.True(t, of.known(o), kind)
					require.True(t, o.PodsKnown)
					require.Equal(t, 1, o.Pods.Len(), kind)
				}
				return synced
			})
			r.stop()
		}

		// A server that starts denies everything until it has read its roles.
		p := newProxy(t, s)
		p.set(func() { p.denied = []string{"egressservices", of.kind} })
		r := read(t, p.kubeconfig)
		r.untilProblem(t, of.kind+"."+egressv1.GroupName, ReasonForbidden)
		p.set(func() { p.denied, p.blind = nil, of.kind })
		r.untilProblem(t, "server", ReasonServerFails)
		r.until(t, "EgressServices", func(cluster.Objects, []cluster.Problem, bool) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.egressServices.isSynced()
		})
		p.set(func() { p.blind = "" })
		r.until(t, "known", func(o cluster.Objects, _ []cluster.Problem, synced bool) bool {
			require.Equal(t, synced, of.known(o), of.kind)
			return synced
		})
		r.stop()
		s.Delete(t, of.object)
	}
}

// anEgressFirewall is the EgressFirewall of the default namespace.
const anEgressFirewall = `{apiVersion: k8s.ovn.org/v1, kind: EgressFirewall, metadata: {name: default, namespace: default},
  spec: {egress: [{type: Deny, to: {cidrSelector: 0.0.0.0/0}}]}}`

var firewallKey = cluster.Key{Namespace: "default", Name: cluster.NameEgressFirewall}

// forbiddenKind checks that a daemon that may not list an optional kind waits for this right only if the server has the kind.
func (s *site) forbiddenKind(t *testing.T) {
	require.True(t, custom.Absent(t.Context(), s.discovery(), "adminpolicybasedexternalroutes."+egressv1.GroupName, forbiddenError()), "no such CRD")
	s.applyCRD(t, qosCRD)
	require.False(t, custom.Absent(t.Context(), s.discovery(), qosResource, forbiddenError()))
	require.False(t, custom.Absent(t.Context(), s.discovery(), qosResource, apierrors.NewNotFound(egressv1.Resource("egressqoses"), "")),
		"a server that denies what it has")
	require.False(t, custom.Absent(t.Context(), s.discovery(), qosResource, errors.New("another error")))
}

func forbiddenError() error {
	return apierrors.NewForbidden(egressv1.Resource("egressqoses"), "", errors.New("no"))
}

// TestBadEgressQoSes reads objects that a CRD without a schema admits: what can be read is kept, rule by rule.
func TestBadEgressQoSes(t *testing.T) {
	for _, test := range []struct {
		name, spec string
		kept       []int
		problems   []string // their fields
	}{
		{"good", `{"egress": [{"dscp": 46}, {"dscp": 0, "dstCIDR": "fd44::/16"}]}`, []int{46, 0}, nil},
		{"no rules", `{"egress": []}`, nil, nil},
		{"no spec", ``, nil, nil},
		{"a spec of another type", `[]`, nil, []string{"spec"}},
		{"rules of another type", `{"egress": {"dscp": 46}}`, nil, []string{"spec"}},
		{"a rule of another type", `{"egress": [46, {"dscp": 1}]}`, []int{1}, []string{"spec.egress[0]"}},
		{"a value as text", `{"egress": [{"dscp": "46"}, {"dscp": 1}]}`, []int{1}, []string{"spec.egress[0]"}},
		{"a fraction", `{"egress": [{"dscp": 1.5}, {"dscp": 1}]}`, []int{1}, []string{"spec.egress[0]"}},
		{"beyond 64 bits", `{"egress": [{"dscp": 99999999999999999999}, {"dscp": 1}]}`, []int{1}, []string{"spec.egress[0]"}},
		{"64", `{"egress": [{"dscp": 64}, {"dscp": 1}]}`, []int{1}, []string{"spec.egress[0].dscp"}},
		{"negative", `{"egress": [{"dscp": -1}, {"dscp": 1}]}`, []int{1}, []string{"spec.egress[0].dscp"}},
		{"a CIDR of another type", `{"egress": [{"dscp": 2, "dstCIDR": 10}, {"dscp": 1}]}`, []int{1}, []string{"spec.egress[0]"}},
		{"no CIDR", `{"egress": [{"dscp": 2, "dstCIDR": "all"}, {"dscp": 1}]}`, []int{1}, []string{"spec.egress[0].dstCIDR"}},
		{"an address", `{"egress": [{"dscp": 2, "dstCIDR": "10.0.0.1"}, {"dscp": 1}]}`, []int{1}, []string{"spec.egress[0].dstCIDR"}},
		{"a selector of another type", `{"egress": [{"dscp": 2, "podSelector": "app=web"}, {"dscp": 1}]}`, []int{1}, []string{"spec.egress[0]"}},
		{"an operator", `{"egress": [{"dscp": 2, "podSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}, {"dscp": 1}]}`, []int{1}, []string{"spec.egress[0].podSelector"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newTold(t)
			c.sync(t)
			bad := &custom.Object{Spec: []byte(test.spec)}
			bad.Namespace, bad.Name = qosKey.Namespace, qosKey.Name
			good := &custom.Object{Spec: []byte(`{"egress": [{"dscp": 9}]}`)}
			good.Namespace, good.Name = "other", qosKey.Name
			require.NoError(t, c.egressQoSes.Replace([]any{bad, good}, ""))
			c.FollowPods(false)
			require.NoError(t, c.pods.Replace(nil, ""))
			o, _, problems, ok := c.Objects()
			require.True(t, ok)
			var kept []int
			for _, rule := range o.EgressQoSes.At(qosKey).Rules {
				kept = append(kept, int(rule.DSCP))
			}
			require.Equal(t, test.kept, kept)
			require.Len(t, o.EgressQoSes.At(cluster.Key{Namespace: "other", Name: qosKey.Name}).Rules, 1, "others are served")
			var fields []string
			for _, p := range problems {
				require.Equal(t, "EgressQoS", p.Kind)
				require.Equal(t, qosKey.String(), p.Object)
				fields = append(fields, p.Field)
			}
			require.Equal(t, test.problems, fields, "%v", problems)
		})
	}
}

// TestBadEgressFirewalls reads objects that a CRD without a schema admits: each part that can be read counts, and the rest has its strictest
// reading.
func TestBadEgressFirewalls(t *testing.T) {
	const allow, deny = `{"type": "Allow", "to": {"cidrSelector": "203.0.113.0/24"}}`, `{"type": "Deny", "to": {"cidrSelector": "203.0.113.0/24"}}`
	for _, test := range []struct {
		name, spec string
		kept       []string // the rules' texts; those that deny everything have none
		fields     []string // of problems
	}{
		{"good", `{"egress": [` + allow + `, ` + deny + `]}`, []string{"Allow 203.0.113.0/24", "Deny 203.0.113.0/24"}, nil},
		{"no rules", `{"egress": []}`, nil, nil},
		{"no spec", ``, []string{"all"}, []string{"spec.egress"}},
		{"null", `null`, []string{"all"}, []string{"spec.egress"}},
		{"no egress", `{}`, []string{"all"}, []string{"spec.egress"}},
		{"a spec of another type", `"deny"`, []string{"all"}, []string{"spec"}},
		{"rules of another type", `{"egress": {"type": "Deny"}}`, []string{"all"}, []string{"spec"}},
		{"a rule of another type", `{"egress": [7, ` + allow + `]}`, []string{"all", "Allow 203.0.113.0/24"}, []string{"spec.egress[0]"}},
		{"a type of another type", `{"egress": [{"type": 1, "to": {"cidrSelector": "203.0.113.0/24"}}]}`, []string{"Deny 203.0.113.0/24"}, []string{"spec.egress[0].type"}},
		{"another type", `{"egress": [{"type": "deny", "to": {"cidrSelector": "203.0.113.0/24"}}]}`, []string{"Deny 203.0.113.0/24"}, []string{"spec.egress[0].type"}},
		{"ports of an Allow", `{"egress": [{"type": "Allow", "ports": 443, "to": {"cidrSelector": "203.0.113.0/24"}}]}`, nil, []string{"spec.egress[0].ports"}},
		{"ports of a Deny", `{"egress": [{"type": "Deny", "ports": 443, "to": {"cidrSelector": "203.0.113.0/24"}}]}`, []string{"Deny 203.0.113.0/24 (cannot be read)"}, []string{"spec.egress[0].ports"}},
		{"a destination of an Allow", `{"egress": [{"type": "Allow", "to": "203.0.113.0/24"}]}`, nil, []string{"spec.egress[0].to"}},
		{"a destination of a Deny", `{"egress": [{"type": "Deny", "to": "203.0.113.0/24"}, ` + allow + `]}`, []string{"all", "Allow 203.0.113.0/24"}, []string{"spec.egress[0].to"}},
		{"no destination", `{"egress": [{"type": "Deny"}]}`, []string{"all"}, []string{"spec.egress[0].to"}},
		{"two destinations", `{"egress": [{"type": "Deny", "to": {"cidrSelector": "203.0.113.0/24", "dnsName": "a.example.com"}}]}`, []string{"all"}, []string{"spec.egress[0].to"}},
		{"no name", `{"egress": [{"type": "Allow", "to": {"dnsName": "a_.-.com"}}, ` + deny + `]}`, []string{"Deny 203.0.113.0/24"}, []string{"spec.egress[0].to.dnsName"}},
		{"a name", `{"egress": [{"type": "Allow", "to": {"dnsName": "a.example.com"}}, ` + deny + `]}`, []string{"Allow a.example.com", "Deny 203.0.113.0/24"}, nil},
		{"an address", `{"egress": [{"type": "Deny", "to": {"cidrSelector": "203.0.113.1"}}]}`, []string{"all"}, []string{"spec.egress[0].to.cidrSelector"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newTold(t)
			c.sync(t)
			bad := &custom.Object{Spec: []byte(test.spec)}
			bad.Namespace, bad.Name = firewallKey.Namespace, firewallKey.Name
			good := &custom.Object{Spec: []byte(`{"egress": [` + allow + `]}`)}
			good.Namespace, good.Name = "other", firewallKey.Name
			require.NoError(t, c.firewalls.Replace([]any{bad, good}, ""))
			require.NoError(t, c.pods.Replace(nil, ""))
			o, _, problems, ok := c.Objects()
			require.True(t, ok)
			require.Equal(t, 2, o.EgressFirewalls.Len())
			require.Len(t, o.EgressFirewalls.At(cluster.Key{Namespace: "other", Name: firewallKey.Name}).Rules, 1, "others are served")
			var kept []string
			for _, r := range o.EgressFirewalls.At(firewallKey).Rules {
				if r.Deny && !r.To.IsValid() && r.Nodes == nil {
					require.Empty(t, r.Ports)
					r.Text = "all"
				}
				kept = append(kept, r.Text)
			}
			require.Equal(t, test.kept, kept)
			var fields []string
			for _, p := range problems {
				require.Equal(t, "EgressFirewall", p.Kind)
				require.Equal(t, firewallKey.String(), p.Object)
				fields = append(fields, p.Field)
			}
			require.Equal(t, test.fields, fields, "%v", problems)
		})
	}
}

// TestBadPoliciesHaveABound reads policies of a thousand rules that cannot be decoded: a few of them are reported.
func TestBadPoliciesHaveABound(t *testing.T) {
	spec := []byte(`{"egress": [` + strings.Repeat("7, ", 999) + `7]}`)
	c := newTold(t)
	for kind, key := range map[cluster.Kind]cluster.Key{cluster.KindEgressQoS: qosKey, cluster.KindEgressFirewall: firewallKey} {
		o := &custom.Object{Spec: spec}
		o.Namespace, o.Name = key.Namespace, key.Name
		var problems []cluster.Problem
		if kind == cluster.KindEgressQoS {
			problems = c.trimEgressQoS(o).problems
		} else {
			problems = c.trimEgressFirewall(o).problems
		}
		require.Equal(t, 10, len(problems), "%s", kind)
	}
}
