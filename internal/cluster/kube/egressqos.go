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
	x.key, x.value, x.ok = key, q, ok
	x.problems = append(x.problems, found...)
	return x
}
