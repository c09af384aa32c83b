package speaker

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// BenchmarkChange takes one announcement of many back, or makes it again, as an agent does.
func BenchmarkChange(b *testing.B) {
	for _, size := range []int{1, 10000} {
		b.Run(fmt.Sprintf("%d announced", size), func(b *testing.B) {
			r := router{port: 1}
			path := filepath.Join(b.TempDir(), "s.sock")
			serve(b, path)
			c, _ := drive(b, ClientOptions{Socket: path, Version: "v1"})
			ready(b, c)
			all := r.speaker()
			var announce []plan.Announcement
			var refuse []plan.Prefix
			for i := range size {
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)
				announce, refuse = append(announce, plan.Announcement{Prefix: p}), append(refuse, plan.Prefix{Prefix: p})
			}
			all.Announce, all.Refuse = sorted.Of(announce...), sorted.Of(refuse...)
			less := all
			less.Announce = all.Announce.With(nil, []plan.Announcement{announce[size/2]})
			require.NoError(b, c.Apply(b.Context(), []plan.Speaker{all}))
			wanted := []plan.Speaker{less}
			for b.Loop() {
				require.NoError(b, c.Withdraw(b.Context(), wanted))
				require.NoError(b, c.Apply(b.Context(), wanted))
				if wanted[0].Announce.Len() == size {
					wanted = []plan.Speaker{less}
				} else {
					wanted = []plan.Speaker{all}
				}
			}
		})
	}
}
