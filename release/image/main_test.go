package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// unpacked reads the files of an archive.
func unpacked(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for in := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		require.NotContains(t, files, h.Name)
		files[h.Name], err = io.ReadAll(in)
		require.NoError(t, err)
	}
}

func decoded[T any](t *testing.T, text []byte) (v T) {
	t.Helper()
	in := json.NewDecoder(bytes.NewReader(text))
	in.DisallowUnknownFields()
	require.NoError(t, in.Decode(&v))
	return v
}

// TestImagePlatforms makes an image of two programs, and finds one platform for each below an index of its own.
func TestImagePlatforms(t *testing.T) {
	var programs []string
	for _, arch := range []string{"amd64", "arm64"} {
		program := filepath.Join(t.TempDir(), arch)
		compile := exec.Command("go", "build", "-trimpath", "-o", program, "../../lab/cluster/box")
		compile.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
		out, err := compile.CombinedOutput()
		require.NoError(t, err, "%s", out)
		programs = append(programs, program)
	}
	var b bytes.Buffer
	require.NoError(t, build{name: "box", version: "v1", tag: "v1", created: time.Unix(1700000000, 0).UTC()}.run(&b, programs))
	files := unpacked(t, b.Bytes())
	top := decoded[index](t, files["index.json"]).Manifests
	require.Len(t, top, 1, "a loader takes the only one")
	require.Equal(t, "v1", top[0].Annotations["org.opencontainers.image.ref.name"])
	var platforms []platform
	for _, d := range decoded[index](t, files[top[0].path()]).Manifests {
		c := decoded[config](t, files[decoded[manifest](t, files[d.path()]).Config.path()])
		require.Equal(t, platform{c.Architecture, c.OS}, *d.Platform)
		require.Equal(t, []string{"/usr/local/bin/box"}, c.Config.Entrypoint)
		platforms = append(platforms, *d.Platform)
	}
	require.Equal(t, []platform{{"amd64", "linux"}, {"arm64", "linux"}}, platforms)
}

// TestImage builds the daemon and its image, and reads the image as a container runtime does: every blob is the one that its digest
// says, the layer has the daemon and the licence texts of each module in it, and the daemon runs with these files alone.
func TestImage(t *testing.T) {
	program := filepath.Join(t.TempDir(), "egressway")
	compile := exec.Command("go", "build", "-trimpath", "-tags", "grpcnotrace", "-o", program, "../../cmd/egressway")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := compile.CombinedOutput()
	require.NoError(t, err, "%s", out)
	write := func() []byte {
		var b bytes.Buffer
		require.NoError(t, build{"egressway", "v1.2.3", "dev", time.Unix(1700000000, 0).UTC()}.run(&b, []string{program}))
		return b.Bytes()
	}
	archive := write()
	require.True(t, bytes.Equal(archive, write()), "the same program gives the same image")

	files := unpacked(t, archive)
	blob := func(d descriptor) []byte {
		content, ok := files[d.path()]
		require.True(t, ok, d.path())
		sum := sha256.Sum256(content)
		require.Equal(t, d.Digest, "sha256:"+hex.EncodeToString(sum[:]))
		require.Len(t, content, d.Size)
		return content
	}
	require.JSONEq(t, `{"imageLayoutVersion":"1.0.0"}`, string(files["oci-layout"]))
	manifests := decoded[index](t, files["index.json"]).Manifests
	require.Len(t, manifests, 1)
	m := decoded[manifest](t, blob(manifests[0]))
	require.Len(t, m.Layers, 1)
	c := decoded[config](t, blob(m.Config))
	require.Equal(t, []string{m.Layers[0].Digest}, c.RootFS.DiffIDs)
	require.Equal(t, []saved{{m.Config.path(), []string{"egressway:dev"}, []string{m.Layers[0].path()}}}, decoded[[]saved](t, files["manifest.json"]))
	require.Equal(t, "0:0", c.Config.User)
	require.Equal(t, "Apache-2.0", c.Config.Labels["org.opencontainers.image.licenses"])
	info, err := buildinfo.ReadFile(program)
	require.NoError(t, err)
	require.Equal(t, setting(info, "GOARCH"), c.Architecture)

	root := t.TempDir()
	has := unpacked(t, blob(m.Layers[0]))
	for name, content := range has {
		if strings.HasSuffix(name, "/") {
			require.NoError(t, os.MkdirAll(filepath.Join(root, name), 0o700))
			continue
		}
		require.NoError(t, os.MkdirAll(filepath.Join(root, path.Dir(name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(root, name), content, 0o700))
		require.True(t, name == "usr/local/bin/egressway" || strings.HasPrefix(name, "licenses/"), name)
	}
	stated := func(module string) bool {
		for _, file := range []string{"LICENSE", "LICENSE.txt", "LICENSE.md"} {
			if len(has[path.Join("licenses", module, file)]) > 500 {
				return true
			}
		}
		return false
	}
	require.NotEmpty(t, info.Deps)
	for _, module := range info.Deps {
		require.True(t, stated(module.Path), "no licence of %s", module.Path)
	}
	require.True(t, stated(info.Main.Path) && stated("stdlib"))

	daemon := exec.Command(c.Config.Entrypoint[0], "version")
	daemon.Dir, daemon.Env = "/", c.Config.Env
	daemon.SysProcAttr = &syscall.SysProcAttr{
		Chroot: root, Cloneflags: syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err = daemon.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotEmpty(t, out)
}
