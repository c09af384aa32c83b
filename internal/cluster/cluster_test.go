package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseAddr(t *testing.T) {
	for _, text := range []string{"10.0.0.1", "203.0.113.7", "100.64.0.1", "2001:db8::1", "fd00::1"} {
		a, err := ParseAddr(text)
		require.NoError(t, err, text)
		require.Equal(t, text, a.String())
	}
	for text, why := range map[string]string{
		"":                "not an IP address",
		"lb.example.com":  "not an IP address",
		"10.0.0.1/32":     "not an IP address",
		"010.0.0.1":       "not an IP address",
		"fd00::1%eth0":    "an address with a zone",
		"::ffff:10.0.0.1": "an IPv4-mapped IPv6 address",
		"0.0.0.0":         "the unspecified address",
		"::":              "the unspecified address",
		"127.0.0.1":       "a loopback address",
		"::1":             "a loopback address",
		"224.0.0.1":       "a multicast address",
		"ff02::1":         "a multicast address",
		"169.254.0.1":     "a link-local address",
		"fe80::1":         "a link-local address",
		"0.1.2.3":         "this network",
		"240.0.0.1":       "a reserved",
		"255.255.255.255": "broadcast",
	} {
		_, err := ParseAddr(text)
		require.ErrorContains(t, err, why, text)
	}
}

func TestProblemIsOneLine(t *testing.T) {
	p := Problem{Kind: "Node", Object: "a\nb", Field: "f\x00", Value: "v\tw", Message: "m\r\nn", Where: "dir/f.yaml:3"}
	require.Equal(t, `dir/f.yaml:3: Node a\nb: f\x00: "v\tw": m\r\nn`, p.Error())
	require.Equal(t, "Node a: m", Problem{Kind: "Node", Object: "a", Message: "m"}.Error())
}

func TestSortProblems(t *testing.T) {
	a := Problem{Kind: "EgressService", Object: "n/a", Reason: ReasonNoEndpoints}
	b := Problem{Kind: "EgressService", Object: "n/b", Field: "spec.nodeSelector", Reason: ReasonInvalidSelector}
	placed, elsewhere := b, b
	placed.Where, elsewhere.Where = "f.yaml:3", "g.yaml:1"
	node := Problem{Kind: "Node", Object: "a"}
	require.Equal(t, []Problem{a, elsewhere, placed, node}, SortProblems([]Problem{node, b, placed, a, b, elsewhere, a, placed}))
	require.Empty(t, SortProblems(nil))
}
