package cluster

import (
	"fmt"
	"hash/fnv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Meta is the part of an object that the leader needs to write its status. Manifests leave it empty.
type Meta struct {
	UID        string
	Generation int64
	Version    uint64 // metadata.resourceVersion
	Status     TextStatus
}

// TextStatus is the status of an object whose status is a text for people, with conditions.
type TextStatus struct {
	Text       string   // field status
	Messages   []string // field messages, of kinds that have it
	Conditions []metav1.Condition
}

// Revision identifies the spec of an object among all that objects of its name ever had.
type Revision struct {
	UID        string
	Generation int64
}

// Revision returns the revision of the object.
func (m Meta) Revision() Revision { return Revision{m.UID, m.Generation} }

// Itself returns the Meta of an object that embeds it.
func (m Meta) Itself() Meta { return m }

// Meta returns the Meta of an object of a kind with a text status.
func (o Objects) Meta(id ID) (m Meta, ok bool) {
	switch id.Kind {
	case KindEgressQoS:
		q, there := o.EgressQoSes.Get(id.Key)
		m, ok = q.Meta, there
	case KindEgressFirewall:
		f, there := o.EgressFirewalls.Get(id.Key)
		m, ok = f.Meta, there
	default:
	}
	return m, ok
}

// Revisions returns a short text that is the same only for the same revisions of all objects.
func Revisions[V interface{ Revision() Revision }](all Map[Key, V]) string {
	var sum uint64
	for key, o := range all.All() {
		h := fnv.New64a()
		r := o.Revision()
		fmt.Fprintf(h, "%s %s %d", key, r.UID, r.Generation)
		sum ^= h.Sum64()
	}
	return fmt.Sprintf("%d.%x", all.Len(), sum)
}
