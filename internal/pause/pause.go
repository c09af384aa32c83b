// Package pause waits for a while, or shorter.
package pause

import (
	"context"
	"time"
)

// For waits, and reports whether ctx still goes on then.
func For(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
