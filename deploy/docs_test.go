package deploy

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8syaml "sigs.k8s.io/yaml"

	egressv1 "github.com/egressway/egressway/api/v1"
)

// guides are the texts that tell people what to apply.
func guides(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("../docs/guides/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, found)
	return append(found, "README.md", "../docs/install.md", "../README.md", "../containerlab/kind/README.md", chart+"/README.md")
}

// TestYAMLInGuides: what is shown is what the daemon, the API, helm and kustomize take.
func TestYAMLInGuides(t *testing.T) {
	count := 0
	for _, path := range guides(t) {
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
	case "Service":
		into = &corev1.Service{}
	case "NetworkPolicy":
		into = &networkingv1.NetworkPolicy{}
	default:
		// Others' objects: YAML that names what it is.
		group, _, _ := strings.Cut(head.APIVersion, "/")
		require.Contains(t, []string{"metallb.io", "frrk8s.metallb.io"}, group, "%s:\n%s", path, doc)
		into = &map[string]any{}
	}
	require.NoError(t, k8syaml.UnmarshalStrict([]byte(doc), into), "%s:\n%s", path, doc)
}

// kustomization is a folder with a kustomization of a guide, the base taken from here.
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

// blocks are the fenced YAML blocks of a Markdown file, also of those in lists.
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

// TestLinksInGuides: files and headings that the guides point to are there.
func TestLinksInGuides(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, path := range guides(t) {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range link.FindAllSubmatch(b, -1) {
			target := string(m[1])
			if strings.Contains(target, "://") {
				continue
			}
			file, anchor, _ := strings.Cut(target, "#")
			to := path
			if file != "" {
				to = filepath.Join(filepath.Dir(path), file)
			}
			_, err := os.Stat(to)
			require.NoError(t, err, "%s points to %s", path, target)
			if anchor != "" {
				require.Contains(t, anchors(t, to), anchor, "%s points to %s", path, target)
			}
		}
	}
}

// anchors are the names that a Markdown file's headings can be pointed to by.
func anchors(t *testing.T, path string) (found []string) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllSubmatch(b, -1) {
		name := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(string(m[1])), "")
		found = append(found, strings.ReplaceAll(name, " ", "-"))
	}
	return slices.Compact(found)
}

func decode64(t *testing.T, s string) string {
	t.Helper()
	b, err := base64.StdEncoding.DecodeString(s)
	require.NoError(t, err)
	return string(b)
}
