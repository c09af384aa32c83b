package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// source holds the parts of package config's files that reflection does not see.
type source struct {
	comments map[string]string   // comments of fields, by Type.Field
	choices  map[string][]string // constants of a string type, in order, without the empty string
}

// read parses the Go files of a folder, except tests.
func read(folder string) (source, error) {
	s := source{comments: map[string]string{}, choices: map[string][]string{}}
	names, err := fs.Glob(os.DirFS(folder), "*.go")
	if err != nil {
		return s, err
	}
	fset := token.NewFileSet()
	for _, name := range slices.Sorted(slices.Values(names)) {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, filepath.Join(folder, name), nil, parser.ParseComments)
		if err != nil {
			return s, err
		}
		for _, decl := range f.Decls {
			if g, ok := decl.(*ast.GenDecl); ok {
				for _, spec := range g.Specs {
					s.spec(spec)
				}
			}
		}
	}
	if len(s.comments) == 0 {
		return s, fmt.Errorf("%s: no struct with comments: not the folder of package config", folder)
	}
	return s, nil
}

func (s source) spec(spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		if t, ok := spec.Type.(*ast.StructType); ok {
			for _, field := range t.Fields.List {
				for _, name := range field.Names {
					s.comments[spec.Name.Name+"."+name.Name] = commentOf(field)
				}
			}
		}
	case *ast.ValueSpec:
		t, ok := spec.Type.(*ast.Ident)
		if !ok || len(spec.Values) != 1 {
			return
		}
		if value, ok := spec.Values[0].(*ast.BasicLit); ok && value.Kind == token.STRING {
			if text, err := strconv.Unquote(value.Value); err == nil && text != "" {
				s.choices[t.Name] = append(s.choices[t.Name], text)
			}
		}
	}
}

// commentOf returns the comment above a field or behind it, on one line.
func commentOf(field *ast.Field) string {
	text := field.Doc.Text()
	if text == "" {
		text = field.Comment.Text()
	}
	return strings.Join(strings.Fields(text), " ")
}

// types returns the names of all structs with comments, for messages.
func (s source) types() []string {
	names := map[string]bool{}
	for key := range s.comments {
		name, _, _ := strings.Cut(key, ".")
		names[name] = true
	}
	return slices.Sorted(maps.Keys(names))
}
