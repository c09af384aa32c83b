package election

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
)

func TestResume(t *testing.T) {
	key := cluster.Key{Namespace: "shop", Name: "web"}
	before := map[cluster.Key]Choice{}
	for _, step := range []struct {
		host, standby string
		former        bool
	}{
		{"a", "b", false},
		{"a", "b", false},
		{"b", "a", true},
		{"b", "a", true},
		{"b", "c", false},
		{"b", "a", false},
		{"c", "a", false}, // a was a standby only
		{"a", "c", true},
		{"a", "", false},
		{"", "", false},
		{"b", "a", false},
	} {
		now := map[cluster.Key]Choice{key: {Host: step.host, Standby: step.standby}}
		Resume(before, now)
		require.Equal(t, step.former, now[key].Former, "%+v", step)
		before = now
	}
}
