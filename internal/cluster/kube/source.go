package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/custom"
)

// source is the part of a Cluster that holds the server's objects.
type source struct {
	complaints complaints
	texts      interner
	selectors  selectors
	synced     atomic.Bool   // every kind was listed once
	nodesKnown chan struct{} // closed once Nodes were listed
	allKnown   chan struct{} // closed once every kind was listed
	kinds      []follower
	optional   []optional // those of kinds that a server need not have

	mu             sync.Mutex
	egressServices *store[cluster.Key, cluster.EgressService]
	services       *store[cluster.Key, cluster.Service]
	slices         *store[cluster.Key, slice]
	nodes          *nodes
	namespaces     *store[string, cluster.Namespace]
	serviceCIDRs   *store[string, []netip.Prefix]
	addresses      *addresses
	pods           *ownPods
	egressQoSes    *optionalKind[cluster.Key, cluster.EgressQoS]
	firewalls      *optionalKind[cluster.Key, cluster.EgressFirewall]
	egressIPs      *optionalKind[cluster.Key, cluster.EgressIP]
	members        memberSlices

	slicesOf  map[cluster.Key][]cluster.Key // by Service, in no order
	stale     map[cluster.Key]bool          // Services whose slices have changed since the last snapshot
	endpoints cluster.Draft[cluster.Key, []cluster.Endpoint]
	cidrs     []netip.Prefix // of all ServiceCIDRs, sorted

	changed         cluster.Changed   // since the last snapshot, except stale
	problems        []cluster.Problem // as last returned
	problemsChanged bool              // problems of objects have changed since
	complaintsSeen  int               // count of the complaints that problems includes
}

// follower is a store of some kind.
type follower interface {
	follow(ctx context.Context, k clients)
	isSynced() bool
	found() []cluster.Problem
}

// slice holds the parts of an EndpointSlice that are kept.
type slice struct {
	service   cluster.Key
	endpoints []cluster.Endpoint
	egressIP  string // whose members it has; empty: it is of a Service
	members   *cluster.MemberSlice
}

func (s *source) init(c *Cluster) {
	s.complaints.by, s.nodesKnown, s.allKnown = map[string]cluster.Problem{}, make(chan struct{}), make(chan struct{})
	s.slicesOf, s.stale = map[cluster.Key][]cluster.Key{}, map[cluster.Key]bool{}
	s.members.init(c)
	s.changed = cluster.Everything()
	s.egressServices = newStore(c, kind[cluster.Key, cluster.EgressService]{
		resource: egressResource, example: &custom.Object{}, custom: true, client: rawClient, trim: trimmer(s.trimEgressService),
		changed: s.egressServiceChanged, settle: obey,
	})
	s.services = newStore(c, kind[cluster.Key, cluster.Service]{
		resource: "services", example: &corev1.Service{}, client: coreClient, changed: s.keyChanged,
		trim: trimmer(func(o *corev1.Service) object[cluster.Key, cluster.Service] {
			key, service, problems, ok := cluster.FromService(o)
			key.Namespace, service.SharingKey = s.texts.intern(key.Namespace), s.texts.intern(service.SharingKey)
			for i, p := range service.Ports {
				service.Ports[i].Name, service.Ports[i].Protocol = s.texts.intern(p.Name), s.texts.intern(p.Protocol)
			}
			return object[cluster.Key, cluster.Service]{key, service, problems, ok}
		}),
	})
	s.slices = newStore(c, kind[cluster.Key, slice]{
		resource: "endpointslices.discovery.k8s.io", example: &discoveryv1.EndpointSlice{}, moved: s.moveSlice,
		client: func(k clients) rest.Interface { return k.core.DiscoveryV1().RESTClient() },
		trim:   trimmer(s.trimSlice),
	})
	s.nodes = newNodes(c)
	s.namespaces = newStore(c, kind[string, cluster.Namespace]{
		resource: "namespaces", example: &corev1.Namespace{}, client: coreClient, changed: s.allChanged,
		trim: trimmer(func(o *corev1.Namespace) object[string, cluster.Namespace] {
			name, n, problems, ok := cluster.FromNamespace(o)
			n.Labels = s.labels(n.Labels)
			return object[string, cluster.Namespace]{name, n, problems, ok}
		}),
	})
	s.serviceCIDRs = newStore(c, kind[string, []netip.Prefix]{
		resource: "servicecidrs.networking.k8s.io", example: &networkingv1.ServiceCIDR{}, optional: true, changed: s.cidrsChanged,
		client: func(k clients) rest.Interface { return k.core.NetworkingV1().RESTClient() },
		trim: trimmer(func(o *networkingv1.ServiceCIDR) object[string, []netip.Prefix] {
			prefixes, problems := cluster.FromServiceCIDR(o)
			return object[string, []netip.Prefix]{o.Name, prefixes, problems, true}
		}),
	})
	s.addresses = newAddresses(c)
	s.pods = newOwnPods(c)
	s.egressQoSes, s.firewalls, s.egressIPs = newEgressQoSes(c), newEgressFirewalls(c), newEgressIPs(c)
	s.optional = []optional{s.egressQoSes, s.firewalls, s.egressIPs}
	s.kinds = []follower{s.egressServices, s.services, s.slices, s.nodes, s.namespaces, s.serviceCIDRs, s.addresses}
	for _, o := range s.optional {
		s.kinds = append(s.kinds, o)
	}
	s.kinds = append(s.kinds, s.pods)
}

func coreClient(k clients) rest.Interface { return k.core.CoreV1().RESTClient() }

func rawClient(k clients) rest.Interface { return k.raw }

// trimmer adapts trim to untyped objects; it rejects objects of other types.
func trimmer[O, V any, K comparable](trim func(O) object[K, V]) func(any) (object[K, V], bool) {
	return func(o any) (x object[K, V], fits bool) {
		as, fits := o.(O)
		if fits {
			x = trim(as)
		}
		return x, fits
	}
}

func (s *source) labels(of map[string]string) map[string]string {
	labels := make(map[string]string, len(of))
	for key, value := range of {
		labels[s.texts.intern(key)] = s.texts.intern(value)
	}
	return labels
}

func (s *source) trimSlice(o *discoveryv1.EndpointSlice) object[cluster.Key, slice] {
	if x, ok := s.members.trim(o); ok {
		return x
	}
	service, endpoints := cluster.FromSlice(o)
	for i, e := range endpoints {
		endpoints[i].Node = s.texts.intern(e.Node)
	}
	service.Namespace = s.texts.intern(service.Namespace)
	return object[cluster.Key, slice]{
		key:   cluster.Key{Namespace: service.Namespace, Name: o.Name},
		value: slice{service: service, endpoints: slices.Clone(cluster.CompactEndpoints(endpoints))}, // without spare capacity
		ok:    service.Name != "",
	}
}

// moveSlice indexes a slice under its Service, and removes it from its former one.
func (s *source) moveSlice(key cluster.Key, from, to slice) {
	s.members.move(key, from, to)
	if from.service != to.service && from.service.Name != "" {
		if of := slices.DeleteFunc(s.slicesOf[from.service], func(k cluster.Key) bool { return k == key }); len(of) > 0 {
			s.slicesOf[from.service] = of
		} else {
			delete(s.slicesOf, from.service)
		}
		s.stale[from.service] = true
	}
	if to.service.Name != "" {
		if of := s.slicesOf[to.service]; !slices.Contains(of, key) {
			s.slicesOf[to.service] = append(of, key)
		}
		s.stale[to.service] = true
	}
}

func (s *source) keyChanged(key cluster.Key) {
	if !s.changed.All { // All includes every key
		s.changed.Add(cluster.KindEgressService.ID(key))
	}
}

func (s *source) egressServiceChanged(key cluster.Key) {
	s.keyChanged(key)
	status := s.egressServices.objects.At(key).Status
	s.nodes.want(status.Host, status.Standby)
}

func (s *source) allChanged(string) {
	s.changed = cluster.Everything()
	signal(s.members.stirs)
}

func (s *source) cidrsChanged(string) {
	s.cidrs, s.changed = nil, cluster.Everything()
	for _, prefixes := range s.serviceCIDRs.objects.All() {
		s.cidrs = append(s.cidrs, prefixes...)
	}
	slices.SortFunc(s.cidrs, netip.Prefix.Compare)
}

// merge updates the endpoints of Services whose slices have changed.
func (s *source) merge() cluster.Map[cluster.Key, []cluster.Endpoint] {
	for service := range s.stale {
		of := s.slicesOf[service]
		var endpoints []cluster.Endpoint
		if len(of) == 1 {
			endpoints = s.slices.objects.At(of[0]).endpoints // the usual case, and already compact
		} else {
			for _, key := range slices.SortedFunc(slices.Values(of), cluster.Key.Compare) {
				endpoints = append(endpoints, s.slices.objects.At(key).endpoints...)
			}
			endpoints = cluster.CompactEndpoints(endpoints)
		}
		if slices.Equal(endpoints, s.endpoints.At(service)) {
			continue
		}
		if len(endpoints) > 0 {
			s.endpoints.Set(service, endpoints)
		} else {
			s.endpoints.Delete(service)
		}
		s.keyChanged(service)
	}
	clear(s.stale)
	return s.endpoints.Map()
}

// change calls f with the mutex held, and wakes the caller of Objects if f returns true.
func (c *Cluster) change(f func() (changed bool)) {
	c.mu.Lock()
	changed := f()
	c.mu.Unlock()
	if changed {
		c.wake()
	}
}

// checkSynced sets synced and closes allKnown once every kind was listed, and closes nodesKnown once Nodes were. The caller holds the
// mutex.
func (c *Cluster) checkSynced() {
	if c.nodes.isSynced() {
		select {
		case <-c.nodesKnown:
		default:
			close(c.nodesKnown)
		}
	}
	if !slices.ContainsFunc(c.kinds, func(f follower) bool { return !f.isSynced() }) && !c.synced.Swap(true) {
		close(c.allKnown)
	}
}

// Objects returns the server's objects, their changes since the last call, and all problems. ok is false until every
// kind was listed. Returned values do not change later. Only one caller may use it, as each change is returned once.
func (c *Cluster) Objects() (objects cluster.Objects, changed cluster.Changed, problems []cluster.Problem, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	problems = c.allProblems()
	if ok = c.synced.Load(); ok {
		objects = c.snapshot()
		changed, c.changed = c.changed, cluster.Changed{}
	}
	return objects, changed, problems, ok
}

// latest returns the same objects as Objects, without consuming their changes.
func (c *Cluster) latest() (objects cluster.Objects, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ok = c.synced.Load(); ok {
		objects = c.snapshot()
	}
	return objects, ok
}

// allProblems returns all problems, in the same slice as before if nothing has changed.
func (s *source) allProblems() []cluster.Problem {
	complaintsSeen := s.complaints.count()
	if s.complaintsSeen == complaintsSeen && !s.problemsChanged {
		return s.problems
	}
	var problems []cluster.Problem
	for _, k := range s.kinds {
		problems = append(problems, k.found()...)
	}
	problems = cluster.SortProblems(append(problems, s.complaints.all()...))
	s.problems, s.complaintsSeen, s.problemsChanged = slices.Clip(problems), complaintsSeen, false
	return s.problems
}

func (s *source) snapshot() cluster.Objects {
	pods, known := s.pods.handOut()
	return cluster.Objects{
		EgressServices:  s.egressServices.objects.Map(),
		EgressQoSes:     s.egressQoSes.objects.Map(),
		EgressFirewalls: s.firewalls.objects.Map(),
		EgressIPs:       s.egressIPs.objects.Map(),
		Members:         s.members.merge(s),
		Services:        s.services.objects.Map(),
		Endpoints:       s.merge(),
		Nodes:           s.nodes.objects.Map(),
		Namespaces:      s.namespaces.objects.Map(),
		ServiceCIDRs:    s.cidrs,
		Secondary:       s.addresses.objects.Map(),
		Pods:            pods,
		PodsKnown:       known,
		StaleNodes:      !s.nodes.complete,
	}
}

// errBehind reports that the server's objects differ from those that its watches have delivered.
var errBehind = errors.New("the objects with hosts known here are older than the API server's")

// Current lists the versions of the objects that have hosts, and returns nil if Objects has the same, at the time of the lists or
// later. It does not wait for the watches to catch up: call it again.
func (c *Cluster) Current(ctx context.Context) error {
	k := c.clients.Load()
	if k == nil {
		return errors.New("there is no connection to an API server")
	}
	list, err := versions(ctx, k, "egressservices")
	if err != nil {
		return err
	}
	c.mu.Lock()
	current := isCurrent(c.egressServices, list, func(e cluster.EgressService) uint64 { return e.Version })
	ips := c.egressIPs.objects.Map().Len() > 0
	c.mu.Unlock()
	if !current {
		return errBehind
	}
	if !ips {
		return nil
	}
	list, err = versions(ctx, k, "egressips")
	if apierrors.IsNotFound(err) {
		return nil // objects that vanished with their CRD stay in force
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !isCurrent(c.egressIPs.store, list, func(e cluster.EgressIP) uint64 { return e.Version }) {
		return errBehind
	}
	return nil
}

// versions lists the resourceVersions of all objects of a kind of ours; 0: it is no number.
func versions(ctx context.Context, k *clients, resource string) (map[cluster.Key]uint64, error) {
	var list struct {
		Items []struct {
			Metadata struct{ Namespace, Name, ResourceVersion string } `json:"metadata"`
		} `json:"items"`
	}
	// Without a resourceVersion the list is as new as the server's storage, not as its cache.
	text, err := k.raw.Get().Resource(resource).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", resource, err)
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("list %s: %w", resource, err)
	}
	all := make(map[cluster.Key]uint64, len(list.Items))
	for _, i := range list.Items {
		version, err := strconv.ParseUint(i.Metadata.ResourceVersion, 10, 64)
		if err != nil {
			version = 0
		}
		all[cluster.Key{Namespace: i.Metadata.Namespace, Name: i.Metadata.Name}] = version
	}
	return all, nil
}

// isCurrent reports whether a store has the listed objects in these versions or later ones, and no others. The caller holds the mutex.
func isCurrent[V any](s *store[cluster.Key, V], listed map[cluster.Key]uint64, versionOf func(V) uint64) bool {
	known := s.objects.Map()
	for key, version := range listed {
		v, ok := known.Get(key)
		_, refused := s.problems[key]
		if version != 0 && (ok && versionOf(v) < version || !ok && !refused) {
			return false
		}
	}
	for key := range known.Keys() {
		if _, there := listed[key]; !there {
			return false
		}
	}
	return true
}
