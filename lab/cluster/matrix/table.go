package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

func printTable(files []string) error {
	var columns []column
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var c column
		if err := json.Unmarshal(b, &c); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		columns = append(columns, c)
	}
	fmt.Print(markdown(columns))
	return nil
}

// markdown has a line for each behaviour and a column for each cluster.
func markdown(columns []column) string {
	var b strings.Builder
	b.WriteString("| |")
	for _, c := range columns {
		fmt.Fprintf(&b, " %s, %s |", c.CNI, c.Proxy)
	}
	b.WriteString("\n|" + strings.Repeat("---|", len(columns)+1) + "\n")
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |", row.name)
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", cell(c, row.name))
		}
		b.WriteString("\n")
	}
	return b.String()
}

var loss = regexp.MustCompile(`\b(\d+ lost)(?: \(\d+ of them answers\), (silent for up to \d+ ms))?`)

// cell is a result in a few words: the first loss that was seen, if the row counted packets.
func cell(c column, row string) string {
	i := slices.IndexFunc(c.Results, func(r result) bool { return r.Name == row })
	if i < 0 {
		return "not run"
	}
	r := c.Results[i]
	lost, seen := lossOf(r.Seen)
	switch {
	case strings.Contains(r.Seen, "LEAK"):
		return "**LEAK**"
	case r.Seen == lacking:
		return lacking
	case lost < 0 && r.Failed:
		return "**failed**"
	case lost < 0:
		return "yes"
	case r.Failed:
		return "**no**: " + seen
	}
	return "yes, " + seen
}

// lossOf finds the first loss in a result's text: how many packets, -1 if it counted none, and in words.
func lossOf(text string) (lost int, seen string) {
	m := loss.FindStringSubmatch(text)
	if m == nil {
		return -1, ""
	}
	_, _ = fmt.Sscan(m[1], &lost)
	return lost, strings.TrimSuffix(m[1]+", "+m[2], ", ")
}
