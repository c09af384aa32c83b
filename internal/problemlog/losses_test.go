package problemlog

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLosses(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	var l Losses
	now := time.Unix(1_000_000, 0)
	contested := func() (objects []string) {
		problems, _ := l.Problems("a", now)
		for _, p := range problems {
			require.Equal(t, reasonForeignHand, p.Reason)
			objects = append(objects, p.Value)
		}
		return objects
	}

	// Ten times a second for five minutes: a line a minute.
	for range 3000 {
		l.Add(log, []string{"rule"}, now)
		_, _ = l.Problems("a", now)
		now = now.Add(100 * time.Millisecond)
	}
	require.Equal(t, []string{"rule"}, contested())
	require.Equal(t, 5, strings.Count(out.String(), "\n"), out.String())
	require.Contains(t, out.String(), "objects=rule times=1\n")
	require.Contains(t, out.String(), "objects=rule times=600\n")

	now = now.Add(contestedFor - time.Second)
	problems, changed := l.Problems("a", now)
	require.Len(t, problems, 1)
	require.False(t, changed)
	now = now.Add(2 * time.Second)
	problems, changed = l.Problems("a", now)
	require.Empty(t, problems)
	require.True(t, changed)
	l.Add(log, nil, now)
	require.Contains(t, out.String(), "times=599", "all are logged")
	require.Empty(t, contested())
	require.Empty(t, l.objects)

	// Now and then is no problem; nor are many things at once, which are one line.
	out.Reset()
	now = now.Add(restoredEvery)
	for i := range 20 {
		l.Add(log, []string{"rule", fmt.Sprint("routes of table ", i)}, now)
		require.Empty(t, contested())
		now = now.Add(20 * time.Second)
	}
	require.Contains(t, out.String(), `objects="routes of table 0, rule" times=1`)
	require.Contains(t, out.String(), `objects="routes of table 1, routes of table 2, routes of table 3, rule" times=3`)
}
