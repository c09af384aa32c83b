package firewall

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
)

// cidr is a rule for a prefix.
func cidr(kind egressv1.EgressFirewallRuleType, prefix string, ports ...int32) egressv1.EgressFirewallRule {
	r := egressv1.EgressFirewallRule{Type: kind, To: egressv1.EgressFirewallDestination{CIDRSelector: prefix}}
	for _, p := range ports {
		r.Ports = append(r.Ports, egressv1.EgressFirewallPort{Protocol: "TCP", Port: p})
	}
	return r
}

// of is a rule for nodes with a label.
func of(kind egressv1.EgressFirewallRuleType, role string) egressv1.EgressFirewallRule {
	return egressv1.EgressFirewallRule{Type: kind, To: egressv1.EgressFirewallDestination{
		NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": role}},
	}}
}

// TestDeniesAPIServer checks which rules deny the endpoints of the API server's Service, whose address itself is never denied.
func TestDeniesAPIServer(t *testing.T) {
	const allow, deny = egressv1.EgressFirewallAllow, egressv1.EgressFirewallDeny
	for _, test := range []struct {
		name  string
		rules []egressv1.EgressFirewallRule
		rule  int // that denies it; 0: none does
	}{
		{"none", nil, 0},
		{"everything", []egressv1.EgressFirewallRule{cidr(deny, "0.0.0.0/0")}, 1},
		{"the other family", []egressv1.EgressFirewallRule{cidr(deny, "::/0")}, 0},
		{"the Service's address only", []egressv1.EgressFirewallRule{cidr(deny, "10.96.0.1/32")}, 0},
		{"elsewhere", []egressv1.EgressFirewallRule{cidr(deny, "198.51.100.0/24")}, 0},
		{"an Allow before", []egressv1.EgressFirewallRule{cidr(allow, "10.0.0.11/32"), cidr(allow, "10.0.0.12/32"), cidr(deny, "0.0.0.0/0")}, 0},
		{"one of two", []egressv1.EgressFirewallRule{cidr(allow, "10.0.0.11/32"), cidr(deny, "0.0.0.0/0")}, 2},
		{"an Allow of its port", []egressv1.EgressFirewallRule{cidr(allow, "10.0.0.0/24", 6443), cidr(deny, "0.0.0.0/0")}, 0},
		{"an Allow of another port", []egressv1.EgressFirewallRule{cidr(allow, "10.0.0.0/24", 443), cidr(deny, "0.0.0.0/0")}, 2},
		{"a Deny of its port", []egressv1.EgressFirewallRule{cidr(deny, "10.0.0.0/8", 80, 6443)}, 1},
		{"a Deny of another port", []egressv1.EgressFirewallRule{cidr(deny, "10.0.0.0/8", 443)}, 0},
		{"nodes with it", []egressv1.EgressFirewallRule{of(allow, "control"), cidr(deny, "0.0.0.0/0")}, 0},
		{"other nodes", []egressv1.EgressFirewallRule{of(allow, "worker"), cidr(deny, "0.0.0.0/0")}, 2},
		{"a Deny of nodes", []egressv1.EgressFirewallRule{cidr(allow, "198.51.100.0/24"), of(deny, "control")}, 2},
		{"a rule that cannot be read", []egressv1.EgressFirewallRule{cidr(deny, "198.51.100.1")}, 1},
		{"a name", []egressv1.EgressFirewallRule{{Type: deny, To: egressv1.EgressFirewallDestination{DNSName: "www.example.com"}}}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := egressv1.EgressFirewall{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "default"}}
			o.Spec.Egress = test.rules
			_, e, _, ok := cluster.FromEgressFirewall(&o, nil)
			require.True(t, ok)
			objects := withServers("10.0.0.11", "10.0.0.12")
			text := DeniesAPIServer(&e, APIServers(&objects, nil, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}), objects.Nodes)
			if test.rule == 0 {
				require.Empty(t, text)
				return
			}
			require.Contains(t, text, "denies the API server at 10.0.0.1")
			require.Contains(t, text, fmt.Sprintf(":6443, by rule %d (", test.rule))
		})
	}
}

// TestAPIServersThatAreSpared leaves out endpoints that no rule can deny.
func TestAPIServersThatAreSpared(t *testing.T) {
	for _, address := range []string{"10.244.1.7", "10.96.0.7", "172.16.0.7", "169.254.0.7", "127.0.0.1", "no address"} {
		objects := withServers(address)
		beside := []netip.Prefix{netip.MustParsePrefix("172.16.0.0/16")}
		require.Empty(t, APIServers(&objects, nil, beside), address)
		require.Empty(t, APIServers(&objects, beside, nil), address)
	}
	objects := withServers()
	require.Empty(t, APIServers(&objects, nil, nil))
	objects = withServers("203.0.113.7")
	objects.Services = cluster.Map[cluster.Key, cluster.Service]{} // not known
	servers := APIServers(&objects, nil, nil)
	require.Equal(t, []netip.AddrPort{netip.MustParseAddrPort("203.0.113.7:0")}, servers)
	all := cluster.DenyAll()
	require.Contains(t, DeniesAPIServer(&all, servers, objects.Nodes), "denies the API server at 203.0.113.7, by rule 1")
}

// withServers are objects with an API server at these addresses. Two of them are a node's.
func withServers(addresses ...string) (o cluster.Objects) {
	o.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
	o.Nodes = o.Nodes.With("a", cluster.Node{
		Labels: map[string]string{"role": "control"}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.11"), netip.MustParseAddr("10.0.0.12")},
	})
	o.Services = o.Services.With(cluster.APIService, cluster.Service{Ports: []cluster.Port{{Protocol: "TCP", Port: 443, TargetPort: 6443}}})
	var endpoints []cluster.Endpoint
	for _, a := range addresses {
		endpoints = append(endpoints, cluster.Endpoint{Address: a})
	}
	o.Endpoints = o.Endpoints.With(cluster.APIService, endpoints)
	return o
}
