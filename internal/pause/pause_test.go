package pause

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFor(t *testing.T) {
	require.True(t, For(t.Context(), time.Millisecond))
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, stop)
	require.False(t, For(ctx, time.Hour))
}
