package manifests

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/lab"
)

// clock is a Folder's clock, which a test sets.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

// open opens a folder whose clock does not move.
func open(dir string) (*Folder, *clock) {
	f, c := Open(dir), &clock{time.Unix(1_000_000, 0)}
	f.now = c.now
	return f, c
}

// someDocument returns one of few documents, so that names occur twice.
func someDocument(r *rand.Rand) string {
	n := r.IntN(6)
	switch r.IntN(20) {
	case 0:
		if r.IntN(4) == 0 {
			return "a: [\n"
		}
		return "# a comment\n"
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

// edit changes a file of a folder as people and programs do.
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
	case 6: // moves all documents below
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

// TestFolderReadAgain compares a folder that is read again after random changes with one that is read for the first time: they are
// // equal once no file has a flaw and removed objects are no longer kept. Changed turns each former result into the next.
func TestFolderReadAgain(t *testing.T) {
	equal := 0
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be repeated
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "z.yaml"), []byte(good), 0o600))
		f, at := open(dir)
		former, changed, told := f.Read()
		require.Equal(t, cluster.Everything(), changed)
		for step := range 80 {
			text := fmt.Sprint(former)
			edits := r.IntN(3)
			for range edits {
				edit(t, r, dir)
			}
			follow := func(objects cluster.Objects, changed cluster.Changed) {
				require.Equal(t, text, fmt.Sprint(former), "what was handed out stays as it was")
				if !changed.All {
					then := adopt(former, objects, changed)
					require.Equal(t, objects.EgressServices, then.EgressServices, "seed %d, step %d", seed, step)
					require.Equal(t, objects.Services, then.Services, "seed %d, step %d", seed, step)
					require.Equal(t, objects.Endpoints, then.Endpoints, "seed %d, step %d", seed, step)
				}
				former, text = objects, fmt.Sprint(objects)
			}
			if objects, changed, again, ok := f.Glance(); !ok {
				require.True(t, changed.Empty())
				require.Equal(t, former, objects)
				require.Equal(t, told, again)
			} else {
				follow(objects, changed)
			}
			objects, changed, again := f.Read()
			if edits == 0 {
				require.True(t, changed.Empty())
				require.Equal(t, unsafe.SliceData(told), unsafe.SliceData(again), "the same slice")
			}
			follow(objects, changed)
			told = again
			flaw := slices.ContainsFunc(slices.Collect(maps.Values(f.files)), func(f *file) bool { return f.flaw })
			want, problems := Read(dir)
			for key := range want.EgressServices.Keys() {
				require.Contains(t, maps.Collect(objects.EgressServices.All()), key)
			}
			if r.IntN(2) == 0 {
				continue
			}
			at.Time = at.Add(keepFor)
			objects, changed, told = f.Read()
			follow(objects, changed)
			require.Zero(t, f.Again(), "seed %d, step %d", seed, step)
			if !flaw {
				equal++
				require.Equal(t, problems, told, "seed %d, step %d", seed, step)
				require.Equal(t, want, objects, "seed %d, step %d", seed, step)
			}
		}
	}
	require.Greater(t, equal, 100)
}

// adopt returns the former objects with the keys of changed taken from the present ones.
func adopt(former, now cluster.Objects, changed cluster.Changed) cluster.Objects {
	former.EgressServices = adopted(former.EgressServices, now.EgressServices, changed)
	former.Services = adopted(former.Services, now.Services, changed)
	former.Endpoints = adopted(former.Endpoints, now.Endpoints, changed)
	return former
}

func adopted[V any](former, now cluster.Map[cluster.Key, V], changed cluster.Changed) cluster.Map[cluster.Key, V] {
	next := former.Draft()
	for key := range changed.Of[cluster.KindEgressService] {
		if v, there := now.Get(key); there {
			next.Set(key, v)
		} else {
			next.Delete(key)
		}
	}
	return next.Map()
}

// TestGlance checks that an object which moves from one file to another is not gone in between.
func TestGlance(t *testing.T) {
	dir := write(t, map[string]string{"a.yaml": good, "b.yaml": "# nothing\n"})
	key := cluster.Key{Namespace: "default", Name: "good"}
	f, at := open(dir)
	f.Read()
	put := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}

	put("a.yaml", "# nothing\n")
	o, changed, _, ok := f.Glance()
	require.True(t, ok)
	require.True(t, changed.Empty())
	require.Contains(t, maps.Collect(o.EgressServices.All()), key)
	put("b.yaml", good)
	_, changed, _, ok = f.Glance()
	require.True(t, ok)
	require.True(t, changed.Empty(), "%v", changed)
	require.Zero(t, f.Again(), "it has a file again")

	put("b.yaml", good+"spec: {network: red}\n")
	o, changed, _, ok = f.Glance()
	require.True(t, ok)
	require.Equal(t, changeOf(key), changed)
	require.Equal(t, "red", o.EgressServices.At(key).Network)

	require.NoError(t, os.Remove(filepath.Join(dir, "b.yaml")))
	o, changed, _, ok = f.Glance()
	require.True(t, ok)
	require.True(t, changed.Empty())
	require.Contains(t, maps.Collect(o.EgressServices.All()), key, "it may come back")
	require.Equal(t, keepFor, f.Again())
	o, changed, _ = f.Read()
	require.Contains(t, maps.Collect(o.EgressServices.All()), key)
	require.True(t, changed.Empty())
	require.Equal(t, keepFor, f.Again())
	at.Time = at.Add(keepFor)
	o, changed, _ = f.Read()
	require.Empty(t, maps.Collect(o.EgressServices.All()))
	require.Equal(t, changeOf(key), changed)
	require.Zero(t, f.Again())
}

// TestGlancePastDeletion checks that a deletion, which waits, holds up no other change: not of its own file, and not of another one.
func TestGlancePastDeletion(t *testing.T) {
	egress := func(name, network string) string {
		return "---\napiVersion: k8s.ovn.org/v1\nkind: EgressService\nmetadata: {name: " + name + "}\nspec: {network: " + network + "}\n"
	}
	key := func(name string) cluster.Key { return cluster.Key{Namespace: "default", Name: name} }
	dir := write(t, map[string]string{"a.yaml": egress("gone", "red") + egress("beside", "red"), "b.yaml": egress("apart", "red")})
	f, at := open(dir)
	f.Read()
	put := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	put("a.yaml", egress("beside", "blue"))
	o, changed, problems, ok := f.Glance()
	require.True(t, ok)
	require.Empty(t, problems)
	require.Equal(t, changeOf(key("beside")), changed)
	require.Equal(t, "blue", o.EgressServices.At(key("beside")).Network)
	require.Equal(t, "red", o.EgressServices.At(key("gone")).Network)

	at.Time = at.Add(keepFor / 2)
	put("b.yaml", egress("apart", "blue")+egress("new", "blue"))
	o, changed, problems, ok = f.Glance()
	require.True(t, ok)
	require.Empty(t, problems)
	want := changeOf(key("apart"))
	want.Join(changeOf(key("new")))
	require.Equal(t, want, changed)
	require.Equal(t, "blue", o.EgressServices.At(key("apart")).Network)
	require.Equal(t, "red", o.EgressServices.At(key("gone")).Network)

	at.Time = at.Add(keepFor / 2)
	require.NoError(t, os.Remove(filepath.Join(dir, "b.yaml")))
	_, changed, _, ok = f.Glance()
	require.True(t, ok)
	require.Equal(t, changeOf(key("gone")), changed, "its time counts from the first look without it")
}

// TestGlancePastFlaw checks that a file which is not whole changes nothing and causes no problem until the folder has settled,
// and holds up no other file.
func TestGlancePastFlaw(t *testing.T) {
	for name, flaw := range flaws {
		t.Run(name, func(t *testing.T) {
			dir := write(t, map[string]string{"a.yaml": twoObjects, "b.yaml": good})
			f, _ := open(dir)
			before, _, _ := f.Read()
			flaw.befall(t, filepath.Join(dir, "a.yaml"))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "b.yaml"), []byte(good+"spec: {network: blue}\n"), 0o600))
			o, changed, problems, ok := f.Glance()
			require.True(t, ok)
			require.Empty(t, problems)
			require.Equal(t, changeOf(cluster.Key{Namespace: "default", Name: "good"}), changed)
			require.Equal(t, before.Services, o.Services)
			_, changed, problems = f.Read()
			require.Len(t, problems, 2)
			require.True(t, changed.Empty(), "%v", changed)
		})
	}
}

// TestPassedOver checks for problems with files and folders that may hold manifests and are not read, and with a folder without any.
func TestPassedOver(t *testing.T) {
	dir := write(t, map[string]string{"a.YAML": good, "README.md": "", "b.yaml.bak": good})
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "lost+found"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "..data"), 0o700))
	for _, sub := range []string{"sub", "..data"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, sub, "c.yaml"), []byte(good), 0o600))
	}
	f, at := open(dir)
	lines := func(problems []cluster.Problem) (lines []string) {
		for _, p := range problems {
			lines = append(lines, strings.ReplaceAll(p.Error(), dir, "D"))
		}
		return lines
	}
	strays := []string{
		"D/a.YAML: Manifest a.YAML: is passed over: a name ends in .yaml, .yml or .json, in lower case",
		"D/sub: Manifest sub: is passed over: manifests in subfolders are not read, they belong in D itself",
	}
	_, _, problems := f.Read()
	require.True(t, f.Missing())
	require.Equal(t, append([]string{"Manifests D: no file in it ends in .yaml, .yml or .json"}, strays...), lines(problems))
	file := filepath.Join(dir, "d.yaml")
	require.NoError(t, os.WriteFile(file, []byte("# nothing\n"), 0o600))
	_, _, problems = f.Read()
	require.False(t, f.Missing())
	require.Equal(t, append(strays, "Manifests D: no file in it holds an object of a kind that is read"), lines(problems))
	require.NoError(t, os.WriteFile(file, []byte(good), 0o600))
	_, _, problems = f.Read()
	require.Equal(t, strays, lines(problems))

	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Remove(filepath.Join(dir, "a.YAML")))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "sub")))
	for range 2 {
		o, changed, problems := f.Read()
		require.True(t, changed.Empty())
		require.Equal(t, 1, o.EgressServices.Len())
		require.Equal(t, []string{"Manifests D: no file in it ends in .yaml, .yml or .json; the objects read last stay in force"}, lines(problems))
		at.Time = at.Add(time.Hour)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "e.yaml"), []byte(good), 0o600))
	_, changed, problems := f.Read()
	require.True(t, changed.Empty())
	require.Empty(t, problems)
}

// TestFilesBehindLinks replaces the file behind a link of the folder, which causes no event there.
func TestFilesBehindLinks(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	target := filepath.Join(elsewhere, "web.yaml")
	replace := func(text string) {
		require.NoError(t, os.WriteFile(target+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(target+".new", target))
	}
	replace(good)
	require.NoError(t, os.Symlink(target, filepath.Join(dir, "web.yaml")))
	f, seen, done := Open(dir), make(chan string, 10000), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- f.watch(ctx, 10*time.Millisecond, openFor, func(bool) time.Duration {
			o, _, _ := f.Read()
			seen <- o.EgressServices.At(cluster.Key{Namespace: "default", Name: "good"}).Network
			return f.Again()
		})
	}()
	for _, network := range []string{"", "red", "blue"} {
		if network != "" {
			replace(good + "spec: {network: " + network + "}\n")
		}
		for late := time.After(lab.Patience); ; {
			select {
			case got := <-seen:
				if got != network {
					continue
				}
			case <-late:
				require.FailNow(t, "not read", "network %q", network)
			}
			break
		}
	}
	cancel()
	require.NoError(t, <-done)
}

// TestFolderGone removes a folder, which comes back.
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

// TestFilesGoOneByOne removes all files of a folder one after another, and puts them back in the same way later.
func TestFilesGoOneByOne(t *testing.T) {
	dir := write(t, map[string]string{"a.yaml": good, "b.yaml": twoObjects})
	f, at := open(dir)
	before, _, _ := f.Read()
	unchanged := func(o cluster.Objects, changed cluster.Changed) {
		t.Helper()
		require.True(t, changed.Empty(), "%v", changed)
		require.Equal(t, before, o)
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "a.yaml")))
	o, changed, _, _ := f.Glance()
	unchanged(o, changed)
	require.NoError(t, os.Remove(filepath.Join(dir, "b.yaml")))
	for range 2 {
		o, changed, problems := f.Read()
		unchanged(o, changed)
		require.Len(t, problems, 1)
		require.Equal(t, cluster.ReasonNoManifests, problems[0].Reason)
		require.Zero(t, f.Again(), "no time runs")
		at.Time = at.Add(keepFor)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "b.yaml"), []byte(twoObjects), 0o600))
	o, changed, _, _ = f.Glance()
	unchanged(o, changed)
	require.Equal(t, keepFor, f.Again())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(good), 0o600))
	o, changed, _, _ = f.Glance()
	unchanged(o, changed)
	require.Zero(t, f.Again())
}

// BenchmarkFolder reads 10,000 Services in 100 files, with one changed object each time.
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
				if _, changed, problems := f.Read(); changed.All || len(changed.Of[cluster.KindEgressService]) > 2 || len(problems) > 0 {
					b.Fatal(changed, problems)
				}
			}
		})
	}
}

// changeOf is the change of one EgressService.
func changeOf(key cluster.Key) (changed cluster.Changed) {
	changed.Add(cluster.KindEgressService.ID(key))
	return changed
}
