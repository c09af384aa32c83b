package deploy

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8syaml "sigs.k8s.io/yaml"

	egressv1 "github.com/egressway/egressway/api/v1"
)

// pages returns the texts that people read: all of docs, and the README files beside code.
func pages(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, folder := range []string{"../docs", "../docs/guides", "../docs/decisions"} {
		in, err := filepath.Glob(folder + "/*.md")
		require.NoError(t, err)
		require.NotEmpty(t, in, folder)
		found = append(found, in...)
	}
	return append(found, "../README.md", "../CONTRIBUTING.md", "../containerlab/README.md", "../containerlab/kind/README.md", "../deploy/README.md", "../deploy/"+chart+"/README.md")
}

// TestYAMLInPages parses the YAML of the pages as the daemon, the API, helm and kustomize do.
func TestYAMLInPages(t *testing.T) {
	count := 0
	for _, path := range pages(t) {
		for _, block := range blocks(t, path) {
			switch {
			case strings.HasPrefix(block, "# values.yaml"):
				configOf(t, rendered(t, block))
				count++
			case strings.HasPrefix(block, "# kustomization.yaml"):
				configOf(t, built(t, kustomization(t, block)))
				count++
			default:
				for doc := range strings.SplitSeq(block, "\n---\n") {
					judgeDocument(t, path, doc)
					count++
				}
			}
		}
	}
	require.Greater(t, count, 10)
}

func judgeDocument(t *testing.T, path, doc string) {
	t.Helper()
	var head metav1.TypeMeta
	require.NoError(t, k8syaml.Unmarshal([]byte(doc), &head), "%s:\n%s", path, doc)
	var into any
	switch head.Kind {
	case "":
		judged(t, doc)
		return
	case "EgressService":
		into = &egressv1.EgressService{}
	case "EgressIP":
		into = &egressv1.EgressIP{}
	case "EgressFirewall":
		into = &egressv1.EgressFirewall{}
	case "EgressQoS":
		into = &egressv1.EgressQoS{}
	case "Service":
		into = &corev1.Service{}
	case "NetworkPolicy":
		into = &networkingv1.NetworkPolicy{}
	case "ServiceAccount":
		into = &corev1.ServiceAccount{}
	case "Secret":
		into = &corev1.Secret{}
	case "ClusterRoleBinding":
		into = &rbacv1.ClusterRoleBinding{}
	default:
		// Other projects' objects: valid YAML with apiVersion and kind.
		group, _, _ := strings.Cut(head.APIVersion, "/")
		require.Contains(t, []string{"metallb.io", "frrk8s.metallb.io"}, group, "%s:\n%s", path, doc)
		into = &map[string]any{}
	}
	require.NoError(t, k8syaml.UnmarshalStrict([]byte(doc), into), "%s:\n%s", path, doc)
}

// kustomization returns a folder with a guide's kustomization, which uses this repository's base.
func kustomization(t *testing.T, text string) string {
	t.Helper()
	dir := overlay(t)
	here, err := filepath.Abs("..")
	require.NoError(t, err)
	here, err = filepath.Rel(dir, here)
	require.NoError(t, err)
	text = regexp.MustCompile(`github\.com/egressway/egressway/`).ReplaceAllString(text, here+"/")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.yaml"), []byte("networks: []\n"), 0o644))
	return dir
}

// blocks returns the fenced YAML blocks of a Markdown file, also those in lists.
func blocks(t *testing.T, path string) (found []string) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var block []string
	indent, inside := "", false
	for line := range strings.Lines(string(b)) {
		text := strings.TrimSpace(line)
		switch {
		case !inside && text == "```yaml":
			indent, _, _ = strings.Cut(line, "`")
			block, inside = nil, true
		case inside && text == "```":
			found, inside = append(found, strings.Join(block, "")), false
		case inside:
			block = append(block, strings.TrimPrefix(line, indent))
		}
	}
	require.False(t, inside, "%s: a block has no end", path)
	return found
}

// link is a reference in Markdown: "](to)", or "](to#heading)".
var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// links returns the files of this repository that a page points to, and the headings.
func links(t *testing.T, path string) (files, headings []string) {
	t.Helper()
	for _, m := range link.FindAllStringSubmatch(prose(t, path), -1) {
		if strings.Contains(m[1], "://") {
			continue
		}
		file, heading, _ := strings.Cut(m[1], "#")
		to := path
		if file != "" {
			to = filepath.Join(filepath.Dir(path), file)
		}
		files, headings = append(files, to), append(headings, heading)
	}
	return files, headings
}

// TestLinksInPages finds links to missing files and headings.
func TestLinksInPages(t *testing.T) {
	var dead []string
	for _, path := range pages(t) {
		files, headings := links(t, path)
		for i, to := range files {
			_, err := os.Stat(to)
			if err != nil || headings[i] != "" && !slices.Contains(anchors(t, to), headings[i]) {
				dead = append(dead, fmt.Sprintf("%s points to %s#%s", path, to, headings[i]))
			}
		}
	}
	require.Empty(t, dead)
}

// TestPagesAreFound follows links from README.md to every page. The index of docs has every page of docs; decisions
// have an index of their own.
func TestPagesAreFound(t *testing.T) {
	reached := map[string]bool{}
	var follow func(path string)
	follow = func(path string) {
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			path = filepath.Join(path, "README.md") // as GitHub shows it
		}
		if reached[path] || filepath.Ext(path) != ".md" {
			return
		}
		if _, err := os.Stat(path); err != nil {
			return // a folder without a README
		}
		reached[path] = true
		files, _ := links(t, path)
		for _, to := range files {
			follow(to)
		}
	}
	follow("../README.md")
	const index, decisions = "../docs/README.md", "../docs/decisions/README.md"
	listed, _ := links(t, index)
	decided, _ := links(t, decisions)
	for _, path := range pages(t) {
		require.True(t, reached[path], "no link leads from README.md to %s", path)
		switch filepath.Dir(path) {
		case "../docs", "../docs/guides":
			if path != index {
				require.Contains(t, listed, path, "%s has no link to it", index)
			}
		case "../docs/decisions":
			if path != decisions {
				require.Contains(t, decided, path, "%s has no link to it", decisions)
			}
		}
	}
}

// TestCleanupIsExplained finds the foreign image of the cleanup, and each value that its pods need as the daemon's do, in the steps of a removal.
func TestCleanupIsExplained(t *testing.T) {
	_, steps, found := strings.Cut(prose(t, "../docs/install.md"), "\n## Remove\n")
	require.True(t, found)
	pod := daemonSet(t, built(t, "kustomize/cleanup"), "egressway-cleanup").Spec.Template.Spec
	for _, c := range pod.Containers {
		image, _, _ := strings.Cut(c.Image, ":")
		require.Contains(t, steps, "`"+image+"`", c.Name)
	}
	for _, value := range []string{"imagePullSecrets", "extraEnv", "extraVolumes", "extraVolumeMounts", "passwordSecret", "nameOverride"} {
		require.Contains(t, steps, "`"+value+"`")
	}
}

// TestRemovalBesideOVN finds that the command for a removal that keeps the CRDs deletes every other object of the cluster.
func TestRemovalBesideOVN(t *testing.T) {
	page := prose(t, "../docs/install.md")
	kinds := regexp.MustCompile("`kubectl delete (clusterrole,[a-z,]+) -l app.kubernetes.io/name=egressway`").FindStringSubmatch(page)
	require.NotNil(t, kinds)
	require.Contains(t, page, "`kubectl delete namespace "+namespace+"`")
	of, err := os.ReadDir("kustomize/components")
	require.NoError(t, err)
	var components []string
	for _, c := range of {
		components = append(components, c.Name())
	}
	for key, o := range built(t, overlay(t, components...)) {
		if o.GetNamespace() == "" && o.GetKind() != "Namespace" && o.GetKind() != "CustomResourceDefinition" {
			require.Equal(t, "egressway", o.GetLabels()["app.kubernetes.io/name"], key)
			require.Contains(t, strings.Split(kinds[1], ","), strings.ToLower(o.GetKind()), key)
		}
	}
}

// TestFiguresOfFailover compares the figures of a failover in concepts.md with benchmarks.md and the decision.
func TestFiguresOfFailover(t *testing.T) {
	_, failover, found := strings.Cut(prose(t, "../docs/concepts.md"), "\n## When a host dies\n")
	require.True(t, found)
	sources := prose(t, "../docs/benchmarks.md") + prose(t, "../docs/decisions/0025-failover.md")
	figures := regexp.MustCompile(`\b\d+ m?s\b`).FindAllString(failover, -1)
	require.NotEmpty(t, figures)
	for _, f := range figures {
		if f != "0 ms" && f != "9 s" { // the death, and the hold time
			require.Regexp(t, `\b`+f+`\b`, sources)
		}
	}
}

// prose returns a Markdown file without its fenced blocks.
func prose(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var text strings.Builder
	inside := false
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inside = !inside
		} else if !inside {
			text.WriteString(line)
		}
	}
	return text.String()
}

// anchors returns the anchors of a Markdown file's headings, as GitHub makes them.
func anchors(t *testing.T, path string) (found []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(prose(t, path), -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		found = append(found, strings.ReplaceAll(name, " ", "-"))
	}
	return found
}

// TestProblemsAreExplained compares problems.md with the reasons that a Problem or a condition may have.
func TestProblemsAreExplained(t *testing.T) {
	page := prose(t, "../docs/problems.md")
	given := regexp.MustCompile(`(?m)^(?:const)?\s*[rR]eason\w+\s+(?:cluster\.)?Reason\s*=\s*"(\w+)"`)
	known := map[string]bool{}
	require.NoError(t, filepath.WalkDir("../internal", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range given.FindAllSubmatch(b, -1) {
			known[string(m[1])] = true
		}
		return err
	}))
	require.Greater(t, len(known), 40)
	for reason := range known {
		require.Contains(t, page, "`"+reason+"`", "docs/problems.md has no line for it")
	}
	for _, line := range regexp.MustCompile("(?m)^\\| (`[A-Z]\\w+`(?:, `[A-Z]\\w+`)*) \\|").FindAllStringSubmatch(page, -1) {
		for reason := range strings.SplitSeq(line[1], ", ") {
			require.True(t, known[strings.Trim(reason, "`")], "docs/problems.md explains %s, which is not a reason in the code", reason)
		}
	}
}

// TestRouterOfTheLab compares FRR's configuration in routers.md with the lab's, with BFD as the tests add it.
func TestRouterOfTheLab(t *testing.T) {
	page, err := os.ReadFile("../docs/routers.md")
	require.NoError(t, err)
	lab, err := os.ReadFile("../containerlab/vrf-egress/red2.conf")
	require.NoError(t, err)
	_, shown, found := strings.Cut(string(page), "```text\nhostname red2\n")
	require.True(t, found)
	shown, _, _ = strings.Cut(shown, "```")
	profile, shown, found := strings.Cut(shown, "router bgp")
	require.True(t, found)
	require.Equal(t, "bfd\n profile fast\n  detect-multiplier 3\n  receive-interval 100\n  transmit-interval 100\n", profile)
	const use = " neighbor NODES bfd profile fast\n"
	require.Contains(t, shown, use)
	require.Equal(t, string(lab), "hostname red2\nrouter bgp"+strings.Replace(shown, use, "", 1))
}

func decode64(t *testing.T, s string) string {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	require.NoError(t, err)
	return string(b)
}
