package cluster

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func addrs(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func TestParseSecondary(t *testing.T) {
	for text, want := range map[string]Secondary{
		"{}":                       {},
		`{"beside":["10.0.0.50"]}`: {Beside: addrs("10.0.0.50")},
		`{"beside":["10.0.0.50","fd00::50"],"apart":["10.50.0.1"],"later":1}`: {Beside: addrs("10.0.0.50", "fd00::50"), Apart: addrs("10.50.0.1")},
	} {
		s, err := ParseSecondary(text)
		require.NoError(t, err, text)
		require.Equal(t, want, s)
	}
	many, err := json.Marshal(Secondary{Apart: make([]netip.Addr, SecondaryMost+1)})
	require.NoError(t, err)
	for text, why := range map[string]string{
		"":                           "not the addresses of a node",
		`["10.0.0.50"]`:              "not the addresses of a node",
		`{"beside":["0.0.0.0/0"]}`:   "not the addresses of a node",
		`{"beside":["0.0.0.0"]}`:     "the unspecified address",
		`{"apart":[""]}`:             "an invalid address",
		`{"apart":["169.254.1.1"]}`:  "a link-local address",
		`{"apart":["fd00::1%eth0"]}`: "an address with a zone",
		string(many):                 "at most 64",
	} {
		_, err := ParseSecondary(text)
		require.ErrorContains(t, err, why, text)
	}
}

func TestSecondaryIsBounded(t *testing.T) {
	var s Secondary
	for i := range 2 * SecondaryMost {
		s.Beside = append(s.Beside, netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}))
		s.Apart = append(s.Apart, netip.AddrFrom4([4]byte{10, 0, 2, byte(i)}))
	}
	all, dropped := s.Sorted()
	require.Equal(t, SecondaryMost, all.Len())
	require.Len(t, all.Beside, SecondaryMost)
	require.Equal(t, 3*SecondaryMost, dropped)

	all, dropped = Secondary{Beside: addrs("10.0.0.2", "10.0.0.1", "10.0.0.2"), Apart: addrs("10.0.0.1", "10.0.0.3")}.Sorted()
	require.Equal(t, Secondary{Beside: addrs("10.0.0.1", "10.0.0.2"), Apart: addrs("10.0.0.3")}, all)
	require.Zero(t, dropped)
}

// TestHostCIDRs reads the addresses of interfaces that OVN-Kubernetes, or a person, lists at a Node.
func TestHostCIDRs(t *testing.T) {
	node := func(text string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{"k8s.ovn.org/host-cidrs": text}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "10.0.0.11"}, {Type: corev1.NodeInternalIP, Address: "fd00::11"},
			}},
		}
	}
	_, n, problems, ok := FromNode(node(`["10.0.0.11/24", "10.0.0.50/32", "fd00::11/64", "fd00::50/64", "10.50.0.1/24", "169.254.0.2/29", "0.0.0.0/0", "fe80::1/64"]`))
	require.True(t, ok)
	require.Empty(t, problems)
	require.Equal(t, Secondary{Beside: addrs("10.0.0.50", "fd00::50"), Apart: addrs("10.50.0.1")}, n.Secondary)
	require.NotEqual(t, Facts("a", n, nil), Facts("a", Node{Addresses: n.Addresses, Internal: n.Internal}, nil), "other daemons hear of it")

	_, n, problems, ok = FromNode(node(`0.0.0.0/0`))
	require.True(t, ok)
	require.Zero(t, n.Secondary.Len())
	require.Len(t, problems, 1)
	require.Equal(t, "metadata.annotations[k8s.ovn.org/host-cidrs]", problems[0].Field)

	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("10.50.0.%d/24", i))
	}
	text, err := json.Marshal(many)
	require.NoError(t, err)
	_, n, problems, _ = FromNode(node(string(text)))
	require.Equal(t, SecondaryMost, n.Secondary.Len())
	require.Len(t, problems, 1)
}
