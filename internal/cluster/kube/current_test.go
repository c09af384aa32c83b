package kube

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
)

// current: a Cluster finds out that its watches have not told all yet.
func (s *site) current(t *testing.T) {
	r := read(t, s.kubeconfig)
	r.untilWell(t)
	s.Apply(t, webService)
	r.until(t, "the new object", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool {
		_, ok := o.EgressServices.Get(web)
		return ok
	})
	require.NoError(t, r.Current(t.Context()))
	known := func(change func(all *cluster.Draft[cluster.Key, cluster.EgressService])) {
		r.mu.Lock()
		defer r.mu.Unlock()
		change(&r.egressServices.objects)
	}
	var as cluster.EgressService
	known(func(all *cluster.Draft[cluster.Key, cluster.EgressService]) {
		as = all.At(web)
		older := as
		older.Version--
		all.Set(web, older)
	})
	require.ErrorIs(t, r.Current(t.Context()), errBehind, "an older version")
	known(func(all *cluster.Draft[cluster.Key, cluster.EgressService]) { all.Delete(web) })
	require.ErrorIs(t, r.Current(t.Context()), errBehind, "one less")
	known(func(all *cluster.Draft[cluster.Key, cluster.EgressService]) {
		all.Set(web, as)
		all.Set(cluster.Key{Namespace: "default", Name: "gone"}, as)
	})
	require.ErrorIs(t, r.Current(t.Context()), errBehind, "one more")
	known(func(all *cluster.Draft[cluster.Key, cluster.EgressService]) {
		all.Delete(cluster.Key{Namespace: "default", Name: "gone"})
	})
	require.NoError(t, r.Current(t.Context()))
}
