package kube

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
)

// leaderManager is the field manager of the leader's writes, in every version of the daemon: the first part of the user
// agent, which is the default.
const leaderManager = "egressway"

// owned decodes the fields of a status that a field manager owns, in the format of fieldsV1.
type owned struct {
	Status struct {
		Host    *struct{} `json:"f:host"`
		Standby *struct{} `json:"f:standby"`
		Term    *struct{} `json:"f:term"`
	} `json:"f:status"`
}

// writerOf returns who wrote host, standby and term. An Update by another manager removes a field from the leader's
// only if it changes its value.
func writerOf(managed []metav1.ManagedFieldsEntry) cluster.Writer {
	var leader, others [3]bool
	for _, m := range managed {
		var o owned
		if m.FieldsV1 == nil || json.Unmarshal(m.FieldsV1.GetRawBytes(), &o) != nil {
			return cluster.WriterUnknown
		}
		of := &others
		if m.Manager == leaderManager {
			of = &leader
		}
		for i, owns := range [...]bool{o.Status.Host != nil, o.Status.Standby != nil, o.Status.Term != nil} {
			of[i] = of[i] || owns
		}
	}
	if len(managed) == 0 {
		return cluster.WriterUnknown
	}
	for i := range others {
		if others[i] && !leader[i] {
			return cluster.WriterOther
		}
	}
	if !leader[0] {
		return cluster.WriterNobody
	}
	return cluster.WriterLeader
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
