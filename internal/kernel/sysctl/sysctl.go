// Package sysctl reads settings of the kernel.
package sysctl

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Root is the directory of the kernel's settings.
const Root = "/proc/sys"

// Read reads a number; ok is false if the setting does not exist.
func Read(path ...string) (value int, ok bool) {
	b, err := os.ReadFile(filepath.Join(append([]string{Root}, path...)...))
	if err != nil {
		return 0, false
	}
	value, err = strconv.Atoi(strings.TrimSpace(string(b)))
	return value, err == nil
}

// Name formats a path as sysctl(8) expects it: separated by dots, with slashes for the dots of a device's name.
func Name(path ...string) string {
	names := make([]string, len(path))
	for i, p := range path {
		names[i] = strings.ReplaceAll(p, ".", "/")
	}
	return strings.Join(names, ".")
}
