package deploy

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	architecture = "../docs/architecture.md"
	module       = "github.com/egressway/egressway/"
)

// packages returns the parsed production files of the daemon, by package as docs/architecture.md names them: without "internal/".
func packages(t *testing.T) map[string][]*ast.File {
	t.Helper()
	found := map[string][]*ast.File{}
	for _, root := range []string{"../internal", "../cmd/egressway", "../api/v1", "../api/v1alpha1"} {
		require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "testdata":
				return fs.SkipDir
			case filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			name := nameOf(strings.TrimPrefix(filepath.Dir(path), "../"))
			found[name] = append(found[name], f)
			return err
		}))
	}
	require.Greater(t, len(found), 20)
	return found
}

func nameOf(folder string) string { return strings.TrimPrefix(folder, "internal/") }

// rows returns the cells of the table rows in a section of docs/architecture.md, without its head.
func rows(t *testing.T, heading string) (found [][]string) {
	t.Helper()
	_, section, ok := strings.Cut(prose(t, architecture), "\n## "+heading+"\n")
	require.True(t, ok, heading)
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.SplitSeq(section, "\n") {
		if strings.HasPrefix(line, "| ") {
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			found = append(found, cells)
		}
	}
	require.Greater(t, len(found), 5, heading)
	return found[1:]
}

// quoted returns the words of a cell that are code.
func quoted(cell string) (words []string) {
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		words = append(words, m[1])
	}
	return words
}

// TestImportsPointDown compares the floors of docs/architecture.md with the imports.
func TestImportsPointDown(t *testing.T) {
	floors := map[string]int{}
	for _, row := range rows(t, "Rooms") {
		floor, err := strconv.Atoi(row[0])
		require.NoError(t, err)
		for _, p := range quoted(row[1]) {
			floors[p] = floor
		}
	}
	all := packages(t)
	require.ElementsMatch(t, slices.Collect(maps.Keys(all)), slices.Collect(maps.Keys(floors)), "packages, and those that %s has a floor for", architecture)
	for p, files := range all {
		for _, f := range files {
			for _, i := range f.Imports {
				path, err := strconv.Unquote(i.Path.Value)
				require.NoError(t, err)
				imported, ours := strings.CutPrefix(path, module)
				if !ours {
					continue
				}
				floor, known := floors[nameOf(imported)]
				require.True(t, known, "%s imports %s", p, path)
				require.Less(t, floor, floors[p], "%s imports %s", p, path)
			}
		}
	}
}

// TestGoroutinesAreListed compares the functions that start goroutines with docs/architecture.md.
func TestGoroutinesAreListed(t *testing.T) {
	var listed []string
	for _, row := range rows(t, "Goroutines") {
		listed = append(listed, quoted(row[0])...)
	}
	starting := map[string]bool{}
	for p, files := range packages(t) {
		for _, f := range files {
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && startsGoroutine(fn) {
					starting[p+"."+fn.Name.Name] = true
				}
			}
		}
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(starting)), listed, "functions that start goroutines, and those in %s", architecture)
}

// startsGoroutine looks for go statements, and for calls of a method Go: of WaitGroups and errgroups.
func startsGoroutine(fn *ast.FuncDecl) (found bool) {
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = true
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Go" {
				found = true
			}
		}
		return !found
	})
	return found
}

// TestLocksAreListed compares the mutexes with docs/architecture.md.
func TestLocksAreListed(t *testing.T) {
	var listed []string
	for _, row := range rows(t, "Locks") {
		listed = append(listed, quoted(row[0])...)
	}
	var locks []string
	for p, files := range packages(t) {
		for _, f := range files {
			for _, d := range f.Decls {
				for _, name := range mutexes(d) {
					locks = append(locks, p+"."+name)
				}
			}
		}
	}
	require.ElementsMatch(t, locks, listed, "mutexes, and those in %s", architecture)
}

// mutexes returns the fields and variables of a declaration that are mutexes, with the name of their struct or function.
func mutexes(d ast.Decl) (found []string) {
	within := ""
	add := func(names []*ast.Ident, typ ast.Expr) {
		s, ok := typ.(*ast.SelectorExpr)
		if !ok || s.Sel.Name != "Mutex" && s.Sel.Name != "RWMutex" {
			return
		}
		for _, n := range names {
			found = append(found, within+"."+n.Name)
		}
	}
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			within = n.Name.Name
		case *ast.TypeSpec:
			within = n.Name.Name
		case *ast.ValueSpec:
			add(n.Names, n.Type)
		case *ast.Field:
			add(n.Names, n.Type)
		}
		return true
	})
	return found
}

// TestPlansAreListed compares the fields that hold a plan, its data plane or its speakers with docs/architecture.md.
func TestPlansAreListed(t *testing.T) {
	var listed []string
	for _, row := range rows(t, "Memory") {
		listed = append(listed, quoted(row[0])...)
	}
	var holders []string
	for p, files := range packages(t) {
		for _, f := range files {
			for _, d := range f.Decls {
				holders = append(holders, planHolders(p, d)...)
			}
		}
	}
	require.ElementsMatch(t, holders, listed, "fields that hold plans, and those in %s", architecture)
}

// planHolders returns the types of a declaration whose fields or elements are plans, with the names of the fields.
func planHolders(pkg string, d ast.Decl) (found []string) {
	g, ok := d.(*ast.GenDecl)
	if !ok {
		return nil
	}
	for _, spec := range g.Specs {
		typ, ok := spec.(*ast.TypeSpec)
		if !ok {
			continue
		}
		fields, ok := typ.Type.(*ast.StructType)
		if !ok {
			if holdsPlan(pkg, typ.Type) {
				found = append(found, pkg+"."+typ.Name.Name)
			}
			continue
		}
		for _, field := range fields.Fields.List {
			if !holdsPlan(pkg, field.Type) {
				continue
			}
			if len(field.Names) == 0 {
				found = append(found, pkg+"."+typ.Name.Name)
			}
			for _, name := range field.Names {
				found = append(found, pkg+"."+typ.Name.Name+"."+name.Name)
			}
		}
	}
	return found
}

// holdsPlan reports whether a value of a type contains or points to a plan, its data plane or its speakers.
func holdsPlan(pkg string, typ ast.Expr) bool {
	name := func(n string) bool { return n == "NodePlan" || n == "DataPlane" || n == "Speaker" }
	switch e := typ.(type) {
	case *ast.Ident:
		return pkg == "plan" && name(e.Name)
	case *ast.SelectorExpr:
		from, ok := e.X.(*ast.Ident)
		return ok && from.Name == "plan" && name(e.Sel.Name)
	case *ast.StarExpr:
		return holdsPlan(pkg, e.X)
	case *ast.ArrayType:
		return holdsPlan(pkg, e.Elt)
	case *ast.MapType:
		return holdsPlan(pkg, e.Value)
	}
	return false
}

// TestTimersAreListed compares the packages' durations with docs/architecture.md, which sorts them.
func TestTimersAreListed(t *testing.T) {
	type timer struct {
		value         time.Duration
		pkg, constant string
	}
	var listed []string
	for _, row := range rows(t, "Timers") {
		require.NotEmpty(t, row[3], row)
		listed = append(listed, strings.Join(row[:3], " "))
	}
	var timers []timer
	for p, files := range packages(t) {
		for _, f := range files {
			for name, value := range durations(f) {
				timers = append(timers, timer{value, p, name})
			}
		}
	}
	slices.SortFunc(timers, func(a, b timer) int {
		return cmp.Or(cmp.Compare(a.value, b.value), cmp.Compare(a.pkg, b.pkg), cmp.Compare(a.constant, b.constant))
	})
	var have []string
	for _, c := range timers {
		have = append(have, fmt.Sprintf("%s %#q %#q", inUnits(c.value), c.pkg, c.constant))
	}
	require.Equal(t, strings.Join(have, "\n"), strings.Join(listed, "\n"), "durations of the packages, and those in %s", architecture)
}

// durations returns the constants and variables of a file's packages that are so many units of time, and the fields of such structs.
func durations(f *ast.File) map[string]time.Duration {
	found := map[string]time.Duration{}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range g.Specs {
			v, ok := s.(*ast.ValueSpec)
			if !ok {
				continue
			}
			for i, e := range v.Values {
				if value := duration(e); value > 0 {
					found[v.Names[i].Name] = value
				}
				fields, ok := e.(*ast.CompositeLit)
				if !ok {
					continue
				}
				for _, field := range fields.Elts {
					if kv, ok := field.(*ast.KeyValueExpr); ok && duration(kv.Value) > 0 {
						found[v.Names[i].Name+"."+kv.Key.(*ast.Ident).Name] = duration(kv.Value)
					}
				}
			}
		}
	}
	return found
}

// duration returns the value of an expression like 3 * time.Second; 0 for any other.
func duration(e ast.Expr) time.Duration {
	count := 1
	if product, ok := e.(*ast.BinaryExpr); ok && product.Op == token.MUL {
		if number, ok := product.X.(*ast.BasicLit); ok {
			count, _ = strconv.Atoi(number.Value)
			e = product.Y
		}
	}
	unit, ok := e.(*ast.SelectorExpr)
	if !ok {
		return 0
	}
	if from, ok := unit.X.(*ast.Ident); !ok || from.Name != "time" {
		return 0
	}
	units := map[string]time.Duration{"Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute, "Hour": time.Hour}
	return time.Duration(count) * units[unit.Sel.Name]
}

// inUnits writes a duration as the page does.
func inUnits(d time.Duration) string {
	for _, u := range []struct {
		name string
		of   time.Duration
	}{{"h", time.Hour}, {"min", time.Minute}, {"s", time.Second}} {
		if d%u.of == 0 {
			return fmt.Sprintf("%d %s", d/u.of, u.name)
		}
	}
	return fmt.Sprintf("%d ms", d/time.Millisecond)
}
