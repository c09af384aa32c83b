package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// table is a Markdown table: its rows, each by its first cell, under the names of its columns.
type table struct {
	columns []string
	rows    [][]string
}

// tables returns the tables of a section: from the line that is its heading to the next heading.
func tables(document, heading string) (all []table, err error) {
	_, section, found := strings.Cut(document, "\n"+heading+"\n")
	if !found {
		return nil, fmt.Errorf("no heading %q", heading)
	}
	inside := false
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			break
		}
		if !strings.HasPrefix(line, "|") {
			inside = false
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if !inside {
			all = append(all, table{columns: cells})
			inside = true
			continue
		}
		if strings.Trim(line, "|- ") == "" {
			continue // the line below the names
		}
		t := &all[len(all)-1]
		t.rows = append(t.rows, cells)
	}
	return all, nil
}

// column returns the number of a column.
func (t table) column(name string) (int, error) {
	for i, c := range t.columns {
		if c == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("no column %q", name)
}

// cell returns the text in a column of the row that begins with the given cells.
func (t table) cell(column string, row ...string) (string, error) {
	at, err := t.column(column)
	if err != nil {
		return "", err
	}
	for _, r := range t.rows {
		if len(r) > at && len(r) >= len(row) && strings.Join(r[:len(row)], "|") == strings.Join(row, "|") {
			return r[at], nil
		}
	}
	return "", fmt.Errorf("no row %q", strings.Join(row, ", "))
}

// number parses 1,234.
func number(s string) (float64, error) {
	return strconv.ParseFloat(strings.ReplaceAll(s, ",", ""), 64)
}

// milliseconds parses "5.34 ms" and "1.3 s".
func milliseconds(s string) (float64, error) {
	d, err := time.ParseDuration(strings.ReplaceAll(s, " ", ""))
	return float64(d) / float64(time.Millisecond), err
}
