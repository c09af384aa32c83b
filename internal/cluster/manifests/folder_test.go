package manifests

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
)

// someDocument is one of few, so that names come twice.
func someDocument(r *rand.Rand) string {
	n := r.IntN(6)
	switch r.IntN(20) {
	case 0:
		return "a: [\n"
	case 1:
		return fmt.Sprintf("# nothing\n\n{apiVersion: v1, kind: Namespace, metadata: {name: n%d, labels: {a: b%d}}}\n", n, r.IntN(2))
	case 2:
		return fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: n%d}}\n", n)
	case 3:
		return fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: n%d}, spec: {cidrs: [10.%d.0.0/16, x]}}\n", n, r.IntN(3))
	case 4, 5, 6, 7:
		return fmt.Sprintf("apiVersion: k8s.ovn.org/v1\nkind: EgressService\nmetadata: {name: x%d}\nspec:\n  network: n%d\n", n, r.IntN(3))
	case 8:
		return fmt.Sprintf("apiVersion: k8s.ovn.org/v1\nkind: EgressService\nmetadata: {name: x%d}\nspec: {netwrok: n}\n", n)
	case 9, 10, 11, 12:
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: x%d}\nspec: {clusterIP: 10.96.0.%d}\n", n, 250+r.IntN(8))
	default:
		return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s%d, labels: {kubernetes.io/service-name: x%d}}\naddressType: IPv4\nendpoints: [{addresses: [10.244.0.%d, 10.244.0.%d]}]\n", n, r.IntN(6), r.IntN(4), r.IntN(4))
	}
}

// edit changes a file of a folder in one of the ways that people and programs have.
func edit(t *testing.T, r *rand.Rand, dir string) {
	t.Helper()
	path := filepath.Join(dir, fmt.Sprintf("f%d.yaml", r.IntN(5)))
	text, _ := os.ReadFile(path)
	docs := strings.Split(string(text), "---\n")
	switch r.IntN(14) {
	case 0:
		_ = os.Remove(path)
		return
	case 1:
		_ = os.Rename(path, filepath.Join(dir, fmt.Sprintf("f%d.yaml", r.IntN(5))))
		return
	case 2:
		docs = docs[:0]
		for range r.IntN(6) {
			docs = append(docs, someDocument(r))
		}
	case 3:
		docs = append(docs, someDocument(r))
	case 4:
		r.Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
	case 6: // what follows is further down
		docs[0] = "# a comment\n" + docs[0]
	case 7:
		docs = slices.Insert(docs, r.IntN(len(docs)), someDocument(r))
	case 5:
		_ = os.Remove(path)
		require.NoError(t, os.Symlink(fmt.Sprintf("f%d.yaml", r.IntN(5)), path))
		return
	default:
		docs[r.IntN(len(docs))] = someDocument(r)
	}
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		require.NoError(t, os.Remove(path))
	}
	to := path
	if r.IntN(2) == 0 {
		to += ".new"
	}
	require.NoError(t, os.WriteFile(to, []byte(strings.Join(docs, "---\n")), 0o600))
	require.NoError(t, os.Rename(to, path))
}

// A folder that is read again and again, whatever happens to it, gives what one gives that is read for the first time, and what it says
// to have changed makes that of what it gave before.
func TestFolderReadAgain(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be repeated
		dir := t.TempDir()
		f := Open(dir)
		former, changed, told := f.Read()
		require.Equal(t, cluster.Everything(), changed)
		for step := range 80 {
			text := fmt.Sprint(former)
			edits := r.IntN(3)
			for range edits {
				edit(t, r, dir)
			}
			want, problems := Read(dir)
			if objects, changed, again, ok := f.Glance(); !ok {
				require.True(t, changed.Empty())
				require.Equal(t, former, objects)
				require.Equal(t, told, again)
			} else {
				if !changed.All {
					require.Equal(t, want, adopt(former, objects, changed), "seed %d, step %d", seed, step)
				}
				former, text = objects, fmt.Sprint(objects)
			}
			objects, changed, again := f.Read()
			require.Equal(t, problems, again, "seed %d, step %d", seed, step)
			require.Equal(t, want, objects, "seed %d, step %d", seed, step)
			require.Equal(t, text, fmt.Sprint(former), "what was handed out stays as it was")
			if !changed.All {
				require.Equal(t, want, adopt(former, objects, changed), "seed %d, step %d", seed, step)
			}
			if edits == 0 {
				require.True(t, changed.Empty())
				require.Equal(t, unsafe.SliceData(told), unsafe.SliceData(again), "the same slice")
			}
			former, told = objects, again
		}
	}
}

// adopt is former objects with what has changed taken from those of now.
func adopt(former, now cluster.Objects, changed cluster.Changed) cluster.Objects {
	former.EgressServices = adopted(former.EgressServices, now.EgressServices, changed)
	former.Services = adopted(former.Services, now.Services, changed)
	former.Endpoints = adopted(former.Endpoints, now.Endpoints, changed)
	return former
}

func adopted[V any](former, now cluster.Map[cluster.Key, V], changed cluster.Changed) cluster.Map[cluster.Key, V] {
	next := former.Draft()
	for key := range changed.Keys {
		if v, there := now.Get(key); there {
			next.Set(key, v)
		} else {
			next.Delete(key)
		}
	}
	return next.Map()
}

// What goes from one file to another is not gone in between.
func TestGlance(t *testing.T) {
	dir := write(t, map[string]string{"a.yaml": good, "b.yaml": "# nothing\n"})
	key := cluster.Key{Namespace: "default", Name: "good"}
	f := Open(dir)
	f.Read()
	put := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}

	put("a.yaml", "")
	o, changed, _, ok := f.Glance()
	require.False(t, ok)
	require.True(t, changed.Empty())
	require.Contains(t, maps.Collect(o.EgressServices.All()), key)
	put("b.yaml", good)
	_, changed, _, ok = f.Glance()
	require.True(t, ok)
	require.True(t, changed.Empty(), "%v", changed)

	put("b.yaml", good+"spec: {network: red}\n")
	o, changed, _, ok = f.Glance()
	require.True(t, ok)
	require.Equal(t, cluster.Changed{Keys: map[cluster.Key]bool{key: true}}, changed)
	require.Equal(t, "red", o.EgressServices.At(key).Network)

	require.NoError(t, os.Remove(filepath.Join(dir, "b.yaml")))
	_, _, _, ok = f.Glance()
	require.False(t, ok)
	o, changed, _ = f.Read()
	require.Empty(t, maps.Collect(o.EgressServices.All()))
	require.Equal(t, cluster.Changed{Keys: map[cluster.Key]bool{key: true}}, changed)
}

// A folder that vanishes, and comes back.
func TestFolderGone(t *testing.T) {
	dir := filepath.Join(write(t, nil), "d")
	f := Open(dir)
	_, _, problems := f.Read()
	require.Equal(t, cluster.ReasonNoFolder, problems[0].Reason)
	there := func() {
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "f.yaml"), []byte(good), 0o600))
	}
	there()
	_, changed, problems := f.Read()
	require.Equal(t, cluster.Everything(), changed)
	require.Empty(t, problems)
	require.NoError(t, os.RemoveAll(dir))
	o, changed, problems := f.Read()
	require.Len(t, maps.Collect(o.EgressServices.All()), 1, "what was known stays")
	require.True(t, changed.Empty())
	require.Len(t, problems, 1)
	there()
	o, changed, problems = f.Read()
	require.Len(t, maps.Collect(o.EgressServices.All()), 1)
	require.True(t, changed.Empty())
	require.Empty(t, problems)
}

// BenchmarkFolder reads 10,000 Services in 100 files, of which one has changed in one object each time.
func BenchmarkFolder(b *testing.B) {
	dir := b.TempDir()
	change := func(n, version int) {
		var text strings.Builder
		for i := range 100 {
			host := 1
			if i == version%100 {
				host = 2 + version%200
			}
			fmt.Fprintf(&text, `---
apiVersion: k8s.ovn.org/v1
kind: EgressService
metadata: {name: s%[1]d-%[2]d}
spec: {network: red, nodeSelector: {matchLabels: {egress: "true"}}}
---
apiVersion: v1
kind: Service
metadata: {name: s%[1]d-%[2]d}
spec: {type: LoadBalancer, clusterIP: 10.96.%[1]d.%[2]d, ports: [{port: 80, targetPort: 8080}]}
status: {loadBalancer: {ingress: [{ip: 198.18.%[1]d.%[2]d}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s%[1]d-%[2]d-1, labels: {kubernetes.io/service-name: s%[1]d-%[2]d}}
addressType: IPv4
endpoints:
`, n, i)
			for e := range 10 {
				fmt.Fprintf(&text, "- {addresses: [10.%d.%d.%d], nodeName: n%d}\n", n, i, host+e, e)
			}
		}
		path := filepath.Join(dir, fmt.Sprintf("f%d.yaml", n))
		require.NoError(b, os.WriteFile(path+".new", []byte(text.String()), 0o600))
		require.NoError(b, os.Rename(path+".new", path))
	}
	for n := range 100 {
		change(n, 0)
	}
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Read(dir)
		}
	})
	f := Open(dir)
	f.Read()
	version := 0
	for what, changes := range map[string]int{"nothing": 0, "one": 1} {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				version++
				for range changes {
					change(version%100, version)
				}
				b.StartTimer()
				if _, changed, problems := f.Read(); changed.All || len(changed.Keys) > 2 || len(problems) > 0 {
					b.Fatal(changed, problems)
				}
			}
		})
	}
}
