// Package stage is the topology vrf-egress with the daemon on its nodes: the stage of the end-to-end tests and of the
// demo.
package stage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/manifests"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/kubetest"
)

// The addresses that every external host answers on, with its own name.
var (
	Outside4 = netip.MustParseAddrPort("198.51.100.10:8080")
	Outside6 = netip.MustParseAddrPort("[2001:db8:100::10]:8080")
)

// Pods and Externals are the nodes of the topology that answer and ask.
var (
	Pods      = []string{"a-p1", "a-p2", "b-p1", "b-p2", "c-p1"}
	Externals = []string{"ext-red", "ext-blue", "ext-default"}
)

// Nodes are those that run the daemon by default, and c.
var Nodes = []string{"a", "b", "c"}

// Routers are the places where every packet from and to the nodes is counted, with the network that each belongs to.
var Routers = map[string]string{"red1:eth1": "red", "red2:eth1": "red", "blue1:eth1": "blue", "blue2:eth1": "blue", "gw:eth1": "default"}

// Options are the differences of a stage from the topology in the repository.
type Options struct {
	Nodes     []string            // that run the daemon; nil: a and b
	Config    func(string) string // edits the daemon's configuration
	Manifests map[string]string   // file name: content; nil: those of the topology
	Exec      map[string][]string // extra commands on a node when it is made

	OwnSpeaker bool // the daemons start their speakers themselves
	BFD        bool // routers and nodes watch each other by BFD
	// BFDInterval is that of BFD in milliseconds, also between nodes; 3 intervals may pass in silence. 0: 100. A
	// machine that is shared with others may stand still for longer than 300 ms, which looks like a failure to both
	// ends.
	BFDInterval int

	FRR map[string]string // frr.conf of nodes that have an FRR beside the daemon

	API        bool     // the daemons read the objects from an API server, where they are put instead
	KubeProxy  string   // a mode of kube-proxy, which runs instead of its stand-in, and needs API
	CRD        string   // of EgressService there; empty: ours
	Objects    []string // more YAML documents for the API server, before the daemons start
	LabelHosts bool     // the daemons label the hosts' nodes; the right to is among Objects
}

// Stage is a running lab.
type Stage struct {
	*lab.Lab
	Witness  *lab.Witness
	Daemons  map[string]*lab.Daemon
	Speakers map[string]*lab.Daemon // of nodes whose daemon does not start its own
	Proxies  map[string]*lab.Daemon // kube-proxies, if they run
	API      *kubetest.API          // nil without

	dir        string
	nodes      []string
	labelHosts bool
	ownSpeaker bool
	kubeProxy  string
}

// shared is a folder in memory that nodes see too: they have a /run and /tmp of their own.
const shared = "/dev/shm"

// New deploys the topology of folder containerlab, starts responders, service proxies and daemons. Close ends it.
func New(ctx context.Context, containerlab string, o Options) (s *Stage, err error) {
	dir, err := os.MkdirTemp(shared, "stage-")
	if err != nil {
		return nil, err
	}
	s = &Stage{
		Daemons: map[string]*lab.Daemon{}, Speakers: map[string]*lab.Daemon{},
		dir: dir, nodes: o.Nodes, labelHosts: o.LabelHosts, ownSpeaker: o.OwnSpeaker, kubeProxy: o.KubeProxy,
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := os.CopyFS(dir, os.DirFS(containerlab)); err != nil {
		return s, fmt.Errorf("copy the topology: %w", err)
	}
	if s.nodes == nil {
		s.nodes = []string{"a", "b"}
	}
	if err := s.configure(o); err != nil {
		return s, err
	}
	if o.Manifests != nil {
		if err := s.replaceManifests(o.Manifests); err != nil {
			return s, err
		}
	}
	// The API server, which is not in the lab, starts while the lab does.
	api := make(chan error, 1)
	go func() {
		if o.API {
			api <- s.startAPI(ctx, containerlab, o)
		}
		close(api)
	}()
	s.Lab, err = lab.Deploy(ctx, filepath.Join(dir, "vrf-egress.clab.yml"), lab.Options{Exec: o.Exec, Management: o.API})
	if err := errors.Join(err, <-api); err != nil {
		return s, err
	}
	err = s.start(ctx, o.FRR)
	return s, err
}

// configure edits the daemons' configurations as the options want them.
func (s *Stage) configure(o Options) error {
	if o.BFD {
		if err := s.bfd(cmp.Or(o.BFDInterval, usualInterval)); err != nil {
			return err
		}
	}
	if o.Config != nil {
		if err := s.EditConfig(o.Config); err != nil {
			return err
		}
	}
	if o.BFD {
		return nil
	}
	return s.EditConfig(patient) // tests of other things than failover need not suffer from a machine that is busy for 300 ms
}

// replaceManifests replaces all manifests by other ones.
func (s *Stage) replaceManifests(all map[string]string) error {
	if err := os.RemoveAll(s.manifests()); err != nil {
		return err
	}
	if err := os.Mkdir(s.manifests(), 0o755); err != nil {
		return err
	}
	for name, content := range all {
		if err := s.put(name, content); err != nil {
			return err
		}
	}
	return nil
}

// start starts FRR beside daemons, by node, then responders, service proxies, the witness and daemons.
func (s *Stage) start(ctx context.Context, frr map[string]string) (err error) {
	if err := s.startFRRs(ctx, frr); err != nil {
		return err
	}
	if err := s.RespondOn(ctx, append(slices.Clone(Externals), Pods...)...); err != nil {
		return err
	}
	if err := s.startProxies(ctx); err != nil {
		return err
	}
	if s.Witness, err = s.Lab.Witness(slices.Collect(maps.Keys(Routers))...); err != nil {
		return err
	}
	for _, node := range s.nodes {
		if err := s.StartDaemon(node); err != nil {
			return err
		}
	}
	return nil
}

func (s *Stage) startFRRs(ctx context.Context, configs map[string]string) error {
	for node, config := range configs {
		if err := s.furnishFRR(ctx, node, config); err != nil {
			return err
		}
		if err := s.StartFRR(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// Close ends daemons and nodes and removes the files.
func (s *Stage) Close() error {
	if s.Witness != nil {
		s.Witness.Close()
	}
	if s.Lab != nil {
		s.Lab.Destroy()
	}
	var err error
	if s.API != nil {
		err = s.API.Close()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}

// StartDaemon starts the daemon on a node, and before it the node's speaker where none runs.
func (s *Stage) StartDaemon(node string) error {
	binary, err := lab.Binary()
	if err != nil {
		return err
	}
	return s.StartDaemonOf(node, binary)
}

// StartDaemonOf is StartDaemon with another version of our program.
func (s *Stage) StartDaemonOf(node, binary string) (err error) {
	if !s.ownSpeaker && (s.Speakers[node] == nil || s.Speakers[node].Ended()) {
		if err := s.StartSpeaker(node); err != nil {
			return err
		}
	}
	config := "/etc/egressway/config.yaml"
	if s.API != nil {
		if config, err = s.apiConfig(context.Background(), node); err != nil {
			return err
		}
	}
	capabilities := "-all,+net_admin" // as it is deployed
	if s.ownSpeaker {
		capabilities += ",+net_raw"
	}
	s.Daemons[node], err = s.Start(s.Node(node), "setpriv", "--bounding-set", capabilities, "--no-new-privs", binary, "run", "--config",
		config)
	return err
}

// Egressway runs a command line of our binary on a node.
func (s *Stage) Egressway(ctx context.Context, node string, args ...string) (string, error) {
	binary, err := lab.Binary()
	if err != nil {
		return "", err
	}
	return s.Node(node).Run(ctx, append([]string{binary}, args...)...)
}

func (s *Stage) manifests() string { return filepath.Join(s.dir, "vrf-egress", "manifests") }

// put replaces a file at once, as kubectl or a ConfigMap would.
func (s *Stage) put(name, content string) error {
	path := filepath.Join(s.manifests(), name)
	temporary := filepath.Join(s.manifests(), "."+name)
	if err := os.WriteFile(temporary, []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// Manifest reads a file of the folder that all daemons watch.
func (s *Stage) Manifest(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(s.manifests(), name))
	return string(b), err
}

// ManifestPath is where a file of that folder is.
func (s *Stage) ManifestPath(name string) string { return filepath.Join(s.manifests(), name) }

// Write puts a file into the folder that all daemons watch, and lets the service proxies follow.
func (s *Stage) Write(ctx context.Context, name, content string) error {
	before, err := s.Manifest(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := s.put(name, content); err != nil {
		return err
	}
	if s.API != nil {
		if err := s.apply(ctx, before, content); err != nil {
			return err
		}
	}
	return s.proxy(ctx)
}

// Edit changes a file of that folder by replacing text, which must be there. from and to alternate.
func (s *Stage) Edit(ctx context.Context, name string, fromTo ...string) error {
	content, err := s.Manifest(name)
	if err != nil {
		return err
	}
	for i := 0; i+1 < len(fromTo); i += 2 {
		if !strings.Contains(content, fromTo[i]) {
			return fmt.Errorf("manifest %s does not hold %q", name, fromTo[i])
		}
		content = strings.ReplaceAll(content, fromTo[i], fromTo[i+1])
	}
	return s.Write(ctx, name, content)
}

// Remove takes a file out of that folder.
func (s *Stage) Remove(ctx context.Context, name string) error {
	before, err := s.Manifest(name)
	if err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(s.manifests(), name)); err != nil {
		return err
	}
	if s.API != nil {
		if err := s.apply(ctx, before, ""); err != nil {
			return err
		}
	}
	return s.proxy(ctx)
}

// EditConfig changes the daemons' configuration; those that run take it up. It is written in place: nodes have the
// file bound into theirs.
func (s *Stage) EditConfig(edit func(string) string) error {
	path := filepath.Join(s.dir, "vrf-egress", "config.yaml")
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(edit(string(b))), 0o644)
}

// Objects reads the folder as the daemons do.
func (s *Stage) Objects() cluster.Objects {
	o, _ := manifests.Read(s.manifests())
	return o
}

func (s *Stage) proxy(ctx context.Context) error {
	if s.kubeProxy != "" {
		return nil // it watches the API server
	}
	o := s.Objects()
	return s.ProxyServices(ctx, &o, "a", "b", "c")
}

// Paths returns the next hops, sorted, of a prefix in a router's BGP table: those of the paths that it uses, which are
// the best and those as good, and of the others.
func (s *Stage) Paths(router string, prefix netip.Prefix) (used, others []string, err error) {
	family := "ipv4"
	if prefix.Addr().Is6() {
		family = "ipv6"
	}
	out, err := s.Node(router).VTY("bgpd", fmt.Sprintf("show bgp %s unicast %s json", family, prefix))
	if err != nil {
		return nil, nil, err
	}
	var table struct {
		Paths []struct {
			Bestpath  struct{ Overall bool }
			Multipath bool
			Nexthops  []struct{ IP, Scope string }
		}
	}
	if err := json.Unmarshal([]byte(out), &table); err != nil {
		return nil, nil, fmt.Errorf("%s: %w in %q", router, err, out)
	}
	for _, p := range table.Paths {
		for _, h := range p.Nexthops {
			switch {
			case h.Scope == "link-local":
			case p.Bestpath.Overall || p.Multipath:
				used = append(used, h.IP)
			default:
				others = append(others, h.IP)
			}
		}
	}
	slices.Sort(used)
	slices.Sort(others)
	return used, others, nil
}

// NextHops returns the next hops that a router uses for a prefix: those of its best paths, sorted.
func (s *Stage) NextHops(router string, prefix netip.Prefix) ([]string, error) {
	used, _, err := s.Paths(router, prefix)
	return used, err
}

// Prefixes lists every prefix of a family ("ipv4", "ipv6") in a router's BGP table.
func (s *Stage) Prefixes(router, family string) ([]string, error) {
	var table struct{ Routes map[string]json.RawMessage }
	if err := s.Node(router).VTYJSON(&table, "bgpd", fmt.Sprintf("show bgp %s unicast json", family)); err != nil {
		return nil, err
	}
	var all []string
	for p := range table.Routes {
		all = append(all, p)
	}
	slices.Sort(all)
	return all, nil
}

// AwaitRoute waits until a router uses exactly these next hops for a prefix; none: until it is gone.
func (s *Stage) AwaitRoute(ctx context.Context, router, prefix string, hops ...string) error {
	slices.Sort(hops)
	return lab.Wait(ctx, lab.Patience, func() error {
		have, err := s.NextHops(router, netip.MustParsePrefix(prefix))
		if err == nil && !slices.Equal(have, hops) {
			err = fmt.Errorf("%s has %s by %v, want %v", router, prefix, have, hops)
		}
		return err
	})
}

// AwaitStandby waits until a router has paths to a prefix by exactly these next hops that it would use if the host's were
// gone.
func (s *Stage) AwaitStandby(ctx context.Context, router, prefix string, hops ...string) error {
	slices.Sort(hops)
	return lab.Wait(ctx, lab.Patience, func() error {
		used, others, err := s.Paths(router, netip.MustParsePrefix(prefix))
		if err == nil && (len(used) == 0 || !slices.Equal(others, hops)) {
			err = fmt.Errorf("%s has %s by %v and, in reserve, by %v, want %v", router, prefix, used, others, hops)
		}
		return err
	})
}

// Await asks until the answer is as wanted: by the external host named, which saw the source.
func (s *Stage) Await(ctx context.Context, pod string, to netip.AddrPort, name, source string) error {
	return lab.Wait(ctx, lab.Patience, func() error {
		a, err := s.Node(pod).AskTCP(ctx, to)
		if err != nil {
			return err
		}
		return Check(a, name, source)
	})
}

// Check compares the server that answered, and the client address that it saw, with the wanted ones.
func Check(a lab.Answer, name, source string) error {
	if a.Name != name || a.Peer.Addr() != netip.MustParseAddr(source) {
		return fmt.Errorf("%s answered and saw %s, want %s and %s", a.Name, a.Peer.Addr(), name, source)
	}
	return nil
}

// inside holds the prefixes that no router may see: addresses of pods and Services.
var inside = []netip.Prefix{
	netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd44::/16"),
	netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd96::/112"),
}

// Wrong finds the packets that a router should not have seen: those to the outside whose source is not among the allowed
// ones of its network, and those from or to addresses that exist inside the cluster only.
func (s *Stage) Wrong(allowed map[string][]string) lab.Packets {
	return s.Witness.Find(func(p lab.Packet) bool {
		for _, i := range inside {
			if i.Contains(p.Src) || i.Contains(p.Dst) {
				return true
			}
		}
		// For an unknown connection, a node answers with a reset of its own.
		if p.Dst != Outside4.Addr() && p.Dst != Outside6.Addr() || p.Fresh {
			return false
		}
		return !slices.Contains(allowed[Routers[p.Node+":"+p.Interface]], p.Src.String())
	})
}
