// Package figures formats the results of benchmarks: tables of Markdown, and numbers of three digits with their spread.
package figures

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// Table is one of Markdown.
type Table struct{ rows [][]string }

// NewTable begins a table with the names of its columns.
func NewTable(head ...string) *Table {
	rule := make([]string, len(head))
	for i := range rule {
		rule[i] = "---"
	}
	return &Table{rows: [][]string{head, rule}}
}

// Add adds a row.
func (t *Table) Add(row ...string) { t.rows = append(t.rows, row) }

// Print writes the table, and an empty line.
func (t *Table) Print(out io.Writer) {
	for _, row := range t.rows {
		fmt.Fprintf(out, "| %s |\n", strings.Join(row, " | "))
	}
	fmt.Fprintln(out)
}

// Quartiles returns the lower quartile, the median and the upper quartile of values, between which it interpolates;
// NaN: there are no values.
func Quartiles(values []float64) (lower, median, upper float64) {
	v := slices.Sorted(slices.Values(values))
	at := func(share float64) float64 {
		if len(v) == 0 {
			return math.NaN()
		}
		x := share * float64(len(v)-1)
		i := int(x)
		if i+1 >= len(v) {
			return v[i]
		}
		return v[i] + (x-float64(i))*(v[i+1]-v[i])
	}
	return at(.25), at(.5), at(.75)
}

// Ratios divides two measurements of each round.
func Ratios(over, under []float64) (all []float64) {
	for i := range min(len(over), len(under)) {
		all = append(all, over[i]/under[i])
	}
	return all
}

// Ratio returns the median of ratios and their quartiles; empty: there are no ratios.
func Ratio(ratios []float64) string {
	if len(ratios) == 0 {
		return ""
	}
	lower, median, upper := Quartiles(ratios)
	return fmt.Sprintf("%.2f (%.2f to %.2f)", median, lower, upper)
}

// Times are durations in seconds.
type Times []float64

// Add takes one in.
func (t *Times) Add(d time.Duration) { *t = append(*t, d.Seconds()) }

// String is the median, and behind it the least and the most.
func (t Times) String() string {
	if len(t) == 0 {
		return ""
	}
	_, median, _ := Quartiles(t)
	in := func(seconds float64) string { return Duration(time.Duration(seconds * float64(time.Second))) }
	return fmt.Sprintf("%s (%s to %s)", in(median), in(slices.Min(t)), in(slices.Max(t)))
}

// Duration has three digits.
func Duration(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch {
	case math.Abs(ms) < 10:
		return fmt.Sprintf("%.2f ms", ms)
	case math.Abs(ms) < 100:
		return fmt.Sprintf("%.1f ms", ms)
	case math.Abs(ms) < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f s", ms/1000)
}

// Count has commas between thousands.
func Count(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
