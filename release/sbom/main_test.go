package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/release/licenses"
)

// built is a program of this repository that has modules of others in it. A test program does not tell of its own.
func built(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "labexec")
	out, err := exec.Command("go", "build", "-o", program, "../../lab/labexec").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// described is the document of a program as others read it.
func described(t *testing.T, program string) (text []byte) {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	require.NoError(t, err)
	modules, err := licenses.Of(info, ".")
	require.NoError(t, err)
	d, err := describe(program, "v1.2.3", time.Unix(1700000000, 0), info, modules)
	require.NoError(t, err)
	text, err = json.Marshal(d)
	require.NoError(t, err)
	return text
}

// TestSPDX holds a document against what SPDX 2.3 requires: the fields that its JSON schema and chapters 6, 7 and 11 call mandatory, what
// they may contain, and that every identifier exists once and every reference leads somewhere.
func TestSPDX(t *testing.T) {
	program := built(t)
	text := described(t, program)
	var d map[string]any
	require.NoError(t, json.Unmarshal(text, &d))
	str := func(of map[string]any, key, pattern string) string {
		t.Helper()
		value, is := of[key].(string)
		require.True(t, is, "%s is no text in %v", key, of)
		require.Regexp(t, "^(?:"+pattern+")$", value, key)
		return value
	}
	list := func(of map[string]any, key string) (all []map[string]any) {
		t.Helper()
		values, is := of[key].([]any)
		require.True(t, is && len(values) > 0, "%s is no list in %v", key, of)
		for _, v := range values {
			all = append(all, v.(map[string]any))
		}
		return all
	}
	const id = `SPDXRef-[a-zA-Z0-9.-]+`
	str(d, "spdxVersion", `SPDX-2\.3`)
	str(d, "dataLicense", `CC0-1\.0`)
	ids := map[string]bool{str(d, "SPDXID", "SPDXRef-DOCUMENT"): true}
	str(d, "name", ".+")
	namespace, err := url.Parse(str(d, "documentNamespace", "[^#]+"))
	require.NoError(t, err)
	require.True(t, namespace.IsAbs())
	made := d["creationInfo"].(map[string]any)
	require.Equal(t, "2023-11-14T22:13:20Z", str(made, "created", `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`))
	for _, c := range made["creators"].([]any) {
		require.Regexp(t, `^(Person|Organization|Tool): .+`, c)
	}

	names := map[string]map[string]any{}
	for i, p := range list(d, "packages") {
		of := str(p, "SPDXID", id)
		require.False(t, ids[of], "%s twice", of)
		ids[of] = true
		names[str(p, "name", ".+")] = p
		str(p, "versionInfo", `\S+`)
		str(p, "downloadLocation", `NOASSERTION|NONE|https://[^A-Z]+`)
		str(p, "licenseConcluded", "NOASSERTION")
		str(p, "licenseDeclared", `[\w.-]+( AND [\w.-]+)*`)
		require.NotEqual(t, "NOASSERTION", p["licenseDeclared"], "every module has a licence")
		str(p, "copyrightText", "NOASSERTION")
		str(p, "primaryPackagePurpose", map[bool]string{true: "APPLICATION", false: "LIBRARY"}[i == 0])
		require.Equal(t, false, p["filesAnalyzed"], "then a verification code and files would be due")
		for _, r := range list(p, "externalRefs") {
			str(r, "referenceCategory", "PACKAGE-MANAGER")
			str(r, "referenceType", "purl")
			str(r, "referenceLocator", `pkg:golang/[^A-Z\s@+]+@[^\s@+]+`)
		}
	}
	related := map[string]bool{}
	for _, r := range list(d, "relationships") {
		from, to := str(r, "spdxElementId", id), str(r, "relatedSpdxElement", id)
		require.True(t, ids[from] && ids[to], "%s to %s", from, to)
		related[str(r, "relationshipType", "DESCRIBES|DEPENDS_ON")+" "+to] = true
	}
	require.Len(t, related, len(names), "each package is described or depended on")

	// What is said is true.
	content, err := os.ReadFile(program)
	require.NoError(t, err)
	sum := sha256.Sum256(content)
	first := list(d, "packages")[0]
	require.Equal(t, []map[string]any{{"algorithm": "SHA256", "checksumValue": hex.EncodeToString(sum[:])}}, list(first, "checksums"))
	info, err := buildinfo.ReadFile(program)
	require.NoError(t, err)
	require.NotEmpty(t, info.Deps)
	for _, m := range info.Deps {
		require.Equal(t, m.Version, names[m.Path]["versionInfo"], m.Path)
	}
	require.Equal(t, strings.TrimPrefix(info.GoVersion, "go"), names["stdlib"]["versionInfo"])
	require.Equal(t, string(text), string(described(t, program)))
}

func TestModule(t *testing.T) {
	for name, test := range map[string]struct {
		of                     debug.Module
		purl, download, source string
	}{
		"plain": {
			debug.Module{Path: "golang.org/x/sys", Version: "v0.1.0", Sum: "h1:abc="},
			"pkg:golang/golang.org/x/sys@v0.1.0", "https://proxy.golang.org/golang.org/x/sys/@v/v0.1.0.zip", "go.sum h1:abc=",
		},
		"capitals, incompatible": {
			debug.Module{Path: "github.com/BurntSushi/toml", Version: "v2.0.0+incompatible"},
			"pkg:golang/github.com/burntsushi/toml@v2.0.0%2Bincompatible", "https://proxy.golang.org/github.com/!burnt!sushi/toml/@v/v2.0.0+incompatible.zip", "",
		},
		"replaced": {
			debug.Module{Path: "a.example/b", Version: "v1.0.0", Replace: &debug.Module{Path: "c.example/d", Version: "v1.1.0", Sum: "h1:x="}},
			"pkg:golang/c.example/d@v1.1.0", "https://proxy.golang.org/c.example/d/@v/v1.1.0.zip", "replaces a.example/b v1.0.0; go.sum h1:x=",
		},
		"replaced by a folder": {
			debug.Module{Path: "a.example/b", Version: "v1.0.0", Replace: &debug.Module{Path: "../b"}},
			"pkg:golang/../b", "NOASSERTION", "replaces a.example/b v1.0.0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := module(&test.of)
			require.Equal(t, test.purl, p.References[0].Locator)
			require.Equal(t, test.download, p.Download)
			require.Equal(t, test.source, p.Source)
		})
	}
}

func TestNoGoProgram(t *testing.T) {
	require.Error(t, run("main.go", "v1", "", time.Time{}))
	require.ErrorIs(t, run("nothing", "v1", "", time.Time{}), os.ErrNotExist)
}
