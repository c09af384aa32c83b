package picture

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/status"
)

// browser is a browser without a screen, of Debian's package chromium or chromium-headless-shell.
func browser(t *testing.T) func(args ...string) string {
	t.Helper()
	var program string
	for _, name := range []string{"chromium-headless-shell", "chromium"} {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	require.NotEmpty(t, program, "no chromium here: lab/setup installs it")
	return func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // for a machine that does much else
		defer cancel()
		var out, errs bytes.Buffer
		c := exec.CommandContext(ctx, program, append([]string{
			"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1",
			"--user-data-dir=" + t.TempDir(), "--window-size=1200,1200",
		}, args...)...)
		c.Stdout, c.Stderr = &out, &errs
		require.NoError(t, c.Run(), errs.String())
		return out.String()
	}
}

// served serves the page of a report, as the daemon does.
func served(t *testing.T, report func() status.Report) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_ = WritePage(w, report())
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// servedPicture serves the picture alone.
func servedPicture(t *testing.T, g *Graph) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "image/svg+xml")
		_ = g.WriteSVG(w)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestBrowserDraws looks at the picture as people see it: what should be blue, green or red is where it should be.
func TestBrowserDraws(t *testing.T) {
	run := browser(t)
	for _, scheme := range []struct {
		name, setting             string
		ground, asked, well, down color.RGBA
	}{
		{
			"light", "preferredColorScheme=1",
			color.RGBA{0xff, 0xff, 0xff, 0xff},
			color.RGBA{0x09, 0x69, 0xda, 0xff},
			color.RGBA{0xf0, 0xfa, 0xf2, 0xff},
			color.RGBA{0xd1, 0x24, 0x2f, 0xff},
		},
		{
			"dark", "preferredColorScheme=0",
			color.RGBA{0x0d, 0x11, 0x17, 0xff},
			color.RGBA{0x44, 0x93, 0xf8, 0xff},
			color.RGBA{0x0f, 0x1f, 0x17, 0xff},
			color.RGBA{0xf8, 0x51, 0x49, 0xff},
		},
	} {
		t.Run(scheme.name, func(t *testing.T) {
			look := func(report func() status.Report) (image.Image, layout, func(x, y int) color.RGBA) {
				file := filepath.Join(t.TempDir(), "page.png")
				g := Of(report())
				run("--blink-settings="+scheme.setting, "--screenshot="+file, servedPicture(t, &g))
				seen := pixels(t, file)
				return seen, layoutOf(&g), func(x, y int) color.RGBA {
					return color.RGBAModel.Convert(seen.At(x, y)).(color.RGBA)
				}
			}
			_, l, at := look(healthy)
			require.Equal(t, scheme.ground, at(margin/2, margin/2))
			asked := l.nodes[0]
			require.Equal(t, scheme.asked, at(nodeX, asked.middle()), "the frame of the node that made the report")
			require.Equal(t, scheme.well, at(width-2*margin, l.broken.middle()), "nothing is broken")

			seen, l, at := look(brokenSession)
			require.Equal(t, scheme.down, at(margin+width/2, l.broken.y), "the frame around what is broken")
			session := l.networks[2].routers[0]
			require.Equal(t, scheme.down, at(routerX+routerWidth/2, session.y), "the frame of the session that is down")
			require.Greater(t, inked(seen, session, scheme.ground), 200, "its text")
		})
	}
}

// inked is how many pixels of a box are unlike the ground and the box's own colour: text.
func inked(seen image.Image, b box, ground color.RGBA) (n int) {
	field := color.RGBAModel.Convert(seen.At(routerX+5, b.middle())).(color.RGBA)
	for y := b.y + 4; y < b.y+b.height-4; y++ {
		for x := routerX + pad; x < routerX+routerWidth-pad; x++ {
			if c := color.RGBAModel.Convert(seen.At(x, y)).(color.RGBA); c != ground && c != field {
				n++
			}
		}
	}
	return n
}

// TestBrowserRefreshes: the page takes over what is new by itself, and says so when nobody answers any more.
func TestBrowserRefreshes(t *testing.T) {
	run := browser(t)
	var asked atomic.Int32
	url := served(t, func() status.Report {
		if asked.Add(1) == 1 {
			return healthy()
		}
		return brokenSession()
	})
	dom := run("--virtual-time-budget=8000", "--dump-dom", url)
	require.Greater(t, asked.Load(), int32(1))
	require.Contains(t, dom, "hold timer expired")
	require.NotContains(t, dom, "Nothing is broken.")
	require.Regexp(t, `<p id="silent" role="status" hidden="">`, dom)

	once := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(-1); asked.Load() < 0 {
			http.Error(w, "gone", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_ = WritePage(w, healthy())
	}))
	t.Cleanup(once.Close)
	asked.Store(1)
	dom = run("--virtual-time-budget=8000", "--dump-dom", once.URL+"/picture")
	require.Contains(t, dom, "The daemon does not answer: this is from ")
	require.Contains(t, dom, "Nothing is broken.", "what is known stays")
}

// TestBrowserRunsNothingOfOthers: text of others is neither run nor taken for elements, whatever it says.
func TestBrowserRunsNothingOfOthers(t *testing.T) {
	dom := browser(t)("--virtual-time-budget=5000", "--dump-dom", served(t, hostile))
	require.Equal(t, 1, strings.Count(dom, "<script>"), "the page's own")
	require.Contains(t, dom, "&lt;script&gt;alert(1)&lt;/script&gt;")
	require.Contains(t, dom, fmt.Sprintf(`width="%d"`, width))
}

// TestScreenshotInDocs: the documentation has the page of a node in the lab as a browser shows it. UPDATE=1 takes it anew; otherwise it
// is compared by its size and by how much of it is drawn, which another browser changes little.
func TestScreenshotInDocs(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "paths.json"))
	require.NoError(t, err)
	var r status.Report
	require.NoError(t, json.Unmarshal(b, &r))
	taken := filepath.Join(t.TempDir(), "page.png")
	g := Of(r)
	browser(t)("--blink-settings=preferredColorScheme=1", fmt.Sprintf("--window-size=%d,%d", width+2*margin, layoutOf(&g).height+headRoom),
		"--screenshot="+taken, served(t, func() status.Report { return r }))
	const file = "../../docs/pictures/page.png"
	if os.Getenv("UPDATE") != "" {
		b, err := os.ReadFile(taken)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, b, 0o600))
	}
	have, want := pixels(t, taken), pixels(t, file)
	require.Equal(t, have.Bounds(), want.Bounds(), "%s: UPDATE=1 takes it", file)
	require.InEpsilon(t, float64(drawnOf(have)), float64(drawnOf(want)), 0.2, "%s: UPDATE=1 takes it", file)
	of, err := os.Stat(file)
	require.NoError(t, err)
	require.Less(t, of.Size(), int64(300<<10))
}

// headRoom is the height of the page above the picture, for few services.
const headRoom = 420

func pixels(t *testing.T, file string) image.Image {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	seen, err := png.Decode(f)
	require.NoError(t, err)
	return seen
}

// drawnOf is how many pixels of a picture are not like its first.
func drawnOf(seen image.Image) (n int) {
	at := seen.Bounds()
	ground := seen.At(at.Min.X, at.Min.Y)
	for y := at.Min.Y; y < at.Max.Y; y++ {
		for x := at.Min.X; x < at.Max.X; x++ {
			if seen.At(x, y) != ground {
				n++
			}
		}
	}
	return n
}
