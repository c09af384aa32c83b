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

// endpointsText returns a Service, its EgressService, and its EndpointSlice up to its endpoints; then the text of each of these.
func endpointsText(count int) (head string, each []string) {
	head = twoObjects + `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: shop
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
endpoints:
`
	for i := range count {
		each = append(each, fmt.Sprintf("- addresses: [10.244.0.%d]\n  nodeName: a\n", i+1))
	}
	return head, each
}

// look is the part of a folder that one reading found.
type look struct {
	endpoints int    // of shop/web
	network   string // of default/good
	more      int    // EgressServices beside these two
	problems  []cluster.Problem
}

// follow reads a folder whenever its watch wants that, as the daemon does, and returns the looks at it. A file counts as being written for
// as long as given.
func follow(t *testing.T, dir string, writing time.Duration) <-chan look {
	t.Helper()
	f, looks, done := Open(dir), make(chan look), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- f.watch(ctx, 10*time.Millisecond, writing, func(settled bool) time.Duration {
			if settled {
				f.Read()
			} else {
				f.Glance()
			}
			o := f.objects.handOut()
			now := look{
				endpoints: len(o.Endpoints.At(cluster.Key{Namespace: "shop", Name: "web"})), more: o.EgressServices.Len() - 2,
				network: o.EgressServices.At(cluster.Key{Namespace: "default", Name: "good"}).Network, problems: f.problems,
			}
			select {
			case looks <- now:
			case <-ctx.Done():
			}
			return f.Again()
		})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return looks
}

// until returns the first look that is as wanted, and checks each look until then.
func until(t *testing.T, looks <-chan look, wanted func(look) bool, check func(look)) look {
	t.Helper()
	for late := time.After(lab.Patience); ; {
		select {
		case l := <-looks:
			if check(l); wanted(l) {
				return l
			}
		case <-late:
			require.FailNow(t, "not seen")
		}
	}
}

// TestSlowWrite rewrites a file in place, step by step, and then writes a new one so. Half a list of endpoints is valid, but no reading
// returns fewer endpoints than before; another file, which is replaced meanwhile, counts.
func TestSlowWrite(t *testing.T) {
	head, each := endpointsText(60)
	dir := write(t, map[string]string{"web.yaml": head + strings.Join(each[:40], ""), "b.yaml": good})
	looks := follow(t, dir, time.Hour)
	all := func(endpoints int) func(look) {
		return func(l look) {
			require.GreaterOrEqual(t, l.endpoints, endpoints)
			require.Zero(t, l.more)
		}
	}
	network := 0
	beside := func() look {
		network++
		name := fmt.Sprintf("net%d", network)
		path := filepath.Join(dir, "b.yaml")
		require.NoError(t, os.WriteFile(path+".new", []byte(good+"spec: {network: "+name+"}\n"), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
		return until(t, looks, func(l look) bool { return l.network == name }, all(40))
	}
	slowly := func(name string, texts ...string) {
		f, err := os.Create(filepath.Join(dir, name))
		require.NoError(t, err)
		defer f.Close()
		for _, text := range texts {
			_, err = f.WriteString(text)
			require.NoError(t, err)
			beside()
			l := until(t, looks, func(l look) bool { return len(l.problems) > 0 }, all(40))
			require.Equal(t, cluster.ReasonInvalidFile, l.problems[0].Reason)
			require.Equal(t, name, l.problems[0].Object)
			require.Contains(t, l.problems[0].Message, "is being written")
		}
	}
	beside()
	slowly("web.yaml", "# new\n"+head, strings.Join(each[:10], ""), strings.Join(each[10:60], ""))
	until(t, looks, func(l look) bool { return l.endpoints == 60 && len(l.problems) == 0 }, all(40))

	more := strings.ReplaceAll(good, "good", "more")
	slowly("new.yaml", more, "---"+strings.ReplaceAll(good, "good", "evenmore"))
	until(t, looks, func(l look) bool { return l.more == 2 && len(l.problems) == 0 }, func(l look) {
		require.Equal(t, 60, l.endpoints)
		require.Contains(t, []int{0, 2}, l.more)
	})
}

// TestNeverClosed writes a file that stays open: it is read in the end, and again after a further change.
func TestNeverClosed(t *testing.T) {
	head, each := endpointsText(60)
	dir := write(t, map[string]string{"web.yaml": head + strings.Join(each[:10], ""), "b.yaml": good})
	looks := follow(t, dir, time.Second)
	f, err := os.Create(filepath.Join(dir, "web.yaml"))
	require.NoError(t, err)
	defer f.Close()
	write := func(text string, endpoints int) {
		_, err := f.WriteString(text)
		require.NoError(t, err)
		until(t, looks, func(l look) bool { return l.endpoints == endpoints && len(l.problems) == 0 }, func(look) {})
	}
	write("# new\n"+head+strings.Join(each[:30], ""), 30)
	write(strings.Join(each[30:], ""), 60)
}

// TestOpenFileIsNotRead checks a file that is opened while the folder is read, with content that is valid, and its next reading.
func TestOpenFileIsNotRead(t *testing.T) {
	dir := write(t, map[string]string{"a.yaml": good, "b.yaml": twoObjects})
	f, _ := open(dir)
	before, _, _ := f.Read()
	path := filepath.Join(dir, "b.yaml")
	require.NoError(t, os.WriteFile(path, []byte("# another one\n"+good+"spec: {network: red}\n"), 0o600))
	var names [][]string // of the next calls
	f.open = func() []string {
		now := names[0]
		names = names[1:]
		return now
	}
	for _, names = range [][][]string{{{"b.yaml"}, {"b.yaml"}}, {nil, {"b.yaml"}}, {{"b.yaml"}, nil}} {
		o, changed, problems := f.Read()
		require.Empty(t, names)
		require.True(t, changed.Empty(), "%v", changed)
		require.Equal(t, before, o)
		require.Len(t, problems, 2)
		require.Equal(t, path, problems[0].Where)
		require.Contains(t, problems[0].Message, "is being written")
		require.Equal(t, cluster.ReasonFormerContent, problems[1].Reason)
	}
	require.NoError(t, os.WriteFile(path, []byte(twoObjects), 0o600))
	names = [][]string{nil, nil}
	o, changed, problems := f.Read()
	require.True(t, changed.Empty(), "%v", changed)
	require.Equal(t, before, o)
	require.Empty(t, problems)
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
