package chaos

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// table is the rows of all kinds that happened, in the order of the kinds.
func (r *run) table(kinds []string) (all []Row) {
	for _, k := range kinds {
		if row := r.rows[k]; row != nil {
			all = append(all, *row)
		}
	}
	return all
}

// Print writes the table.
func (result Result) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  fault\tcount\tprobes lost\tsessions broken\tleaks\tworst recovery ms\tlimit\tlongest stall ms"+
		"\twhole again s\texcused\tlate ms")
	for _, row := range result.Rows {
		mark := "✔"
		if row.Failed > 0 {
			mark = "✘"
		}
		fmt.Fprintf(t, "%s %s\t%d\t%d\t%d\t%d\t%d\t%s\t%d\t%.1f\t%d\t%d\n", mark, row.Fault, row.Count, row.Lost, row.Broken, row.Leaks,
			row.Recovery.Milliseconds(), row.Limit, row.Stall.Milliseconds(), row.Settled.Seconds(), row.Excused, row.Late.Milliseconds())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%d questions answered; a router sent to two nodes %d times, for %d ms at most %s\n",
		result.Questions, result.Brains.Times, result.Brains.Longest.Milliseconds(), result.Brains.Where)
	return err
}
