package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/config"
)

const (
	folder = ".."
	file   = "../../../docs/configuration.md"
)

// TestConfigurationIsUpToDate compares docs/configuration.md with the types.
func TestConfigurationIsUpToDate(t *testing.T) {
	old, err := os.ReadFile(file)
	require.NoError(t, err)
	tables, err := rewrite(folder, string(old))
	require.NoError(t, err)
	require.Equal(t, tables, string(old), "run: make generate")
}

// TestTables writes the tables into a text with old ones.
func TestTables(t *testing.T) {
	const text = "# A\n<!-- keys of the file -->\nold\n<!-- end of keys -->\nby hand\n" +
		"<!-- keys of source -->\n<!-- end of keys -->\n<!-- keys of steering --><!-- end of keys --><!-- keys of marks --><!-- end of keys -->" +
		"<!-- keys of bgp --><!-- end of keys --><!-- keys of networks[] --><!-- end of keys --><!-- keys of networks[].peers[] --><!-- end of keys -->" +
		"<!-- keys of hold[] --><!-- end of keys --><!-- keys of firewall --><!-- end of keys --><!-- keys of kinds --><!-- end of keys --><!-- keys of election --><!-- end of keys --><!-- keys of moves --><!-- end of keys --><!-- keys of failover --><!-- end of keys --><!-- keys of speaker --><!-- end of keys -->" +
		"<!-- keys of status --><!-- end of keys --><!-- keys of flowLog --><!-- end of keys --><!-- keys of log --><!-- end of keys -->\nthe end\n"
	tables, err := rewrite(folder, text)
	require.NoError(t, err)
	again, err := rewrite(folder, tables)
	require.NoError(t, err)
	require.Equal(t, tables, again)
	require.True(t, strings.HasPrefix(tables, "# A\n<!-- keys of the file -->\n\n| key "), tables)
	require.Contains(t, tables, "<!-- end of keys -->\nby hand\n<!-- keys of source -->\n\n| key ")
	require.True(t, strings.HasSuffix(tables, "<!-- end of keys -->\nthe end\n"), tables)
	for _, line := range []string{
		"| `log.level` | string | `info` | `debug`, `info`, `warn` or `error` | `EGRESSWAY_LOG_LEVEL` |",
		"| `marks.mask` | number | `\"0x3f00\"` | ",
		"| `onNoPath` | `drop`, `allow` | `drop` | a selected pod's packets ",
		"| `bgp.gracefulRestart.restartTime` | duration | `120s` | ",
		"| `bgp.asn` | number | none | ",
		"| `bgp.bfdProfiles[].receiveInterval` | number | 300 | ",
		"| `keepaliveTime` | duration | a third of `holdTime` | ",
		"| `receive[].prefix` | prefix | | ",
		"| `addressFamilies` | list of `ipv4unicast`, `ipv6unicast` | `[ipv4unicast, ipv6unicast]` | ",
		"| `clusterCIDRs` | list of prefixes | none | ",
		"| `namespaces` | label selector | every namespace | ",
		"| `nodeSelectors` | list of label selectors | every node | ",
		"| `interfaces[].name` | string | with `parent`, ",
	} {
		require.Contains(t, tables, "\n"+line)
	}
	require.NotContains(t, tables, "Default:")
}

// TestWhatIsRefused checks texts that lack a table, have an unknown one, or one without an end, and a folder of another package.
func TestWhatIsRefused(t *testing.T) {
	for text, why := range map[string]string{
		"<!-- keys of the file --><!-- end of keys -->":                         "key source.kubernetes.kubeconfig belongs in no table",
		"<!-- keys of source -->\n<!-- keys of nothing --><!-- end of keys -->": "belongs in no table",
		"<!-- end of keys --><!-- keys of the file -->":                         "belongs in no table",
		"# nothing": "key node belongs in no table",
	} {
		_, err := rewrite(folder, text)
		require.ErrorContains(t, err, why, text)
	}
	_, err := rewrite(".", "")
	require.Error(t, err)
}

// TestFullExample checks that config/egressway-full.yaml has every key, and the defaults of those outside lists and examples.
func TestFullExample(t *testing.T) {
	const path = "../../../config/egressway-full.yaml"
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	source, err := read(folder)
	require.NoError(t, err)
	all, err := keys(source)
	require.NoError(t, err)
	for _, k := range all {
		last := k.path[strings.LastIndex(k.path, ".")+1:]
		require.Regexp(t, `(?m)[ {#]`+last+`:|^`+last+`:`, string(text), "%s is not in %s", k.path, path)
	}
	c, err := config.Parse(path, text)
	require.NoError(t, err)
	d := config.Defaults()
	c = c.For(nil).Config
	c.ClusterCIDRs, c.PodCIDRs, c.Networks, c.Hold = d.ClusterCIDRs, d.PodCIDRs, d.Networks, d.Hold
	c.BGP.ASN, c.BGP.BFDProfiles, c.Marks.AllowConflicts = d.BGP.ASN, d.BGP.BFDProfiles, nil
	c.Firewall.Resolvers.Addresses = d.Firewall.Resolvers.Addresses
	require.Equal(t, d, c)
}
