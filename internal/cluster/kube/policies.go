package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/custom"
)

func newEgressQoSes(c *Cluster) *optionalKind[cluster.Key, cluster.EgressQoS] {
	return newOptional(c, cluster.KindEgressQoS, "egressqoses."+egressv1.GroupName, true, c.trimEgressQoS)
}

func newEgressFirewalls(c *Cluster) *optionalKind[cluster.Key, cluster.EgressFirewall] {
	return newOptional(c, cluster.KindEgressFirewall, "egressfirewalls."+egressv1.GroupName, true, c.trimEgressFirewall)
}

// newEgressIPs returns the store of EgressIPs. The Node of a host may not be known yet.
func newEgressIPs(c *Cluster) *optionalKind[cluster.Key, cluster.EgressIP] {
	k := newOptional(c, cluster.KindEgressIP, "egressips."+egressv1.GroupName, true, c.trimEgressIP)
	k.settle = obeyItems
	changed := k.changed
	k.changed = func(key cluster.Key) {
		changed(key)
		for _, h := range k.objects.At(key).Holders {
			c.nodes.want(h.Host, h.Standby)
		}
		signal(c.members.stirs)
	}
	return k
}

// trimEgressIP decodes an EgressIP. A status that cannot be decoded names no host, and the leader replaces it.
func (s *source) trimEgressIP(r *custom.Object) (x object[cluster.Key, cluster.EgressIP]) {
	o := &egressv1.EgressIP{ObjectMeta: r.ObjectMeta}
	x.key = cluster.Key{Name: r.Name}
	var given struct {
		NamespaceSelector *struct{} `json:"namespaceSelector"`
	}
	err := custom.Decode(r.Spec, &o.Spec)
	if err == nil {
		err = custom.Decode(r.Spec, &given)
	}
	if err == nil && given.NamespaceSelector == nil {
		err = errors.New("no namespaceSelector: {} selects every namespace")
	}
	if err != nil {
		x.problems = append(x.problems, unreadable(cluster.KindEgressIP, r, "spec", err))
		return x
	}
	var unread []cluster.Problem
	if err := custom.Decode(r.Status, &o.Status); err != nil {
		unread = append(unread, unreadable(cluster.KindEgressIP, r, "status", err))
		o.Status = egressv1.EgressIPStatus{}
	}
	x.key, x.value, x.problems, x.ok = cluster.FromEgressIP(o)
	x.problems = append(unread, x.problems...)
	digest := fnv.New64a()
	_, _ = digest.Write(r.Spec)
	e := &x.value
	e.UID, e.Spec, e.Conditions = string(r.UID), digest.Sum64(), slices.Clone(o.Status.Conditions)
	e.Writer = writerOf(r.ManagedFields, fieldItems)
	e.Version, _ = strconv.ParseUint(r.ResourceVersion, 10, 64) // 0 (unknown) on servers whose versions are not numbers
	for i := range e.Holders {
		e.Holders[i].Host, e.Holders[i].Standby = s.texts.intern(e.Holders[i].Host), s.texts.intern(e.Holders[i].Standby)
	}
	for i := range e.Conditions {
		c := &e.Conditions[i]
		c.Type, c.Reason, c.Message = s.texts.intern(c.Type), s.texts.intern(c.Reason), s.texts.intern(c.Message)
	}
	return x
}

// obeyItems keeps the items that were in force if another program than the leader wrote the present ones, as obey does.
func obeyItems(former cluster.EgressIP, next *cluster.EgressIP) {
	stands := next.Stands()
	next.Holders, next.Disobeyed = stands, nil
	switch {
	case next.Writer != cluster.WriterNobody && next.Writer != cluster.WriterOther, next.UID != former.UID, len(former.Holders) == 0,
		slices.Equal(stands, former.Holders):
	default:
		if next.Holders, next.Disobeyed = former.Holders, stands; stands == nil {
			next.Disobeyed = []cluster.Holder{}
		}
	}
}

// trimEgressQoS decodes an EgressQoS rule by rule: one that cannot be read costs its rule alone.
func (s *source) trimEgressQoS(r *custom.Object) (x object[cluster.Key, cluster.EgressQoS]) {
	o, unread := egressv1.EgressQoS{ObjectMeta: r.ObjectMeta}, map[int]bool{}
	var raw struct {
		Egress []json.RawMessage `json:"egress"`
	}
	if err := custom.Decode(r.Spec, &raw); err != nil {
		p := unreadable(cluster.KindEgressQoS, r, "spec", err)
		p.Message += ": all rules are left out; a list such as egress: [{dscp: 46}] is right"
		x.problems = append(x.problems, p)
	}
	o.Spec.Egress = make([]egressv1.EgressQoSRule, len(raw.Egress))
	for i, text := range raw.Egress {
		if err := custom.Decode(text, &o.Spec.Egress[i]); err != nil {
			p := unreadable(cluster.KindEgressQoS, r, fmt.Sprintf("spec.egress[%d]", i), err)
			p.Message += ": this rule is left out; one such as {dscp: 46, dstCIDR: 203.0.113.0/24} is right"
			x.problems = append(x.problems, p)
			unread[i] = true
		}
	}
	key, q, found, ok := cluster.FromEgressQoS(&o, unread)
	q.Meta = s.metaOf(r)
	x.key, x.value, x.ok = key, q, ok
	x.problems = cluster.Few(append(found, x.problems...))
	return x
}

// trimEgressFirewall decodes an EgressFirewall part by part: one that cannot be read costs its rule alone.
func (s *source) trimEgressFirewall(r *custom.Object) (x object[cluster.Key, cluster.EgressFirewall]) {
	decode := func(field string, data []byte, into any) *cluster.Problem {
		if err := custom.Decode(data, into); err != nil {
			return new(unreadable(cluster.KindEgressFirewall, r, field, err))
		}
		return nil
	}
	x.key, x.value, x.problems, x.ok = cluster.DecodeEgressFirewall(r.ObjectMeta, r.Spec, decode)
	x.value.Meta = s.metaOf(r)
	return x
}
