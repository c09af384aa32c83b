package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// A thousand daemons that poll one Lease are a load of their own. So each of them watches it, and stands for election only
// once nobody holds it.

// watchLease keeps what is known of the leader's Lease until ctx ends.
func (c *Cluster) watchLease(ctx context.Context, k clients) {
	one := func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, leaseName).String()
	}
	c.watchLeases(ctx, k, "watch the leader's Lease", one, &leases{
		changed: c.lease.observe,
		deleted: func(*coordinationv1.Lease) { c.lease.observe(nil) },
		listed: func(all []*coordinationv1.Lease) {
			if len(all) == 0 {
				c.lease.observe(nil)
				return
			}
			c.lease.observe(all[0])
		},
	})
}

// contend stands for election whenever nobody leads, until ctx ends.
func (c *Cluster) contend(ctx context.Context, k clients) {
	for c.lease.vacant(ctx, c.timing.retry/2) {
		c.stand(ctx, k)
	}
}

// stand tries to get the Lease, and leads while this daemon holds it. It returns when another one does, or ctx ends.
func (c *Cluster) stand(ctx context.Context, k clients) {
	identity := c.options.Node + "_" + string(uuid.NewUUID()) // an earlier run of the daemon is another one
	won := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &lock{
			LeaseLock: resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: c.options.Namespace, Name: leaseName},
				Client:     k.core.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
				Labels:     map[string]string{labelName: component},
			},
			seen: &c.lease, within: c.timing.renew / 2,
			tell: func(err error) { c.outcome(k, "lead", leaseResource, err) },
		},
		LeaseDuration: c.timing.lease, RenewDeadline: c.timing.renew, RetryPeriod: c.timing.retry,
		ReleaseOnCancel: true, Name: leaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(won) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		c.log.Error("this daemon cannot stand for election", "error", err)
		<-ctx.Done()
		return
	}

	// The elector outlives ctx: the Lease is given back after the last write has ended.
	running, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	leading, lose := context.WithCancel(ctx)
	var g sync.WaitGroup
	g.Go(func() {
		defer lose()
		elector.Run(running)
	})
	g.Go(func() {
		defer lose()
		c.lease.taken(leading, identity)
	})
	select {
	case <-won:
		c.lead(leading, k, elector)
	case <-leading.Done():
	}
	lose()
	giveUp()
	g.Wait()
	c.outcome(k, "lead", leaseResource, nil)
}

// lock is the Lease as the elector sees it: free when the watch has told that its holder does not renew it. The elector
// would otherwise wait for that once more.
type lock struct {
	resourcelock.LeaseLock
	seen   *sighting
	within time.Duration
	tell   func(error)
	holder string // as last asked for
}

func (l *lock) Get(ctx context.Context) (record *resourcelock.LeaderElectionRecord, raw []byte, err error) {
	err = l.ask(ctx, func(ctx context.Context) error {
		record, raw, err = l.LeaseLock.Get(ctx)
		return err
	})
	if err == nil {
		if l.seen.expired(raw) {
			record.HolderIdentity = ""
		}
		l.holder = record.HolderIdentity
	}
	return record, raw, err
}

func (l *lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.ask(ctx, func(ctx context.Context) error { return l.LeaseLock.Create(ctx, r) })
}

// Update does not give back what another one holds by now: an elector that has lost the Lease does not know.
func (l *lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if r.HolderIdentity == "" && l.holder != l.Identity() {
		return errTaken
	}
	return l.ask(ctx, func(ctx context.Context) error { return l.LeaseLock.Update(ctx, r) })
}

var errTaken = errors.New("another daemon holds the Lease")

// ask bounds a request, and tells when it fails but for what happens in every election.
func (l *lock) ask(ctx context.Context, request func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, l.within)
	defer cancel()
	err := request(bounded)
	usual := apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err)
	if !usual && !errors.Is(ctx.Err(), context.Canceled) {
		l.tell(err)
	}
	return err
}

// sighting is what was last seen of the leader's Lease, and when, by this node's own clock: those of others may be wrong.
type sighting struct {
	mu      sync.Mutex
	known   bool
	holder  string // empty: nobody
	raw     []byte // the record, as the elector's lock gives it
	until   time.Time
	changed chan struct{} // closed by the next change
}

// observe takes note of the Lease; nil: there is none.
func (s *sighting) observe(l *coordinationv1.Lease) {
	record := &resourcelock.LeaderElectionRecord{}
	if l != nil {
		record = resourcelock.LeaseSpecToLeaderElectionRecord(&l.Spec)
	}
	raw, err := json.Marshal(record)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known && bytes.Equal(raw, s.raw) {
		return
	}
	s.known, s.holder, s.raw = true, record.HolderIdentity, raw
	s.until = time.Now()
	if s.holder != "" {
		s.until = s.until.Add(time.Duration(record.LeaseDurationSeconds) * time.Second)
	}
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// next is closed when something else is observed. The caller has s.mu.
func (s *sighting) next() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// vacant waits until nobody holds the Lease, and a little longer, by chance: not everyone is to ask for it at once. It is
// false when ctx ended before.
func (s *sighting) vacant(ctx context.Context, spread time.Duration) bool {
	for {
		s.mu.Lock()
		changed := s.next()
		var due <-chan time.Time
		if s.known {
			due = time.After(time.Until(s.until) + rand.N(spread))
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		case <-due:
			return true
		}
	}
}

// taken waits until another one than identity holds the Lease, or ctx ends.
func (s *sighting) taken(ctx context.Context, identity string) {
	for {
		s.mu.Lock()
		changed := s.next()
		taken := s.holder != "" && s.holder != identity && time.Now().Before(s.until)
		s.mu.Unlock()
		if taken {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// expired reports whether the record is the one last seen, and was not renewed in time.
func (s *sighting) expired(raw []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known && bytes.Equal(raw, s.raw) && !time.Now().Before(s.until)
}
