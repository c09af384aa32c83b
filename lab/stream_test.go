package lab

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStoodSince adds up the time for which nothing ran since a question.
func TestStoodSince(t *testing.T) {
	asked := time.Now()
	s := Stream{stood: []Delay{{At: asked.Add(-time.Second), By: time.Second}}}
	require.False(t, s.stoodSince(asked), "before the question")
	s.stood = append(s.stood, Delay{At: asked.Add(200 * time.Millisecond), By: 250 * time.Millisecond})
	require.False(t, s.stoodSince(asked))
	s.stood = append(s.stood, Delay{At: asked.Add(600 * time.Millisecond), By: 150 * time.Millisecond})
	require.True(t, s.stoodSince(asked))
	require.False(t, s.stoodSince(asked.Add(500*time.Millisecond)))
}
