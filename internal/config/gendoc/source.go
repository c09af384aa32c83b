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
	empty    map[string][]string // the empty string, if a constant of the type is
}

// read parses the Go files of a folder, except tests.
func read(folder string) (source, error) {
	s := source{comments: map[string]string{}, choices: map[string][]string{}, empty: map[string][]string{}}
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
		s.add(f)
	}
	if len(s.comments) == 0 {
		return s, fmt.Errorf("%s: no struct with comments: not the folder of package config", folder)
	}
	return s, nil
}

func (s source) add(f *ast.File) {
	for _, decl := range f.Decls {
		g, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range g.Specs {
			s.spec(spec)
		}
	}
}

func (s source) spec(spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		if t, ok := spec.Type.(*ast.StructType); ok {
			s.fields(spec.Name.Name, t.Fields.List)
		}
	case *ast.ValueSpec:
		if t, ok := spec.Type.(*ast.Ident); ok && len(spec.Values) == 1 {
			s.choice(t.Name, spec.Values[0])
		}
	}
}

// fields adds the comments of a struct's fields.
func (s source) fields(structName string, fields []*ast.Field) {
	for _, field := range fields {
		for _, name := range field.Names {
			s.comments[structName+"."+name.Name] = commentOf(field)
		}
	}
}

// choice adds a constant of a type, if it is a string.
func (s source) choice(typeName string, constant ast.Expr) {
	literal, ok := constant.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return
	}
	switch text, err := strconv.Unquote(literal.Value); {
	case err != nil:
	case text == "":
		s.empty[typeName] = []string{""}
	default:
		s.choices[typeName] = append(s.choices[typeName], text)
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
