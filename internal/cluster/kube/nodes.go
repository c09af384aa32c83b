package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/pause"
)

const (
	rosterName       = "egressway-nodes"    // of the Lease with the leader's roster of the Nodes
	annotationRoster = "egressway.io/nodes" // the roster, as JSON
	requestRoster    = "write the roster of Nodes"

	// readSpread × the number of Nodes is the mean pause before a daemon reads a Node that has changed: all daemons read it.
	readSpread = 250 * time.Microsecond
	// restMost bounds how long a daemon watches all Nodes before it relies on the roster again.
	restMost = time.Hour
)

// nodes holds the Nodes. Every daemon watching all of them would cost the API server the square of their number, so only
// the leader does: it publishes a roster, which says which Nodes have changed. The other daemons watch their own Node, and
// read one of the others when the roster says that it has changed. Without a leader that publishes one, as in a cluster with
// a leader of an earlier version, or where the roster differs from what was read, a daemon watches all Nodes.
type nodes struct {
	*store[string, cluster.Node]
	turned chan struct{} // signals a change for follow
	stirs  chan struct{} // signals a change of a Node for the leader
	rest   time.Duration // how long to watch all Nodes before the roster counts again; used by follow only

	// The Cluster's mutex guards the fields below.
	whole    bool // all Nodes are watched, not only this node's
	complete bool // whole, and they were listed since
	roster   seenRoster
	agreed   map[string]string // digests of the Nodes' facts when they last equalled the roster
	wanted   map[string]bool   // hosts of which no address is known
	knewOwn  bool              // this node's Node was known
	changes  int               // counts changes of Nodes
	digests  digests
}

// digests holds the digests of all Nodes' facts, as of some count of changes.
type digests struct {
	changes int
	facts   map[string]string // replaced, never changed
	all     string
}

// seenRoster is the leader's Lease with the roster as last seen.
type seenRoster struct {
	holder string // the leader that wrote it
	text   string
	cluster.Roster
}

func newNodes(c *Cluster) *nodes {
	s := &c.source
	n := &nodes{turned: make(chan struct{}, 1), stirs: make(chan struct{}, 1), whole: true, wanted: map[string]bool{}}
	own := fields.OneTermEqualSelector(metav1.ObjectNameField, c.options.Node).String()
	n.store = newStore(c, kind[string, cluster.Node]{
		resource: nodeResource, example: &corev1.Node{}, client: coreClient, changed: s.allChanged, own: c.options.Node, hasOwn: true,
		fields: func() string {
			c.mu.Lock()
			defer c.mu.Unlock()
			if n.whole {
				return ""
			}
			return own
		},
		lists: func(name string) bool { return n.whole || name == c.options.Node },
		listed: func() bool {
			became := n.whole && !n.complete
			n.complete = n.complete || became
			signal(n.turned)
			signal(n.stirs)
			return became
		},
		noted: func() {
			n.changes++
			n.knewOwn = n.knewOwn || n.knows(n.own)
			signal(n.turned)
			signal(n.stirs)
		},
		trim: trimmer(func(o *corev1.Node) object[string, cluster.Node] {
			name, node, problems, ok := cluster.FromNode(o)
			node.Labels = s.labels(node.Labels)
			return object[string, cluster.Node]{name, node, problems, ok}
		}),
	})
	return n
}

// follow keeps the Nodes up to date until ctx ends: at first all of them by a watch, then by the roster while there is a
// good one.
func (n *nodes) follow(ctx context.Context, k clients) {
	for whole := true; ctx.Err() == nil; whole = !whole {
		n.cluster.change(func() bool {
			followed := n.complete
			n.whole, n.complete = whole, false
			return followed // StaleNodes changes
		})
		on, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer cancel()
			if whole {
				n.awaitRoster(on)
			} else {
				n.obeyRoster(on, k)
			}
		}()
		n.store.follow(on, k)
		cancel()
		<-ended
	}
}

// awaitRoster waits until all Nodes were listed and equal the roster of a leader that is another daemon, or ctx ends.
func (n *nodes) awaitRoster(ctx context.Context) {
	for began := time.Now(); ; {
		if time.Since(began) >= n.rest && n.equalsRoster() {
			return
		}
		if !n.turn(ctx) {
			return
		}
	}
}

// turn waits for a change or for the next look, and returns false if ctx ended before.
func (n *nodes) turn(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-n.turned:
	case <-time.After(n.cluster.pauses.roster):
	}
	return ctx.Err() == nil
}

// equalsRoster reports whether the Nodes need not be watched: the leader keeps a roster, and they equal it.
func (n *nodes) equalsRoster() bool {
	if n.cluster.term.Load() != nil || !n.kept() {
		return false
	}
	n.cluster.mu.Lock()
	known, roster := n.complete && len(n.doubts.lacked) == 0, n.roster
	n.cluster.mu.Unlock()
	if !known {
		return false
	}
	facts, digest := n.facts()
	if digest != roster.Nodes {
		return false
	}
	n.agree(facts)
	return true
}

// agree records that the Nodes have the facts of the roster.
func (n *nodes) agree(facts map[string]string) {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	n.agreed = facts
}

// facts returns the digests of all known Nodes' facts, by name, and the digest of all.
func (n *nodes) facts() (facts map[string]string, digest string) {
	n.cluster.mu.Lock()
	all, problems, changes, last := n.objects.Map(), maps.Clone(n.problems), n.changes, n.digests
	n.cluster.mu.Unlock()
	if last.facts != nil && last.changes == changes {
		return last.facts, last.all
	}
	facts = make(map[string]string, all.Len())
	for name, node := range all.All() {
		facts[name] = cluster.Facts(name, node, problems[name])
	}
	digest = cluster.Digest(facts)
	n.cluster.mu.Lock()
	n.digests = digests{changes, facts, digest}
	n.cluster.mu.Unlock()
	return facts, digest
}

// kept reports whether the present leader keeps the roster: it writes its name on it, and a leader of an earlier version
// does not.
func (n *nodes) kept() bool {
	leader := n.cluster.lease.present()
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	return leader != "" && n.roster.holder == leader
}

// obeyRoster reads the Nodes that the roster says have changed. It returns when all Nodes have to be watched: this daemon
// leads, no leader keeps the roster, or it differs from what was read.
func (n *nodes) obeyRoster(ctx context.Context, k clients) {
	began := time.Now()
	kept, apart := began, time.Time{}
	read := map[string]string{} // digests for which a Node was read
	for n.cluster.term.Load() == nil {
		n.readHosts(ctx, k)
		if n.kept() {
			kept = time.Now()
		}
		equal, unlike := n.compare(read)
		if equal || apart.IsZero() {
			apart = time.Now()
		}
		switch {
		case ctx.Err() != nil:
			return
		case len(unlike) > 0:
			n.readChanged(ctx, k, unlike, read)
		case time.Since(kept) > n.cluster.pauses.leaderless, !equal && time.Since(apart) > n.cluster.pauses.apart:
			if n.rest *= 2; time.Since(began) > restMost {
				n.rest = 0
			}
			n.rest = min(max(n.rest, n.cluster.pauses.leaderless), restMost)
			n.cluster.log.Info("watching all Nodes until they equal the roster of a leader", "least", n.rest)
			return
		default:
			n.turn(ctx)
		}
	}
}

// compare reports whether the Nodes equal the roster. If not, it returns the changed ones that are to be read: this node's
// own is watched, and one that was read for the same entry is as new as it can be.
func (n *nodes) compare(read map[string]string) (equal bool, unlike []cluster.RosterEntry) {
	n.cluster.mu.Lock()
	roster := n.roster
	n.cluster.mu.Unlock()
	facts, digest := n.facts()
	if digest == roster.Nodes {
		n.agree(facts)
		return true, nil
	}
	return false, slices.DeleteFunc(roster.Unlike(facts), func(e cluster.RosterEntry) bool {
		facts, done := read[e.Node]
		return e.Node == n.own || done && facts == e.Facts
	})
}

// readChanged reads Nodes that the roster says have changed. All daemons do at the same time, so each pauses at random.
func (n *nodes) readChanged(ctx context.Context, k clients, changed []cluster.RosterEntry, read map[string]string) {
	facts, _ := n.facts()
	for _, e := range changed {
		if !pause.For(ctx, rand.N(2*readSpread*time.Duration(len(facts))+1)) {
			return
		}
		there, err := n.read(ctx, k, e.Node)
		switch {
		case err != nil: // list reports it
			pause.For(ctx, rewriteAfter)
			return
		case !there && e.Facts == "" && n.cluster.knowsThisNode(ctx, k):
			n.cluster.change(func() bool { return n.remove(e.Node) })
		}
		read[e.Node] = e.Facts
		n.readHosts(ctx, k)
	}
}

// read asks for one Node and stores it. It reports whether the server has it.
func (n *nodes) read(ctx context.Context, k clients, name string) (there bool, err error) {
	list, err := n.list(ctx, k, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
	if err != nil {
		return false, err
	}
	return there, meta.EachListItem(list, func(o runtime.Object) error {
		x, err := n.store.read(o)
		if err != nil {
			return err
		}
		there = true
		n.cluster.change(func() bool { return n.put(x) })
		return nil
	})
}

// want asks for hosts whose addresses are not known yet: a status may come before the roster. The caller holds the mutex.
func (n *nodes) want(hosts ...string) {
	for _, host := range hosts {
		if n.whole || host == "" || host == cluster.AllHosts || host == n.own || len(n.objects.At(host).Internal) > 0 {
			continue
		}
		n.wanted[host] = true
		signal(n.turned)
	}
}

// readHosts reads the Nodes of wanted hosts.
func (n *nodes) readHosts(ctx context.Context, k clients) {
	n.cluster.mu.Lock()
	wanted := n.wanted
	n.wanted = map[string]bool{}
	n.cluster.mu.Unlock()
	for host := range wanted {
		if _, err := n.read(ctx, k, host); err != nil {
			n.cluster.mu.Lock()
			n.want(host)
			n.cluster.mu.Unlock()
			pause.For(ctx, rewriteAfter)
		}
	}
}

// watchRoster keeps the roster up to date until ctx ends.
func (c *Cluster) watchRoster(ctx context.Context, k clients) {
	one := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, rosterName).String()
	}
	c.watchLeases(ctx, k, "watch the roster of Nodes", one, &leases{
		changed: c.nodes.seeRoster,
		deleted: func(*coordinationv1.Lease) { c.nodes.seeRoster(nil) },
		listed: func(all []*coordinationv1.Lease) {
			if len(all) == 0 {
				c.nodes.seeRoster(nil)
				return
			}
			c.nodes.seeRoster(all[0])
		},
	})
}

// seeRoster records the Lease with the roster; nil: there is none. A roster that cannot be read equals no Nodes.
func (n *nodes) seeRoster(l *coordinationv1.Lease) {
	seen := seenRoster{}
	if l != nil && l.Spec.HolderIdentity != nil {
		seen.holder, seen.text = *l.Spec.HolderIdentity, l.Annotations[annotationRoster]
		if json.Unmarshal([]byte(seen.text), &seen.Roster) != nil {
			seen.Roster = cluster.Roster{}
		}
	}
	n.cluster.mu.Lock()
	n.roster = seen
	n.cluster.mu.Unlock()
	signal(n.turned)
	signal(n.stirs)
}

// keepRoster writes the roster under the leader's name whenever the Nodes' facts change, until ctx ends.
func (t *term) keepRoster(ctx context.Context, leader string) {
	defer t.outcome(t.clients, requestRoster, leaseResource, nil)
	n := t.nodes
	var last *cluster.Roster
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.stirs:
		case <-time.After(t.pauses.roster):
		}
		if !pause.For(ctx, settle) {
			return
		}
		next, err := t.updateRoster(ctx, leader, last)
		if ctx.Err() != nil {
			return
		}
		t.outcome(t.clients, requestRoster, leaseResource, err)
		wait := pace
		if err != nil {
			wait = rewriteAfter
		} else {
			last = next
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// updateRoster writes the roster that follows the last one, unless it stands already. It returns the new one.
func (t *term) updateRoster(ctx context.Context, leader string, last *cluster.Roster) (*cluster.Roster, error) {
	n := t.nodes
	t.Cluster.mu.Lock()
	complete, seen, before := n.complete, n.roster, n.agreed
	t.Cluster.mu.Unlock()
	if !complete || t.leads() != t {
		return last, nil
	}
	now, digest := n.facts()
	if last == nil {
		last = &seen.Roster // changes that the former leader wrote may not have reached every daemon
	}
	if seen.holder == leader && seen.Nodes == digest {
		return last, nil
	}
	if before == nil {
		before = now
	}
	next := last.Next(before, now)
	text, err := json.Marshal(next)
	if err == nil {
		err = t.writeRoster(ctx, leader, string(text))
	}
	if err != nil {
		return last, err
	}
	n.agree(now)
	return &next, nil
}

// writeRoster writes the Lease with the roster.
func (t *term) writeRoster(ctx context.Context, leader, roster string) error {
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	now := metav1.NowMicro()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: rosterName, Namespace: t.options.Namespace,
			Labels: map[string]string{labelName: component}, Annotations: map[string]string{annotationRoster: roster},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &leader, RenewTime: &now},
	}
	patch, err := json.Marshal(lease)
	if err != nil {
		return fmt.Errorf("roster of Nodes: %w", err)
	}
	to := t.clients.core.CoordinationV1().Leases(t.options.Namespace)
	_, err = to.Patch(ctx, lease.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		_, err = to.Create(ctx, lease, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write Lease %s/%s: %w", lease.Namespace, lease.Name, err)
	}
	return nil
}

const (
	addressesPrefix     = "addresses."                // of the names of Leases with nodes' addresses; the node's name follows
	labelAddresses      = "egressway.io/node-address" // on these Leases
	annotationAddresses = "egressway.io/addresses"    // the addresses, as JSON
	requestAddresses    = "share this node's addresses"

	// addressesSpread × the number of Nodes is the longest pause before the first write: in an update of the daemon, all
	// nodes may have addresses to share.
	addressesSpread = 250 * time.Millisecond
)

// addresses holds the secondary addresses of all nodes. Each daemon writes those of its node into a Lease, if there are any,
// and watches the Leases of the others: they are written only when addresses change.
type addresses struct {
	*store[string, cluster.Secondary]
	turned chan struct{} // signals that the Lease of this node may have to be written

	// The Cluster's mutex guards the fields below.
	here  cluster.Secondary // the addresses of this node
	known bool              // here is known
}

func newAddresses(c *Cluster) *addresses {
	a := &addresses{turned: make(chan struct{}, 1)}
	a.store = newStore(c, kind[string, cluster.Secondary]{
		resource: leaseResource, example: &coordinationv1.Lease{}, namespace: c.options.Namespace, labels: labelAddresses,
		client: func(k clients) rest.Interface { return k.core.CoordinationV1().RESTClient() },
		noted:  func() { signal(a.turned) },
		listed: func() bool {
			signal(a.turned)
			return false
		},
		trim: trimmer(trimAddresses),
	})
	return a
}

// trimAddresses reads the Lease with the addresses of a node.
func trimAddresses(o *coordinationv1.Lease) object[string, cluster.Secondary] {
	node, ours := strings.CutPrefix(o.Name, addressesPrefix)
	if !ours {
		return object[string, cluster.Secondary]{key: "/" + o.Name} // which no Node can have as its name
	}
	text := o.Annotations[annotationAddresses]
	s, err := cluster.ParseSecondary(text)
	x := object[string, cluster.Secondary]{key: node, value: s, ok: err == nil}
	if err != nil {
		x.problems = []cluster.Problem{{
			Kind: "Lease", Object: o.Namespace + "/" + o.Name, Field: "metadata.annotations[" + annotationAddresses + "]",
			Value: cluster.Clip(text), Reason: cluster.ReasonInvalidValue,
			Message: err.Error() + "; the daemon of the node writes it again",
		}}
	}
	return x
}

// ShareAddresses sets the secondary addresses of this node for the other nodes.
func (c *Cluster) ShareAddresses(s cluster.Secondary) {
	a := c.addresses
	c.mu.Lock()
	differ := !a.known || !a.here.Equal(s)
	a.here, a.known = s, true
	c.mu.Unlock()
	if differ {
		signal(a.turned)
	}
}

// share keeps the Lease with this node's addresses as the node has them, until ctx ends.
func (a *addresses) share(ctx context.Context, k clients) {
	defer a.cluster.outcome(k, requestAddresses, leaseResource, nil)
	signal(a.turned)
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.turned:
		}
		due, patience := a.due()
		if !due {
			continue
		}
		if !pause.For(ctx, settle+patience) {
			return
		}
		err := a.write(ctx, k)
		if ctx.Err() != nil {
			return
		}
		a.cluster.outcome(k, requestAddresses, leaseResource, err)
		next := a.cluster.pauses.addresses
		if err != nil {
			signal(a.turned)
			next = rewriteAfter
		}
		if !pause.For(ctx, next) {
			return
		}
	}
}

// due reports whether the Lease of this node differs from its addresses, and how long to wait before it is written. A node
// without secondary addresses needs no Lease.
func (a *addresses) due() (due bool, patience time.Duration) {
	c := a.cluster
	c.mu.Lock()
	defer c.mu.Unlock()
	written, there := a.objects.Get(c.options.Node)
	exists := there || a.problems[c.options.Node] != nil
	switch {
	case !a.known, !a.synced, there && written.Equal(a.here), !exists && a.here.Len() == 0:
		return false, 0
	case exists:
		return true, 0
	}
	return true, rand.N(addressesSpread*time.Duration(c.nodes.objects.Map().Len()) + 1)
}

// write writes the Lease of this node.
func (a *addresses) write(ctx context.Context, k clients) error {
	c := a.cluster
	c.mu.Lock()
	here := a.here
	c.mu.Unlock()
	text, err := json.Marshal(here)
	if err != nil {
		return fmt.Errorf("addresses of this node: %w", err)
	}
	node := c.options.Node
	return c.writeLease(ctx, k, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: addressesPrefix + node, Namespace: c.options.Namespace,
			Labels:      map[string]string{labelName: component, labelAddresses: ""},
			Annotations: map[string]string{annotationAddresses: string(text)},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node},
	})
}
