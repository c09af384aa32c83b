package kube

import (
	"encoding/json"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube/custom"
)

// decodeEgressService returns the EgressService, with a Problem for each part that cannot be decoded. A bad status keeps its
// host, standby and term if these can be decoded; the leader replaces it. ok is false if the spec is bad.
func decodeEgressService(r *custom.Object) (o *egressv1.EgressService, problems []cluster.Problem, ok bool) {
	o = &egressv1.EgressService{ObjectMeta: r.ObjectMeta}
	if err := custom.Decode(r.Spec, &o.Spec); err != nil {
		problems = append(problems, unreadable(cluster.KindEgressService, r, "spec", err))
		return o, problems, false
	}
	if err := custom.Decode(r.Status, &o.Status); err != nil {
		problems = append(problems, unreadable(cluster.KindEgressService, r, "status", err))
		var part struct {
			Host    string `json:"host"`
			Standby string `json:"standby"`
			Term    int64  `json:"term"`
		}
		o.Status = egressv1.EgressServiceStatus{}
		if custom.Decode(r.Status, &part) == nil {
			o.Status.Host, o.Status.Standby, o.Status.Term = part.Host, part.Standby, part.Term
		}
	}
	return o, problems, true
}

// leaderManager is the field manager of the leader's writes, in every version of the daemon: the first part of the user
// agent, which is the default.
const leaderManager = "egressway"

// owned decodes the fields of a status that a field manager owns, in the format of fieldsV1.
type owned struct {
	Status struct {
		Host    *struct{} `json:"f:host"`
		Standby *struct{} `json:"f:standby"`
		Term    *struct{} `json:"f:term"`
		Items   *struct{} `json:"f:items"`
	} `json:"f:status"`
}

// fieldSet holds the fields of a status that decide which host serves, one bit each.
type fieldSet uint8

const (
	fieldHost fieldSet = 1 << iota
	fieldStandby
	fieldTerm
	fieldItems
)

// ownedFields returns the fields that an entry's manager owns; ok is false if the entry cannot be read.
func ownedFields(m *metav1.ManagedFieldsEntry) (owns fieldSet, ok bool) {
	var o owned
	if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &o) != nil {
		return 0, false
	}
	if o.Status.Host != nil {
		owns |= fieldHost
	}
	if o.Status.Standby != nil {
		owns |= fieldStandby
	}
	if o.Status.Term != nil {
		owns |= fieldTerm
	}
	if o.Status.Items != nil {
		owns |= fieldItems
	}
	return owns, true
}

// writerOf returns who wrote the fields that decide, of which main is the one that names the host. An Update by another manager removes
// a field from the leader's only if it changes its value.
func writerOf(managed []metav1.ManagedFieldsEntry, main fieldSet) cluster.Writer {
	var leader, others fieldSet
	for i := range managed {
		owns, ok := ownedFields(&managed[i])
		switch {
		case !ok:
			return cluster.WriterUnknown
		case managed[i].Manager == leaderManager:
			leader |= owns
		default:
			others |= owns
		}
	}
	switch {
	case len(managed) == 0:
		return cluster.WriterUnknown
	case others&^leader != 0:
		return cluster.WriterOther
	case leader&main == 0:
		return cluster.WriterNobody
	default:
		return cluster.WriterLeader
	}
}

// obey keeps the status that was in force if another program than the leader wrote the present one. Without a host in
// the former status, as when a daemon starts or an object was restored, it accepts the present status from any writer.
func obey(former cluster.EgressService, next *cluster.EgressService) {
	stands := next.Stands()
	next.Status, next.Disobeyed = stands, nil
	switch {
	case next.Writer != cluster.WriterNobody && next.Writer != cluster.WriterOther, next.UID != former.UID, former.Status.Host == "",
		stands.Host == former.Status.Host && stands.Standby == former.Status.Standby && stands.Term == former.Status.Term:
	default:
		next.Status, next.Disobeyed = former.Status, &stands
	}
}

func (s *source) trimEgressService(r *custom.Object) object[cluster.Key, cluster.EgressService] {
	o, unread, readable := decodeEgressService(r)
	key, e, problems, ok := cluster.FromEgressService(o)
	e.Writer = writerOf(o.ManagedFields, fieldHost)
	e.Version, _ = strconv.ParseUint(o.ResourceVersion, 10, 64) // 0 (unknown) on servers whose versions are not numbers
	key.Namespace, e.Network, e.NodeSelector = s.texts.intern(key.Namespace), s.texts.intern(e.Network), s.selectors.intern(e.NodeSelector)
	e.Status.Host, e.Status.Standby = s.texts.intern(e.Status.Host), s.texts.intern(e.Status.Standby)
	e.Status.Conditions = slices.Clone(e.Status.Conditions) // without spare capacity
	for i := range e.Status.Conditions {
		c := &e.Status.Conditions[i]
		c.Type, c.Reason, c.Message = s.texts.intern(c.Type), s.texts.intern(c.Reason), s.texts.intern(c.Message)
	}
	e.Status.IngressIPs = slices.Clone(e.Status.IngressIPs)
	for i, ip := range e.Status.IngressIPs {
		e.Status.IngressIPs[i] = s.texts.intern(ip)
	}
	return object[cluster.Key, cluster.EgressService]{key, e, append(unread, problems...), ok && readable}
}
