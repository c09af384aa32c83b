package picture

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/status"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func addrs(all ...string) (parsed []netip.Addr) {
	for _, a := range all {
		parsed = append(parsed, netip.MustParseAddr(a))
	}
	return parsed
}

func session(network, peer string, asn uint32) status.Session {
	return status.Session{
		Network: network, Peer: peer, Address: netip.MustParseAddr(peer), ASN: asn, State: "established", Up: true,
		Received: 2, Accepted: 2, Announced: 2, BFD: "up",
	}
}

// healthy is a report of node a, on which everything is well.
func healthy() status.Report {
	return status.Report{
		Node: "a", Version: "v1.0.0", Applied: noon, Ready: true,
		Networks: []status.Network{
			{Name: "blue", VRF: "vrf-blue", Table: 1002, Usable: true, Learned: 2, Sessions: 2, SessionsUp: 2},
			{Name: "default", Table: 254, Usable: true},
			{Name: "red", VRF: "vrf-red", Table: 1001, Usable: true, Learned: 4, Sessions: 2, SessionsUp: 2},
		},
		Sessions: []status.Session{
			session("blue", "10.2.0.1", 64602), session("blue", "10.2.0.2", 64602),
			session("red", "10.1.0.1", 64601), session("red", "fd01::2", 64601),
		},
		Services: []status.Service{
			{
				Namespace: "jobs", Name: "batch", SourceIPBy: cluster.SourceIPByNetwork, Network: "blue", Host: cluster.AllHosts,
				IngressIPs: addrs("203.0.113.20", "2001:db8:203::20"), Announced: addrs("203.0.113.20", "2001:db8:203::20"), Endpoints: 4, Local: 2,
			},
			{Namespace: "shop", Name: "plain", SourceIPBy: cluster.SourceIPByLoadBalancer, Network: "default", Host: "b", Standby: "c", IngressIPs: addrs("203.0.113.30"), Endpoints: 1},
			{
				Namespace: "shop", Name: "web", SourceIPBy: cluster.SourceIPByLoadBalancer, Network: "red", Host: "a", Standby: "c",
				IngressIPs: addrs("203.0.113.10", "2001:db8:203::10"), Announced: addrs("203.0.113.10", "2001:db8:203::10"), Endpoints: 4, Local: 2,
			},
		},
		Watched: []status.Watched{{Node: "b", Alive: true}},
	}
}

func brokenSession() status.Report {
	r := healthy()
	r.Sessions[2].Up, r.Sessions[2].State, r.Sessions[2].BFD = false, "active", "down"
	r.Sessions[2].LastError = "the peer refuses: hold timer expired"
	r.Sessions[2].Accepted, r.Sessions[2].Received, r.Sessions[2].Announced = 0, 0, 0
	r.Sessions[0].BFD = "down"
	r.Networks[2].SessionsUp = 1
	r.Watched[0].Alive = false
	return r
}

func noHost() status.Report {
	r := healthy()
	wrong := status.Problem{Kind: "EgressService", Object: "shop/web", Reason: cluster.ReasonNoEligibleNode, Message: "no node is Ready, matches nodeSelector and has the network up"}
	blue := status.Problem{Kind: "Network", Object: "blue", Field: "vrf", Value: "vrf-blue", Reason: plan.ReasonVRFMissing, Message: "no such VRF device on node a"}
	r.Services[2].Host, r.Services[2].Standby, r.Services[2].Announced = "", "", nil
	r.Services[2].Problems = []status.Problem{wrong}
	r.Services[1].Host, r.Services[1].Standby = "", ""
	r.Networks[0].Usable, r.Networks[0].VRF, r.Networks[0].Table = false, "", 0
	r.Problems = []status.Problem{wrong, blue}
	r.Ready, r.ConfigStale, r.Draining, r.Errors = false, true, true, []string{"routes: replace route 0.0.0.0/0 table 1001: no such device"}
	return r
}

func onlyIPv6() status.Report {
	r := healthy()
	r.Networks, r.Sessions, r.Services = r.Networks[2:], r.Sessions[3:], r.Services[2:]
	r.Networks[0].Sessions, r.Networks[0].SessionsUp = 2, 2
	unnumbered := session("red", "fe80::5054:ff:fe12:3456", 64601)
	unnumbered.Peer = "red0"
	r.Sessions = append(r.Sessions, unnumbered)
	full := "2001:db8:1234:5678:9abc:def0:1234:%x"
	r.Services[0].IngressIPs = addrs(fmt.Sprintf(full, 1), fmt.Sprintf(full, 2), fmt.Sprintf(full, 3))
	r.Services[0].Announced = r.Services[0].IngressIPs[:1]
	return r
}

// many is a report of 10,000 services in 20 networks on 200 nodes with 200 sessions, where one in a hundred is broken.
func many() status.Report {
	r := healthy()
	r.Networks, r.Sessions, r.Services, r.Watched = nil, nil, nil, nil
	for n := range 20 {
		name := fmt.Sprintf("net-%02d", n)
		r.Networks = append(r.Networks, status.Network{Name: name, VRF: "vrf-" + name, Table: uint32(1000 + n), Usable: n != 18, Learned: 1200, Sessions: 10, SessionsUp: 9})
		for p := range 10 {
			s := session(name, fmt.Sprintf("10.%d.0.%d", n, p+1), uint32(64600+n))
			if p == 9 {
				s.Up, s.State, s.BFD = false, "connect", "down"
			}
			r.Sessions = append(r.Sessions, s)
		}
	}
	for i := range 10_000 {
		s := status.Service{
			Namespace: fmt.Sprintf("team-%03d", i/100), Name: fmt.Sprintf("service-%02d", i%100), Network: fmt.Sprintf("net-%02d", min(i/100, 19)),
			SourceIPBy: cluster.SourceIPByLoadBalancer, Host: fmt.Sprintf("node-%03d", i%200), Standby: fmt.Sprintf("node-%03d", (i+1)%200),
			IngressIPs: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, byte(i / 256), byte(i)})}, Endpoints: 10,
		}
		if i%100 == 99 {
			p := status.Problem{Kind: "EgressService", Object: s.Namespace + "/" + s.Name, Reason: cluster.ReasonNoEndpoints, Message: "no pod is selected"}
			s.Problems, r.Problems = []status.Problem{p}, append(r.Problems, p)
		}
		r.Services = append(r.Services, s)
	}
	for n := range 200 {
		r.Watched = append(r.Watched, status.Watched{Node: fmt.Sprintf("node-%03d", n), Alive: n != 150})
	}
	return r
}

// hostile has in every text what means something to XML, HTML, DOT or a terminal.
func hostile() status.Report {
	const bad = "</title><script>alert(1)</script>\"'&amp;&\\n\\\"\x00\x1b[31m\n]]>\u202e\xff{{picture}}"
	r := brokenSession()
	p := status.Problem{Kind: "EgressService", Object: "x/" + bad, Reason: cluster.Reason(bad), Message: bad, Field: bad, Value: bad, Where: bad}
	r.Node, r.Version, r.Errors, r.Problems = bad, bad, []string{bad}, []status.Problem{p, {Kind: "Network", Object: bad, Message: bad}, {Kind: "Node", Object: bad, Message: bad}}
	r.Networks[0].Name, r.Networks[0].VRF = bad, bad
	r.Sessions[0].Network, r.Sessions[0].Peer, r.Sessions[0].State, r.Sessions[0].LastError, r.Sessions[0].BFD, r.Sessions[0].Up = bad, bad, bad, bad, bad, false
	r.Services[0] = status.Service{Namespace: "x", Name: bad, Network: bad, Host: bad, Standby: bad, Problems: []status.Problem{p}}
	r.Watched = append(r.Watched, status.Watched{Node: bad})
	return r
}

var reports = map[string]func() status.Report{
	"healthy": healthy, "session": brokenSession, "nohost": noHost, "ipv6": onlyIPv6, "many": many,
	"nothing": func() status.Report { return status.Report{Node: "a"} },
}

func drawn(t *testing.T, r status.Report) (svg, dot string) {
	t.Helper()
	var s, d bytes.Buffer
	g := Of(r)
	require.NoError(t, g.WriteSVG(&s))
	require.NoError(t, g.WriteDOT(&d))
	return s.String(), d.String()
}

// TestGoldens compares pictures with files, which UPDATE=1 writes.
func TestGoldens(t *testing.T) {
	for name, report := range reports {
		t.Run(name, func(t *testing.T) {
			svg, dot := drawn(t, report())
			for file, got := range map[string]string{name + ".svg": svg, name + ".dot": dot} {
				file = filepath.Join("testdata", file)
				if os.Getenv("UPDATE") != "" {
					require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
				}
				want, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Equal(t, string(want), got, "%s: UPDATE=1 writes it", file)
			}
		})
	}
}

// TestPicturesInDocs: the documentation shows what is drawn today, of reports of a node in the lab. UPDATE=1 draws it anew.
func TestPicturesInDocs(t *testing.T) {
	for _, name := range []string{"paths", "broken"} {
		b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		require.NoError(t, err)
		var r status.Report
		require.NoError(t, json.Unmarshal(b, &r))
		got, _ := drawn(t, r)
		file := "../../docs/pictures/" + name + ".svg"
		if os.Getenv("UPDATE") != "" {
			require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), got, "%s: UPDATE=1 writes it", file)
	}
}

// TestSameReportSamePicture: also after its way through JSON, as the command gets it.
func TestSameReportSamePicture(t *testing.T) {
	for name, report := range reports {
		svg, dot := drawn(t, report())
		b, err := json.Marshal(report())
		require.NoError(t, err)
		for range 5 {
			var r status.Report
			require.NoError(t, json.Unmarshal(b, &r))
			svg2, dot2 := drawn(t, r)
			require.Equal(t, svg, svg2, name)
			require.Equal(t, dot, dot2, name)
		}
	}
}

// element is what a test reads of an SVG.
type element struct {
	XMLName xml.Name
	Attrs   []xml.Attr `xml:",any,attr"`
	Text    string     `xml:",chardata"`
	Inner   []element  `xml:",any"`
}

func (e element) attr(name string) string {
	for _, a := range e.Attrs {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

// all are the elements of a name, with or without a class.
func (e element) all(name, class string) (found []element) {
	for _, inner := range e.Inner {
		if inner.XMLName.Local == name && (class == "" || slices.Contains(strings.Fields(inner.attr("class")), class)) {
			found = append(found, inner)
		}
		found = append(found, inner.all(name, class)...)
	}
	return found
}

func (e element) said() string {
	s := e.Text
	for _, inner := range e.Inner {
		s += "\n" + inner.said()
	}
	return s
}

func parsed(t *testing.T, svg string) (root element) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	require.NoError(t, d.Decode(&root), svg)
	_, err := d.Token()
	for err == nil {
		_, err = d.Token()
	}
	require.ErrorIs(t, err, io.EOF)
	return root
}

// TestSVGIsAccessible: well-formed, with a title and a description, and nothing outside of it.
func TestSVGIsAccessible(t *testing.T) {
	for name, report := range reports {
		svg, _ := drawn(t, report())
		root := parsed(t, svg)
		require.Equal(t, "svg", root.XMLName.Local)
		require.Equal(t, "http://www.w3.org/2000/svg", root.XMLName.Space)
		require.Equal(t, "img", root.attr("role"))
		require.Equal(t, "ew-title ew-desc", root.attr("aria-labelledby"))
		require.Contains(t, root.all("title", "")[0].Text, "node a", name)
		require.Contains(t, root.all("desc", "")[0].Text, "Node a: ", name)
		require.Contains(t, root.all("style", "")[0].Text, "prefers-color-scheme: dark")
		require.NotRegexp(t, `href|@import|url\([^#]`, svg, "resources of others")
		require.Empty(t, regexp.MustCompile(`="-\d`).FindString(svg), name)
	}
}

func TestSVGShows(t *testing.T) {
	svg, _ := drawn(t, healthy())
	root := parsed(t, svg)
	require.Len(t, root.all("g", "ew-node"), 4)
	require.Len(t, root.all("g", "ew-network"), 3)
	require.Len(t, root.all("g", "ew-service"), 3)
	require.Len(t, root.all("g", "ew-router"), 4)
	require.Len(t, root.all("path", "ew-host"), 3+1, "and that of the legend")
	require.Len(t, root.all("path", "ew-standby"), 2+1)
	require.Len(t, root.all("path", "ew-up"), 4+1)
	require.Len(t, root.all("path", "ew-down"), 1)
	require.Empty(t, root.all("rect", "ew-broken"))
	require.Contains(t, root.said(), "a is the host of shop/web")
	require.Contains(t, root.said(), "every node is the host of jobs/batch")
	require.Contains(t, root.said(), "203.0.113.10 · 2001:db8:203::10")
	require.Contains(t, root.said(), "vrf-red, table 1001, 4 routes, 2/2 sessions up")
	require.Contains(t, root.said(), "Nothing is broken.")

	svg, _ = drawn(t, brokenSession())
	root = parsed(t, svg)
	require.Len(t, root.all("path", "ew-down"), 2)
	require.Len(t, root.all("path", "ew-up"), 3+1)
	require.Len(t, root.all("rect", "ew-broken"), 2+1+1, "the session, one with BFD alone, the silent node, and their list")
	require.Contains(t, root.said(), "Broken: the peer refuses: hold timer expired")
	require.Contains(t, root.said(), "Broken: silent: BFD hears nothing of it")

	svg, _ = drawn(t, noHost())
	root = parsed(t, svg)
	require.Contains(t, root.said(), "Broken: NoEligibleNode: no node is Ready, matches nodeSelector and has the network up")
	require.Contains(t, root.said(), "Broken: VRFMissing: no such VRF device on node a")
	require.Contains(t, root.said(), "EgressService shop/plain: no host")
	require.Len(t, root.all("path", "ew-host"), 1+1)

	svg, _ = drawn(t, status.Report{Node: "a", Unknowing: true})
	require.Contains(t, parsed(t, svg).said(), "not all objects are known yet")
}

// TestBounds: a picture of very much is as large as one of much, with the broken in it.
func TestBounds(t *testing.T) {
	svg, dot := drawn(t, many())
	require.Less(t, len(svg), 128<<10)
	require.Less(t, len(dot), 64<<10)
	root := parsed(t, svg)
	require.Len(t, root.all("g", "ew-node"), mostNodes)
	require.Len(t, root.all("g", "ew-network"), mostNetworks)
	require.Len(t, root.all("g", "ew-service"), mostNetworks*least)
	require.Len(t, root.all("g", "ew-router"), mostNetworks*least)
	require.Contains(t, root.said(), "and 8 more networks")
	require.Contains(t, root.said(), "and 189 more") // of 200 nodes and the one that reports
	require.Contains(t, root.said(), "net-19", "with 81 of 100 that are broken")
	require.Contains(t, root.said(), "net-18", "that is not usable")
	require.Contains(t, root.said(), "node-150", "that is silent")
	require.Contains(t, root.said(), "10,000 EgressServices")
	for _, s := range []string{svg, dot} {
		require.Contains(t, s, "10.0.0.10", "the session that is down")
		require.Contains(t, s, "and 8,098 more, 79 of them broken")
	}

	one := many()
	one.Networks, one.Sessions = one.Networks[:1], one.Sessions[:10]
	for i := range one.Services {
		one.Services[i].Network = "net-00"
	}
	svg, _ = drawn(t, one)
	root = parsed(t, svg)
	require.Len(t, root.all("g", "ew-service"), mostServices)
	require.Contains(t, root.said(), "and 9,976 more, 76 of them broken")
	broken := root.all("g", "ew-service")
	require.Contains(t, broken[0].said(), "NoEndpoints")
}

func TestTextStaysInItsBox(t *testing.T) {
	long := strings.Repeat("a-very-long-name-", 15) + "end"
	r := healthy()
	r.Services[2].Name, r.Services[2].Host, r.Sessions[2].Peer, r.Networks[2].VRF = long, long, long, long
	r.Services[2].Problems = []status.Problem{{Kind: "EgressService", Object: long, Reason: cluster.ReasonNoEndpoints, Message: strings.Repeat("why, ", 100)}}
	svg, _ := drawn(t, r)
	room := map[string]int{"ew-node": nodeWidth, "ew-network": networkWidth, "ew-service": networkWidth, "ew-router": routerWidth}
	checked := 0
	for _, g := range parsed(t, svg).all("g", "") {
		for _, text := range g.all("text", "") {
			if most := room[g.attr("class")]; most > 0 {
				require.LessOrEqual(t, size(text.Text), letters(text.attr("class"), most-2*pad)+1, text.Text)
				checked++
			}
		}
	}
	require.Greater(t, checked, 30)
	require.Contains(t, svg, "…")
	require.Contains(t, svg, long+"\n", "in full in the tooltip")
}

func TestFit(t *testing.T) {
	require.Equal(t, "shop/web", fit("shop/web", "ew-name", 400))
	require.Equal(t, "names…rvice", fit("namespace/and-a-service", "ew-name", 100))
	require.LessOrEqual(t, size(fit(strings.Repeat("漢字", 40), "ew-name", 100)), 12)
	require.Equal(t, "a · b · c", fitAddresses([]string{"a", "b", "c"}, 100))
	require.Equal(t, "a · +2", fitAddresses([]string{"a", "b", "c"}, 60))
	require.Empty(t, fitAddresses(nil, 60))
	require.Nil(t, brokenLines("", 100, 2))
	require.Equal(t, []string{"✗ one two", "three four…"}, brokenLines("one two three four five six", 72, 2))
	for most := range 4 {
		require.LessOrEqual(t, len(brokenLines(strings.Repeat("x", 1000), 10, most+1)), most+1)
	}
	require.Equal(t, "1,234,567", thousands(1234567))
	require.Equal(t, "999", thousands(999))
	require.Equal(t, "-123", thousands(-123))
}

// TestHostileText: names and reasons of others stay text.
func TestHostileText(t *testing.T) {
	svg, dot := drawn(t, hostile())
	root := parsed(t, svg)
	require.Empty(t, root.all("script", ""))
	require.Contains(t, root.said(), "<script>alert(1)</script>", "as text")
	judgeDOT(t, dot)
	for _, s := range []string{svg, dot} {
		require.NotContains(t, s, "\x1b")
		require.NotContains(t, s, "\u202e")
		require.NotContains(t, s, "\xff")
	}
	var page bytes.Buffer
	require.NoError(t, WritePage(&page, hostile()))
	require.Equal(t, 1, strings.Count(page.String(), "<script>"))
	require.Equal(t, 1, strings.Count(page.String(), "</svg>"), "what looks like a part of the page is none")
}

func TestDOT(t *testing.T) {
	for name, report := range reports {
		_, dot := drawn(t, report())
		nodes, edges := judgeDOT(t, dot)
		require.NotEmpty(t, nodes, name)
		for _, e := range edges {
			require.Contains(t, nodes, e[0], name)
			require.Contains(t, nodes, e[1], name)
		}
		if name == "healthy" {
			require.Contains(t, edges, [2]string{"node/a", "service/shop/web"})
			require.Contains(t, edges, [2]string{"node/ALL", "service/jobs/batch"})
			require.Contains(t, edges, [2]string{"network/red", "peer/red/fd01::2"})
			require.NotContains(t, dot, "color=red")
		}
	}
}

// judgeDOT reads the statements of the DOT language that we write, and returns nodes and edges.
func judgeDOT(t *testing.T, dot string) (nodes []string, edges [][2]string) {
	t.Helper()
	const str = `"((?:[^"\\]|\\.)*)"`
	const attr = `[a-z]+=(?:` + str + `|[a-zA-Z]+)`
	node := regexp.MustCompile(`^\s*` + str + ` \[` + attr + `(, ` + attr + `)*\];$`)
	edge := regexp.MustCompile(`^\s*` + str + ` -> ` + str + ` \[(?:` + attr + `(, ` + attr + `)*)?\];$`)
	other := regexp.MustCompile(`^\s*(digraph egressway \{|subgraph cluster_\d+ \{|\}|(node|edge) \[.*\];|` + attr + `;( ` + attr + `;)*)$`)
	depth := 0
	for l := range strings.Lines(dot) {
		l = strings.TrimSuffix(l, "\n")
		switch {
		case node.MatchString(l) && !strings.HasPrefix(strings.TrimSpace(l), "node "):
			nodes = append(nodes, node.FindStringSubmatch(l)[1])
		case edge.MatchString(l):
			m := edge.FindStringSubmatch(l)
			edges = append(edges, [2]string{m[1], m[2]})
		default:
			require.Regexp(t, other, l)
			depth += strings.Count(l, "{") - strings.Count(l, "}")
			require.GreaterOrEqual(t, depth, 0)
		}
	}
	require.Zero(t, depth)
	unique := slices.Clone(nodes)
	slices.Sort(unique)
	require.Len(t, slices.Compact(unique), len(nodes), "a node twice")
	return nodes, edges
}

// TestPage: one file, which may run its own script and nothing else.
func TestPage(t *testing.T) {
	var page bytes.Buffer
	require.NoError(t, WritePage(&page, healthy()))
	s := page.String()
	require.Regexp(t, `(?s)^<!DOCTYPE html>.*<title>a - Egressway</title>.*<svg xmlns.*</svg>\n</div>\n</div>\n</main>\n<script>.*</script>\n</body>\n</html>\n$`, s)
	require.Contains(t, s, `content="default-src 'none'; `)
	require.NotContains(t, s, "{{")
	require.NotContains(t, s, "<?xml")
	require.NotRegexp(t, `src=|href="[^#]`, s)
	require.Error(t, WritePage(full{}, healthy()))
}

// full takes nothing.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space") }

func BenchmarkPageOfMany(b *testing.B) {
	r := many()
	for b.Loop() {
		if err := WritePage(io.Discard, r); err != nil {
			b.Fatal(err)
		}
	}
}
