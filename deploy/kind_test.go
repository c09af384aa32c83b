package deploy

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/lab/kubetest"
)

const kind = "../containerlab/kind"

// router is the part of an FRR configuration of the lab that the recipe depends on.
type router struct {
	asn       string
	neighbors []string
	password  string
}

func frr(t *testing.T, path string) (r router) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	words := func(pattern string) (found []string) {
		for _, m := range regexp.MustCompile(`(?m)^ *`+pattern+`$`).FindAllSubmatch(b, -1) {
			found = append(found, string(m[1]))
		}
		return found
	}
	r.asn = strings.Join(words(`router bgp (\d+)`), " ")
	r.neighbors = words(`neighbor ([0-9a-f.:]+) peer-group NODES`)
	r.password = strings.Join(words(`neighbor NODES password (\S+)`), " ")
	return r
}

// topology is the part of containerlab's format that the recipe uses.
type topology struct {
	Topology struct {
		Nodes map[string]struct {
			Kind        string
			Binds, Exec []string
		}
		Links []struct{ Endpoints []string }
	}
}

// addresses returns the addresses that a node's exec lines give to an interface.
func (t *topology) addresses(node, device string) (found []netip.Addr) {
	for _, line := range t.Topology.Nodes[node].Exec {
		f := strings.Fields(line)
		if len(f) >= 6 && strings.Join(f[:3], " ") == "ip addr add" && f[5] == device {
			found = append(found, netip.MustParsePrefix(f[3]).Addr())
		}
	}
	return found
}

// TestKindRecipe compares the files of the recipe with each other. It runs neither kind nor containerlab.
func TestKindRecipe(t *testing.T) {
	var cluster struct {
		Name  string
		Nodes []struct{ Role string }
	}
	read(t, kind+"/cluster.yaml", &cluster)
	var top topology
	read(t, kind+"/tors.clab.yml", &top)

	// kind's names for its containers.
	var nodes []string
	count := map[string]int{}
	for _, n := range cluster.Nodes {
		count[n.Role]++
		name := cluster.Name + "-" + n.Role
		if count[n.Role] > 1 {
			name += fmt.Sprint(count[n.Role])
		}
		nodes = append(nodes, name)
	}
	ends := map[string]string{}
	for _, l := range top.Topology.Links {
		require.Len(t, l.Endpoints, 2)
		for i, e := range l.Endpoints {
			node, _, _ := strings.Cut(e, ":")
			require.Contains(t, top.Topology.Nodes, node)
			require.NotContains(t, ends, e, "two cables in one socket")
			ends[e] = l.Endpoints[1-i]
		}
	}

	conf := configOf(t, built(t, kind))
	networks := map[string]config.Network{}
	for _, n := range conf.Networks {
		networks[n.Name] = n
	}
	passwords := built(t, kind)["Secret "+namespace+"/egressway-passwords"]
	require.NotNil(t, passwords)
	for _, name := range nodes {
		require.Equal(t, "ext-container", top.Topology.Nodes[name].Kind, name)
		for _, network := range []string{"red", "blue"} {
			require.Len(t, networks[network].Interfaces, 1)
			device := networks[network].Interfaces[0].Name
			require.True(t, strings.HasPrefix(ends[name+":"+device], network+"-sw:"), "%s of %s is not in %s", device, name, network)
			require.Len(t, top.addresses(name, device), 2)
		}
	}
	for _, network := range []string{"red", "blue"} {
		for i, p := range networks[network].Peers {
			name := fmt.Sprintf("%s%d", network, i+1)
			require.Contains(t, top.addresses(name, "eth1"), p.Address)
			require.True(t, strings.HasPrefix(ends[name+":eth1"], network+"-sw:"))
			r := frr(t, fmt.Sprintf("../containerlab/vrf-egress/%s.conf", name))
			require.Equal(t, r.asn, fmt.Sprint(p.ASN))
			for _, node := range nodes {
				require.Contains(t, r.neighbors, top.addresses(node, networks[network].Interfaces[0].Name)[0].String())
			}
			require.Equal(t, r.password != "", p.PasswordFile != "")
			if r.password != "" {
				encoded, _, _ := unstructured.NestedString(passwords.Object, "data", filepath.Base(p.PasswordFile))
				require.Equal(t, r.password, decode64(t, encoded))
			}
		}
	}
	for name, n := range top.Topology.Nodes {
		for _, b := range n.Binds {
			source, _, _ := strings.Cut(b, ":")
			require.FileExists(t, filepath.Join(kind, source), name)
		}
	}
	require.Equal(t, "egressway:dev", daemonSet(t, built(t, kind), "egressway").Spec.Template.Spec.Containers[0].Image, `"make image" makes it`)
}

// TestKindObjects applies the recipe's objects to an API server, which accepts them at the second try, as the recipe says.
func TestKindObjects(t *testing.T) {
	server := kubetest.Start(t, kubetest.Options{})
	server.Apply(t, string(run(t, "kustomize", "build", kind)))
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(b, into), path)
}
