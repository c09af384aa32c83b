package kube

import (
	"encoding/json"
	"fmt"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/custom"
)

func newEgressQoSes(c *Cluster) *optionalKind[cluster.Key, cluster.EgressQoS] {
	return newOptional(c, cluster.KindEgressQoS, "egressqoses."+egressv1.GroupName, true, c.trimEgressQoS)
}

func newEgressFirewalls(c *Cluster) *optionalKind[cluster.Key, cluster.EgressFirewall] {
	return newOptional(c, cluster.KindEgressFirewall, "egressfirewalls."+egressv1.GroupName, true, trimEgressFirewall)
}

// trimEgressQoS decodes an EgressQoS rule by rule: one that cannot be read costs its rule alone.
func (s *source) trimEgressQoS(r *custom.Object) (x object[cluster.Key, cluster.EgressQoS]) {
	o, unread := egressv1.EgressQoS{ObjectMeta: r.ObjectMeta}, map[int]bool{}
	var raw struct {
		Egress []json.RawMessage `json:"egress"`
	}
	if err := custom.Decode(r.Spec, &raw); err != nil {
		x.problems = append(x.problems, unreadable(cluster.KindEgressQoS, r, "spec", err))
	}
	o.Spec.Egress = make([]egressv1.EgressQoSRule, len(raw.Egress))
	for i, text := range raw.Egress {
		if err := custom.Decode(text, &o.Spec.Egress[i]); err != nil {
			x.problems = append(x.problems, unreadable(cluster.KindEgressQoS, r, fmt.Sprintf("spec.egress[%d]", i), err))
			unread[i] = true
		}
	}
	key, q, found, ok := cluster.FromEgressQoS(&o, unread)
	q.Meta = s.metaOf(r)
	x.key, x.value, x.ok = key, q, ok
	x.problems = append(x.problems, found...)
	return x
}

// trimEgressFirewall decodes an EgressFirewall part by part: one that cannot be read costs its rule alone.
func trimEgressFirewall(r *custom.Object) (x object[cluster.Key, cluster.EgressFirewall]) {
	decode := func(field string, data []byte, into any) *cluster.Problem {
		if err := custom.Decode(data, into); err != nil {
			return new(unreadable(cluster.KindEgressFirewall, r, field, err))
		}
		return nil
	}
	x.key, x.value, x.problems, x.ok = cluster.DecodeEgressFirewall(r.ObjectMeta, r.Spec, decode)
	return x
}
