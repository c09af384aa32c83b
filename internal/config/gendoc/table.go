package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const end = "<!-- end of keys -->"

var begin = regexp.MustCompile(`<!-- keys of ([^ ]+|the file) -->`)

// section is one table, of the keys at and below a path.
type section struct{ path string }

// has reports whether a key is at or below the section's path. The top has every key: sectionOf prefers the longest
// path.
func (s section) has(k key) bool {
	return s.path == "" || k.path == s.path || strings.HasPrefix(k.path, s.path+".")
}

// shown returns a key as its table shows it: without the list's path, which the heading has.
func (s section) shown(k key) string {
	if strings.HasSuffix(s.path, "[]") {
		return strings.TrimPrefix(k.path, s.path+".")
	}
	return k.path
}

// rewrite replaces the tables in text by those of the package in folder.
func rewrite(folder, text string) (string, error) {
	s, err := read(folder)
	if err != nil {
		return "", err
	}
	all, err := keys(s)
	if err != nil {
		return "", err
	}
	var sections []section
	for _, m := range begin.FindAllStringSubmatch(text, -1) {
		sections = append(sections, section{strings.TrimPrefix(m[1], "the file")})
	}
	byTable := map[section][]key{}
	for _, k := range all {
		of, ok := sectionOf(sections, k)
		if !ok {
			return "", fmt.Errorf("key %s belongs in no table: none is of %q or above", k.path, k.path)
		}
		byTable[of] = append(byTable[of], k)
	}
	var out strings.Builder
	for {
		at := begin.FindStringSubmatchIndex(text)
		if at == nil {
			out.WriteString(text)
			return out.String(), nil
		}
		of := section{strings.TrimPrefix(text[at[2]:at[3]], "the file")}
		stop := strings.Index(text, end)
		if stop < at[1] {
			return "", fmt.Errorf("%q has no %q", text[at[0]:at[1]], end)
		}
		if len(byTable[of]) == 0 {
			return "", fmt.Errorf("%q: there is no such key; structs of the package: %s", text[at[0]:at[1]], strings.Join(s.types(), ", "))
		}
		out.WriteString(text[:at[1]] + "\n\n" + of.table(byTable[of]) + "\n" + end)
		text = text[stop+len(end):]
	}
}

// sectionOf returns a key's table: the one with the longest path.
func sectionOf(sections []section, k key) (section, bool) {
	having := slices.DeleteFunc(slices.Clone(sections), func(s section) bool { return !s.has(k) })
	if len(having) == 0 {
		return section{}, false
	}
	of := slices.MaxFunc(having, func(a, b section) int { return len(a.path) - len(b.path) })
	return of, of.path != "" || !strings.ContainsAny(k.path, ".[")
}

// table writes keys as Markdown. Keys of list entries have no variables, so their tables have no column for them.
func (s section) table(keys []key) string {
	env := slices.ContainsFunc(keys, func(k key) bool { return k.env != "" })
	var b strings.Builder
	b.WriteString("| key | type | default | |")
	if env {
		b.WriteString(" environment |")
	}
	b.WriteString("\n|---|---|---|---|")
	if env {
		b.WriteString("---|")
	}
	b.WriteByte('\n')
	for _, k := range keys {
		cells := []string{"`" + s.shown(k) + "`", k.kind, k.fallback, k.means}
		if env {
			cells = append(cells, k.env)
		}
		for _, c := range cells {
			b.WriteString("| " + strings.ReplaceAll(c, "|", `\|`))
			if c != "" {
				b.WriteByte(' ')
			}
		}
		b.WriteString("|\n")
	}
	return b.String()
}
