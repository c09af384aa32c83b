// Figures prints how dense and how readable the code of each package is: make figures. A decision is a unit of cyclomatic
// complexity: one for the function, and one for each if, for, case, && and ||. Decisions for 10 lines, and the functions
// with more than 0.35 decisions a line, are of functions of 15 lines or more; the percentage is of all functions. Generated
// files, tests and testdata do not count.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// counts are the figures of a package, or of all.
type counts struct {
	files              int
	functions          int
	lines, decisions   int // of functions of 15 lines or more
	dense              int // such functions with more than 0.35 decisions a line
	complex            int // functions with a cyclomatic complexity above 15
	sentences, markers int // of comments
}

func (c *counts) add(o counts) {
	c.files += o.files
	c.functions += o.functions
	c.lines += o.lines
	c.decisions += o.decisions
	c.dense += o.dense
	c.complex += o.complex
	c.sentences += o.sentences
	c.markers += o.markers
}

const (
	longEnough = 15   // lines of a function whose density counts
	densest    = 0.35 // decisions a line
	branchy    = 15   // cyclomatic complexity
)

func main() {
	show := flag.String("show", "", "print the sentences with a marker, and the functions with more than 0.35 decisions a line, in "+
		"packages whose path begins so")
	flag.Parse()
	if err := run(*show, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

func run(show string, roots []string) error {
	if len(roots) == 0 {
		roots = []string{"api", "cmd", "internal", "lab", "release"}
	}
	packages, err := measureAll(roots, func(path, finding string) {
		if show != "" && strings.HasPrefix(path, show) {
			fmt.Fprintf(os.Stdout, "%s: %s\n", path, finding)
		}
	})
	if err != nil {
		return err
	}
	if show != "" {
		return nil
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "package\tfiles\tfunctions\tdecisions/10 lines\t> 0.35 a line\tcyclomatic > 15\tsentences\twith a marker\t")
	names := make([]string, 0, len(packages))
	var daemon, all counts
	for name, c := range packages {
		names = append(names, name)
		all.add(*c)
		if strings.HasPrefix(name, "cmd/") || strings.HasPrefix(name, "internal/") {
			daemon.add(*c)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(packages[b].share(), packages[a].share()), cmp.Compare(a, b))
	})
	for _, name := range names {
		packages[name].print(table, name)
	}
	daemon.print(table, "cmd and internal")
	all.print(table, "all")
	return table.Flush()
}

// measureAll measures the packages below roots, by folder, and calls found for each sentence with a marker and each dense function.
func measureAll(roots []string, found func(path, finding string)) (map[string]*counts, error) {
	packages := map[string]*counts{}
	for _, root := range roots {
		err := walk(root, func(path string) error {
			c, findings, err := measure(path)
			if err != nil {
				return err
			}
			dir := filepath.Dir(path)
			if packages[dir] == nil {
				packages[dir] = &counts{}
			}
			packages[dir].add(c)
			for _, f := range findings {
				found(path, f)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return packages, nil
}

// share is the part of sentences that have a marker, in percent.
func (c *counts) share() float64 { return 100 * float64(c.markers) / float64(max(c.sentences, 1)) }

func (c *counts) print(w *tabwriter.Writer, name string) {
	fmt.Fprintf(w, "%s\t%d\t%d\t%.2f\t%d (%.1f %%)\t%d\t%d\t%.1f %%\t\n",
		name, c.files, c.functions, 10*float64(c.decisions)/float64(max(c.lines, 1)),
		c.dense, 100*float64(c.dense)/float64(max(c.functions, 1)), c.complex, c.sentences, c.share())
}

// walk calls do for the files of production code below root.
func walk(root string, do func(path string) error) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == "testdata" {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(d.Name(), "zz_") {
			return nil
		}
		return do(path)
	})
}

// measure returns the figures of a file, its sentences with a marker and its dense functions.
func measure(path string) (c counts, findings []string, err error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return c, nil, err
	}
	c.files = 1
	for _, text := range comments(f) {
		for _, s := range sentences(text) {
			c.sentences++
			if markers.MatchString(s) {
				c.markers++
				findings = append(findings, s)
			}
		}
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		lines := set.Position(fn.End()).Line - set.Position(fn.Pos()).Line + 1
		n := decisions(fn.Body)
		c.functions++
		if lines >= longEnough {
			c.lines += lines
			c.decisions += n
			if float64(n) > densest*float64(lines) {
				c.dense++
				findings = append(findings, fmt.Sprintf("%s has %d decisions in %d lines", fn.Name.Name, n, lines))
			}
		}
		if n > branchy {
			c.complex++
		}
	}
	return c, findings, nil
}

// decisions returns the cyclomatic complexity of a function.
func decisions(body ast.Node) int {
	n := 1
	ast.Inspect(body, func(node ast.Node) bool {
		if decides(node) {
			n++
		}
		return true
	})
	return n
}

func decides(node ast.Node) bool {
	switch node := node.(type) {
	case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
		return true
	case *ast.CaseClause:
		return node.List != nil
	case *ast.CommClause:
		return node.Comm != nil
	case *ast.BinaryExpr:
		return node.Op == token.LAND || node.Op == token.LOR
	}
	return false
}
