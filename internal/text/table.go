package text

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Table aligns cells in columns. Unlike text/tabwriter's, coloured cells have the width of their text.
type Table struct {
	rows [][]cell
	// Indent is written before each row.
	Indent string
}

type cell struct {
	text  string
	paint func(string) string
}

// Cell returns text in a colour; without paint, in none.
func Cell(text string, paint func(string) string) any { return cell{Line(text), paint} }

// Row adds a row of strings and Cells. It escapes characters that would break a line or a terminal.
func (t *Table) Row(cells ...any) {
	row := make([]cell, len(cells))
	for i, c := range cells {
		switch c := c.(type) {
		case cell:
			row[i] = c
		case string:
			row[i] = cell{text: Line(c)}
		}
	}
	t.rows = append(t.rows, row)
}

// gap separates columns.
const gap = "  "

// Write writes the rows, without trailing blanks.
func (t *Table) Write(out io.Writer) error {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	var b strings.Builder
	for _, row := range t.rows {
		last := len(row)
		for last > 0 && row[last-1].text == "" {
			last--
		}
		if last > 0 {
			b.WriteString(t.Indent)
		}
		for i, c := range row[:last] {
			painted := c.text
			if c.paint != nil {
				painted = c.paint(c.text)
			}
			b.WriteString(painted)
			if i < last-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text)) + gap)
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(out, b.String())
	return err
}
