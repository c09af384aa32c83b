package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	k8syaml "sigs.k8s.io/yaml"
)

const rulesFile = "prometheus/egressway.rules.yaml"

// alert is a rule as Prometheus reads it.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

type ruleFile struct {
	Groups []struct {
		Name  string  `json:"name"`
		Rules []alert `json:"rules"`
	} `json:"groups"`
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	b, err := os.ReadFile(rulesFile)
	require.NoError(t, err)
	var f ruleFile
	require.NoError(t, k8syaml.UnmarshalStrict(b, &f))
	for _, g := range f.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

// promtool runs Prometheus' own tool in a folder.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(tools(t), "promtool"), args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "promtool %q (\"make tools\" fetches it): %s", args, out)
}

// TestAlerts checks the rules with promtool. In prometheus/egressway.test.yaml each alert has series that make it fire, and series that do not.
func TestAlerts(t *testing.T) {
	promtool(t, "prometheus", "check", "rules", "egressway.rules.yaml")
	promtool(t, "prometheus", "test", "rules", "egressway.test.yaml")
	text, err := os.ReadFile("prometheus/egressway.test.yaml")
	require.NoError(t, err)
	var file struct {
		Tests []struct {
			Queries []struct {
				Expr    string `json:"expr"`
				Samples []struct {
					Labels string  `json:"labels"`
					Value  float64 `json:"value"`
				} `json:"exp_samples"`
			} `json:"promql_expr_test"`
		} `json:"tests"`
	}
	require.NoError(t, k8syaml.Unmarshal(text, &file))
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, q := range test.Queries {
			name := regexp.MustCompile(`alertname="(\w+)"`).FindStringSubmatch(q.Expr)
			require.NotNil(t, name, q.Expr)
			require.NotEmpty(t, q.Samples, q.Expr)
			for _, s := range q.Samples {
				fires[name[1]] = fires[name[1]] || strings.HasPrefix(s.Labels, "ALERTS{") && s.Value == 1
				silent[name[1]] = silent[name[1]] || s.Labels == "{}" && s.Value == 0
			}
		}
	}
	for _, a := range alerts(t) {
		require.True(t, fires[a.Alert], "no test makes %s fire", a.Alert)
		require.True(t, silent[a.Alert], "no test keeps %s silent", a.Alert)
	}
}

// TestRunbooks checks that every alert has a summary and a description, and compares the alerts with the guide's paragraphs.
func TestRunbooks(t *testing.T) {
	const guide = "../docs/operations.md"
	headings := anchors(t, guide)
	known := map[string]bool{}
	for _, a := range alerts(t) {
		require.Contains(t, []string{"critical", "warning", "info"}, a.Labels["severity"], a.Alert)
		require.NotEmpty(t, a.Annotations["summary"], a.Alert)
		require.NotEmpty(t, a.Annotations["description"], a.Alert)
		page, anchor, _ := strings.Cut(a.Annotations["runbook_url"], "#")
		require.Equal(t, "https://github.com/egressway/egressway/blob/main/docs/operations.md", page, a.Alert)
		require.Equal(t, strings.ToLower(a.Alert), anchor)
		require.Contains(t, headings, anchor)
		require.False(t, known[anchor], "%s twice", a.Alert)
		known[anchor] = true
	}
	for _, h := range headings {
		require.True(t, known[h] || !strings.HasPrefix(h, "egressway"), "%s#%s is of no alert", guide, h)
	}
}

// TestOneRuleFile compares the rules of the chart and of the component with the file.
func TestOneRuleFile(t *testing.T) {
	want, err := os.ReadFile(rulesFile)
	require.NoError(t, err)
	copied, err := os.ReadFile(chart + "/files/egressway.rules.yaml")
	require.NoError(t, err)
	require.Equal(t, string(want), string(copied), `"make generate" copies it`)
	var rules map[string]any
	require.NoError(t, k8syaml.Unmarshal(want, &rules))
	o := built(t, overlay(t, "prometheusrule"))["PrometheusRule "+namespace+"/egressway"]
	require.NotNil(t, o)
	require.Equal(t, rules, o.Object["spec"], `"make generate" writes it`)
	o = rendered(t, "prometheusRule: {enabled: true, labels: {release: prometheus}}")["PrometheusRule "+namespace+"/egressway"]
	require.NotNil(t, o)
	require.Equal(t, rules, o.Object["spec"])
	require.Equal(t, "prometheus", o.GetLabels()["release"])
}

// alertOf returns an alert of a PrometheusRule; nil: it has none of this name.
func alertOf(t *testing.T, o *unstructured.Unstructured, name string) *alert {
	t.Helper()
	require.NotNil(t, o)
	b, err := k8syaml.Marshal(o.Object["spec"])
	require.NoError(t, err)
	var f ruleFile
	require.NoError(t, k8syaml.UnmarshalStrict(b, &f))
	for _, g := range f.Groups {
		for _, a := range g.Rules {
			if a.Alert == name {
				return &a
			}
		}
	}
	return nil
}

// TestChangedAlerts renders alerts with another severity, duration and threshold, and checks that the others stay, and all are valid.
func TestChangedAlerts(t *testing.T) {
	o := rendered(t, `{prometheusRule: {enabled: true, alerts: {
		EgresswayProblems: {severity: info, for: 1h, threshold: 3}, EgresswayConntrackFilling: {threshold: 0.95},
		EgresswayFailover: {for: 1m}, EgresswayDraining: {enabled: false}}}}`)["PrometheusRule "+namespace+"/egressway"]
	want := map[string]alert{}
	for _, a := range alerts(t) {
		want[a.Alert] = a
	}
	change := func(name string, change func(*alert)) {
		a := want[name]
		change(&a)
		want[name] = a
	}
	change("EgresswayProblems", func(a *alert) {
		a.Expr, a.For, a.Labels["severity"] = strings.Replace(a.Expr, "> 0", "> 3", 1), "1h", "info"
	})
	change("EgresswayConntrackFilling", func(a *alert) {
		a.Expr = "egressway_conntrack_entries / egressway_conntrack_entries_limit > 0.95"
	})
	change("EgresswayFailover", func(a *alert) { a.For = "1m" })
	require.Nil(t, alertOf(t, o, "EgresswayDraining"))
	delete(want, "EgresswayDraining")
	for name, a := range want {
		got := alertOf(t, o, name)
		require.NotNil(t, got, name)
		require.Equal(t, a, *got)
	}
	spec, err := k8syaml.Marshal(o.Object["spec"])
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), spec, 0o644))
	promtool(t, dir, "check", "rules", "rules.yaml")
}

// TestOneDashboard compares the dashboard of the chart with the file.
func TestOneDashboard(t *testing.T) {
	want, err := os.ReadFile("grafana/egressway.json")
	require.NoError(t, err)
	copied, err := os.ReadFile(chart + "/files/egressway.json")
	require.NoError(t, err)
	require.Equal(t, string(want), string(copied), `"make generate" copies it`)
	o := rendered(t, "dashboard: {enabled: true}")["ConfigMap "+namespace+"/egressway-dashboard"]
	require.NotNil(t, o)
	require.Equal(t, "1", o.GetLabels()["grafana_dashboard"])
	text, _, err := unstructured.NestedString(o.Object, "data", "egressway.json")
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(want)), strings.TrimSpace(text))
	require.NotContains(t, rendered(t, ""), "ConfigMap "+namespace+"/egressway-dashboard")
}

// documented returns the metrics of docs/metrics.md. A test of the daemon compares them with those that it serves.
func documented(t *testing.T) map[string]bool {
	t.Helper()
	b, err := os.ReadFile("../docs/metrics.md")
	require.NoError(t, err)
	all := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(egressway_[a-z0-9_]+)` \\|").FindAllSubmatch(b, -1) {
		all[string(m[1])] = true
	}
	require.Greater(t, len(all), 40)
	return all
}

// requireServed fails if an expression names a metric of ours that does not exist.
func requireServed(t *testing.T, served map[string]bool, expr, where string) {
	t.Helper()
	for _, name := range regexp.MustCompile(`\begressway_[a-z0-9_]+`).FindAllString(expr, -1) {
		ofHistogram := name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			ofHistogram = strings.TrimSuffix(ofHistogram, suffix)
		}
		require.True(t, served[name] || served[ofHistogram], "%s: %s: there is no metric %s", where, expr, name)
	}
}

func TestAlertsNameWhatIsServed(t *testing.T) {
	served := documented(t)
	for _, a := range alerts(t) {
		requireServed(t, served, a.Expr, a.Alert)
	}
}

// dashboard is the part of Grafana's model that the tests read.
type dashboard struct {
	UID        string `json:"uid"`
	Title      string `json:"title"`
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	GridPos     struct {
		X, Y, W, H int
	} `json:"gridPos"`
	Targets []struct {
		RefID string `json:"refId"`
		Expr  string `json:"expr"`
	} `json:"targets"`
}

// TestDashboard checks that Grafana's model is complete, that panels do not overlap, and that the expressions are valid and name served metrics.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile("grafana/egressway.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(b, &d))
	require.NotEmpty(t, d.UID)
	served, ids, rows := documented(t), map[int]bool{}, 0
	taken := map[[2]int]string{}
	var rules strings.Builder
	rules.WriteString("groups:\n- name: panels\n  rules:\n")
	variables := strings.NewReplacer("$__rate_interval", "5m", "$job", ".*", "$instance", ".*", "$network", ".*")
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], "%s: another panel has id %d", p.Title, p.ID)
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			require.Less(t, x, 24, p.Title)
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				require.Empty(t, taken[[2]int{x, y}], "%s covers it", p.Title)
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			rows++
			continue
		}
		require.NotEmpty(t, p.Description, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, q := range p.Targets {
			requireServed(t, served, q.Expr, p.Title)
			expr := variables.Replace(q.Expr)
			require.NotContains(t, expr, "$", "%s: an unknown variable", p.Title)
			_, _ = fmt.Fprintf(&rules, "  - {record: 'panel:%d:%s', expr: %q}\n", p.ID, q.RefID, expr)
		}
	}
	require.Equal(t, 6, rows)
	for _, v := range d.Templating.List {
		requireServed(t, served, v.Definition, v.Name)
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "panels.yaml"), []byte(rules.String()), 0o644))
	promtool(t, dir, "check", "rules", "panels.yaml")
}
