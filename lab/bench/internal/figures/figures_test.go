package figures

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuartiles(t *testing.T) {
	lower, median, upper := Quartiles([]float64{4, 1, 3, 2, 5})
	require.Equal(t, []float64{2, 3, 4}, []float64{lower, median, upper})
	lower, median, upper = Quartiles([]float64{1, 2})
	require.Equal(t, []float64{1.25, 1.5, 1.75}, []float64{lower, median, upper})
	_, median, _ = Quartiles(nil)
	require.True(t, math.IsNaN(median))
}

func TestRatio(t *testing.T) {
	require.Equal(t, "2.00 (1.50 to 2.50)", Ratio(Ratios([]float64{1, 4, 9}, []float64{1, 2, 3})))
	require.Empty(t, Ratio(Ratios([]float64{1}, nil)))
}

func TestTimes(t *testing.T) {
	var all Times
	for _, ms := range []int{1500, 20, 300} {
		all.Add(time.Duration(ms) * time.Millisecond)
	}
	require.Equal(t, "300 ms (20.0 ms to 1.50 s)", all.String())
	require.Equal(t, "1.50 ms", Duration(1500*time.Microsecond))
}

func TestCount(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -999: "-999", -1000: "-1,000"} {
		require.Equal(t, want, Count(n))
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	x := NewTable("a", "b")
	x.Add("1", "2")
	x.Print(&out)
	require.Equal(t, "| a | b |\n| --- | --- |\n| 1 | 2 |\n\n", out.String())
}

func TestReadProcess(t *testing.T) {
	p, err := ReadProcess(os.Getpid())
	require.NoError(t, err)
	require.Positive(t, p.Now)
	require.GreaterOrEqual(t, p.Peak, p.Now)
}
