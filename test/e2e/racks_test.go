package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster/manifests"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// leaves holds the routers of each rack.
var leaves = map[string][]string{"r1": {"leaf11", "leaf12"}, "r2": {"leaf21", "leaf22"}}

// racks is the topology of two racks with our daemon on its nodes.
type racks struct {
	*lab.Lab
	t       *testing.T
	dir     string
	daemons map[string]*lab.Daemon
	witness *lab.Witness
}

func deployRacks(t *testing.T) *racks {
	dir, err := os.MkdirTemp("/dev/shm", "racks-") //nolint:usetesting // nodes have a /tmp of their own
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.CopyFS(dir, os.DirFS("../../containerlab")))
	r := &racks{t: t, dir: dir, daemons: map[string]*lab.Daemon{}}
	r.Lab, err = lab.Deploy(t.Context(), filepath.Join(dir, "racks.clab.yml"), lab.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Destroy()) })
	require.NoError(t, r.RespondOn(t.Context(), "ext", "a-p1", "b-p1"))
	r.witness, err = r.Witness("leaf11:eth1", "leaf12:eth1", "leaf21:eth1", "leaf22:eth1")
	require.NoError(t, err)
	t.Cleanup(r.witness.Close)
	return r
}

// start starts the daemon of a node, which starts its speaker.
func (r *racks) start(node string) {
	r.t.Helper()
	binary, err := lab.Binary()
	require.NoError(r.t, err)
	r.daemons[node], err = r.StartDaemon(r.Node(node), binary, "/etc/egressway/config.yaml")
	require.NoError(r.t, err)
	r.t.Cleanup(func() {
		if r.t.Failed() {
			r.t.Logf("daemon of %s:\n%s", node, r.daemons[node].Log())
		}
	})
}

// edit replaces text, which must be there, in a file below containerlab/racks.
func (r *racks) edit(name, from, to string) {
	r.t.Helper()
	path := filepath.Join(r.dir, "racks", name)
	b, err := os.ReadFile(path)
	require.NoError(r.t, err)
	require.Contains(r.t, string(b), from)
	require.NoError(r.t, os.WriteFile(path, []byte(strings.ReplaceAll(string(b), from, to)), 0o644))
	r.proxy()
}

// proxy lets the service proxies follow the manifests.
func (r *racks) proxy() {
	r.t.Helper()
	objects, _ := manifests.Read(filepath.Join(r.dir, "racks", "manifests"))
	require.NoError(r.t, r.ProxyServices(r.t.Context(), &objects, "a", "b"))
}

// heard is the routers' view of the nodes: by router and address, the AS of the nodes with a session and the announced
// ingress IPs.
func (r *racks) heard(router string) (sessions map[string]uint32, announced map[string][]string, err error) {
	var summary struct {
		Peers map[string]struct {
			RemoteAS uint32 `json:"remoteAs"`
			State    string
		}
	}
	if err := r.Node(router).VTYJSON(&summary, "bgpd", "show bgp ipv4 unicast summary json"); err != nil {
		return nil, nil, err
	}
	sessions, announced = map[string]uint32{}, map[string][]string{}
	for address, p := range summary.Peers {
		if p.State == "Established" && strings.HasPrefix(address, "10.1.") {
			sessions[address] = p.RemoteAS
		}
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		var table struct {
			Routes map[string][]struct {
				Path   string
				PeerID string `json:"peerId"`
			}
		}
		if err := r.Node(router).VTYJSON(&table, "bgpd", fmt.Sprintf("show bgp %s unicast json", family)); err != nil {
			return nil, nil, err
		}
		for prefix, paths := range table.Routes {
			for _, p := range paths {
				if strings.HasPrefix(p.PeerID, "10.1.") {
					announced[prefix] = append(announced[prefix], p.PeerID+" by AS "+p.Path)
				}
			}
			slices.Sort(announced[prefix])
		}
	}
	return sessions, announced, nil
}

// await waits until the routers of a rack have these sessions, and paths to the ingress IPs from their own rack's nodes.
func (r *racks) await(rack string, sessions map[string]uint32, paths ...string) {
	r.t.Helper()
	for _, router := range leaves[rack] {
		require.NoError(r.t, lab.Wait(r.t.Context(), lab.Patience, func() error {
			have, announced, err := r.heard(router)
			if err != nil {
				return err
			}
			if fmt.Sprint(have) != fmt.Sprint(sessions) {
				return fmt.Errorf("%s has sessions with %v, want %v", router, have, sessions)
			}
			for _, prefix := range []string{"192.0.2.10/32", "2001:db8:2::10/128"} {
				if !slices.Equal(announced[prefix], paths) {
					return fmt.Errorf("%s has paths to %s from nodes: %v, want %v", router, prefix, announced[prefix], paths)
				}
			}
			return nil
		}))
	}
}

// awaitWays waits until the kernels of the spine and of a rack's leaves, too, send what is for the ingress IPs to that rack alone.
func (r *racks) awaitWays(rack string) {
	r.t.Helper()
	devices := map[string][]string{"spine": map[string][]string{"r1": {"eth1", "eth2"}, "r2": {"eth3", "eth4"}}[rack]}
	for _, leaf := range leaves[rack] {
		devices[leaf] = []string{"eth1"}
	}
	for router, want := range devices {
		for family, ingress := range map[string]string{"-4": "192.0.2.10", "-6": "2001:db8:2::10"} {
			require.NoError(r.t, lab.Wait(r.t.Context(), lab.Patience, func() error {
				out, err := r.Node(router).Run(r.t.Context(), "ip", "-j", family, "route", "show", ingress)
				if err != nil {
					return err
				}
				var all []struct {
					Dev      string
					NextHops []struct{ Dev string }
				}
				if err := json.Unmarshal([]byte(out), &all); err != nil {
					return fmt.Errorf("%s: %w in %q", router, err, out)
				}
				var have []string
				for _, route := range all {
					if route.Dev != "" {
						have = append(have, route.Dev)
					}
					for _, hop := range route.NextHops {
						have = append(have, hop.Dev)
					}
				}
				if slices.Sort(have); !slices.Equal(have, want) {
					return fmt.Errorf("the kernel of %s has %s by %v, want %v", router, ingress, have, want)
				}
				return nil
			}))
		}
	}
}

// passes checks that both pods reach the outside with the ingress IP as source, that the outside reaches the Service, and that
// the packets pass the routers of one rack only.
func (r *racks) passes(rack string) {
	r.t.Helper()
	r.awaitWays(rack)
	sources := map[netip.AddrPort]string{stage.Outside4: "192.0.2.10", stage.Outside6: "2001:db8:2::10"}
	for _, pod := range []string{"a-p1", "b-p1"} {
		for to, source := range sources {
			require.NoError(r.t, lab.Wait(r.t.Context(), lab.Patience, func() error {
				a, err := r.Node(pod).AskTCP(r.t.Context(), to)
				if err != nil {
					return fmt.Errorf("%s asks %s: %w", pod, to, err)
				}
				return stage.Check(a, "ext", source)
			}))
		}
	}
	r.witness.Reset()
	for _, pod := range []string{"a-p1", "b-p1"} {
		for to, source := range sources {
			a, err := r.Node(pod).AskTCP(r.t.Context(), to)
			require.NoError(r.t, err)
			require.NoError(r.t, stage.Check(a, "ext", source))
		}
	}
	for _, ingress := range []string{"192.0.2.10", "2001:db8:2::10"} {
		a, err := r.Node("ext").AskTCP(r.t.Context(), netip.AddrPortFrom(netip.MustParseAddr(ingress), 80))
		require.NoError(r.t, err)
		require.Contains(r.t, []string{"a-p1", "b-p1"}, a.Name)
	}
	outside := func(p lab.Packet) bool {
		return slices.ContainsFunc([]netip.Addr{p.Src, p.Dst}, func(a netip.Addr) bool { return a == stage.Outside4.Addr() || a == stage.Outside6.Addr() })
	}
	require.NotEmpty(r.t, r.witness.Find(func(p lab.Packet) bool { return outside(p) && slices.Contains(leaves[rack], p.Node) }))
	require.Empty(r.t, r.witness.Find(func(p lab.Packet) bool { return outside(p) && !slices.Contains(leaves[rack], p.Node) }))
}

// master returns the device that an interface of a node is enslaved to.
func (r *racks) master(node, device string) string {
	out, err := r.Node(node).Run(r.t.Context(), "ip", "-o", "link", "show", device)
	require.NoError(r.t, err)
	_, after, _ := strings.Cut(out, " master ")
	name, _, _ := strings.Cut(after, " ")
	return name
}

// TestRacks has one configuration for the nodes of two racks with an AS, an interface name and a pair of routers each. The host
// announces to the routers of its own rack alone, and packets pass only these. A label that changes moves a running daemon's
// node to the other rack.
func TestRacks(t *testing.T) {
	r := deployRacks(t)
	// A machine that is busy for 300 ms is no failure here.
	r.edit("config.yaml", "\nbgp:\n", "\nfailover: {bfd: {transmitInterval: 1000, receiveInterval: 1000}}\nbgp:\n")
	r.start("a")
	r.start("b")
	one, two := map[string]uint32{"10.1.1.11": 65001}, map[string]uint32{"10.1.2.12": 65002}
	r.await("r1", one, "10.1.1.11 by AS 65001")
	r.await("r2", two)
	r.passes("r1")

	r.edit("manifests/web.yaml", "kubernetes.io/hostname: a", "kubernetes.io/hostname: b")
	r.await("r2", two, "10.1.2.12 by AS 65002")
	r.await("r1", one)
	r.passes("r2")
	require.Equal(t, "vrf-red", r.master("b", "ens3f0"))
	require.Empty(t, r.master("b", "eno1"))

	process := r.daemons["b"].PID()
	r.edit("manifests/nodes.yaml", "rack: r2", "rack: r1")
	both := map[string]uint32{"10.1.1.11": 65001, "10.1.1.12": 65001}
	r.await("r1", both, "10.1.1.12 by AS 65001")
	r.await("r2", map[string]uint32{})
	r.passes("r1")
	require.Equal(t, "vrf-red", r.master("b", "eno1"))
	require.Empty(t, r.master("b", "ens3f0"))
	status := r.egressway("b", "status")
	require.Contains(t, status, "SelectsNoNode")
	require.Contains(t, status, "rack=r2")

	r.edit("manifests/nodes.yaml", "hostname: b, rack: r1", "hostname: b, rack: r2")
	r.await("r2", two, "10.1.2.12 by AS 65002")
	r.await("r1", one)
	r.passes("r2")
	require.Equal(t, process, r.daemons["b"].PID())
	require.False(t, r.daemons["b"].Ended())
	require.NotContains(t, r.egressway("b", "status"), "SelectsNoNode")

	// A daemon that starts without its Node changes nothing: what an earlier run left stays in force.
	r.daemons["b"].Kill()
	r.edit("manifests/nodes.yaml", "  name: b\n", "  name: gone\n")
	r.start("b")
	require.NoError(t, lab.Wait(t.Context(), lab.Patience, func() error {
		if status := r.egressway("b", "status"); !strings.Contains(status, "NodeUnknown") {
			return fmt.Errorf("no NodeUnknown in %s", status)
		}
		return nil
	}))
	r.await("r2", two, "10.1.2.12 by AS 65002")
	require.Equal(t, "vrf-red", r.master("b", "ens3f0"))
	r.edit("manifests/nodes.yaml", "  name: gone\n", "  name: b\n")
	require.NoError(t, lab.Wait(t.Context(), lab.Patience, func() error {
		if status := r.egressway("b", "status"); strings.Contains(status, "NodeUnknown") {
			return fmt.Errorf("still NodeUnknown in %s", status)
		}
		return nil
	}))
	r.passes("r2")
}

// egressway runs a command of ours on a node; the exit code of status depends on problems.
func (r *racks) egressway(node string, args ...string) string {
	binary, err := lab.Binary()
	require.NoError(r.t, err)
	out, _ := r.Node(node).Run(r.t.Context(), append([]string{binary}, args...)...)
	return out
}
