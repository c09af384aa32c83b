package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab/stage"
)

// TestSamples serves config/samples as they are.
func TestSamples(t *testing.T) {
	samples := map[string]string{}
	files, err := filepath.Glob("../../config/samples/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		samples[filepath.Base(f)] = string(b)
	}
	s := play(t, stage.Options{Nodes: []string{"a", "b", "c"}, Manifests: samples})
	ctx := t.Context()
	served := func() {
		for pod, want := range map[string]struct{ name, source4, source6 string }{
			"a-p1": {"ext-red", "203.0.113.10", "2001:db8:203::10"},
			"b-p1": {"ext-red", "203.0.113.10", "2001:db8:203::10"},
			"a-p2": {"ext-blue", "10.2.0.11", "fd02::11"},
			"b-p2": {"ext-blue", "10.2.0.12", "fd02::12"},
		} {
			require.NoError(t, s.Await(ctx, pod, stage.Outside4, want.name, want.source4), pod)
			require.NoError(t, s.Await(ctx, pod, stage.Outside6, want.name, want.source6), pod)
		}
		require.NoError(t, s.Await(ctx, "c-p1", stage.Outside4, "ext-default", "203.0.113.30"))
	}
	served() // from here on every daemon is in force
	s.Witness.Reset()
	served()
	require.Empty(t, s.Wrong(map[string][]string{
		"red":     {"203.0.113.10", "2001:db8:203::10"},
		"blue":    {"10.2.0.11", "10.2.0.12", "fd02::11", "fd02::12"},
		"default": {"203.0.113.30"},
	}))
}
