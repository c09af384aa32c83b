package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
)

// flaws holds the faults of files, each with the beginning of its problem.
var flaws = map[string]struct {
	befall func(t *testing.T, path string)
	want   string
}{
	"unreadable": {func(t *testing.T, path string) {
		t.Helper()
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.Mkdir(path, 0o700))
	}, "not a regular file"},
	"a link to nowhere": {func(t *testing.T, path string) {
		t.Helper()
		require.NoError(t, os.Remove(path))
		require.NoError(t, os.Symlink("nowhere", path))
	}, "no such file or directory"},
	"empty":          {cutTo(0), "is empty"},
	"inside a line":  {cutTo(len(twoObjects) - 12), "is cut off"},
	"in its middle":  {cutTo(len(twoObjects) / 2), "is cut off"},
	"broken":         {rewrite("  network: red", "  network: [red"), "not YAML"},
	"a wrong type":   {rewrite("  network: red", "  network: [red]"), "a list, but a string is needed"},
	"misspelled":     {rewrite("kind: EgressService", "kind: egressservice"), "is passed over: this kind is not read; is EgressService of k8s.ovn.org/v1 meant?"},
	"another group":  {rewrite("k8s.ovn.org/v1", "egressway.io/v1"), "EgressService web is passed over: EgressService is read as k8s.ovn.org/v1"},
	"wrong version":  {rewrite("k8s.ovn.org/v1", "k8s.ovn.org/v2"), "k8s.ovn.org/v1 is known"},
	"no such choice": {rewrite("  network: red", "  sourceIPBy: Pod"), "one of LoadBalancerIP, Network"},
}

const twoObjects = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.10}
---
apiVersion: k8s.ovn.org/v1
kind: EgressService
metadata: {name: web, namespace: shop}
spec:
  network: red
`

func cutTo(length int) func(*testing.T, string) {
	return func(t *testing.T, path string) { t.Helper(); require.NoError(t, os.Truncate(path, int64(length))) }
}

func rewrite(old, replacement string) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		t.Helper()
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(text), old)
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), old, replacement, 1)), 0o600))
	}
}

// TestFlawedFile checks that a file's objects stay while it cannot be read whole, that a problem names them, and that others follow their files.
func TestFlawedFile(t *testing.T) {
	key := cluster.Key{Namespace: "shop", Name: "web"}
	for name, flaw := range flaws {
		t.Run(name, func(t *testing.T) {
			dir := write(t, map[string]string{"a.yaml": twoObjects, "b.yaml": good})
			path := filepath.Join(dir, "a.yaml")
			f, at := open(dir)
			before, _, problems := f.Read()
			require.Empty(t, problems)
			flaw.befall(t, path)
			for range 3 {
				o, _, problems := f.Read()
				require.Equal(t, before.EgressServices.At(key), o.EgressServices.At(key))
				require.Equal(t, before.Services.At(key), o.Services.At(key))
				require.Len(t, problems, 2)
				require.Contains(t, problems[0].Error(), flaw.want)
				require.Contains(t, problems[0].Where, path)
				require.Equal(t, cluster.ReasonFormerContent, problems[1].Reason)
				require.Equal(t, "a.yaml", problems[1].Object)
				require.Contains(t, problems[1].Message, "EgressService shop/web")
				at.Time = at.Add(time.Hour)
			}
			require.NoError(t, os.WriteFile(filepath.Join(dir, "b.yaml"), []byte(good+"spec: {network: blue}\n"), 0o600))
			o, changed, _ := f.Read()
			require.Equal(t, changeOf(cluster.Key{Namespace: "default", Name: "good"}), changed)
			require.Equal(t, "blue", o.EgressServices.At(cluster.Key{Namespace: "default", Name: "good"}).Network)

			require.NoError(t, os.RemoveAll(path))
			_, changed, problems = f.Read()
			require.True(t, changed.Empty(), "%v", changed)
			require.Empty(t, problems, "a file that is gone is believed after a while")
			require.NoError(t, os.WriteFile(path, []byte(twoObjects), 0o600))
			_, changed, problems = f.Read()
			require.True(t, changed.Empty(), "%v", changed)
			require.Empty(t, problems)
			require.Zero(t, f.Again())
			require.NoError(t, os.Remove(path))
			f.Read()
			at.Time = at.Add(keepFor)
			o, changed, problems = f.Read()
			require.Equal(t, changeOf(key), changed)
			require.Empty(t, problems)
			_, there := o.Services.Get(key)
			require.False(t, there)
		})
	}
}

// TestFlawedFileAtStart checks a file with a flaw at the first read: its former objects are not known. It may be in the middle of being
// // written; after the time for that, a problem reports it.
func TestFlawedFileAtStart(t *testing.T) {
	for name, flaw := range flaws {
		if flaw.want == "is cut off" {
			continue // an incomplete write does not show
		}
		t.Run(name, func(t *testing.T) {
			dir := write(t, map[string]string{"a.yaml": twoObjects, "b.yaml": good})
			flaw.befall(t, filepath.Join(dir, "a.yaml"))
			f, at := open(dir)
			_, _, problems := f.Read()
			require.Len(t, problems, 1)
			require.True(t, f.Unsure())
			require.Equal(t, keepFor, f.Again())
			at.Time = at.Add(keepFor)
			o, _, problems := f.Read()
			require.False(t, f.Unsure())
			require.Zero(t, f.Again())
			require.Len(t, problems, 2)
			require.Contains(t, problems[1].Message, "could not be read whole since the daemon started")
			_, there := o.EgressServices.Get(cluster.Key{Namespace: "shop", Name: "web"})
			require.False(t, there)
			require.Equal(t, 1, o.EgressServices.Len(), "the other file's is served")
		})
	}
}

// TestShorterFile checks that a shorter text which ends with a line end, or where the former one had none either, is intended.
func TestShorterFile(t *testing.T) {
	shorter := strings.TrimSuffix(twoObjects, "spec:\n  network: red\n")
	for _, texts := range [][2]string{{twoObjects, shorter}, {strings.TrimSuffix(twoObjects, "\n"), strings.TrimSuffix(shorter, "\n")}, {twoObjects, "#\n" + strings.TrimSuffix(shorter, "\n")}} {
		dir := write(t, map[string]string{"a.yaml": texts[0]})
		f, _ := open(dir)
		f.Read()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(texts[1]), 0o600))
		o, _, problems := f.Read()
		require.Empty(t, problems)
		require.Empty(t, o.EgressServices.At(cluster.Key{Namespace: "shop", Name: "web"}).Network)
	}
}
