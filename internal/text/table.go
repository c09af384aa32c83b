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
	widths := t.widths()
	var b strings.Builder
	for _, row := range t.rows {
		t.writeRow(&b, row, widths)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// widths returns the width of each column, in characters.
func (t *Table) widths() (widths []int) {
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], c.width())
		}
	}
	return widths
}

func (t *Table) writeRow(b *strings.Builder, row []cell, widths []int) {
	row = withoutTail(row)
	if len(row) > 0 {
		b.WriteString(t.Indent)
	}
	for i, c := range row {
		b.WriteString(c.painted())
		if i < len(row)-1 {
			b.WriteString(strings.Repeat(" ", widths[i]-c.width()) + gap)
		}
	}
	b.WriteByte('\n')
}

// withoutTail returns a row without the empty cells at its end.
func withoutTail(row []cell) []cell {
	for len(row) > 0 && row[len(row)-1].text == "" {
		row = row[:len(row)-1]
	}
	return row
}

func (c cell) width() int { return utf8.RuneCountInString(c.text) }

func (c cell) painted() string {
	if c.paint == nil {
		return c.text
	}
	return c.paint(c.text)
}
