// Command sbom lists the parts of a Go program as SPDX 2.3 in JSON (https://spdx.github.io/spdx-spec/v2.3): the program
// itself with its SHA-256, every module that the linker put into it, and the standard library. It reads the linker's
// records in the program, nothing else, so it needs neither source nor network; the same program gives the same bytes.
package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"
	"unicode"

	"github.com/egressway/egressway/release/licenses"
)

func main() {
	version := flag.String("version", "devel", "version of the program")
	texts := flag.String("licenses", "", "file to write the texts of all licences to")
	created := flag.Int64("created", 0, "time of the document, in seconds since 1970: that of the commit, to be reproducible")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: sbom [-version V] [-created SECONDS] [-licenses FILE] PROGRAM >PROGRAM.spdx.json")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *version, *texts, time.Unix(*created, 0)); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(program, version, texts string, created time.Time) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	if info.Main.Path == "" {
		return fmt.Errorf("%s: %s holds no module", program, info.Path)
	}
	modules, err := licenses.Of(info, ".")
	if err != nil {
		return err
	}
	if texts != "" {
		var all bytes.Buffer
		if err := licenses.Write(&all, modules); err != nil {
			return err
		}
		if err := os.WriteFile(texts, all.Bytes(), 0o644); err != nil { //nolint:gosec // a file that is published
			return err
		}
	}
	d, err := describe(program, version, created, info, modules)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	out.SetEscapeHTML(false)
	return out.Encode(d)
}

// noAssertion says that nothing is claimed (SPDX 2.3, 7.13).
const noAssertion = "NOASSERTION"

// describe makes the document of one program.
func describe(program, version string, created time.Time, info *debug.BuildInfo, modules []licenses.Module) (document, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return document{}, err
	}
	declared := make(map[string]string, len(modules))
	for _, m := range modules {
		declared[m.Path] = m.Declared
	}
	sum := sha256.Sum256(content)
	name, digest := filepath.Base(program), hex.EncodeToString(sum[:])
	d := document{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name + "-" + version,
		Namespace: fmt.Sprintf("https://%s/spdx/%s-%s-%s", info.Main.Path, name, version, digest[:16]),
		Creation:  creation{Created: created.UTC().Format(time.RFC3339), Creators: []string{"Tool: " + info.Main.Path + "/release/sbom"}},
	}
	const main = "SPDXRef-program"
	d.Packages = []spdxPackage{{
		ID: main, Name: name, Version: version, FileName: name, Download: noAssertion,
		LicenseConcluded: noAssertion, LicenseDeclared: declared[info.Main.Path], Copyright: noAssertion,
		Purpose: "APPLICATION", Checksums: []checksum{{"SHA256", digest}}, References: []reference{purl(info.Main.Path, version)},
	}}
	d.Relationships = []relationship{{d.ID, "DESCRIBES", main}}
	add := func(p spdxPackage) {
		p.ID = fmt.Sprintf("SPDXRef-module-%d", len(d.Packages))
		p.LicenseConcluded, p.LicenseDeclared, p.Copyright, p.Purpose = noAssertion, declared[p.Name], noAssertion, "LIBRARY"
		d.Packages = append(d.Packages, p)
		d.Relationships = append(d.Relationships, relationship{main, "DEPENDS_ON", p.ID})
	}
	goVersion, _, _ := strings.Cut(strings.TrimPrefix(info.GoVersion, "go"), " ")
	add(spdxPackage{
		Name: licenses.Stdlib, Version: goVersion, Download: "https://go.dev/dl/go" + goVersion + ".src.tar.gz",
		References: []reference{purl(licenses.Stdlib, goVersion)},
	})
	for _, m := range info.Deps {
		add(module(m))
	}
	return d, nil
}

// module describes one module as it was linked: the replacement of a replaced one.
func module(m *debug.Module) spdxPackage {
	note := ""
	if m.Replace != nil {
		note, m = "replaces "+m.Path+" "+m.Version+"; ", m.Replace
	}
	p := spdxPackage{Name: m.Path, Version: m.Version, Download: noAssertion, References: []reference{purl(m.Path, m.Version)}}
	if m.Version != "" { // else it is a folder
		p.Download = fmt.Sprintf("https://proxy.golang.org/%s/@v/%s.zip", escape(m.Path), escape(m.Version))
	}
	if m.Sum != "" {
		note += "go.sum " + m.Sum // the hash of a tree of files: no checksum that SPDX knows
	}
	p.Source = strings.TrimSuffix(note, "; ")
	return p
}

// escape writes capitals as the Go module proxy wants them (https://go.dev/ref/mod#goproxy-protocol).
func escape(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsUpper(r) {
			b.WriteByte('!')
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// purl is a package URL of type golang, which is in lower case (https://github.com/package-url/purl-spec).
func purl(path, version string) reference {
	locator := "pkg:golang/" + strings.ToLower(path)
	if version != "" {
		locator += "@" + strings.ReplaceAll(version, "+", "%2B")
	}
	return reference{"PACKAGE-MANAGER", "purl", locator}
}
