package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// TestWorkflowsHaveLeastRights checks that a job which runs this repository's code may not write, that a job which may write checks nothing
// out, and that every action is named by its commit.
func TestWorkflowsHaveLeastRights(t *testing.T) {
	files, err := filepath.Glob("../.github/workflows/*.yml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var workflow struct {
			Permissions map[string]string `json:"permissions"`
			Jobs        map[string]struct {
				Permissions map[string]string `json:"permissions"`
				Steps       []struct {
					Uses string `json:"uses"`
				} `json:"steps"`
			} `json:"jobs"`
		}
		require.NoError(t, yaml.Unmarshal(text, &workflow))
		require.NotNil(t, workflow.Permissions, "%s: without permissions a job gets those of the repository's settings", file)
		require.Empty(t, workflow.Permissions, file)
		for name, job := range workflow.Jobs {
			writes, checksOut := false, false
			for _, right := range job.Permissions {
				writes = writes || right != "read"
			}
			for _, step := range job.Steps {
				checksOut = checksOut || strings.HasPrefix(step.Uses, "actions/checkout@")
				if step.Uses != "" {
					require.Regexp(t, `^[\w-]+/[\w-]+@[0-9a-f]{40}$`, step.Uses, name)
				}
			}
			require.False(t, writes && checksOut, "%s: job %s may write, and runs code that it checks out", file, name)
		}
	}
}

// TestImagesOfOthersAreDigests finds an image of another project in manifests of ours that a tag alone names: a tag may be moved.
func TestImagesOfOthersAreDigests(t *testing.T) {
	found := 0
	for _, pattern := range []string{"kustomize/*/*.yaml", "kustomize/*/*/*.yaml", "helm/egressway/templates/*.yaml"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, m := range image.FindAllStringSubmatch(string(text), -1) {
				found++
				if m[1] != "egressway" && !strings.Contains(m[1], `include "egressway.image"`) {
					require.Regexp(t, `@sha256:[0-9a-f]{64}$`, m[1], file)
				}
			}
		}
	}
	require.GreaterOrEqual(t, found, 5)
}

var image = regexp.MustCompile(`(?m)^\s*(?:- )?image: (.*\S)\s*$`)
