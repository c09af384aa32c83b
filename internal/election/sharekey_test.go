package election

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
)

// An EgressService of another namespace with the ingress IP of one that serves does not share its host: the IP is refused to
// it. With the same sharing key on both Services, they share the host.
func TestIngressIPOfAnotherNamespace(t *testing.T) {
	const ip = "203.0.113.1"
	web, taker := cluster.Key{Namespace: "shop", Name: "web"}, cluster.Key{Namespace: "other", Name: "taker"}
	var o cluster.Objects
	for _, name := range []string{"n0", "n1"} {
		o.Nodes = o.Nodes.With(name, cluster.Node{Ready: true, Labels: map[string]string{"name": name}})
	}
	add := func(key cluster.Key, host string, since time.Time, sharing string) {
		o.EgressServices = o.EgressServices.With(key, cluster.EgressService{
			Created: time.Unix(1, 0), NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": host}},
			Status: cluster.Status{Host: host, Conditions: []metav1.Condition{{Type: ConditionHostAssigned, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(since)}}},
		})
		o.Services = o.Services.With(key, cluster.Service{LoadBalancer: true, Ingress: []cluster.Ingress{{IP: ip}}, SharingKey: sharing})
		o.Endpoints = o.Endpoints.With(key, []cluster.Endpoint{{Address: "10.244.1." + host[1:], Node: host}})
	}
	add(web, "n0", time.Unix(20, 0), "")
	add(taker, "n1", time.Unix(10, 0), "") // in force for longer, and given the IP now
	choices := Elect(o, nil)
	require.Equal(t, "n0", choices[ServiceSeat(web)].Host)
	require.Nil(t, choices[ServiceSeat(web)].Problem)
	require.Equal(t, "n1", choices[ServiceSeat(taker)].Host)

	add(web, "n0", time.Unix(20, 0), "key")
	add(taker, "n1", time.Unix(10, 0), "key")
	choices = Elect(o, nil)
	require.Equal(t, cluster.ReasonSharedIngressHost, choices[ServiceSeat(web)].Problem.Reason, "both agreed to share, and no node fits both")
	require.Equal(t, "n1", choices[ServiceSeat(taker)].Host, "which had it first")
}

// An endpoint that is no Pod of the namespace gives no service a host, and makes no node eligible.
func TestForeignEndpointsCountForNothing(t *testing.T) {
	key := cluster.Key{Namespace: "shop", Name: "web"}
	o := cluster.Objects{
		EgressServices: cluster.MapOf(map[cluster.Key]cluster.EgressService{key: {}}),
		Services:       cluster.MapOf(map[cluster.Key]cluster.Service{key: {LoadBalancer: true, LocalTraffic: true, Ingress: []cluster.Ingress{{IP: "203.0.113.1"}}}}),
		Nodes:          cluster.MapOf(map[string]cluster.Node{"n0": {Ready: true}, "n1": {Ready: true}}),
	}
	foreign := cluster.Endpoint{Address: "10.244.1.1", Node: "n0", Target: cluster.TargetOther}
	o.Endpoints = o.Endpoints.With(key, []cluster.Endpoint{foreign, {Address: "10.244.1.2", Node: "n0", Target: cluster.TargetUnknown}})
	require.Equal(t, cluster.ReasonNoEndpoints, Elect(o, nil)[ServiceSeat(key)].Problem.Reason)
	o.Endpoints = o.Endpoints.With(key, []cluster.Endpoint{foreign, {Address: "10.244.2.1", Node: "n1"}})
	require.Equal(t, "n1", Elect(o, nil)[ServiceSeat(key)].Host)
	require.Equal(t, []string{"n1"}, Concerned(o, key, cluster.Status{Host: cluster.AllHosts}))
}
