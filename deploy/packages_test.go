package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPackages builds the deb and the rpm twice, compares them, and looks into the deb: its units start its program, its examples
// are right, and its scripts touch nothing in an upgrade without systemd.
func TestPackages(t *testing.T) {
	program := filepath.Join(t.TempDir(), "egressway")
	command(t, "..", "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-X main.version=v1.2.3-4-gabc", "-o", program, "./cmd/egressway")
	var built [2]map[string]string
	folders := [2]string{t.TempDir(), t.TempDir()}
	for i, folder := range folders {
		command(t, "..", "packages/build.sh", tool(t, "nfpm"), "v1.2.3-4-gabc", runtime.GOARCH, program, folder)
		built[i] = map[string]string{}
		for _, name := range files(t, folder) {
			content, err := os.ReadFile(filepath.Join(folder, name))
			require.NoError(t, err)
			built[i][name] = string(content)
		}
	}
	name := "egressway-1.2.3+4+gabc-" + runtime.GOARCH
	require.ElementsMatch(t, []string{name + ".deb", name + ".rpm"}, files(t, folders[0]))
	require.True(t, built[0][name+".deb"] == built[1][name+".deb"], "two builds of the deb differ")
	require.True(t, built[0][name+".rpm"] == built[1][name+".rpm"], "two builds of the rpm differ")
	require.True(t, strings.HasPrefix(built[0][name+".rpm"], "\xed\xab\xee\xdb"), "the rpm begins with its magic number")

	deb, root := filepath.Join(folders[0], name+".deb"), t.TempDir()
	command(t, ".", "dpkg-deb", "--extract", deb, root)
	command(t, ".", "dpkg-deb", "--control", deb, filepath.Join(root, "DEBIAN"))
	installed := root + "/usr/bin/egressway"
	require.Contains(t, command(t, ".", installed, "--version"), "v1.2.3-4-gabc")
	for _, example := range []string{"config.yaml", "config-full.yaml"} {
		command(t, ".", installed, "check", "--config", filepath.Join(root+"/usr/share/doc/egressway/examples", example))
	}
	for _, page := range []string{"egressway", "egressway-run", "egressway-speaker", "egressway-trace"} {
		require.FileExists(t, filepath.Join(root+"/usr/share/man/man8", page+".8.gz"))
	}
	units := files(t, root+"/usr/lib/systemd/system")
	require.ElementsMatch(t, []string{"egressway.service", "egressway-speaker.service", "egressway-boot.service"}, units)
	for _, unit := range units {
		text, err := os.ReadFile(filepath.Join(root+"/usr/lib/systemd/system", unit))
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`ExecStart=(/usr/bin/egressway) (\w+)(.*)`).FindAllStringSubmatch(string(text), -1) {
			help := command(t, ".", filepath.Join(root, m[1]), m[2], "--help")
			for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString(m[3], -1) {
				require.Contains(t, help, flag, unit)
			}
		}
	}
	for _, script := range []string{"postinst", "prerm"} {
		command(t, ".", "sh", "-n", filepath.Join(root, "DEBIAN", script))
	}
	command(t, ".", "sh", "-eu", root+"/DEBIAN/prerm", "upgrade", "1.2.4")
}

// files lists a folder.
func files(t *testing.T, folder string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// command runs a program in a folder, and returns its output.
func command(t *testing.T, folder, name string, args ...string) string {
	t.Helper()
	if strings.Contains(name, "/") && !filepath.IsAbs(name) {
		var err error
		name, err = filepath.Abs(name)
		require.NoError(t, err)
	}
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s %q: %s", name, args, out)
	return string(out)
}
