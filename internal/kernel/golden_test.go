package kernel

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/kernel/sysctl"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
	"github.com/egressway/egressway/lab/netns"
	"github.com/egressway/egressway/lab/stories"
)

// frozen lists the nodes whose kernel state testdata holds: one for each feature of the packet path. The kernel state
// of most other stories differs from one-service only in a few set elements, which the stories' own plans show.
// TestFrozenNodesCoverEveryFeature finds a feature that no node has.
var frozen = []struct {
	name, story, node string
	change            func(*plan.Snapshot)
}{
	{"one-service", "one-service", "a", nil},            // both families, pods steered over the LAN, a VRF that the daemon creates
	{"every-way", "every-way", "a", nil},                // IPv4 only, the tunnel, a pod of each kind; docs/datapath.md shows the table
	{"adopted-vrf", "unlisted-vrf", "a", nil},           // existing VRFs, with their interfaces
	{"bare-table", "bare-table", "a", besideNode},       // a network without a VRF, whose uplink leads to another node as well
	{"default-network", "default-network", "a", nil},    // ingress IPs in the main table
	{"vlan", "vlan", "a", nil},                          // uplinks that are VLAN sub-interfaces, which the daemon makes
	{"hold", "hold", "a", nil},                          // pods that wait until they are selected
	{"ipvs", "hold", "a", withIPVS},                     // the same beside kube-proxy in IPVS mode
	{"egress-qos", "egress-qos", "a", nil},              // DSCP values of two classes
	{"on-link", "on-link", "a", nil},                    // addresses of EgressIPs for which the node answers, by the table of family arp
	{"egress-firewall", "egress-firewall", "a", nil},    // connections that a policy of each family allows
	{"shared-path", "shared-path", "a", nil},            // hosts without a path id, by the table of family netdev
	{"spare-tunnel", "shared-path", "e", nil},           // a tunnel for what nodes without path ids may send
	{"moved-host", "one-service", "b", movedAndCounted}, // a host with connections that began at the former host, and counters for each ingress IP
}

func besideNode(s *plan.Snapshot) {
	b := s.Objects.Nodes.At("b")
	b.Internal = append(slices.Clone(b.Internal), netip.MustParseAddr("10.4.0.12"))
	s.Objects.Nodes = s.Objects.Nodes.With("b", b)
}

func withIPVS(s *plan.Snapshot) {
	s.Facts.Links = append(slices.Clone(s.Facts.Links), plan.Link{
		Name: "kube-ipvs0", Index: 99, MTU: 1500, Addrs: []netip.Prefix{netip.MustParsePrefix("203.0.113.10/32")},
	})
}

func movedAndCounted(s *plan.Snapshot) {
	s.Config.Status.PerService, s.Config.Status.ServiceCounters = true, true
	s.Hosts[election.ServiceSeat(cluster.Key{Namespace: "shop", Name: "web"})] = election.Choice{Host: "b", Standby: "a", Term: 2, Former: true}
}

// readFrozen reads the story of frozen[i].
func readFrozen(t *testing.T, i int) stories.Story {
	t.Helper()
	f := frozen[i]
	s, err := stories.Read("../plan/testdata/"+f.story, f.node)
	require.NoError(t, err)
	if f.change != nil {
		f.change(&s.Snapshot)
	}
	return s
}

// TestKernelIsAsFrozen applies the plans of some stories and compares the operator's view of the kernel (nft, ip,
// bridge) with testdata. UPDATE_GOLDEN=1 rewrites testdata and the listing in docs/datapath.md.
func TestKernelIsAsFrozen(t *testing.T) {
	for i, f := range frozen {
		t.Run(f.name, func(t *testing.T) {
			s := readFrozen(t, i)
			netns.Enter(t)
			makeLinks(t, s)
			n, err := openKept()
			require.NoError(t, err)
			t.Cleanup(n.Close)
			desired, _ := plan.Build(s.Snapshot)
			r, err := n.Apply(t.Context(), desired)
			require.NoError(t, err)
			require.True(t, r.Whole(), "%+v", r)

			got := view(t)
			file := "testdata/" + f.name + ".txt"
			if os.Getenv("UPDATE_GOLDEN") != "" {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), got)
		})
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		text, err := os.ReadFile(datapath)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(datapath, []byte(withListings(t, string(text))), 0o600))
	}
}

// TestFrozenNodesCoverEveryFeature finds a field of the data plane, the tunnel, VRFs, rules and routes that is zero in
// all frozen plans, so that testdata shows none of the rules that depend on the field.
func TestFrozenNodesCoverEveryFeature(t *testing.T) {
	type kernel struct {
		DataPlane plan.DataPlane
		Tunnel    *plan.Tunnel
		VRFs      []plan.VRF
		VLANs     []plan.VLAN
		Rules     []plan.Rule
		Routes    sorted.List[plan.Route]
	}
	var all []any
	for i := range frozen {
		p, _ := plan.Build(readFrozen(t, i).Snapshot)
		all = append(all, kernel{p.DataPlane, p.Tunnel, p.VRFs, p.VLANs, p.Rules, p.Routes})
	}
	require.Empty(t, stories.Unset(all...), "add a node to frozen that has it")
}

// TestDatapathShowsWhatIsFrozen compares the listings in docs/datapath.md with testdata.
func TestDatapathShowsWhatIsFrozen(t *testing.T) {
	text, err := os.ReadFile(datapath)
	require.NoError(t, err)
	require.Equal(t, withListings(t, string(text)), string(text), "UPDATE_GOLDEN=1 with TestKernelIsAsFrozen writes the listings")
}

const datapath = "../../docs/datapath.md"

// withListings returns a text with the rules and the table of every-way in their places.
func withListings(t *testing.T, text string) string {
	t.Helper()
	golden, err := os.ReadFile("testdata/every-way.txt")
	require.NoError(t, err)
	_, rules, found := strings.Cut(string(golden), "# ip -4 rule list\n")
	require.True(t, found)
	rules, _, _ = strings.Cut(rules, "\n\n")
	var ours strings.Builder
	for line := range strings.Lines(rules) {
		if strings.Contains(line, "proto 142") {
			ours.WriteString(line)
		}
	}
	for name, listing := range map[string]string{"rules": ours.String(), "table": excerpt(string(golden))} {
		place := regexp.MustCompile(`(?s)(<!-- begin ` + name + `:[^\n]*-->\n).*?(<!-- end ` + name + ` -->)`)
		require.Len(t, place.FindAllString(text, -1), 1, name)
		text = place.ReplaceAllString(text, "${1}```\n"+listing+"```\n${2}")
	}
	return text
}

// excerpt returns the table of a golden text without repetitions: with one family, and with one path of several alike.
func excerpt(golden string) string {
	_, table, _ := strings.Cut(golden, "table inet egressway {\n")
	table, _, _ = strings.Cut(table, "\n}\n")
	var b strings.Builder
	b.WriteString("table inet egressway {\n")
	for _, block := range strings.Split(table, "\n\n")[1:] { // the first block holds the table's flags
		lines := strings.Split(block, "\n")
		head := strings.Fields(lines[0]) // "set devices {"
		if head[0] == "counter" || strings.HasSuffix(head[1], "6") || alike.MatchString(head[1]) {
			continue
		}
		lines = slices.DeleteFunc(lines, otherFamily.MatchString)
		if short := oneLine(lines); len(short) <= 120 {
			lines = []string{short}
		}
		if head[1] == "prerouting" { // the first chain gets a blank line before it
			b.WriteString("\n")
		}
		b.WriteString(strings.Join(lines, "\n") + "\n")
	}
	return b.String() + "}\n"
}

var (
	alike       = regexp.MustCompile(`^(path|going|own-source|sources4)-[13]$|^sources6`)
	otherFamily = regexp.MustCompile(`\b(ip6 |ipv6\b)`)
)

// oneLine joins a block of a listing into one line of nft's syntax.
func oneLine(lines []string) string {
	inner := strings.Join(lines[1:len(lines)-1], "; ")
	for _, broken := range []string{"{; ", ",; "} { // of element lists that nft(8) breaks
		inner = strings.ReplaceAll(inner, broken, strings.ReplaceAll(broken, ";", ""))
	}
	return "\t" + strings.Join(strings.Fields(lines[0]+" "+inner+" }"), " ")
}

// makeLinks creates the links of a story. If no file of the story lists links, the daemon creates the VRFs and
// the VLAN sub-interfaces.
func makeLinks(t *testing.T, s stories.Story) {
	t.Helper()
	links := slices.Clone(s.Snapshot.Facts.Links)
	slices.SortStableFunc(links, func(a, b plan.Link) int { return -cmp.Compare(a.VRFTable, b.VRFTable) }) // masters first
	for _, l := range links {
		if (l.VRFTable != 0 || l.VLAN != 0) && s.Assumed {
			continue
		}
		if l.VRFTable != 0 {
			netns.IP(t, fmt.Sprintf("link add %s type vrf table %d", l.Name, l.VRFTable))
		} else if l.Name != "lo" {
			netns.IP(t, fmt.Sprintf("link add %s mtu %d type dummy", l.Name, l.MTU))
		}
		if l.Master != "" && !s.Assumed {
			netns.IP(t, "link set "+l.Name+" master "+l.Master)
		}
		netns.IP(t, "link set "+l.Name+" up")
		for _, a := range l.Addrs {
			netns.IP(t, "addr replace "+a.String()+" dev "+l.Name+" nodad")
		}
	}
}

// view returns everything in this namespace that the daemon may have created, as the operator's tools list it.
func view(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, command := range []string{
		"nft list table inet egressway", "nft list table netdev egressway", "nft list table arp egressway",
		"ip -4 rule list", "ip -6 rule list",
		"ip -4 route list table all proto 142", "ip -6 route list table all proto 142",
	} {
		args := strings.Fields(command)
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		if args[3] != "inet" && args[0] == "nft" && err != nil { // only for hosts that share a path, and for addresses on the link
			require.Contains(t, string(out), "No such file or directory")
			continue
		}
		require.NoError(t, err, "%s: %s", command, out)
		fmt.Fprintf(&b, "# %s\n", command)
		for line := range strings.Lines(steady.ReplaceAllString(string(out), "")) {
			fmt.Fprintln(&b, strings.TrimRight(line, " \n"))
		}
		fmt.Fprintln(&b)
	}
	fmt.Fprintln(&b, "# devices, addresses of ours, neighbours and forwarding entries")
	for _, line := range devices(t) {
		fmt.Fprintln(&b, line)
	}
	return b.String()
}

// steady matches remarks of nft(8) that depend on the program's name and version.
var steady = regexp.MustCompile(` # progname \S+| \[invalid type\]`)

// devices returns the links, one line each, with all attributes that the daemon sets.
func devices(t *testing.T) (lines []string) {
	t.Helper()
	netns.Eventually(t, func() bool { return !strings.Contains(netns.IP(t, "-6 addr show"), "tentative") }, "addresses settle")
	for _, l := range netns.Show(t, "link show") {
		name := l["ifname"].(string)
		index := fmt.Sprintf("%.0f", l["ifindex"])
		info, _ := l["linkinfo"].(map[string]any)
		data, _ := info["info_data"].(map[string]any)
		parts := []string{fmt.Sprint(cmp.Or[any](info["info_kind"], "loopback"))}
		add := func(what string, value any) {
			if f, ok := value.(float64); ok {
				value = strconv.FormatFloat(f, 'f', -1, 64)
			}
			if value != nil {
				parts = append(parts, fmt.Sprintf("%s %v", what, value))
			}
		}
		add("master", l["master"])
		for _, altname := range asList(l["altnames"]) {
			add("altname", strings.Replace(altname.(string), index, "INDEX", 1))
		}
		if info["info_kind"] == "vlan" {
			add("link", l["link"])
			add("mtu", l["mtu"])
		}
		for _, key := range []string{"table", "id", "port", "local", "learning", "ageing"} {
			add(key, data[key])
		}
		if l["group"] != "default" {
			add("group", l["group"])
		}
		if info["info_kind"] == "vxlan" {
			filter, _ := sysctl.Read("net", "ipv4", "conf", name, "rp_filter")
			add("mtu", l["mtu"])
			add("address", l["address"])
			add("addrgenmode", l["inet6_addr_gen_mode"])
			add("rp_filter", float64(filter))
		}
		if slices.Contains(asList(l["flags"]), any("UP")) {
			parts = append(parts, "up")
		}
		lines = append(lines, name+": "+strings.Join(parts, ", "))
		if info["info_kind"] == "vlan" {
			for _, global := range netns.Show(t, "addr show scope global dev "+name) {
				for _, a := range asList(global["addr_info"]) {
					a := a.(map[string]any)
					if a["local"] != nil {
						lines = append(lines, fmt.Sprintf("  %s %s/%.0f", a["family"], a["local"], a["prefixlen"]))
					}
				}
			}
		}
		if info["info_kind"] != "vxlan" {
			continue
		}
		for _, a := range asList(netns.Show(t, "addr show dev "+name)[0]["addr_info"]) {
			a := a.(map[string]any)
			lines = append(lines, fmt.Sprintf("  %s %s/%.0f scope %s", a["family"], a["local"], a["prefixlen"], a["scope"]))
		}
		var neighbours []string // the kernel lists them by hash
		for _, n := range netns.Show(t, "neigh show nud permanent dev "+name) {
			neighbours = append(neighbours, fmt.Sprintf("  neighbour %s at %s", n["dst"], n["lladdr"]))
		}
		lines = append(lines, slices.Sorted(slices.Values(neighbours))...)
		out, err := exec.CommandContext(t.Context(), "bridge", "fdb", "show", "dev", name).CombinedOutput()
		require.NoError(t, err, "%s", out)
		for _, line := range slices.Sorted(strings.Lines(string(out))) {
			lines = append(lines, "  forwards "+strings.TrimSpace(line))
		}
	}
	return lines
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}
