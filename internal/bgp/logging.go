package bgp

import (
	"context"
	"log/slog"
	"sync/atomic"
)

// quieter passes GoBGP's log on with lower levels: errors as warnings, everything else as debug messages. GoBGP logs,
// for example, each connection attempt, and we log session changes from its events.
type quieter struct {
	slog.Handler
	ended *atomic.Bool // drop everything once this is set
}

func quieterLevel(l slog.Level) slog.Level {
	if l >= slog.LevelError {
		return slog.LevelWarn
	}
	return min(l, slog.LevelDebug)
}

// Enabled implements slog.Handler.
func (q quieter) Enabled(ctx context.Context, l slog.Level) bool {
	return !q.ended.Load() && q.Handler.Enabled(ctx, quieterLevel(l))
}

// Handle implements slog.Handler.
func (q quieter) Handle(ctx context.Context, r slog.Record) error {
	r.Level = quieterLevel(r.Level)
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (q quieter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quieter{q.Handler.WithAttrs(attrs), q.ended}
}

// WithGroup implements slog.Handler.
func (q quieter) WithGroup(name string) slog.Handler {
	return quieter{q.Handler.WithGroup(name), q.ended}
}
