package kube

import (
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
)

// obeys checks that daemons do not follow another writer's status, and that the leader restores its own, even if the other
// // writer's values are by now the ones that the leader wants.
func (f *fixture) obeys(t *testing.T) {
	ns := f.namespace(t)
	d := f.daemon(t, ns, "a")
	key, o := f.service(t, d, ns, "web")
	leader(t, d)
	follower := f.daemon(t, ns, "b")
	has := func(of *daemon) cluster.EgressService {
		objects, _ := of.latest()
		return objects.EgressServices.At(key)
	}
	is := func(host, standby string) {
		t.Helper()
		for _, of := range []*daemon{d, follower} {
			e := has(of)
			require.Equal(t, []string{host, standby}, []string{e.Status.Host, e.Status.Standby})
		}
	}
	// stands waits until both daemons have seen the present status, and know whether to follow it.
	stands := func(host string, writer cluster.Writer) {
		t.Helper()
		require.Eventually(t, func() bool {
			for _, of := range []*daemon{d, follower} {
				if e := has(of); e.Stands().Host != host || e.Writer != writer {
					return false
				}
			}
			return true
		}, soon, step)
	}
	decides := func(host string) {
		t.Helper()
		w := wanted(o, host)
		d.decides(t, map[cluster.Key]Wanted{key: w}, func() bool {
			e := has(follower)
			return sameStatus(e.Status, w.Status) && e.Disobeyed == nil && e.Writer == cluster.WriterLeader
		})
	}

	require.Eventually(t, func() bool { return has(follower).UID != "" }, soon, step)
	f.edit(t, key, `{"host":"mallory"}`)
	stands("mallory", cluster.WriterOther)
	is("mallory", "") // no node was elected: a backup may have restored it
	decides("a")

	f.edit(t, key, `{"host":"mallory","standby":"a","term":9}`)
	stands("mallory", cluster.WriterOther)
	is("a", "b")
	f.edit(t, key, `{"host":"eve"}`)
	stands("eve", cluster.WriterOther)
	is("a", "b")
	decides("a")

	f.edit(t, key, `null`)
	stands("", cluster.WriterNobody)
	is("a", "b")
	decides("a")
	f.edit(t, key, `{"host":""}`)
	stands("", cluster.WriterOther)
	is("a", "b")
	decides("a")

	// A patch does not make the leader manager of fields that have the value already.
	f.edit(t, key, `{"host":"c"}`)
	stands("c", cluster.WriterOther)
	is("a", "b")
	decides("c")
	version := f.get(t, key).ResourceVersion
	for range 10 {
		d.Write(map[cluster.Key]Wanted{key: wanted(o, "c")})
	}
	require.Eventually(t, func() bool { return d.leads().queue.Len() == 0 }, soon, step)
	require.Equal(t, version, f.get(t, key).ResourceVersion, "it is taken over once")

	// A daemon that starts follows the present status.
	f.edit(t, key, `{"host":"mallory"}`)
	stands("mallory", cluster.WriterOther)
	is("c", "b")
	late := f.daemon(t, ns, "c")
	require.Eventually(t, func() bool { return has(late).Status.Host == "mallory" }, soon, step)
	decides("a")
	require.Eventually(t, func() bool { return has(late).Status.Host == "a" }, soon, step)
}

func TestWriterOf(t *testing.T) {
	by := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Subresource: "status", FieldsV1: metav1.NewFieldsV1(fields)}
	}
	host, both := `{"f:status":{".":{},"f:host":{}}}`, `{"f:status":{"f:conditions":{},"f:host":{},"f:standby":{}}}`
	for _, c := range []struct {
		managed []metav1.ManagedFieldsEntry
		writer  cluster.Writer
	}{
		{nil, cluster.WriterUnknown},
		{[]metav1.ManagedFieldsEntry{{Manager: leaderManager}}, cluster.WriterUnknown},
		{[]metav1.ManagedFieldsEntry{by("kubectl", `{`)}, cluster.WriterUnknown},
		{[]metav1.ManagedFieldsEntry{by("kubectl", `{"f:spec":{"f:network":{}}}`)}, cluster.WriterNobody},
		{[]metav1.ManagedFieldsEntry{by("kubectl", `{"f:spec":{}}`), by(leaderManager, both)}, cluster.WriterLeader},
		{[]metav1.ManagedFieldsEntry{by("kubectl", host), by(leaderManager, both)}, cluster.WriterLeader},
		{[]metav1.ManagedFieldsEntry{by("kubectl", both), by(leaderManager, host)}, cluster.WriterOther},
		{[]metav1.ManagedFieldsEntry{by("ovnkube", host)}, cluster.WriterOther},
		{[]metav1.ManagedFieldsEntry{by(leaderManager, `{"f:status":{"f:conditions":{}}}`)}, cluster.WriterNobody},
	} {
		require.Equal(t, c.writer, writerOf(c.managed, fieldHost), "%+v", c.managed)
	}
}
