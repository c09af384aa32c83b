package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// end is the line after a block.
const end = "<!-- end -->"

func begin(block string) string { return "<!-- bench:" + block + " -->" }

// origin says where figures come from.
type origin struct {
	command, commit, kernel string
	processors              int
	model                   string
}

func (o origin) String() string {
	var parts []string
	if o.command != "" {
		parts = append(parts, "`"+o.command+"`")
	}
	if o.commit != "" {
		parts = append(parts, "commit "+o.commit)
	}
	of := ""
	if o.model != "" {
		of = " (" + o.model + ")"
	}
	noun := "processors"
	if o.processors == 1 {
		noun = "processor"
	}
	parts = append(parts, "Linux "+o.kernel, fmt.Sprintf("%d %s%s", o.processors, noun, of))
	return strings.Join(parts, ", ") + "."
}

// replace puts figures into a block of a document, whose markers are lines by themselves.
func replace(document, block, figures string) (string, error) {
	if block == "" || strings.ContainsAny(block, "\n<>") {
		return "", fmt.Errorf("block %q: that is no name of one", block)
	}
	lines := strings.SplitAfter(document, "\n")
	from, to, err := find(lines, block)
	if err != nil {
		return "", err
	}
	return strings.Join(lines[:from+1], "") + strings.TrimSpace(figures) + "\n" + strings.Join(lines[to:], ""), nil
}

// find returns the indexes of the lines that begin and end a block.
func find(lines []string, block string) (from, to int, err error) {
	from, to = -1, -1
	for i, line := range lines {
		switch strings.TrimSpace(line) {
		case begin(block):
			if from >= 0 {
				return 0, 0, fmt.Errorf("block %q begins twice", block)
			}
			from = i
		case end:
			if from >= 0 && to < 0 {
				to = i
			}
		default:
			if from >= 0 && to < 0 && strings.HasPrefix(strings.TrimSpace(line), "<!-- bench:") {
				return 0, 0, fmt.Errorf("block %q does not end: a line %q is missing before the next block", block, end)
			}
		}
	}
	switch {
	case from < 0:
		return 0, 0, fmt.Errorf("block %q is missing: it begins with the line %q", block, begin(block))
	case to < 0:
		return 0, 0, fmt.Errorf("block %q does not end: a line %q is missing", block, end)
	}
	return from, to, nil
}

// rewrite puts figures into a block of a file. Another one that does so at the same time waits, and a reader sees the file as
// it was or as it is then.
func rewrite(file, block, figures string) (err error) {
	folder, err := os.Open(filepath.Dir(file)) // the file itself is another one afterwards
	if err != nil {
		return err
	}
	defer folder.Close()
	if err := unix.Flock(int(folder.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", folder.Name(), err)
	}
	before, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	after, err := replace(string(before), block, figures)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	aside, err := os.CreateTemp(filepath.Dir(file), ".bench-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(aside.Name())
		}
	}()
	_, err = aside.WriteString(after)
	if err := errors.Join(err, aside.Chmod(info.Mode().Perm()), aside.Close()); err != nil {
		return err
	}
	return os.Rename(aside.Name(), file)
}
