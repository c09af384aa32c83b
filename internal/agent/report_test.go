package agent

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
)

// TestVersionsFall: after etcd was restored from a backup, this node reports no version that the API server has yet to give to an object.
// Otherwise later changes would count as in force before they are.
func TestVersionsFall(t *testing.T) {
	web, batch := cluster.Key{Namespace: "shop", Name: "web"}, cluster.Key{Namespace: "shop", Name: "batch"}
	objects := func(web, batch uint64, host string) cluster.Objects {
		all := map[cluster.Key]cluster.EgressService{}
		ips := map[cluster.Key]cluster.EgressIP{}
		for name, version := range map[string]uint64{"web": web, "batch": batch} {
			if version > 0 {
				all[cluster.Key{Namespace: "shop", Name: name}] = cluster.EgressService{Version: version, Status: cluster.Status{Host: host}}
				ips[cluster.Key{Name: name}] = cluster.EgressIP{Version: version, Holders: []cluster.Holder{{Host: host}}}
			}
		}
		return cluster.Objects{EgressServices: cluster.MapOf(all), EgressIPs: cluster.MapOf(ips), PodsKnown: true}
	}
	f := inForce{pending: cluster.Everything()}
	for _, step := range []struct {
		text       string
		web, batch uint64
		host       string
		changed    []cluster.Key
		want       uint64
	}{
		{"all are read", 5000, 4000, "a", nil, 5000},
		{"web is as it was in the backup", 1000, 4000, "a", []cluster.Key{web}, 4000},
		{"batch as well", 1000, 900, "a", []cluster.Key{batch}, 1000},
		{"of another host", 1001, 900, "b", []cluster.Key{web}, 1000},
		{"a change of the restored server", 1001, 1002, "a", []cluster.Key{batch}, 1002},
		{"the newest is deleted", 1001, 0, "a", []cluster.Key{batch}, 1001},
		{"a change of the other", 1003, 0, "a", []cluster.Key{web}, 1003},
	} {
		o := objects(step.web, step.batch, step.host)
		for _, key := range step.changed {
			f.pending.Add(cluster.KindEgressService.ID(key))
		}
		require.Equal(t, step.want, f.advance(o, "a"), step.text)
		f.advanceIPs(o, "a")
		require.Equal(t, step.want, f.ipVersion, "%s, of EgressIPs", step.text)
	}
}

// TestNewestVersion compares the newest version by changes with that of all objects, also when versions fall and objects go.
func TestNewestVersion(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		f := inForce{pending: cluster.Everything()}
		var all cluster.Map[cluster.Key, cluster.EgressService]
		for step := range 200 {
			for range rng.IntN(3) {
				key := cluster.Key{Namespace: "shop", Name: fmt.Sprint(rng.IntN(6))}
				f.pending.Add(cluster.KindEgressService.ID(key))
				if all = all.Without(key); rng.IntN(3) > 0 {
					host := []string{"a", "b"}[rng.IntN(2)]
					all = all.With(key, cluster.EgressService{Version: 1 + rng.Uint64N(1000), Status: cluster.Status{Host: host}})
				}
			}
			reported := f.advance(cluster.Objects{EgressServices: all}, "a")
			newest := uint64(0)
			for _, e := range all.All() {
				newest = max(newest, e.Version)
				require.True(t, e.Status.Host != "a" || e.Version <= reported, "seed %d, step %d: %d is in force", seed, step, e.Version)
			}
			require.Equal(t, newest, f.newest, "seed %d, step %d", seed, step)
			require.LessOrEqual(t, reported, newest, "seed %d, step %d", seed, step)
		}
	}
}
