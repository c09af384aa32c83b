package figures

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSpans(t *testing.T) {
	var s Spans
	begin := time.Now()
	for i := range 100 {
		s.Add(begin, begin.Add(time.Duration(100-i)*time.Millisecond))
	}
	s.Add(begin, time.Time{})
	require.Equal(t, []string{"100", "50.0 ms", "90.0 ms", "99.0 ms", "100 ms"}, s.Columns())
	require.Equal(t, []string{"0", "", "", "", ""}, Spans{}.Columns())
}
