package manifests

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
)

// entry is one object of a file, or a place without one that has problems.
type entry struct {
	problems []cluster.Problem // reported in any case
	name     name              // zero: only problems
	line     int               // line in its document
	value    any               // its object, one of the types below
	inForce  []cluster.Problem // reported only if this entry is in force

	file   *file
	before int       // lines of the file that precede its document
	at     int       // index in the file
	by     *entry    // the entry that is in force of all with this name
	kept   bool      // its file no longer holds it
	lacked time.Time // since when a file without a flaw lacks it; zero: the file has a flaw
}

// where returns file:line.
func (e *entry) where() string { return fmt.Sprintf("%s:%d", e.file.path, e.before+e.line) }

// hasProblems reports whether the entry has problems, which name lines.
func (e *entry) hasProblems() bool { return len(e.problems) > 0 || len(e.inForce) > 0 }

// name is the kind and the name of an object.
type name struct{ kind, object string }

var nameless name

// Objects of entries, one type for each kind that is read.
type (
	egressService struct {
		key    cluster.Key
		object cluster.EgressService
	}
	egressIP struct {
		key    cluster.Key
		object cluster.EgressIP
	}
	egressQoS struct {
		key    cluster.Key
		object cluster.EgressQoS
	}
	egressFirewall struct {
		key    cluster.Key
		object cluster.EgressFirewall
	}
	service struct {
		key    cluster.Key
		object cluster.Service
	}
	endpoints struct {
		service cluster.Key
		list    []cluster.Endpoint
	}
	node struct {
		name   string
		object cluster.Node
	}
	namespace struct {
		name   string
		object cluster.Namespace
	}
	pod struct {
		key    cluster.Key
		object cluster.Pod
	}
	serviceCIDR struct{ cidrs []netip.Prefix }
)

// reading makes entries of a document.
type reading struct {
	problems []cluster.Problem // not yet in an entry
	entries  []*entry
}

// read returns the entries of a document with one object or a list of objects.
func read(d *document) []*entry {
	r := &reading{}
	if err := d.parse(); err != nil {
		r.report(d, err.problem("Manifest", filepath.Base(d.file)))
	} else {
		r.document(d)
	}
	if len(r.problems) > 0 {
		r.entries = append(r.entries, &entry{problems: r.problems})
	}
	return r.entries
}

// readers holds the kinds that are read, by apiVersion and kind.
var readers = map[[2]string]func(*reading, *document){
	{"k8s.ovn.org/v1", "EgressService"}:          (*reading).egressService,
	{"k8s.ovn.org/v1", "EgressIP"}:               (*reading).egressIP,
	{"k8s.ovn.org/v1", "EgressQoS"}:              (*reading).egressQoS,
	{"k8s.ovn.org/v1", "EgressFirewall"}:         (*reading).egressFirewall,
	{"v1", "Service"}:                            (*reading).service,
	{"discovery.k8s.io/v1", "EndpointSlice"}:     (*reading).endpointSlice,
	{"v1", "Node"}:                               (*reading).node,
	{"v1", "Namespace"}:                          (*reading).namespace,
	{"v1", "Pod"}:                                (*reading).pod,
	{"networking.k8s.io/v1", "ServiceCIDR"}:      (*reading).serviceCIDR,
	{"networking.k8s.io/v1beta1", "ServiceCIDR"}: (*reading).serviceCIDR,
}

// clusterScoped lists the kinds whose objects have no namespace.
var clusterScoped = []string{"EgressIP", "Node", "Namespace", "ServiceCIDR"}

// ours lists the kinds of our API group.
var ours = []string{"EgressService", "EgressIP", "EgressQoS", "EgressFirewall"}

// document reads one object, or a list of them.
func (r *reading) document(d *document) {
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
		r.report(d, err.problem("Manifest", filepath.Base(d.file)))
		return
	}
	if head.Kind == "" {
		r.report(d, cluster.Problem{
			Kind: "Manifest", Object: filepath.Base(d.file), Field: "kind", Reason: cluster.ReasonInvalidManifest,
			Message: "missing: not a Kubernetes object",
		})
		return
	}
	read, known := readers[[2]string{head.APIVersion, head.Kind}]
	_, listed := readers[[2]string{head.APIVersion, strings.TrimSuffix(head.Kind, "List")}]
	switch group, _, _ := strings.Cut(head.APIVersion, "/"); {
	case known:
		d.kind, d.object = head.Kind, head.Metadata.Name
		if !slices.Contains(clusterScoped, head.Kind) {
			d.object = cmp.Or(head.Metadata.Namespace, "default") + "/" + d.object
		}
		read(r, d)
	case head.APIVersion == "v1" && head.Kind == "List", listed:
		for i, item := range head.Items {
			r.document(d.item(i, item))
		}
	case group == egressv1.GroupName && slices.Contains(ours, head.Kind):
		r.report(d, cluster.Problem{
			Kind: head.Kind, Object: head.Metadata.Name, Field: "apiVersion", Value: head.APIVersion,
			Reason: cluster.ReasonUnknownVersion, Message: egressv1.GroupVersion.String() + " is known",
		})
	default:
		r.passOver(d, head.APIVersion, head.Kind, head.Metadata.Name)
	}
}

// passOver reports an object of a kind that is not read, if another kind is probably meant.
func (r *reading) passOver(d *document, apiVersion, kind, name string) {
	version, meantKind, ok := meant(apiVersion, kind)
	if !ok {
		return
	}
	p := cluster.Problem{
		Kind: "Manifest", Object: filepath.Base(d.file), Field: "kind", Value: kind, Reason: cluster.ReasonPassedOver,
		Message: fmt.Sprintf("is passed over: this kind is not read; is %s of %s meant?", meantKind, version),
	}
	if strings.TrimSuffix(kind, "List") == meantKind {
		p.Field, p.Value = "apiVersion", apiVersion
		p.Message = fmt.Sprintf("%s %s is passed over: %s is read as %s", kind, name, meantKind, version)
	}
	r.report(d, p)
}

// meant guesses the intended kind of an unknown one: the same name in another case or in the plural, and of another
// group only if no other group has such a kind.
func meant(apiVersion, kind string) (version, name string, ok bool) {
	for key := range readers {
		version, name := key[0], key[1]
		is := strings.TrimSuffix(kind, "List")
		if !strings.EqualFold(is, name) && !strings.EqualFold(is, name+"s") || version == "networking.k8s.io/v1beta1" {
			continue
		}
		if version != "v1" || !strings.Contains(apiVersion, "/") { // other groups have a Service, too: serving.knative.dev
			return version, name, true
		}
	}
	return "", "", false
}

// report adds problems, each with its line.
func (r *reading) report(d *document, problems ...cluster.Problem) {
	for _, p := range problems {
		r.problems = append(r.problems, located(d, p))
	}
}

func located(d *document, p cluster.Problem) cluster.Problem {
	if p.Where == "" {
		p.Where = d.where(p.Field)
	}
	return p
}

// claim adds an entry with the document's object. problems are reported only if this entry is the first of its name.
func (r *reading) claim(d *document, value any, problems ...cluster.Problem) {
	e := &entry{problems: r.problems, name: name{d.kind, d.object}, line: d.line(), value: value}
	for _, p := range problems {
		e.inForce = append(e.inForce, located(d, p))
	}
	r.entries, r.problems = append(r.entries, e), nil
}

// into decodes d into an API object, and reports one that does not fit.
func (r *reading) into(d *document, object any) bool {
	if err := d.decode(object); err != nil {
		r.report(d, err.problem(d.kind, d.object))
		return false
	}
	return true
}

// intoStrictly decodes d into a custom resource. It reports one that does not fit, and fields that the resource does not have. An
// API server drops them with a warning, too.
func (r *reading) intoStrictly(d *document, object any) bool {
	unknown, err := d.decodeStrictly(object)
	if err != nil {
		r.report(d, err.problem(d.kind, d.object))
		return false
	}
	for _, field := range unknown {
		r.report(d, cluster.Problem{
			Kind: d.kind, Object: d.object, Field: field, Reason: cluster.ReasonUnknownField, Message: "unknown field, ignored",
		})
	}
	return true
}

func (r *reading) egressService(d *document) {
	var o egressv1.EgressService
	if !r.intoStrictly(d, &o) {
		return
	}
	o.Namespace = namespaceOr(o.Namespace)
	key, e, problems, ok := cluster.FromEgressService(&o)
	r.report(d, problems...)
	misnamed := slices.ContainsFunc(problems, func(p cluster.Problem) bool { return p.Field == "metadata.name" })
	if ok && !misnamed { // no Service can have such a name; in an API server, its status reports that
		r.claim(d, egressService{key, e})
	}
}

func (r *reading) egressIP(d *document) {
	var o egressv1.EgressIP
	if !r.intoStrictly(d, &o) {
		return
	}
	if !r.selectsNamespaces(d) {
		return
	}
	key, e, problems, ok := cluster.FromEgressIP(&o)
	if ok {
		r.claim(d, egressIP{key, e}, problems...)
	} else {
		r.report(d, problems...)
	}
}

// selectsNamespaces reports whether an EgressIP has a namespaceSelector. Without one, an API server refuses the object; an
// empty one selects every namespace.
func (r *reading) selectsNamespaces(d *document) bool {
	var given struct {
		Spec struct {
			NamespaceSelector *struct{} `json:"namespaceSelector"`
		} `json:"spec"`
	}
	if err := d.decode(&given); err == nil && given.Spec.NamespaceSelector != nil {
		return true
	}
	r.report(d, cluster.Problem{
		Kind: d.kind, Object: d.object, Field: "spec.namespaceSelector", Reason: cluster.ReasonInvalidValue,
		Message: "missing: labels of the namespaces whose pods are selected; {} selects every namespace",
	})
	return false
}

func (r *reading) service(d *document) {
	var o corev1.Service
	if !r.into(d, &o) {
		return
	}
	o.Namespace = namespaceOr(o.Namespace)
	key, s, problems, ok := cluster.FromService(&o)
	r.report(d, problems...)
	if ok {
		r.claim(d, service{key, s})
	}
}

func (r *reading) endpointSlice(d *document) {
	var o discoveryv1.EndpointSlice
	if !r.into(d, &o) {
		return
	}
	o.Namespace = namespaceOr(o.Namespace)
	problems := misfits(d, &o)
	key, all := cluster.FromSlice(&o)
	for i := range all { // the folder's author is trusted with every namespace, so an address suffices
		if all[i].Target == cluster.TargetUnknown {
			all[i].Target = cluster.TargetPod
		}
	}
	r.claim(d, endpoints{key, cluster.CompactEndpoints(all)}, problems...)
}

// misfits removes addresses from an EndpointSlice whose family is not its addressType. An API server refuses such a
// slice.
func misfits(d *document, o *discoveryv1.EndpointSlice) (problems []cluster.Problem) {
	bad := func(field, value, message string) {
		problems = append(problems, cluster.Problem{
			Kind: d.kind, Object: d.object, Field: field, Value: value, Reason: cluster.ReasonInvalidValue, Message: message,
		})
	}
	switch o.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
	case discoveryv1.AddressTypeFQDN, "":
		return nil
	default:
		bad("addressType", string(o.AddressType), "one of IPv4, IPv6, FQDN")
		return problems
	}
	for i := range o.Endpoints {
		o.Endpoints[i].Addresses = slices.DeleteFunc(o.Endpoints[i].Addresses, func(text string) bool {
			a, err := netip.ParseAddr(text)
			if err != nil || a.Is4In6() || a.Is4() == (o.AddressType == discoveryv1.AddressTypeIPv4) {
				return false // unusable addresses become problems of the EgressService
			}
			bad(fmt.Sprintf("endpoints[%d].addresses", i), text,
				"not of the slice's addressType, "+string(o.AddressType)+": left out; it belongs in a slice of its own")
			return true
		})
	}
	return problems
}

func (r *reading) node(d *document) {
	var o corev1.Node
	if !r.into(d, &o) {
		return
	}
	name, n, problems, ok := cluster.FromNode(&o)
	r.report(d, problems...)
	if !ok {
		return
	}
	// In an API server, a node without this condition has not reported yet. In a folder, no node reports: a node written
	// without the condition counts as ready.
	if !slices.ContainsFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }) {
		n.Ready = true
	}
	r.claim(d, node{name, n})
}

func (r *reading) namespace(d *document) {
	var o corev1.Namespace
	if !r.into(d, &o) {
		return
	}
	name, n, problems, ok := cluster.FromNamespace(&o)
	r.report(d, problems...)
	if ok {
		r.claim(d, namespace{name, n})
	}
}

func (r *reading) pod(d *document) {
	var o corev1.Pod
	if !r.into(d, &o) {
		return
	}
	o.Namespace = namespaceOr(o.Namespace)
	key, p, problems, ok := cluster.FromPod(&o)
	if ok {
		r.claim(d, pod{key, p}, problems...)
	} else {
		r.report(d, problems...)
	}
}

func (r *reading) serviceCIDR(d *document) {
	var o networkingv1.ServiceCIDR
	if r.into(d, &o) {
		cidrs, problems := cluster.FromServiceCIDR(&o)
		r.claim(d, serviceCIDR{cidrs}, problems...)
	}
}

func namespaceOr(namespace string) string {
	if namespace == "" {
		return corev1.NamespaceDefault
	}
	return namespace
}
