package election

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestResume(t *testing.T) {
	var before Choice
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
		before = Choice{Host: step.host, Standby: step.standby}.Resume(before)
		require.Equal(t, step.former, before.Former, "%+v", step)
	}
}
