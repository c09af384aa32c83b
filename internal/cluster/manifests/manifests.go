// Package manifests reads the objects of a cluster from a folder of YAML and JSON files.
package manifests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/watch"
)

// Watch calls wake once at the start and then whenever the folder changed, until ctx ends.
func Watch(ctx context.Context, dir string, wake func()) error {
	return watch.Folder(ctx, dir, 50*time.Millisecond, wake)
}

// maxSize is the most that one file may hold: 50,000 endpoints are less.
const maxSize = 32 << 20

// Read reads every *.yaml, *.yml and *.json file of the folder, in the order of their names. What is broken becomes a
// Problem with file and line and hides nothing else; of two objects with one name the first counts. Kinds that egress does not
// depend on are left out silently. A problem with ReasonNoFolder means that nothing could be read at all.
func Read(dir string) (cluster.Objects, []cluster.Problem) {
	f := &folder{
		objects: cluster.Objects{
			EgressServices: map[cluster.Key]cluster.EgressService{},
			Services:       map[cluster.Key]cluster.Service{},
			Endpoints:      map[cluster.Key][]cluster.Endpoint{},
			Nodes:          map[string]cluster.Node{},
			Namespaces:     map[string]cluster.Namespace{},
		},
		first: map[string]string{},
	}
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		f.problems = append(f.problems, cluster.Problem{Kind: "Manifests", Object: dir, Reason: cluster.ReasonNoFolder, Message: reason(err)})
		return f.objects, f.problems
	}
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if strings.HasPrefix(e.Name(), ".") || !slices.Contains([]string{".yaml", ".yml", ".json"}, ext) {
			continue // also what editors and ConfigMap mounts keep beside the files
		}
		f.file(filepath.Join(dir, e.Name()), ext == ".json")
	}
	for key, endpoints := range f.objects.Endpoints {
		f.objects.Endpoints[key] = cluster.CompactEndpoints(endpoints)
	}
	return f.objects, f.problems
}

// folder is what was read so far.
type folder struct {
	objects  cluster.Objects
	problems []cluster.Problem
	first    map[string]string // kind and name → where it was first
}

func (f *folder) file(path string, isJSON bool) {
	data, err := readFile(path)
	if err != nil {
		f.problems = append(f.problems, cluster.Problem{
			Kind: "Manifest", Object: filepath.Base(path), Reason: cluster.ReasonInvalidFile, Message: reason(err), Where: path,
		})
		return
	}
	for _, d := range documents(data, isJSON) {
		d.file = path
		if err := d.parse(); err != nil {
			f.report(d, err.problem("Manifest", filepath.Base(path)))
			continue
		}
		f.document(d)
	}
}

// readFile refuses what would block or exhaust us.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	case info.Size() > maxSize:
		return nil, fmt.Errorf("larger than %d MiB", maxSize>>20)
	}
	return os.ReadFile(path)
}

// reason is err without the operation and path of a file error, which the problem tells itself.
func reason(err error) string {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err.Error()
	}
	return err.Error()
}

// readers holds the kinds that are read, by apiVersion and kind.
var readers = map[[2]string]func(*folder, *document){
	{"k8s.ovn.org/v1", "EgressService"}:          (*folder).egressService,
	{"v1", "Service"}:                            (*folder).service,
	{"discovery.k8s.io/v1", "EndpointSlice"}:     (*folder).endpointSlice,
	{"v1", "Node"}:                               (*folder).node,
	{"v1", "Namespace"}:                          (*folder).namespace,
	{"networking.k8s.io/v1", "ServiceCIDR"}:      (*folder).serviceCIDR,
	{"networking.k8s.io/v1beta1", "ServiceCIDR"}: (*folder).serviceCIDR,
}

// document reads one object, or a list of them.
func (f *folder) document(d *document) {
	if len(d.data) == 0 || bytes.Equal(d.data, []byte("null")) {
		return
	}
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name      string `json:"name"`
			Namespace string `json:"namespace"`
		} `json:"metadata"`
		Items []rawJSON `json:"items"`
	}
	if err := d.decode(&head); err != nil {
		f.report(d, err.problem("Manifest", filepath.Base(d.file)))
		return
	}
	if head.Kind == "" {
		f.report(d, cluster.Problem{
			Kind: "Manifest", Object: filepath.Base(d.file), Field: "kind", Reason: cluster.ReasonInvalidManifest, Message: "missing: not a Kubernetes object",
		})
		return
	}
	read, known := readers[[2]string{head.APIVersion, head.Kind}]
	_, listed := readers[[2]string{head.APIVersion, strings.TrimSuffix(head.Kind, "List")}]
	switch group, _, _ := strings.Cut(head.APIVersion, "/"); {
	case known:
		d.kind, d.object = head.Kind, head.Metadata.Name
		if namespaced := head.Kind != "Node" && head.Kind != "Namespace" && head.Kind != "ServiceCIDR"; namespaced {
			if head.Metadata.Namespace == "" {
				head.Metadata.Namespace = "default"
			}
			d.object = head.Metadata.Namespace + "/" + d.object
		}
		read(f, d)
	case head.APIVersion == "v1" && head.Kind == "List", listed:
		for i, item := range head.Items {
			f.document(d.item(i, item))
		}
	case group == egressv1.GroupName && head.Kind == "EgressService":
		f.report(d, cluster.Problem{
			Kind: head.Kind, Object: head.Metadata.Name, Field: "apiVersion", Value: head.APIVersion,
			Reason: cluster.ReasonUnknownVersion, Message: egressv1.GroupVersion.String() + " is known",
		})
	}
}

// report adds problems, with the line of what each is about.
func (f *folder) report(d *document, problems ...cluster.Problem) {
	for _, p := range problems {
		if p.Where == "" {
			p.Where = d.where(p.Field)
		}
		f.problems = append(f.problems, p)
	}
}

// claim is true for the first object of a name.
func (f *folder) claim(d *document) bool {
	name := d.kind + " " + d.object
	if first, taken := f.first[name]; taken {
		f.report(d, cluster.Problem{
			Kind: d.kind, Object: d.object, Reason: cluster.ReasonDuplicate, Message: "is given twice: the first counts, at " + first,
		})
		return false
	}
	f.first[name] = d.where("")
	return true
}

// into decodes d into an API object; an object that does not fit is reported.
func (f *folder) into(d *document, object any) bool {
	if err := d.decode(object); err != nil {
		f.report(d, err.problem(d.kind, d.object))
		return false
	}
	return true
}

func (f *folder) egressService(d *document) {
	var o egressv1.EgressService
	if !f.into(d, &o) {
		return
	}
	// As an API server does, which would drop them with a warning.
	for _, field := range d.unknownFields(&o) {
		f.report(d, cluster.Problem{
			Kind: d.kind, Object: d.object, Field: field, Reason: cluster.ReasonUnknownField, Message: "unknown field, ignored",
		})
	}
	o.Namespace = namespaceOr(o.Namespace)
	key, e, problems, ok := cluster.FromEgressService(&o)
	f.report(d, problems...)
	misnamed := slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Field == "metadata.name" })
	if ok && !misnamed && f.claim(d) { // one that can have no Service is of use for its status only
		f.objects.EgressServices[key] = e
	}
}

func (f *folder) service(d *document) {
	var o corev1.Service
	if !f.into(d, &o) {
		return
	}
	o.Namespace = namespaceOr(o.Namespace)
	key, s, problems, ok := cluster.FromService(&o)
	f.report(d, problems...)
	if ok && f.claim(d) {
		f.objects.Services[key] = s
	}
}

func (f *folder) endpointSlice(d *document) {
	var o discoveryv1.EndpointSlice
	if !f.into(d, &o) || !f.claim(d) {
		return
	}
	o.Namespace = namespaceOr(o.Namespace)
	if key, endpoints := cluster.FromSlice(&o); len(endpoints) > 0 {
		f.objects.Endpoints[key] = append(f.objects.Endpoints[key], endpoints...)
	}
}

func (f *folder) node(d *document) {
	var o corev1.Node
	if !f.into(d, &o) {
		return
	}
	name, n, problems, ok := cluster.FromNode(&o)
	f.report(d, problems...)
	if !ok || !f.claim(d) {
		return
	}
	// In an API server a node without this condition has not reported yet. In a folder nobody reports: who writes a
	// node down without the condition means that it is there.
	if !slices.ContainsFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }) {
		n.Ready = true
	}
	f.objects.Nodes[name] = n
}

func (f *folder) namespace(d *document) {
	var o corev1.Namespace
	if !f.into(d, &o) {
		return
	}
	name, n, problems, ok := cluster.FromNamespace(&o)
	f.report(d, problems...)
	if ok && f.claim(d) {
		f.objects.Namespaces[name] = n
	}
}

func (f *folder) serviceCIDR(d *document) {
	var o networkingv1.ServiceCIDR
	if !f.into(d, &o) || !f.claim(d) {
		return
	}
	cidrs, problems := cluster.FromServiceCIDR(&o)
	f.report(d, problems...)
	f.objects.ServiceCIDRs = append(f.objects.ServiceCIDRs, cidrs...)
}

func namespaceOr(namespace string) string {
	if namespace == "" {
		return corev1.NamespaceDefault
	}
	return namespace
}
