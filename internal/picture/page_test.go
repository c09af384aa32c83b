package picture

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/status"
)

// sized returns the report of a node in a cluster of some services, in a sixth as many networks with two routers each, hosted by two
// thirds as many nodes. One of ten services has a problem.
func sized(services int) status.Report {
	r := status.Report{Node: "node-000", Version: "v", Ready: true, Applied: healthy().Applied}
	networks, nodes := max(services/6, 1), max(services*2/3, 2)
	for i := range networks {
		name := fmt.Sprintf("tenant-%02d", i)
		r.Networks = append(r.Networks, status.Network{Name: name, VRF: "vrf-" + name, Table: uint32(1000 + i), Usable: true, Sessions: 2, SessionsUp: 2})
		for j := range 2 {
			r.Sessions = append(r.Sessions, status.Session{Network: name, Peer: fmt.Sprintf("10.%d.0.%d", i, j+1), ASN: 64601, State: "established", Up: true})
		}
	}
	for i := range services {
		s := status.Service{
			Namespace: fmt.Sprintf("team-%d", i%7), Name: fmt.Sprintf("web-%03d", i), Network: fmt.Sprintf("tenant-%02d", i%networks),
			Host: fmt.Sprintf("node-%03d", i%nodes), Standby: fmt.Sprintf("node-%03d", (i+1)%nodes), Endpoints: 4,
			IngressIPs: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, byte(113 + i/200), byte(i%200 + 1)}), netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1))},
		}
		if i%10 == 1 {
			p := status.Problem{
				Kind: "EgressService", Object: s.Namespace + "/" + s.Name, Field: "endpoints", Value: "10.0.0.11", Reason: "InvalidAddress",
				Message: "is an address of node node-000: it must belong to no node",
			}
			s.Problems, r.Problems = []status.Problem{p}, append(r.Problems, p)
		}
		r.Services = append(r.Services, s)
	}
	return r
}

// seen are the observations of a page in a browser.
type seen struct {
	Verdict         string
	VerdictBottom   float64
	Rows, Shown     int
	Filtered        []string // names of the rows that the filter leaves
	Count           string
	First, Last     string // names of the rows, sorted by name, descending
	Sort            string
	Asked           string // name of the row to which the fragment leads
	AskedVisible    bool
	Overlaps        []string
	Wide            float64 // by how much the page is wider than the window
	Smallest        float64 // font size of the text in the table, in pixels
	Violations      []string
	Errors          []string
	PictureReadable float64 // font size of the picture's text as drawn
}

// examine is a page that shows another one in a frame of a given size, has axe check its accessibility, works with it, and writes its
// observations.
const examine = `<!DOCTYPE html><title>examination</title><iframe id="f" width="%d" height="%d" src="/page#team-2%%2Fweb-002"></iframe><pre id="out"></pre><script>
document.getElementById("f").addEventListener("load", async () => {
  const out = { Errors: [], Overlaps: [], Violations: [], Filtered: [] }, frame = document.getElementById("f");
  try {
    const w = frame.contentWindow, d = frame.contentDocument, say = (v) => out.Violations.push(v);
    const visible = (e) => e.getClientRects().length > 0;
    const rows = () => [...d.getElementById("rows").rows].filter(visible), name = (r) => r.cells[0].textContent;
    const asked = d.querySelector("tr.asked");
    out.Asked = asked ? name(asked) : "";
    out.AskedVisible = !!asked && asked.getBoundingClientRect().top < frame.height && asked.getBoundingClientRect().bottom > 0;
    w.scrollTo(0, 0);
    out.Verdict = d.querySelector("#verdict h2").textContent;
    out.VerdictBottom = d.querySelector("#verdict").getBoundingClientRect().bottom;
    out.Rows = rows().length;
    out.Wide = d.documentElement.scrollWidth - d.documentElement.clientWidth;

    // Neither blocks of the page nor rows and cells cover each other, and no text leaves its cell.
    const apart = (all, what) => all.slice(1).forEach((e, i) => {
      const a = all[i].getBoundingClientRect(), b = e.getBoundingClientRect();
      if (a.bottom > b.top + 1 && a.right > b.left + 1) out.Overlaps.push(what + " " + i + " " + (all[i].id || all[i].textContent.slice(0, 40)));
    });
    apart([...d.querySelectorAll("body > header, main > *")].filter(visible), "block");
    apart(rows(), "row");
    for (const r of rows()) {
      apart([...r.cells], "cell");
      for (const c of r.cells) if (c.scrollWidth > c.clientWidth + 1) out.Overlaps.push("text of " + name(r));
    }
    out.Smallest = Math.min(...[...d.querySelectorAll("#rows td")].map((c) => parseFloat(w.getComputedStyle(c).fontSize)));
    const svg = d.querySelector("svg");
    out.PictureReadable = 12 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;

    // Accessibility: axe's rules, and what it has none for.
    for (const v of (await w.axe.run(d)).violations) say(v.id + ": " + v.help + ": " + v.nodes.map((n) => n.html.slice(0, 80)).join(" "));
    if (d.querySelectorAll("table caption").length !== 1) say("the table has no caption");
    for (const e of d.querySelectorAll("[onclick], [onload], [style]")) if (!e.closest("svg")) say("inline handler or style");

    // A user filters and sorts, with the keyboard's focus where the page says.
    const filter = d.getElementById("filter");
    filter.focus();
    if (d.activeElement !== filter) say("the filter takes no focus");
    filter.value = "web-002 tenant";
    filter.dispatchEvent(new w.Event("input"));
    out.Filtered = rows().map(name);
    out.Count = d.getElementById("count").textContent;
    filter.value = "";
    filter.dispatchEvent(new w.Event("input"));
    const head = d.querySelector("thead button");
    head.click(); head.click();
    out.Sort = head.parentElement.getAttribute("aria-sort");
    out.First = name(rows()[0]);
    out.Last = name(rows().at(-1));
    out.Shown = rows().length;
  } catch (e) { out.Errors.push(String(e && e.stack || e)); }
  document.getElementById("out").textContent = JSON.stringify(out);
});
</script>`

// axe returns the program of axe, which checks pages for accessibility, in the version that the Makefile names.
func axe(t *testing.T) []byte {
	t.Helper()
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^AXE +:= (\S+)$`).FindSubmatch(makefile)
	require.NotNil(t, version)
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	program, err := os.ReadFile(filepath.Join(cache, "egressway", "tools", "axe-"+string(version[1])+".js"))
	require.NoError(t, err, `"make tools" fetches it`)
	return program
}

// examined shows a report's page in a browser's window of a size, and works with it.
func examined(t *testing.T, r status.Report, width, height int, more ...string) (s seen) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		var page bytes.Buffer
		_ = WritePage(&page, r)
		// The policy of the page allows its own script alone, so the test adds axe to the policy.
		_, _ = w.Write(bytes.Replace(page.Bytes(), []byte("script-src "), []byte("script-src 'self' "), 1))
		_, _ = io.WriteString(w, `<script src="/axe.js"></script>`)
	})
	mux.HandleFunc("/axe.js", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/javascript")
		_, _ = w.Write(axe(t))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, examine, width, height)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	dom := browser(t)(append([]string{"--virtual-time-budget=2500", "--dump-dom", server.URL}, more...)...)
	out := regexp.MustCompile(`(?s)<pre id="out">(.*?)</pre>`).FindStringSubmatch(dom)
	require.NotNil(t, out, dom)
	require.NoError(t, json.Unmarshal([]byte(html.UnescapeString(out[1])), &s), out[1])
	require.Empty(t, s.Errors)
	return s
}

// TestPageIsUsable works with the page in a browser: few and many services, a desktop and a phone, light and dark.
func TestPageIsUsable(t *testing.T) {
	for _, services := range []int{3, 30, 300} {
		for _, screen := range []struct {
			name          string
			width, height int
			scheme        string
		}{{"desktop", 1280, 720, "1"}, {"phone", 390, 844, "0"}} {
			t.Run(fmt.Sprintf("%d services/%s", services, screen.name), func(t *testing.T) {
				s := examined(t, sized(services), screen.width, screen.height, "--blink-settings=preferredColorScheme="+screen.scheme)
				require.Regexp(t, "^(One thing is|[0-9]+ things are) broken.$", s.Verdict)
				require.Less(t, s.VerdictBottom, float64(screen.height), "the verdict is visible without scrolling")
				require.Equal(t, services, s.Rows)
				require.Equal(t, services, s.Shown)
				require.Equal(t, []string{"team-2/web-002"}, s.Filtered)
				require.Equal(t, fmt.Sprintf("1 of %d shown", services), s.Count)
				require.Equal(t, "descending", s.Sort)
				require.Greater(t, s.First, s.Last)
				require.Equal(t, "team-2/web-002", s.Asked)
				require.True(t, s.AskedVisible)
				require.Empty(t, s.Overlaps)
				require.Empty(t, s.Violations)
				require.LessOrEqual(t, s.Wide, 0.0, "the page scrolls sideways")
				require.GreaterOrEqual(t, s.Smallest, 12.0)
				require.GreaterOrEqual(t, s.PictureReadable, 10.0)
			})
		}
	}
}

// TestRowsOfPage: the table has every service with host and standby, and of very many the broken ones first.
func TestRowsOfPage(t *testing.T) {
	rows, omitted := rowsOf(sized(300))
	require.Len(t, rows, 300)
	require.Zero(t, omitted)
	require.Equal(t, []string{"node-005", "node-006", "tenant-05"}, []string{rows[5].Host, rows[5].Standby, rows[5].Network})
	rows, omitted = rowsOf(sized(mostRows + 500))
	require.Len(t, rows, mostRows)
	require.Equal(t, 500, omitted)
	for _, r := range rows[:150] {
		require.NotEmpty(t, r.Broken)
	}
	require.Contains(t, captionOf(len(rows)+omitted, omitted), "1,500, 500 of them not shown")

	v := Service{Name: "EgressIP vip", IngressIPs: []string{"203.0.113.20"}}
	require.Equal(t, "EgressIP/vip/203.0.113.20", v.fragment())
}

// TestPoliciesOnPage: the table has EgressQoSes and EgressFirewalls, with their problems.
func TestPoliciesOnPage(t *testing.T) {
	r := sized(2)
	r.EgressQoSes = []status.EgressQoS{
		{Namespace: "lab", Name: "default", Rules: 1, Problems: []status.Problem{{
			Kind: "EgressQoS", Object: "lab/default", Field: "spec.egress[0].dscp", Value: "64", Reason: "InvalidValue", Message: "a number from 0 to 63",
		}}},
		{Namespace: "shop", Name: "default", Rules: 3, Pods: 2},
	}
	r.EgressFirewalls = []status.EgressFirewall{{Namespace: "shop", Name: "default", Rules: 8, Pods: 1}}
	rows, _ := rowsOf(r)
	require.Len(t, rows, 5)
	bad, good, firewall := rows[2], rows[3], rows[4]
	require.Equal(t, []string{"EgressQoS lab/default", "1 rule, 0 pods here"}, []string{bad.Name, bad.Notes})
	require.Contains(t, bad.Broken, "a number from 0 to 63")
	require.Equal(t, []string{"EgressQoS shop/default", "3 rules, 2 pods here", ""}, []string{good.Name, good.Notes, good.Broken})
	require.Equal(t, []string{"EgressFirewall shop/default", "8 rules, 1 pod here", ""}, []string{firewall.Name, firewall.Notes, firewall.Broken})
	require.Equal(t, "EgressQoS/shop/default", good.fragment())
	text := tableRows(rows[3:4])
	require.NotContains(t, text, "none", "it needs no host")
	require.Contains(t, text, `id="EgressQoS/shop/default"`)
}

// TestScreenshots takes screenshots of the page. PAGES names a folder to keep them in, for people to look at.
func TestScreenshots(t *testing.T) {
	dir := cmp.Or(os.Getenv("PAGES"), t.TempDir())
	for _, services := range []int{3, 30, 300} {
		url := served(t, func() status.Report { return sized(services) })
		for name, size := range map[string]string{"desktop": "1280,900", "phone": "500,900"} {
			browser(t)("--blink-settings=preferredColorScheme=1", "--window-size="+size, "--screenshot="+filepath.Join(dir, fmt.Sprintf("%d-%s.png", services, name)), url)
		}
	}
}
