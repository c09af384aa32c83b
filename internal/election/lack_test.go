package election

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
)

func cordon(o *cluster.Objects, node string, yes bool) {
	n := o.Nodes.At(node)
	n.Cordoned = yes
	o.Nodes = o.Nodes.With(node, n)
}

func drain(reports map[string]cluster.Report, node string, yes bool) {
	r := reports[node]
	r.Draining = yes
	reports[node] = r
}

func refuse(reports map[string]cluster.Report, node string) {
	r := reports[node]
	r.Refusing = true
	reports[node] = r
}

func age(reports map[string]cluster.Report, nodes ...string) {
	for _, node := range nodes {
		r := reports[node]
		r.Old = true
		reports[node] = r
	}
}

// routed sets the routes that a node reports in network default.
func routed(reports map[string]cluster.Report, node string, ipv4, ipv6 bool) {
	r := reports[node]
	r.Networks = map[string]cluster.NetworkState{"default": {Usable: true, IPv4: ipv4, IPv6: ipv6, Sessions: 1, Up: 1}}
	reports[node] = r
}

func say(reports map[string]cluster.Report, witness, node string, alive bool) {
	r := reports[witness]
	r.Hosts = map[string]bool{node: alive}
	reports[witness] = r
}

// elected gives service a a host and a standby, and elects again.
func elected(o cluster.Objects, reports map[string]cluster.Report, host, standby string) Choice {
	change(&o, "a", func(e *cluster.EgressService, _ *cluster.Service) {
		e.Status = cluster.Status{Host: host, Standby: standby, Term: 1}
	})
	return Elect(o, reports)[seat("a")]
}

// A dead host without a successor is not programmed: nodes steer no packets to it.
func TestDeadHostIsNotProgrammed(t *testing.T) {
	w := &world{t: t, o: objects(2, "a"), reports: up("n0"), key: key("a"), version: 1}
	require.Equal(t, "n0", w.step().Host)
	applied(w.reports, "n0", w.version)
	require.Equal(t, metav1.ConditionTrue, condition(t, w.step(), ConditionProgrammed).Status)
	r := w.reports
	r["n1"] = cluster.Report{}
	say(r, "n1", "n0", false)
	w.view.Dead = Dead(r)
	next := w.step()
	require.Equal(t, "n0", next.Host)
	c := condition(t, next, ConditionProgrammed)
	require.Equal(t, metav1.ConditionFalse, c.Status)
	require.Equal(t, string(cluster.ReasonHostSilent), c.Reason)
	require.Contains(t, c.Message, "node n0 does not answer the nodes that watch it")
	say(r, "n1", "n0", true)
	w.view.Dead = Dead(r)
	require.Equal(t, metav1.ConditionTrue, condition(t, w.step(), ConditionProgrammed).Status)
}

func TestPreferredNodes(t *testing.T) {
	tests := map[string]struct {
		spoil         func(o *cluster.Objects, r map[string]cluster.Report)
		host, standby string // of n0 and n1, which are now host and standby, and n2
		why, despite  string
	}{
		"all is well":   {func(*cluster.Objects, map[string]cluster.Report) {}, "n0", "n1", "", ""},
		"host cordoned": {func(o *cluster.Objects, _ map[string]cluster.Report) { cordon(o, "n0", true) }, "n1", "n2", "node n0 is cordoned", ""},
		"host draining": {func(_ *cluster.Objects, r map[string]cluster.Report) { drain(r, "n0", true) }, "n1", "n2", "node n0 is draining", ""},
		"host refusing": {func(_ *cluster.Objects, r map[string]cluster.Report) { refuse(r, "n0") }, "n0", "n1", "", "the kernel of node n0 refuses what is planned, so it serves as before"},
		"host draining, standby refusing": {func(_ *cluster.Objects, r map[string]cluster.Report) {
			drain(r, "n0", true)
			refuse(r, "n1")
		}, "n2", "", "node n0 is draining", ""},
		"host without a route": {func(_ *cluster.Objects, r map[string]cluster.Report) { routed(r, "n0", false, true) }, "n1", "n2", "network default has no IPv4 route on node n0", ""},
		"host dead":            {func(_ *cluster.Objects, r map[string]cluster.Report) { say(r, "n1", "n0", false) }, "n1", "n2", "node n0 does not answer the nodes that watch it", ""},
		"host not Ready":       {func(o *cluster.Objects, _ map[string]cluster.Report) { unready(o, "n0") }, "n1", "n2", "node n0 is not Ready", ""},
		"host not Ready, its daemon silent": {func(o *cluster.Objects, r map[string]cluster.Report) {
			unready(o, "n0")
			delete(r, "n0")
		}, "n1", "n2", "node n0 is not Ready", ""},
		"host not Ready, the others without a route": {func(o *cluster.Objects, r map[string]cluster.Report) {
			unready(o, "n0")
			routed(r, "n1", false, false)
			routed(r, "n2", false, false)
		}, "n0", "", "", "node n0 is not Ready, but no other node would be better"},
		"host not Ready, the others silent": {func(o *cluster.Objects, r map[string]cluster.Report) {
			unready(o, "n0")
			delete(r, "n1")
			delete(r, "n2")
		}, "n0", "", "", "node n0 is not Ready, but no other node may be the host"},
		"host not Ready, the others draining": {func(o *cluster.Objects, r map[string]cluster.Report) {
			unready(o, "n0")
			drain(r, "n1", true)
			drain(r, "n2", true)
		}, "n1", "", "node n0 is not Ready", "node n1 is draining, but no other node would be better"},
		"none Ready": {func(o *cluster.Objects, _ map[string]cluster.Report) {
			unready(o, "n0")
			unready(o, "n1")
			unready(o, "n2")
		}, "n0", "n1", "", "node n0 is not Ready, but no other node would be better"},
		"standby not Ready": {func(o *cluster.Objects, _ map[string]cluster.Report) { unready(o, "n1") }, "n0", "n2", "", ""},
		"standby cordoned":  {func(o *cluster.Objects, _ map[string]cluster.Report) { cordon(o, "n1", true) }, "n0", "n2", "", ""},
		"standby draining":  {func(_ *cluster.Objects, r map[string]cluster.Report) { drain(r, "n1", true) }, "n0", "n2", "", ""},
		"standby refusing":  {func(_ *cluster.Objects, r map[string]cluster.Report) { refuse(r, "n1") }, "n0", "n2", "", ""},
		"all refusing": {func(_ *cluster.Objects, r map[string]cluster.Report) {
			for _, node := range []string{"n0", "n1", "n2"} {
				refuse(r, node)
			}
		}, "n0", "", "", "the kernel of node n0 refuses what is planned, but no other node would be better"},
		"host's report old": {func(_ *cluster.Objects, r map[string]cluster.Report) { age(r, "n0") }, "n0", "n1", "", "node n0 has not reported recently, but may serve as before"},
		"host's report old, refusing": {func(_ *cluster.Objects, r map[string]cluster.Report) {
			refuse(r, "n0")
			age(r, "n0")
		}, "n0", "n1", "", "node n0 has not reported recently, but may serve as before"},
		"host cordoned, standby's report old": {func(o *cluster.Objects, r map[string]cluster.Report) {
			cordon(o, "n0", true)
			age(r, "n1")
		}, "n2", "n1", "node n0 is cordoned", ""},
		"standby's report old": {func(_ *cluster.Objects, r map[string]cluster.Report) { age(r, "n1") }, "n0", "n1", "", ""},
		"standby cordoned, the other's report old": {func(o *cluster.Objects, r map[string]cluster.Report) {
			cordon(o, "n1", true)
			age(r, "n2")
		}, "n0", "", "", ""},
		"all reports old": {func(_ *cluster.Objects, r map[string]cluster.Report) { age(r, "n0", "n1", "n2") }, "n0", "n1", "", "node n0 has not reported recently, but no other node would be better"},
		"all reports old, host dead": {func(_ *cluster.Objects, r map[string]cluster.Report) {
			age(r, "n0", "n1", "n2")
			say(r, "n1", "n0", false)
		}, "n1", "", "node n0 does not answer the nodes that watch it", "node n1 has not reported recently, but no other node would be better"},
		"standby without route": {func(_ *cluster.Objects, r map[string]cluster.Report) { routed(r, "n1", false, true) }, "n0", "n2", "", ""},
		"standby dead":          {func(_ *cluster.Objects, r map[string]cluster.Report) { say(r, "n0", "n1", false) }, "n0", "n2", "", ""},
		"a family it needs not": {func(_ *cluster.Objects, r map[string]cluster.Report) { routed(r, "n0", true, false) }, "n0", "n1", "", ""},
		"host and standby":      {func(o *cluster.Objects, _ map[string]cluster.Report) { cordon(o, "n0", true); cordon(o, "n1", true) }, "n2", "", "node n0 is cordoned", ""},
		"all cordoned": {func(o *cluster.Objects, _ map[string]cluster.Report) {
			cordon(o, "n0", true)
			cordon(o, "n1", true)
			cordon(o, "n2", true)
		}, "n0", "n1", "", "node n0 is cordoned, but no other node would be better"},
		"all draining": {func(_ *cluster.Objects, r map[string]cluster.Report) {
			drain(r, "n0", true)
			drain(r, "n1", true)
			drain(r, "n2", true)
		}, "n0", "", "", "node n0 is draining, but no other node would be better"},
		"all cordoned, the host draining": {func(o *cluster.Objects, r map[string]cluster.Report) {
			cordon(o, "n0", true)
			cordon(o, "n1", true)
			cordon(o, "n2", true)
			drain(r, "n0", true)
		}, "n1", "n2", "node n0 is draining", "node n1 is cordoned, but no other node would be better"},
		"no route anywhere": {func(_ *cluster.Objects, r map[string]cluster.Report) {
			routed(r, "n0", false, false)
			routed(r, "n1", false, false)
			routed(r, "n2", false, false)
		}, "n0", "n1", "", "network default has no IPv4 route on node n0, but no other node would be better"},
		"cordoned, the others without a route": {func(o *cluster.Objects, r map[string]cluster.Report) {
			cordon(o, "n0", true)
			routed(r, "n1", false, false)
			routed(r, "n2", false, false)
		}, "n0", "", "", "node n0 is cordoned, but no other node would be better"},
		"without a route, another is cordoned": {func(o *cluster.Objects, r map[string]cluster.Report) {
			routed(r, "n0", false, false)
			routed(r, "n1", false, false)
			cordon(o, "n2", true)
		}, "n2", "", "network default has no IPv4 route on node n0", "node n2 is cordoned, but no other node would be better"},
		"all dead": {func(_ *cluster.Objects, r map[string]cluster.Report) {
			for _, n := range []string{"n0", "n1", "n2"} {
				say(r, "w-"+n, n, false)
			}
		}, "n0", "", "", "node n0 does not answer the nodes that watch it, but no other node would be better"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o, reports := objects(3, "a"), up("n0", "n1", "n2")
			test.spoil(&o, reports)
			got := elected(o, reports, "n0", "n1")
			require.Equal(t, []string{test.host, test.standby, test.why, test.despite}, []string{got.Host, got.Standby, got.Why, got.Despite})
		})
	}
}

func TestNewServiceGetsWhatThereIs(t *testing.T) {
	o, reports := objects(2, "a"), up("n0", "n1")
	cordon(&o, "n0", true)
	got := Elect(o, reports)[seat("a")]
	require.Equal(t, "n1", got.Host)
	require.Empty(t, got.Standby, "a cordoned node is no standby of another")
	routed(reports, "n1", false, false)
	require.Equal(t, "n0", Elect(o, reports)[seat("a")].Host, "better cordoned than cut off")

	say(reports, "w", "n0", false)
	require.Equal(t, "n1", Elect(o, reports)[seat("a")].Host, "better cut off than dead")
	say(reports, "x", "n1", false)
	got = Elect(o, reports)[seat("a")]
	require.Empty(t, got.Host)
	require.Equal(t, cluster.ReasonNoEligibleNode, got.Problem.Reason)
	require.Contains(t, got.Problem.Message, "does not answer")
}

func TestFamiliesNeeded(t *testing.T) {
	const v4, v6 = "10.244.0.1", "fd44::1"
	for name, test := range map[string]struct {
		ingress, endpoints []string
		want               families
	}{
		"both":                          {[]string{"203.0.113.1", "2001:db8::1"}, []string{v4, "10.244.0.2", v6}, families{true, true}},
		"IPv4 endpoints only":           {[]string{"203.0.113.1", "2001:db8::1"}, []string{v4}, families{ipv4: true}},
		"IPv6 ingress only":             {[]string{"2001:db8::1"}, []string{v4, v6}, families{ipv6: true}},
		"no endpoint of its ingress IP": {[]string{"2001:db8::1"}, []string{v4}, families{}},
		"hostNetwork counts for none":   {[]string{"203.0.113.1", "2001:db8::1"}, []string{"10.0.0.0", v6}, families{ipv6: true}},
		"what is none":                  {[]string{"203.0.113.1", "2001:db8::1"}, []string{"::1", "x", "1::x", v4}, families{ipv4: true}},
	} {
		t.Run(name, func(t *testing.T) {
			o := objects(1, "a")
			change(&o, "a", func(_ *cluster.EgressService, s *cluster.Service) {
				s.Ingress = nil
				for _, ip := range test.ingress {
					s.Ingress = append(s.Ingress, cluster.Ingress{IP: ip})
				}
			})
			o.Endpoints = o.Endpoints.With(key("a"), nil)
			for _, e := range test.endpoints {
				o.Endpoints = o.Endpoints.With(key("a"), append(o.Endpoints.At(key("a")), cluster.Endpoint{Address: e, Node: "n0"}))
			}
			c, _, problem := egressServices{}.contender(newElector(o, nil, Policy{}), seat("a"))
			require.Nil(t, problem)
			require.Equal(t, test.want, c.need)
		})
	}
}

// Services of a network move when a node lacks its routes, those of other networks stay, and no service moves back.
func TestNetworksFailAlone(t *testing.T) {
	o := objects(2, "a", "b")
	change(&o, "b", func(e *cluster.EgressService, _ *cluster.Service) { e.Network = "blue" })
	well := cluster.NetworkState{Usable: true, IPv4: true, IPv6: true, Sessions: 2, Up: 2}
	for name, ill := range map[string]cluster.NetworkState{
		"no session": {Usable: true, IPv4: true, IPv6: true, Sessions: 2},
		"no VRF":     {Sessions: 2},
		"no route":   {Usable: true, Sessions: 2, Up: 2},
	} {
		t.Run(name, func(t *testing.T) {
			for _, service := range []string{"a", "b"} {
				change(&o, service, func(e *cluster.EgressService, _ *cluster.Service) {
					e.Status = cluster.Status{Host: "n0", Standby: "n1", Term: 1}
				})
			}
			state := func(red cluster.NetworkState) map[string]cluster.Report {
				return map[string]cluster.Report{
					"n0": {Networks: map[string]cluster.NetworkState{"default": red, "blue": well}},
					"n1": {Networks: map[string]cluster.NetworkState{"default": well, "blue": well}},
				}
			}
			got := Elect(o, state(ill))
			require.Equal(t, "n1", got[seat("a")].Host)
			require.Empty(t, got[seat("a")].Standby)
			require.Equal(t, "n0", got[seat("b")].Host)
			require.Equal(t, "n1", got[seat("b")].Standby)
			change(&o, "a", func(e *cluster.EgressService, _ *cluster.Service) { e.Status = cluster.Status{Host: "n1", Term: 2} })
			got = Elect(o, state(well))
			require.Equal(t, "n1", got[seat("a")].Host, "no failback")
			require.Equal(t, "n0", got[seat("a")].Standby)
		})
	}
}

func TestGroupPrefersTogether(t *testing.T) {
	o, reports := objects(3, "a", "b"), up("n0", "n1", "n2")
	change(&o, "b", func(_ *cluster.EgressService, s *cluster.Service) {
		s.Ingress = []cluster.Ingress{o.Services.At(key("a")).Ingress[0], {IP: "2001:db8::1"}}
	})
	o.Endpoints = o.Endpoints.With(key("b"), []cluster.Endpoint{{Address: "fd44::1", Node: "n0"}})
	routed(reports, "n0", true, false) // enough for a alone
	routed(reports, "n1", true, false)
	for _, service := range []string{"a", "b"} {
		change(&o, service, func(e *cluster.EgressService, _ *cluster.Service) {
			e.Status = cluster.Status{Host: "n0", Standby: "n1", Term: 1}
		})
	}
	got := Elect(o, reports)
	for _, service := range []string{"a", "b"} {
		require.Equal(t, "n2", got[seat(service)].Host)
		require.Equal(t, "network default has no IPv6 route on node n0", got[seat(service)].Why)
	}
}

// With manifests, of all lacks only a node's cordon counts.
func TestPreferenceWithoutReports(t *testing.T) {
	o := objects(2, "a")
	require.Equal(t, "n1", elected(o, nil, "n1", "").Host)
	cordon(&o, "n1", true)
	got := elected(o, nil, "n1", "")
	require.Equal(t, "n0", got.Host)
	require.Equal(t, "node n1 is cordoned", got.Why)
	require.Empty(t, got.Serves)
}

func TestServes(t *testing.T) {
	o, reports := objects(3, "a"), up("n0", "n1", "n2")
	require.Equal(t, []string{"n0", "n1"}, elected(o, reports, "n0", "n1").Serves)
	change(&o, "a", func(e *cluster.EgressService, _ *cluster.Service) {
		e.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "odd"}}
	})
	require.Equal(t, []string{"n0", "n1"}, elected(o, reports, "n0", "n1").Serves, "elected or not")
	unready(&o, "n0")
	require.Equal(t, []string{"n1"}, elected(o, reports, "n0", "n1").Serves)
	say(reports, "n2", "n0", true)
	require.Equal(t, []string{"n0", "n1"}, elected(o, reports, "n0", "n1").Serves, "somebody sees it")
	say(reports, "n2", "n0", false)
	require.Equal(t, []string{"n1"}, elected(o, reports, "n0", "n1").Serves)
	routed(reports, "n1", false, true)
	require.Empty(t, elected(o, reports, "n0", "n1").Serves)
}

// TestHostStaysUntilItReports: after a change of the network the host does not move to the node that reports first.
func TestHostStaysUntilItReports(t *testing.T) {
	o, reports := objects(3, "a"), up("n0", "n1", "n2")
	change(&o, "a", func(e *cluster.EgressService, _ *cluster.Service) {
		e.Network, e.Version, e.Status = "100", 7, cluster.Status{Host: "n0", Standby: "n1", Term: 1}
	})
	report := func(node string, version uint64, routes bool) {
		r := reports[node]
		r.Applied, r.Networks = version, map[string]cluster.NetworkState{"100": {Usable: true, IPv4: routes}}
		reports[node] = r
	}
	host := func() string { return Elect(o, reports)[seat("a")].Host }
	require.Equal(t, "n0", host(), "no node has reported")
	report("n2", 7, true)
	require.Equal(t, "n0", host(), "another node has")
	require.NotContains(t, reports["n0"].Networks, "100", "the reports are the caller's")

	r := reports["n0"]
	r.Applied = 7
	reports["n0"] = r
	require.Equal(t, "n2", host(), "the host has reported, and lacks the network")
	report("n0", 7, false)
	require.Equal(t, "n2", host(), "the host lacks a route that another node has")
	report("n2", 7, false)
	require.Equal(t, "n0", host(), "no node has a route")
}
