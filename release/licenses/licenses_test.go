package licenses

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryModuleHasALicence reads the licences of a program of this repository.
func TestEveryModuleHasALicence(t *testing.T) {
	program := filepath.Join(t.TempDir(), "labexec")
	out, err := exec.Command("go", "build", "-o", program, "../../lab/labexec").CombinedOutput()
	require.NoError(t, err, "%s", out)
	info, err := buildinfo.ReadFile(program)
	require.NoError(t, err)
	all, err := Of(info, ".")
	require.NoError(t, err)
	require.Len(t, all, len(info.Deps)+2)
	require.Equal(t, info.Main.Path, all[0].Path)
	declared := map[string]string{}
	for _, m := range all {
		declared[m.Path] = m.Declared
		require.NotEmpty(t, m.Texts, m.Path)
	}
	require.Equal(t, "Apache-2.0", declared[info.Main.Path])
	require.Equal(t, "BSD-3-Clause", declared[Stdlib])
	require.Equal(t, "BSD-3-Clause", declared["golang.org/x/sys"])

	var b strings.Builder
	require.NoError(t, Write(&b, all))
	for _, m := range all {
		require.Contains(t, b.String(), strings.TrimSpace(m.Path+" "+m.Version)+": "+m.Texts[0].Name)
	}

	_, err = Of(&debug.BuildInfo{GoVersion: "go1.26", Deps: []*debug.Module{{Path: "example.com/a", Replace: &debug.Module{Path: "../a"}}}}, ".")
	require.ErrorContains(t, err, "module ../a is a folder")
}

func TestRead(t *testing.T) {
	const mit = "Permission is hereby granted, free of charge, to any person obtaining\na copy ... this permission notice shall be\n" +
		"included in all copies or substantial portions of the Software."
	const bsd = "Redistribution and use in source and binary forms, with or without\nmodification, are permitted provided that ..."
	for name, c := range map[string]struct {
		files    map[string]string
		declared string
		err      string
	}{
		"one":             {map[string]string{"LICENSE": mit}, "MIT", ""},
		"British":         {map[string]string{"Licence.md": mit}, "MIT", ""},
		"two in a file":   {map[string]string{"LICENSE": mit + "\n" + bsd}, "BSD-2-Clause AND MIT", ""},
		"three clauses":   {map[string]string{"COPYING": bsd + " endorse or promote products derived from"}, "BSD-3-Clause", ""},
		"deeper":          {map[string]string{"LICENSE": mit, "third_party/LICENSE": bsd}, "BSD-2-Clause AND MIT", ""},
		"not linked":      {map[string]string{"LICENSE": mit, "testdata/LICENSE": "x", ".github/LICENSE": "x", "license.go": "x"}, "MIT", ""},
		"beside a notice": {map[string]string{"LICENSE": mit, "NOTICE": "x"}, "MIT", ""},
		"none":            {map[string]string{"README.md": mit}, "", "has no file LICENSE or COPYING"},
		"unknown":         {map[string]string{"LICENSE": "All rights reserved."}, "", "LICENSE is no licence that this program knows"},
		"four clauses":    {map[string]string{"LICENSE": bsd + " endorse or promote products derived from; advertising materials mentioning features"}, "", "LICENSE is no licence"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range c.files {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
			}
			m, err := read(folder{Dir: dir})
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.declared, m.Declared)
		})
	}
}
