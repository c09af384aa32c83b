// Package manifests reads the objects of a cluster from a folder of YAML and JSON files.
package manifests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/watch"
)

// keepFor is how long an object without a file stays in force, as objects missing in an API server's list do: a file
// may be missing for a moment while an editor replaces it.
const keepFor = 2 * time.Second

// openFor is how long a file counts as being written after its last modification: some programs never close a file.
const openFor = 10 * time.Second

// lookEvery is how often the folder is read whatever the events said: there are none of files and folders behind a link that was swapped.
const lookEvery = 10 * time.Second

// Read reads every *.yaml, *.yml and *.json file of the folder, in the order of their names. Anything broken becomes a
// Problem with file and line and hides nothing else. Of two objects with one name, the first is in force. Kinds on
// which egress does not depend are ignored. If nothing was read at all, the first Problem has ReasonNoFolder or
// ReasonNoManifests.
func Read(dir string) (cluster.Objects, []cluster.Problem) {
	objects, _, problems := Open(dir).Read()
	return objects, problems
}

// Folder is a folder that is read repeatedly; unchanged files are not read again. The former objects of a file stay in
// force while the file cannot be read, is empty, cut off, partly broken or being written, and for keepFor after it is removed. All
// objects stay while the folder has no manifests at all.
type Folder struct {
	dir      string
	now      func() time.Time
	open     func() []string          // returns the names of files that are being written
	began    time.Time                // time of the first read
	ignored  []cluster.Problem        // about files that are not read
	empty    bool                     // no object was read
	starting bool                     // the first read is less than keepFor ago
	files    map[string]*file         // by name
	names    map[name][]*entry        // in the order of files and lines: the first is in force
	slices   map[cluster.Key][]*entry // the EndpointSlices in force, by Service
	known    bool                     // the folder was read before
	missing  bool                     // the folder cannot be read, or has no manifests
	objects  drafts
	problems []cluster.Problem
}

// drafts holds a folder's objects.
type drafts struct {
	egressServices cluster.Draft[cluster.Key, cluster.EgressService]
	egressIPs      cluster.Draft[cluster.Key, cluster.EgressIP]
	egressQoSes    cluster.Draft[cluster.Key, cluster.EgressQoS]
	firewalls      cluster.Draft[cluster.Key, cluster.EgressFirewall]
	services       cluster.Draft[cluster.Key, cluster.Service]
	endpoints      cluster.Draft[cluster.Key, []cluster.Endpoint]
	nodes          cluster.Draft[string, cluster.Node]
	namespaces     cluster.Draft[string, cluster.Namespace]
	pods           cluster.Draft[cluster.Key, cluster.Pod]
	serviceCIDRs   []netip.Prefix
}

// handOut returns a snapshot of the objects.
func (d *drafts) handOut() cluster.Objects {
	return cluster.Objects{
		EgressServices:  d.egressServices.Map(),
		EgressIPs:       d.egressIPs.Map(),
		EgressQoSes:     d.egressQoSes.Map(),
		EgressFirewalls: d.firewalls.Map(),
		Services:        d.services.Map(),
		Endpoints:       d.endpoints.Map(),
		Nodes:           d.nodes.Map(),
		Namespaces:      d.namespaces.Map(),
		ServiceCIDRs:    d.serviceCIDRs,
		Pods:            d.pods.Map(),
		PodsKnown:       true,
	}
}

// Open returns a Folder. It reads nothing.
func Open(dir string) *Folder {
	return &Folder{
		dir: dir, now: time.Now, open: unknown, empty: true,
		files: map[string]*file{}, names: map[name][]*entry{}, slices: map[cluster.Key][]*entry{},
	}
}

// Watch calls wake once at the start and then after every change of the folder, until ctx ends. It reports a changed
// file at once with settled false, which is for Glance, and again when changes have stopped, which is for Read. wake
// returns after how long it wants another call, see Folder.Again; Watch calls it after lookEvery at the latest. Called by wake,
// Read and Glance do not read a file that is being written, since half of it may be valid: it has a flaw.
func (f *Folder) Watch(ctx context.Context, wake func(settled bool) (again time.Duration)) error {
	return f.watch(ctx, lookEvery, openFor, wake)
}

// watch is Watch with other times than lookEvery and openFor.
func (f *Folder) watch(ctx context.Context, most, writing time.Duration, wake func(settled bool) (again time.Duration)) error {
	return watch.Eager(ctx, f.dir, 50*time.Millisecond, writing, func(settled bool, open func() []string) time.Duration {
		f.open = open
		defer func() { f.open = unknown }()
		return min(cmp.Or(wake(settled), most), most)
	})
}

// unknown is Folder.open outside of Watch.
func unknown() []string { return nil }

// Read returns the folder's objects and problems, as the function Read does, and how the objects may differ from those
// of the last call. Returned values do not change later; problems are the same slice as before if none differs. A
// folder that cannot be read leaves the objects as they are.
func (f *Folder) Read() (objects cluster.Objects, changed cluster.Changed, problems []cluster.Problem) {
	news, err := f.look()
	return f.read(news, err)
}

// Glance is Read for a folder that is being changed. It does not read files that have a flaw now, since they may be about
// to be replaced. If the folder cannot be read or has no manifests, it changes nothing and returns ok false.
func (f *Folder) Glance() (objects cluster.Objects, changed cluster.Changed, problems []cluster.Problem, ok bool) {
	news, err := f.look()
	if err != nil {
		return f.objects.handOut(), cluster.Changed{}, f.problems, false
	}
	maps.DeleteFunc(news, func(_ string, is *file) bool { return is != nil && is.flaw })
	objects, changed, problems = f.read(news, nil)
	return objects, changed, problems, true
}

// Missing reports whether there is no folder, or no manifest in it. The objects read before stay.
func (f *Folder) Missing() bool { return f.missing }

// Again returns after how long Read may return something else although no file has changed; 0: never.
func (f *Folder) Again() time.Duration {
	since := f.waitsSince()
	if since.IsZero() {
		return 0
	}
	return max(since.Add(keepFor).Sub(f.now()), time.Millisecond)
}

// waitsSince returns since when the folder has waited for keepFor to pass, for an object without a file or at its start;
// zero: it waits for nothing.
func (f *Folder) waitsSince() (since time.Time) {
	if f.Unsure() {
		since = f.began
	}
	for _, is := range f.files {
		for _, e := range is.kept {
			since = earlier(since, e.lacked)
		}
	}
	return since
}

// earlier returns the earlier of two times; a zero time does not count.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Unsure reports whether a file with a flaw may be in the middle of being written shortly after the start, when its
// former content is not known.
func (f *Folder) Unsure() bool { return f.now().Sub(f.began) < keepFor && f.flawed() }

// flawed reports whether a file has a flaw.
func (f *Folder) flawed() bool {
	for _, is := range f.files {
		if is.flaw {
			return true
		}
	}
	return false
}

// staying returns a function that reports whether a file holds an object of a name, after news replaces the files of
// those names.
func (f *Folder) staying(news map[string]*file) func(name) bool {
	there, replaced := names(news), maps.Clone(news) // news may change before the last call
	return func(n name) bool {
		return there[n] || slices.ContainsFunc(f.names[n], func(o *entry) bool {
			_, replaced := replaced[filepath.Base(o.file.path)]
			return !o.kept && !replaced
		})
	}
}

// names returns the names of the objects in files; nil stands for a removed file.
func names(files map[string]*file) map[name]bool {
	all := map[name]bool{}
	for _, is := range files {
		if is == nil {
			continue
		}
		for e := range is.entries() {
			all[e.name] = true
		}
	}
	return all
}

// keep adds objects that no file holds any more to the kept ones of their file, and drops those kept for keepFor.
func (f *Folder) keep(news map[string]*file) {
	stays, now := f.staying(news), f.now()
	for name, former := range f.files {
		is := former.after(news, name)
		if is == former && len(former.kept) == 0 {
			continue
		}
		next := former.keeping(former.keeps(stays, is, now), is)
		if next == former {
			delete(news, name)
		} else {
			news[name] = next
		}
	}
}

// after returns the content of the file after news: itself if it does not change, a file without content if it is
// removed.
func (f *file) after(news map[string]*file, name string) *file {
	switch is, concerned := news[name]; {
	case !concerned, is == nil && f.gone:
		return f
	case is == nil:
		return &file{path: f.path, gone: true, whole: f.whole}
	default:
		return is
	}
}

// keeping returns the current content is with the kept objects: f itself if nothing differs, nil if nothing is left.
func (f *file) keeping(kept []*entry, is *file) *file {
	switch {
	case is == f && slices.Equal(kept, f.kept):
		return f
	case is.gone && len(kept) == 0:
		return nil
	case is == f:
		again := *f
		is = &again
	}
	is.kept = kept
	return is
}

// keeps returns the entries in force of a file that stay nowhere else. next is its current content; while that has a
// flaw, no entry's time runs out.
func (f *file) keeps(stays func(name) bool, next *file, now time.Time) (kept []*entry) {
	of := f.entries()
	if next == f {
		of = slices.Values(f.kept) // the others are in the file still
	}
	for e := range of {
		if e.name == nameless || e.by != e || stays(e.name) {
			continue
		}
		if !e.kept {
			e = &entry{name: e.name, value: e.value, kept: true, at: len(kept)}
		}
		if !e.expired(next.flaw, now) {
			kept = append(kept, e)
		}
	}
	return kept
}

// expired reports whether files without a flaw have lacked the entry for keepFor. It notes since when they do.
func (e *entry) expired(flaw bool, now time.Time) bool {
	switch {
	case flaw:
		e.lacked = time.Time{}
		return false
	case e.lacked.IsZero():
		e.lacked = now
		return false
	default:
		return now.Sub(e.lacked) >= keepFor
	}
}

func (f *Folder) read(news map[string]*file, err error) (objects cluster.Objects, changed cluster.Changed, problems []cluster.Problem) {
	if f.began.IsZero() {
		f.began = f.now()
	}
	if err != nil {
		f.missing = true
		f.stopClocks()
		f.setProblems(append([]cluster.Problem{f.unread(err)}, f.ignored...))
		return f.objects.handOut(), cluster.Changed{}, f.problems
	}
	f.keep(news)
	changed, outdated := f.replace(news)
	if starting := f.now().Sub(f.began) < keepFor; starting != f.starting {
		f.starting, outdated = starting, true
	}
	if !f.known {
		f.known, outdated, changed = true, true, cluster.Everything()
	}
	if empty := len(f.names) == 0; empty != f.empty {
		f.empty, outdated = empty, true
	}
	if outdated || f.missing {
		f.missing = false
		f.setProblems(f.found())
	}
	return f.objects.handOut(), changed, f.problems
}

// stopClocks makes the time of objects without a file begin again once the folder is back: they may come back with it.
func (f *Folder) stopClocks() {
	for _, is := range f.files {
		for _, e := range is.kept {
			e.lacked = time.Time{}
		}
	}
}

// unread returns the Problem of a folder that cannot be read, or has no manifests.
func (f *Folder) unread(err error) cluster.Problem {
	p := cluster.Problem{Kind: "Manifests", Object: f.dir, Reason: cluster.ReasonNoFolder, Message: reason(err)}
	if errors.Is(err, errNoManifests) {
		p.Reason = cluster.ReasonNoManifests
	}
	if !f.empty {
		p.Message += "; the objects read last stay in force"
	}
	return p
}

var (
	errNoManifests = errors.New("no file in it ends in .yaml, .yml or .json")
	extensions     = []string{".yaml", ".yml", ".json"}
)

// look returns the files that have changed, by name; nil stands for a removed file.
func (f *Folder) look() (map[string]*file, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		f.ignored = nil
		return nil, err
	}
	names, ignored := f.sift(entries)
	if !slices.Equal(ignored, f.ignored) {
		f.ignored, f.missing = ignored, true // makes read collect all problems again
	}
	if len(names) == 0 {
		return nil, errNoManifests
	}
	return f.news(names), nil
}

// sift returns the names of the files to read, and Problems of those that only seem to be manifests.
func (f *Folder) sift(entries []fs.DirEntry) (names []string, ignored []cluster.Problem) {
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue // files of editors and ConfigMap mounts
		}
		if slices.Contains(extensions, filepath.Ext(e.Name())) {
			names = append(names, e.Name())
		} else if why := f.whyIgnored(e); why != "" {
			ignored = append(ignored, cluster.Problem{
				Kind: "Manifest", Object: e.Name(), Reason: cluster.ReasonPassedOver, Message: why,
				Where: filepath.Join(f.dir, e.Name()),
			})
		}
	}
	return names, ignored
}

// news reads the files of these names, which are all. It returns those that have changed; nil stands for a removed file.
func (f *Folder) news(names []string) map[string]*file {
	news, there := map[string]*file{}, make(map[string]bool, len(names))
	for i, now := range f.readFiles(names) {
		there[names[i]] = true
		if now != f.files[names[i]] {
			news[names[i]] = now
		}
	}
	for name := range f.files {
		if !there[name] {
			news[name] = nil
		}
	}
	return news
}

// readersMost bounds how many files are read at once: each of them is in memory meanwhile.
const readersMost = 4

// readFiles reads files of these names, several at once: at the start, most of the time is spent on parsing them. It reads none that
// is being written, and believes none that is so afterwards: it may have been read after the first modification.
func (f *Folder) readFiles(names []string) []*file {
	files, open := make([]*file, len(names)), f.open()
	var (
		next atomic.Int64
		g    sync.WaitGroup
	)
	for range min(readersMost, runtime.GOMAXPROCS(0), len(names)) {
		g.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(names)); i = next.Add(1) - 1 {
				if !slices.Contains(open, names[i]) {
					files[i] = readFile(filepath.Join(f.dir, names[i]), f.files[names[i]])
				}
			}
		})
	}
	g.Wait()
	open = append(open, f.open()...)
	for i, name := range names {
		if slices.Contains(open, name) {
			files[i] = openFile(filepath.Join(f.dir, name), f.files[name])
		}
	}
	return files
}

// whyIgnored returns why a file or folder that may hold manifests is not read; empty: it holds none.
func (f *Folder) whyIgnored(e fs.DirEntry) string {
	holds := func(e fs.DirEntry) bool { return slices.Contains(extensions, filepath.Ext(e.Name())) }
	switch {
	case slices.Contains(extensions, strings.ToLower(filepath.Ext(e.Name()))):
		return "is passed over: a name ends in .yaml, .yml or .json, in lower case"
	case !e.IsDir():
		return ""
	}
	if below, err := os.ReadDir(filepath.Join(f.dir, e.Name())); err != nil || !slices.ContainsFunc(below, holds) {
		return ""
	}
	return "is passed over: manifests in subfolders are not read, they belong in " + f.dir + " itself"
}

// replace replaces files by news. hasProblems reports whether a new or replaced file has problems.
func (f *Folder) replace(news map[string]*file) (changed cluster.Changed, hasProblems bool) {
	for name, now := range news {
		hasProblems = hasProblems || f.hasProblems(f.files[name]) || f.hasProblems(now)
	}
	d := differences{folder: f, services: map[cluster.Key]bool{}}
	for name, before := range f.exchange(news) {
		all := f.names[name]
		now := inForce(all)
		for _, e := range all {
			e.by = now
		}
		hasProblems = hasProblems || len(all) > 1
		d.add(before, now)
	}
	d.finish()
	return d.changed, hasProblems
}

// exchange replaces files by news. It returns the former entries in force of all names in these files; nil: none.
func (f *Folder) exchange(news map[string]*file) map[name]*entry {
	counted := map[name]*entry{}
	for name := range news {
		f.remove(name, counted)
	}
	for name, now := range news {
		if now != nil {
			f.files[name] = now
			f.add(now, counted)
		}
	}
	return counted
}

// inForce returns the entry in force of all those of a name, nil if there are none.
func inForce(all []*entry) *entry {
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// hasProblems reports whether a file has problems; nil: it does not exist.
func (f *Folder) hasProblems(is *file) bool {
	if is != nil {
		if is.flaw {
			return true
		}
		for e := range is.entries() {
			if e.hasProblems() || e.name != nameless && len(f.names[e.name]) > 1 {
				return true
			}
		}
	}
	return false
}

// remove removes a file and its entries, if there is such a file.
func (f *Folder) remove(file string, counted map[name]*entry) {
	former := f.files[file]
	if former == nil {
		return
	}
	delete(f.files, file)
	for e := range former.entries() {
		if e.name != nameless {
			f.forget(e, counted)
		}
	}
}

// forget removes an entry from those of its name.
func (f *Folder) forget(e *entry, counted map[name]*entry) {
	all := f.names[e.name]
	if _, noted := counted[e.name]; !noted {
		counted[e.name] = all[0]
	}
	if all = slices.DeleteFunc(slices.Clone(all), func(o *entry) bool { return o == e }); len(all) > 0 {
		f.names[e.name] = all
	} else {
		delete(f.names, e.name)
	}
}

func (f *Folder) add(now *file, counted map[name]*entry) {
	at := 0
	for _, p := range now.parts {
		for _, e := range p.entries {
			e.file, e.before, e.at = now, p.before, at
			at++
			f.name(e, counted)
		}
	}
	for _, e := range now.kept {
		e.file = now
		f.name(e, counted)
	}
}

// name inserts an entry among those of its name.
func (f *Folder) name(e *entry, counted map[name]*entry) {
	if e.name == nameless {
		return
	}
	all := f.names[e.name]
	if _, noted := counted[e.name]; !noted {
		counted[e.name] = inForce(all)
	}
	i, _ := slices.BinarySearchFunc(all, e, compare)
	f.names[e.name] = slices.Insert(all, i, e)
}

// compare orders entries by file and line. A kept entry is in force only if no file holds its name.
func compare(a, b *entry) int {
	if a.kept != b.kept {
		if a.kept {
			return 1
		}
		return -1
	}
	if a.file != b.file {
		return strings.Compare(a.file.path, b.file.path)
	}
	return a.at - b.at
}

// entries iterates over the entries of all files, in order.
func (f *Folder) entries() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, name := range slices.Sorted(maps.Keys(f.files)) {
			for e := range f.files[name].entries() {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// found returns all problems.
func (f *Folder) found() (problems []cluster.Problem) {
	problems = append(problems, f.ignored...)
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		is := f.files[name]
		for e := range is.entries() {
			problems = append(problems, e.problems...)
			problems = append(problems, e.ofName()...)
		}
		if f.lacks(is) {
			problems = append(problems, is.formerContent())
		}
	}
	if f.empty && !f.flawed() {
		problems = append(problems, cluster.Problem{
			Kind: "Manifests", Object: f.dir, Reason: cluster.ReasonNoManifests,
			Message: "no file in it holds an object of a kind that is read",
		})
	}
	return problems
}

// lacks reports whether objects of a file with a flaw may be missing: former ones stand in for them, or the file was never whole, which
// shortly after the start is no problem yet.
func (f *Folder) lacks(is *file) bool {
	return is.flaw && (len(is.kept) > 0 || !f.starting && is.whole.size == 0)
}

// ofName returns the entry's problems that depend on the other entries of its name.
func (e *entry) ofName() []cluster.Problem {
	switch {
	case e.name == nameless, e.kept:
		return nil
	case e.by == e:
		return e.inForce
	}
	return []cluster.Problem{{
		Kind: e.name.kind, Object: e.name.object, Reason: cluster.ReasonDuplicate, Where: e.where(),
		Message: "is given twice: the first counts, at " + e.by.where(),
	}}
}

// formerContent returns the Problem that names the kept objects of a file with a flaw, or says that there are none.
func (f *file) formerContent() cluster.Problem {
	const most = 3
	var names []string
	for _, e := range f.kept[:min(len(f.kept), most)] {
		names = append(names, e.name.kind+" "+e.name.object)
	}
	if more := len(f.kept) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	p := cluster.Problem{
		Kind: "Manifest", Object: filepath.Base(f.path), Reason: cluster.ReasonFormerContent, Where: f.path,
		Message: "its former objects stay in force until it can be read whole, or is removed: " + strings.Join(names, ", "),
	}
	if len(names) == 0 {
		p.Message = "could not be read whole since the daemon started: its former objects, if any, are not known and not in force"
	}
	return p
}

// setProblems sets the problems, keeping the slice if they are the same.
func (f *Folder) setProblems(problems []cluster.Problem) {
	if !slices.Equal(problems, f.problems) {
		f.problems = slices.Clip(problems)
	}
}

// reason returns the text of err without a file error's operation and path, since the Problem names the path.
func reason(err error) string {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err.Error()
	}
	return err.Error()
}
