package text

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNearest checks which word is suggested for a misspelled one, and that none is if none is near or two are.
func TestNearest(t *testing.T) {
	peer := []string{
		"address", "interface", "port", "asn", "dynamicASN", "myASN", "holdTime", "keepaliveTime", "connectTime", "ebgpMultiHop", "passwordFile",
		"bfdProfile", "addressFamilies",
	}
	network := []string{"name", "vrf", "interfaces", "table", "namespaces", "onNoPath", "peers", "nodeSelectors", "overrides"}
	pattern := []string{"prefix", "ge", "le"}
	for _, c := range []struct {
		word  string
		known []string
		want  string
	}{
		{"vfr", network, "vrf"},
		{"Interfaces", network, "interfaces"},
		{"interfcaes", network, "interfaces"},
		{"peer", network, "peers"},
		{"nodeSelector", network, "nodeSelectors"},
		{"tabel", network, "table"},
		{"network", network, ""},
		{"x", network, ""},
		{"", network, ""},
		{"addrses", peer, "address"},
		{"myAsn", peer, "myASN"},
		{"password", peer, "passwordFile"}, // its beginning
		{"multiHop", peer, "ebgpMultiHop"}, // its end
		{"time", peer, ""},                 // of several keys
		{"keepalive", peer, "keepaliveTime"},
		{"bfd", peer, "bfdProfile"},
		{"gr", pattern, "ge"},
		{"me", pattern, ""}, // as near to ge as to le
		{strings.Repeat("x", 1<<20), peer, ""},
		{"\x00\xff", peer, ""},
	} {
		require.Equal(t, c.want, Nearest(c.word, c.known), "%.20q", c.word)
	}
}

// TestTypingErrors checks the distance of words, in both directions.
func TestTypingErrors(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "asn", 3},
		{"asn", "asn", 0},
		{"asnn", "asn", 1},
		{"vfr", "vrf", 1},
		{"wihtin", "within", 1},
		{"hodlTiem", "holdTime", 2},
		{"table", "cable", 1},
		{"port", "vni", 4},
	} {
		require.Equal(t, c.want, typingErrors(c.a, c.b), "%s %s", c.a, c.b)
		require.Equal(t, c.want, typingErrors(c.b, c.a), "%s %s", c.b, c.a)
	}
}
