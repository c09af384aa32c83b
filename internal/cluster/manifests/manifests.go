// Package manifests reads the objects of a cluster from a folder of YAML and JSON files.
package manifests

import (
	"context"
	"errors"
	"io/fs"
	"iter"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/watch"
)

// Watch calls wake once at the start and then whenever the folder changed, until ctx ends. A file that was changed is told of at
// once, with settled false, which is for Glance; then again when nothing more happens, which is for Read.
func Watch(ctx context.Context, dir string, wake func(settled bool)) error {
	return watch.Eager(ctx, dir, 50*time.Millisecond, wake)
}

// Read reads every *.yaml, *.yml and *.json file of the folder, in the order of their names. What is broken becomes a
// Problem with file and line and hides nothing else; of two objects with one name the first counts. Kinds that egress does not
// depend on are left out silently. A problem with ReasonNoFolder means that nothing could be read at all.
func Read(dir string) (cluster.Objects, []cluster.Problem) {
	objects, _, problems := Open(dir).Read()
	return objects, problems
}

// Folder is a folder that is read again and again. What has not changed is not read anew.
type Folder struct {
	dir      string
	files    map[string]*file         // by name
	names    map[name][]*entry        // in the order of files and lines: the first counts
	slices   map[cluster.Key][]*entry // the EndpointSlices that count, by Service
	known    bool                     // it was read before
	missing  bool                     // it could not be read
	objects  drafts
	problems []cluster.Problem
}

// drafts are a folder's objects.
type drafts struct {
	egressServices cluster.Draft[cluster.Key, cluster.EgressService]
	services       cluster.Draft[cluster.Key, cluster.Service]
	endpoints      cluster.Draft[cluster.Key, []cluster.Endpoint]
	nodes          cluster.Draft[string, cluster.Node]
	namespaces     cluster.Draft[string, cluster.Namespace]
	pods           cluster.Draft[cluster.Key, cluster.Pod]
	serviceCIDRs   []netip.Prefix
}

// handOut gives them as they are now.
func (d *drafts) handOut() cluster.Objects {
	return cluster.Objects{
		EgressServices: d.egressServices.Map(),
		Services:       d.services.Map(),
		Endpoints:      d.endpoints.Map(),
		Nodes:          d.nodes.Map(),
		Namespaces:     d.namespaces.Map(),
		ServiceCIDRs:   d.serviceCIDRs,
		Pods:           d.pods.Map(),
		PodsKnown:      true,
	}
}

// Open gives a Folder of which nothing was read yet.
func Open(dir string) *Folder {
	return &Folder{
		dir: dir, files: map[string]*file{}, names: map[name][]*entry{}, slices: map[cluster.Key][]*entry{},
	}
}

// Read gives what Read of the folder gives, and how the objects may differ from those of the call before. Objects and problems are
// not changed afterwards; problems are the same slice as before where none differs. A folder that cannot be read leaves the
// objects as they were.
func (f *Folder) Read() (objects cluster.Objects, changed cluster.Changed, problems []cluster.Problem) {
	news, err := f.look()
	return f.read(news, err)
}

// Glance is Read while the folder is being changed. Where an object is gone it takes nothing up, and ok is false: the object
// may be on its way to another file.
func (f *Folder) Glance() (objects cluster.Objects, changed cluster.Changed, problems []cluster.Problem, ok bool) {
	news, err := f.look()
	if err != nil || f.lacking(news) {
		return f.objects.handOut(), cluster.Changed{}, f.problems, false
	}
	objects, changed, problems = f.read(news, nil)
	return objects, changed, problems, true
}

// lacking says whether the folder would lack an object that it has, with these files in the place of their former selves.
func (f *Folder) lacking(news map[string]*file) bool {
	there := map[name]bool{}
	for _, now := range news {
		if now != nil {
			for e := range now.entries() {
				there[e.name] = true
			}
		}
	}
	for name := range news {
		former := f.files[name]
		if former == nil {
			continue
		}
		for e := range former.entries() {
			stays := func(o *entry) bool {
				_, concerned := news[filepath.Base(o.file.path)]
				return !concerned
			}
			if e.name != nameless && !there[e.name] && !slices.ContainsFunc(f.names[e.name], stays) {
				return true
			}
		}
	}
	return false
}

func (f *Folder) read(news map[string]*file, err error) (objects cluster.Objects, changed cluster.Changed, problems []cluster.Problem) {
	if err != nil {
		f.missing = true
		f.tell([]cluster.Problem{{Kind: "Manifests", Object: f.dir, Reason: cluster.ReasonNoFolder, Message: reason(err)}})
		return f.objects.handOut(), cluster.Changed{}, f.problems
	}
	changed, wrong := f.take(news)
	if !f.known {
		f.known, changed = true, cluster.Everything()
	}
	if wrong || f.missing {
		f.missing = false
		f.tell(f.found())
	}
	return f.objects.handOut(), changed, f.problems
}

// look gives the files that have changed, by name; nil: it is gone.
func (f *Folder) look() (map[string]*file, error) {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil, err
	}
	news, there := map[string]*file{}, make(map[string]bool, len(f.files))
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if strings.HasPrefix(e.Name(), ".") || !slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			continue // also what editors and ConfigMap mounts keep beside the files
		}
		there[e.Name()] = true
		if former, now := f.files[e.Name()], readFile(filepath.Join(f.dir, e.Name()), f.files[e.Name()]); now != former {
			news[e.Name()] = now
		}
	}
	for name := range f.files {
		if !there[name] {
			news[name] = nil
		}
	}
	return news, nil
}

// take puts files in the place of their former selves. wrong says that something is wrong with what is new or gone.
func (f *Folder) take(news map[string]*file) (changed cluster.Changed, wrong bool) {
	counted := map[name]*entry{} // of the names that are concerned, what counted before; nil: nothing
	for name, now := range news {
		wrong = wrong || f.wrong(f.files[name]) || f.wrong(now)
	}
	for name, now := range news {
		if former := f.files[name]; former != nil {
			f.forget(former, counted)
		}
		if delete(f.files, name); now != nil {
			f.files[name] = now
		}
	}
	for _, now := range news {
		if now != nil {
			f.add(now, counted)
		}
	}
	d := differences{folder: f, services: map[cluster.Key]bool{}}
	for name, before := range counted {
		all := f.names[name]
		var now *entry
		if len(all) > 0 {
			now = all[0]
		}
		for _, e := range all {
			e.by = now
		}
		wrong = wrong || len(all) > 1
		if before != now {
			d.add(before, now)
		} else if now != nil {
			d.keep(now)
		}
	}
	d.finish()
	return d.changed, wrong
}

// wrong says whether something is wrong with a file, as far as it is known; nil: there is none.
func (f *Folder) wrong(is *file) bool {
	if is != nil {
		for e := range is.entries() {
			if e.placed() || e.name != nameless && len(f.names[e.name]) > 1 {
				return true
			}
		}
	}
	return false
}

func (f *Folder) forget(old *file, counted map[name]*entry) {
	for e := range old.entries() {
		if e.name == nameless {
			continue
		}
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
}

func (f *Folder) add(now *file, counted map[name]*entry) {
	at := 0
	for _, p := range now.parts {
		for _, e := range p.entries {
			e.file, e.before, e.at = now, p.before, at
			if at++; e.name == nameless {
				continue
			}
			all := f.names[e.name]
			if _, noted := counted[e.name]; !noted {
				counted[e.name] = nil
				if len(all) > 0 {
					counted[e.name] = all[0]
				}
			}
			i, _ := slices.BinarySearchFunc(all, e, compare)
			f.names[e.name] = slices.Insert(all, i, e)
		}
	}
}

// compare orders entries by file and line.
func compare(a, b *entry) int {
	if a.file != b.file {
		return strings.Compare(a.file.path, b.file.path)
	}
	return a.at - b.at
}

// differences are what becomes of a folder's objects.
type differences struct {
	folder   *Folder
	services map[cluster.Key]bool
	cidrs    bool
	changed  cluster.Changed
}

// add has one entry count in place of another of the same name; nil: none.
func (d *differences) add(before, now *entry) {
	var had, has any
	if before != nil {
		had = before.value
	}
	if now != nil {
		has = now.value
	}
	o, either := &d.folder.objects, has
	if either == nil {
		either = had
	}
	if _, slice := either.(endpoints); !slice && reflect.DeepEqual(had, has) {
		return
	}
	switch v := either.(type) {
	case egressService:
		set(&o.egressServices, v.key, v.is, has != nil)
		d.changed.Add(v.key)
	case service:
		set(&o.services, v.key, v.is, has != nil)
		d.changed.Add(v.key)
	case endpoints:
		if had, ok := had.(endpoints); ok {
			d.services[had.service] = true
			s := slices.DeleteFunc(slices.Clone(d.folder.slices[had.service]), func(e *entry) bool { return e == before })
			if d.folder.slices[had.service] = s; len(s) == 0 {
				delete(d.folder.slices, had.service)
			}
		}
		if has, ok := has.(endpoints); ok {
			d.services[has.service] = true
			d.folder.slices[has.service] = append(d.folder.slices[has.service], now)
		}
	case node:
		set(&o.nodes, v.name, v.is, has != nil)
		d.changed.All = true
	case namespace:
		set(&o.namespaces, v.name, v.is, has != nil)
		d.changed.All = true
	case pod:
		set(&o.pods, v.key, v.is, has != nil)
		d.changed.AddPod(v.key)
	case serviceCIDR:
		d.cidrs = true
	}
}

// keep has an entry count as before, though others may be before it now that were behind it.
func (d *differences) keep(e *entry) {
	if v, is := e.value.(endpoints); is {
		d.services[v.service] = true
	}
}

// finish puts together what several entries say.
func (d *differences) finish() {
	f, o := d.folder, &d.folder.objects
	for key := range d.services {
		var all []cluster.Endpoint
		of := f.slices[key]
		if slices.SortFunc(of, compare); len(of) == 1 {
			all = of[0].value.(endpoints).are
		} else {
			for _, e := range of {
				all = append(all, e.value.(endpoints).are...)
			}
			all = cluster.CompactEndpoints(all)
		}
		if !slices.Equal(all, o.endpoints.At(key)) {
			set(&o.endpoints, key, all, len(all) > 0)
			d.changed.Add(key)
		}
	}
	if d.cidrs {
		var all []netip.Prefix
		for e := range f.entries() {
			if v, is := e.value.(serviceCIDR); is && e.by == e {
				all = append(all, v.cidrs...)
			}
		}
		if slices.SortFunc(all, netip.Prefix.Compare); !slices.Equal(all, o.serviceCIDRs) {
			o.serviceCIDRs, d.changed.All = all, true
		}
	}
}

func set[K comparable, V any](all *cluster.Draft[K, V], key K, value V, there bool) {
	if there {
		all.Set(key, value)
	} else {
		all.Delete(key)
	}
}

// entries goes through all of them, in order.
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

// found is what is wrong.
func (f *Folder) found() (problems []cluster.Problem) {
	for e := range f.entries() {
		problems = append(problems, e.problems...)
		switch {
		case e.name == nameless:
		case e.by == e:
			problems = append(problems, e.inForce...)
		default:
			problems = append(problems, cluster.Problem{
				Kind: e.name.kind, Object: e.name.object, Reason: cluster.ReasonDuplicate, Where: e.where(),
				Message: "is given twice: the first counts, at " + e.by.where(),
			})
		}
	}
	return problems
}

// tell keeps the problems.
func (f *Folder) tell(problems []cluster.Problem) {
	if !slices.Equal(problems, f.problems) {
		f.problems = slices.Clip(problems)
	}
}

// reason is err without the operation and path of a file error, which the problem tells itself.
func reason(err error) string {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err.Error()
	}
	return err.Error()
}
