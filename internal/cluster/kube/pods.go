package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/pause"
)

// podResource is how kubectl names Pods.
const podResource = "pods"

// ownPods holds the Pods of this node, while a feature or an object needs them.
type ownPods struct {
	*switched[cluster.Key, cluster.Pod]
	asked bool // by FollowPods
}

func newOwnPods(c *Cluster) *ownPods {
	s := &c.source
	pods := newStore(c, kind[cluster.Key, cluster.Pod]{
		resource: podResource, example: &corev1.Pod{}, client: coreClient,
		fields:  fields.OneTermEqualSelector("spec.nodeName", c.options.Node).String,
		changed: func(key cluster.Key) { s.changed.AddPod(key) },
		trim:    trimmer(s.trimPod),
	})
	return &ownPods{asked: c.options.Pods, switched: newSwitched(pods, c.options.Pods)}
}

func (s *source) trimPod(o *corev1.Pod) object[cluster.Key, cluster.Pod] {
	key, p, problems, ok := cluster.FromPod(o)
	key.Namespace, p.Node, p.Labels = s.texts.intern(key.Namespace), s.texts.intern(p.Node), s.labels(p.Labels)
	return object[cluster.Key, cluster.Pod]{key, p, problems, ok}
}

// FollowPods includes the Pods of this node in Objects, or only while objects of other kinds select Pods. Pods that are wanted
// before the first complete snapshot delay it until they are known.
func (c *Cluster) FollowPods(want bool) {
	c.change(func() bool {
		c.pods.asked = want
		return c.turnPods()
	})
}

// wantPods follows the Pods of this node while they are needed. The caller holds the mutex.
func (s *source) wantPods() { s.turnPods() }

func (s *source) turnPods() (changed bool) {
	return s.pods.turn(s.pods.asked || slices.ContainsFunc(s.optional, optional.needsPods))
}

// handOut returns the Pods, and whether they are wanted and known.
func (p *ownPods) handOut() (all cluster.Map[cluster.Key, cluster.Pod], known bool) {
	if !p.wanted || !p.synced {
		return all, false
	}
	return p.objects.Map(), true
}

const (
	sliceResource  = "endpointslices.discovery.k8s.io"
	requestMembers = "write members of EgressIPs"
	// membersEvery is the least time between two writes of a slice of members.
	membersEvery = 100 * time.Millisecond
)

// memberSlices holds the EndpointSlices with the members of EgressIPs, which the leader writes in the daemon's namespace. The Cluster's
// mutex guards it, except stirs.
type memberSlices struct {
	cluster *Cluster
	stirs   chan struct{} // signals the leader that members, or their slices, may differ

	of      map[cluster.Key]map[string]cluster.MemberSlice // by EgressIP and name of the slice
	stale   map[cluster.Key]bool                           // EgressIPs whose slices have changed since the last snapshot
	touched map[cluster.Key]bool                           // those whose slices have changed since the leader looked
	deleted map[string]bool                                // slices that were deleted since then
	all     cluster.Draft[cluster.Key, []cluster.Member]
}

func (m *memberSlices) init(c *Cluster) {
	m.cluster, m.stirs = c, make(chan struct{}, 1)
	m.of, m.deleted = map[cluster.Key]map[string]cluster.MemberSlice{}, map[string]bool{}
	m.stale, m.touched = map[cluster.Key]bool{}, map[cluster.Key]bool{}
}

// trim trims an EndpointSlice with members; ok is false if it is no such slice.
func (m *memberSlices) trim(o *discoveryv1.EndpointSlice) (x object[cluster.Key, slice], ok bool) {
	if o.Namespace != m.cluster.options.Namespace {
		return x, false
	}
	name, s := cluster.FromMemberSlice(o)
	if name == "" {
		return x, false
	}
	s.Version, _ = strconv.ParseUint(o.ResourceVersion, 10, 64) // 0 (unknown) on servers whose versions are not numbers
	for i := range s.Members {
		of := &s.Members[i]
		of.Node, of.Namespace = m.cluster.texts.intern(of.Node), m.cluster.texts.intern(of.Namespace)
	}
	return object[cluster.Key, slice]{
		key: cluster.Key{Namespace: o.Namespace, Name: o.Name}, value: slice{egressIP: m.cluster.texts.intern(name), members: &s}, ok: true,
	}, true
}

// move indexes a slice of members under its EgressIP.
func (m *memberSlices) move(key cluster.Key, from, to slice) {
	if from.egressIP != "" && to.egressIP == "" && m.cluster.term.Load() != nil {
		m.deleted[key.Name] = true
	}
	for _, s := range []slice{from, to} {
		if s.egressIP == "" {
			continue
		}
		id := cluster.Key{Name: s.egressIP}
		m.stale[id], m.touched[id] = true, true
		if delete(m.of[id], key.Name); s.members != to.members {
			continue
		}
		if m.of[id] == nil {
			m.of[id] = map[string]cluster.MemberSlice{}
		}
		m.of[id][key.Name] = *to.members
	}
	if len(m.stale) > 0 {
		signal(m.stirs)
	}
}

// merge returns the members by EgressIP.
func (m *memberSlices) merge(s *source) cluster.Map[cluster.Key, []cluster.Member] {
	if s.egressIPs.wanted {
		for key := range m.stale {
			var all []cluster.Member
			for _, of := range m.of[key] {
				all = append(all, of.Members...)
			}
			slices.SortFunc(all, cluster.Member.Compare)
			if all = slices.Compact(all); slices.Equal(all, m.all.At(key)) {
				continue
			}
			if m.all.Set(key, all); len(all) == 0 {
				m.all.Delete(key)
			}
			if !s.changed.All {
				s.changed.Add(cluster.KindEgressIP.ID(key))
			}
		}
		clear(m.stale)
	}
	if s.egressIPs.objects.Map().Len() == 0 {
		return cluster.Map[cluster.Key, []cluster.Member]{}
	}
	return m.all.Map()
}

// memberKeeper writes the members of EgressIPs in a term: it follows all Pods while there is an EgressIP.
type memberKeeper struct {
	*term
	pods      *switched[cluster.Key, cluster.Pod]
	changed   map[cluster.Key]bool // Pods that changed since the last look; guarded by the Cluster's mutex
	selection cluster.Selection
	again     map[cluster.Key]bool    // EgressIPs to look at again
	written   map[string]writtenSlice // by name, not yet delivered by the watch
}

// writtenSlice is a slice as the API server answered a write; gone: it was deleted.
type writtenSlice struct {
	cluster.MemberSlice
	gone bool
}

func newMemberKeeper(t *term) *memberKeeper {
	m := &memberKeeper{
		term: t, changed: map[cluster.Key]bool{}, again: map[cluster.Key]bool{}, written: map[string]writtenSlice{},
	}
	stir := func() (changed bool) {
		signal(t.members.stirs)
		return false
	}
	m.pods = newSwitched(newStore(t.Cluster, kind[cluster.Key, cluster.Pod]{
		resource: podResource, name: "all pods", example: &corev1.Pod{}, client: coreClient, listed: stir, trim: trimmer(t.trimPod),
		changed: func(key cluster.Key) {
			m.changed[key] = true
			signal(t.members.stirs)
		},
	}), false)
	return m
}

// keepMembers writes members until ctx ends.
func (t *term) keepMembers(ctx context.Context) {
	m := newMemberKeeper(t)
	t.Cluster.mu.Lock()
	for key := range t.members.of { // of EgressIPs that may be gone
		t.members.touched[key] = true
	}
	t.Cluster.mu.Unlock()
	var g sync.WaitGroup
	defer g.Wait()
	g.Go(func() { m.follow(ctx) })
	defer t.outcome(t.clients, requestMembers, sliceResource, nil)
	wait := time.Duration(0)
	for first := true; ; first = false {
		var again <-chan time.Time
		if first || wait > 0 {
			again = time.After(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.members.stirs:
		case <-again:
		}
		err := m.keep(ctx)
		if ctx.Err() != nil {
			return
		}
		t.outcome(t.clients, requestMembers, sliceResource, err)
		if wait = 0; err != nil || len(m.again) > 0 {
			wait = rewriteAfter
		}
		if !pause.For(ctx, membersEvery) {
			return
		}
	}
}

// follow keeps the Pods up to date until ctx ends.
func (m *memberKeeper) follow(ctx context.Context) {
	m.pods.follow(ctx, m.clients)
	m.pods.withdraw()
}

// keep writes the slices of the EgressIPs whose members, or whose slices, have changed.
func (m *memberKeeper) keep(ctx context.Context) error {
	due, ready := m.look()
	if !ready || m.leads() != m.term {
		return nil
	}
	var failed error
	for _, key := range slices.SortedFunc(maps.Keys(due), cluster.Key.Compare) {
		delete(m.again, key)
		err := m.write(ctx, key, due[key])
		if err != nil {
			m.again[key] = true
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// look returns the slices that exist, by EgressIP and name, of the EgressIPs to be looked at. ready is false while the objects are
// not known.
func (m *memberKeeper) look() (due map[cluster.Key]map[string]cluster.MemberSlice, ready bool) {
	c := m.Cluster
	c.mu.Lock()
	ips, namespaces, pods, changed := c.egressIPs.objects.Map(), c.namespaces.objects.Map(), m.pods.objects.Map(), m.changed
	m.pods.turn(ips.Len() > 0)
	if ready = c.synced.Load() && c.egressIPs.wanted && (ips.Len() == 0 || m.pods.store.isSynced()); ready {
		m.changed = map[cluster.Key]bool{}
	}
	c.mu.Unlock()
	if !ready {
		return nil, false
	}
	touched := m.selection.Update(ips, namespaces, pods, changed)
	maps.Copy(touched, m.again)
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.Copy(touched, c.members.touched)
	clear(c.members.touched)
	maps.DeleteFunc(m.written, func(name string, w writtenSlice) bool { return !w.gone && c.members.deleted[name] })
	clear(c.members.deleted)
	due = map[cluster.Key]map[string]cluster.MemberSlice{}
	for key := range touched {
		if _, exists := ips.Get(key); exists || c.egressIPs.served { // else it may be back with its CRD
			due[key] = m.present(c.members.of[key], key)
		}
	}
	return due, true
}

// present returns the slices of an EgressIP: those that the watch delivered, or that were written since.
func (m *memberKeeper) present(delivered map[string]cluster.MemberSlice, key cluster.Key) map[string]cluster.MemberSlice {
	now := maps.Clone(delivered)
	if now == nil {
		now = map[string]cluster.MemberSlice{}
	}
	for name, w := range m.written {
		if !cluster.IsMemberSlice(name, key.Name) {
			continue
		}
		switch d, there := delivered[name]; {
		case w.gone && !there, there && !w.gone && d.Version >= w.Version:
			delete(m.written, name)
		case w.gone:
			delete(now, name)
		default:
			now[name] = w.MemberSlice
		}
	}
	return now
}

// write writes the slices of one EgressIP.
func (m *memberKeeper) write(ctx context.Context, key cluster.Key, have map[string]cluster.MemberSlice) (failed error) {
	put, gone := cluster.PackMembers(key.Name, have, m.selection.Of(key))
	for _, name := range slices.Sorted(maps.Keys(put)) {
		_, exists := have[name]
		version, err := m.put(ctx, key.Name, name, put[name], exists)
		if err != nil {
			delete(m.written, name)
			failed = errors.Join(failed, err)
			continue
		}
		s := put[name]
		s.Version = version
		m.written[name] = writtenSlice{s, false}
	}
	if failed != nil {
		return failed // members of the slices that are to go may be in no other yet
	}
	for _, name := range gone {
		bounded, cancel := context.WithTimeout(ctx, requestWithin)
		err := m.clients.core.DiscoveryV1().EndpointSlices(m.options.Namespace).Delete(bounded, name, metav1.DeleteOptions{})
		cancel()
		if err != nil && !apierrors.IsNotFound(err) {
			failed = errors.Join(failed, fmt.Errorf("delete EndpointSlice %s/%s: %w", m.options.Namespace, name, err))
			continue
		}
		m.written[name] = writtenSlice{gone: true}
	}
	return failed
}

// put writes a slice, and returns its new version.
func (m *memberKeeper) put(ctx context.Context, egressIP, name string, s cluster.MemberSlice, exists bool) (version uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	to, o := m.clients.core.DiscoveryV1().EndpointSlices(m.options.Namespace), s.EndpointSlice(m.options.Namespace, name, egressIP)
	var answer *discoveryv1.EndpointSlice
	if !exists {
		answer, err = to.Create(ctx, o, metav1.CreateOptions{})
	}
	if exists || apierrors.IsAlreadyExists(err) { // as one that has lost its label or annotation
		var patch []byte
		change := map[string]any{"metadata": map[string]any{"labels": o.Labels, "annotations": o.Annotations}, "endpoints": o.Endpoints}
		if patch, err = json.Marshal(change); err == nil {
			answer, err = to.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
	}
	if err != nil {
		return 0, fmt.Errorf("write EndpointSlice %s/%s: %w", m.options.Namespace, name, err)
	}
	version, err = strconv.ParseUint(answer.ResourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("EndpointSlice %s/%s: resourceVersion: %w", m.options.Namespace, name, err)
	}
	return version, nil
}
