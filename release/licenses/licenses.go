// Package licenses finds the licence texts of the modules in a Go program, and the licences that they are.
package licenses

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

// Stdlib is the name of the standard library among modules.
const Stdlib = "stdlib"

// Module is a module as it was linked into a program: where it is replaced, the module that replaces it.
type Module struct {
	Path, Version string
	Declared      string // SPDX expression (SPDX 2.3, annex D) of all texts
	Texts         []Text
}

// Text is a file that states a licence, or a notice that goes with one.
type Text struct {
	Name    string // inside of the module
	Content []byte
}

// name matches files that state licences. A licence may ask for more than its own text to be passed on: NOTICE, PATENTS, AUTHORS.
var name = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|patents|authors|contributors)([._-].*)?$`)

// stating matches those among them that must be a known licence.
var stating = regexp.MustCompile(`(?i)^(licen[cs]e|copying)([._-].*)?$`)

// Of lists the program itself, the standard library, and the modules of a program, in the order of their paths. dir is
// a folder inside of the program's own module. The texts are those of the module cache, which go.sum vouches for.
func Of(info *debug.BuildInfo, dir string) ([]Module, error) {
	folders, err := folders(info, dir)
	if err != nil {
		return nil, err
	}
	all := make([]Module, 0, len(folders))
	for _, f := range folders {
		m, err := read(f)
		if err != nil {
			return nil, fmt.Errorf("licence of module %s %s: %w", f.Path, f.Version, err)
		}
		all = append(all, m)
	}
	slices.SortFunc(all[1:], func(a, b Module) int { return cmp.Compare(a.Path, b.Path) })
	return all, nil
}

// folder is where a module's files are.
type folder struct {
	Path, Version, Dir string
	Error              string
	alone              bool // it holds more than goes into programs: only the texts at its top count
}

// folders finds the program's own module, which is the first, the standard library, and all others.
func folders(info *debug.BuildInfo, dir string) ([]folder, error) {
	root, err := run(dir, "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return nil, err
	}
	goroot, err := run(dir, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	all := []folder{
		{Path: info.Main.Path, Dir: strings.TrimSpace(string(root)), alone: true},
		{
			Path: Stdlib, Version: strings.TrimPrefix(strings.Fields(info.GoVersion)[0], "go"),
			Dir: strings.TrimSpace(string(goroot)), alone: true,
		},
	}
	args := []string{"mod", "download", "-json"}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		if m.Version == "" {
			return nil, fmt.Errorf("module %s is a folder of the machine that built the program", m.Path)
		}
		args = append(args, m.Path+"@"+m.Version)
	}
	if len(info.Deps) == 0 {
		return all, nil
	}
	out, err := run(dir, args...)
	if err != nil {
		return nil, err
	}
	for in := json.NewDecoder(bytes.NewReader(out)); ; {
		var f folder
		switch err := in.Decode(&f); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("decode the answer of go mod download: %w", err)
		case f.Error != "":
			return nil, errors.New(f.Error)
		}
		all = append(all, f)
	}
}

func run(dir string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w: %s", strings.Join(args[:min(len(args), 3)], " "), err, stderr.Bytes())
	}
	return out, nil
}

// read reads the texts of a module and names their licences.
func read(f folder) (Module, error) {
	m := Module{Path: f.Path, Version: f.Version}
	declared := map[string]bool{}
	err := f.texts(func(file string) error {
		content, err := os.ReadFile(filepath.Join(f.Dir, filepath.FromSlash(file)))
		if err != nil {
			return err
		}
		m.Texts = append(m.Texts, Text{file, content})
		if !stating.MatchString(path.Base(file)) {
			return nil
		}
		ids := identify(content)
		if len(ids) == 0 {
			return fmt.Errorf("%s is no licence that this program knows", file)
		}
		for _, id := range ids {
			declared[id] = true
		}
		return nil
	})
	if err != nil {
		return m, err
	}
	if len(declared) == 0 {
		return m, fmt.Errorf("%s has no file LICENSE or COPYING", f.Dir)
	}
	m.Declared = strings.Join(slices.Sorted(maps.Keys(declared)), " AND ")
	return m, nil
}

// texts calls visit with each file of a module that may state its licence.
func (f folder) texts(visit func(file string) error) error {
	return fs.WalkDir(os.DirFS(f.Dir), ".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != "." && (f.alone || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || !name.MatchString(d.Name()) || strings.HasSuffix(file, ".go"):
			return nil
		}
		return visit(file)
	})
}

// licences are known by sentences that no other one has, with blanks, marks and case taken out.
var licences = []struct {
	id      string
	has     []string
	without string
}{
	{"Apache-2.0", []string{"Apache License Version 2.0, January 2004"}, ""},
	{"Apache-2.0", []string{"Licensed under the Apache License, Version 2.0"}, ""},
	{"MIT", []string{
		"Permission is hereby granted, free of charge, to any person obtaining a copy",
		"this permission notice shall be included in all copies or substantial portions of the Software",
	}, ""},
	{"ISC", []string{
		"Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted",
	}, ""},
	{"ISC", []string{
		"Permission to use, copy, modify, and distribute this software for any purpose with or without fee is hereby granted",
	}, ""},
	{"BSD-3-Clause", []string{
		"Redistribution and use in source and binary forms, with or without modification, are permitted",
		"endorse or promote products derived from",
	}, "advertising materials mentioning features"},
	{"BSD-2-Clause", []string{
		"Redistribution and use in source and binary forms, with or without modification, are permitted",
	}, "endorse or promote products derived from"},
	{"MPL-2.0", []string{"Mozilla Public License Version 2.0"}, ""},
}

var filler = regexp.MustCompile(`[^a-z0-9]+`)

func plain(s string) string { return filler.ReplaceAllString(strings.ToLower(s), " ") }

// identify names the licences that a text holds. It knows those that the modules of this repository have.
func identify(text []byte) (ids []string) {
	t := plain(string(text))
	for _, l := range licences {
		if l.without != "" && strings.Contains(t, plain(l.without)) || slices.Contains(ids, l.id) {
			continue
		}
		if !slices.ContainsFunc(l.has, func(s string) bool { return !strings.Contains(t, plain(s)) }) {
			ids = append(ids, l.id)
		}
	}
	return ids
}

// Write writes all texts into one, each under the module and the file that it is of.
func Write(w io.Writer, all []Module) error {
	for _, m := range all {
		for _, t := range m.Texts {
			_, err := fmt.Fprintf(w, "%s\n%s: %s\n%s\n\n%s\n\n",
				line, strings.TrimSpace(m.Path+" "+m.Version), t.Name, line, bytes.TrimSpace(t.Content))
			if err != nil {
				return err
			}
		}
	}
	return nil
}

var line = strings.Repeat("=", 80)
