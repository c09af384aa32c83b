// Command image writes the container image of a program built by Go: the program and the licences of all that is in it,
// and no base image, since the program needs no other file. Of builds for several architectures it makes one image with several platforms.
// The archive is an OCI image layout that Docker's older loaders understand too. The same programs give the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/egressway/egressway/release/licenses"
)

func main() {
	version := flag.String("version", "devel", "version of the program")
	created := flag.Int64("created", 0, "time of the image, in seconds since 1970: that of the commit, to be reproducible")
	tag := flag.String("tag", "dev", "tag of the image")
	name := flag.String("name", "", "name of the image and of the program in it; empty: that of the first program")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: image [-version V] [-created SECONDS] [-name NAME] [-tag TAG] PROGRAM... >IMAGE")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	b := build{
		name: cmp.Or(*name, filepath.Base(flag.Arg(0))), version: *version, tag: *tag, created: time.Unix(*created, 0).UTC(),
	}
	if err := b.run(os.Stdout, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// build holds the fields that all platforms of an image share.
type build struct {
	name, version, tag string
	created            time.Time
}

func (b build) run(w io.Writer, programs []string) error {
	var platforms []platformImage
	for _, program := range programs {
		p, err := b.platform(program)
		if err != nil {
			return err
		}
		platforms = append(platforms, p)
	}
	all, err := b.image(platforms)
	if err != nil {
		return err
	}
	_, err = w.Write(all)
	return err
}

// platformImage is the image of one platform.
type platformImage struct {
	config config
	layer  []byte
}

// platform makes the image of a program for the platform that it was built for.
func (b build) platform(program string) (p platformImage, err error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return p, err
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return p, err
	}
	modules, err := licenses.Of(info, ".")
	if err != nil {
		return p, err
	}
	p.layer, err = archive(b.created, append([]file{{"usr/local/bin/" + b.name, 0o755, content}}, texts(modules)...))
	if err != nil {
		return p, err
	}
	p.config = config{
		Architecture: setting(info, "GOARCH"), OS: setting(info, "GOOS"),
		Config: runtime{
			User:       "0:0", // capabilities take effect for root only; each DaemonSet drops all but some
			Env:        []string{"PATH=/usr/local/bin"},
			Entrypoint: []string{"/usr/local/bin/" + b.name},
			Labels: map[string]string{
				"org.opencontainers.image.title":    b.name,
				"org.opencontainers.image.source":   "https://" + info.Main.Path,
				"org.opencontainers.image.version":  b.version,
				"org.opencontainers.image.licenses": modules[0].Declared,
			},
		},
	}
	return p, nil
}

func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// texts are the files with licences, below a folder for each module.
func texts(modules []licenses.Module) (files []file) {
	for _, m := range modules {
		for _, t := range m.Texts {
			files = append(files, file{path.Join("licenses", m.Path, t.Name), 0o644, t.Content})
		}
	}
	return files
}

// file is a file in an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// archive is a tar archive of files and the folders that they are in, sorted by name.
func archive(at time.Time, files []file) ([]byte, error) {
	folders := map[string]bool{".": true}
	for _, f := range files {
		for dir := path.Dir(f.name); !folders[dir]; dir = path.Dir(dir) {
			folders[dir] = true
			files = append(files, file{name: dir + "/", mode: 0o755})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: at}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(&h); err != nil {
			return nil, fmt.Errorf("archive %s: %w", f.name, err)
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, fmt.Errorf("archive %s: %w", f.name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// image is the archive of an image whose platforms have one layer each: an OCI image layout, with the file manifest.json of docker-archive
// beside it, which knows the first platform only.
func (b build) image(platforms []platformImage) ([]byte, error) {
	var files []file
	blob := func(mediaType string, content []byte) descriptor {
		sum := sha256.Sum256(content)
		d := descriptor{MediaType: mediaType, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: len(content)}
		files = append(files, file{d.path(), 0o644, content})
		return d
	}
	encode := func(v any) []byte {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err) // texts and numbers alone
		}
		return text
	}
	var manifests []descriptor
	var first saved
	for _, p := range platforms {
		layers, c := []descriptor{blob("application/vnd.oci.image.layer.v1.tar", p.layer)}, p.config
		c.Created = b.created.Format(time.RFC3339)
		c.RootFS = rootFS{"layers", []string{layers[0].Digest}}
		c.History = []history{{c.Created, "release/image"}}
		configured := blob("application/vnd.oci.image.config.v1+json", encode(c))
		if first.Config == "" {
			first = saved{configured.path(), []string{b.name + ":" + b.tag}, []string{layers[0].path()}}
		}
		const manifestType = "application/vnd.oci.image.manifest.v1+json"
		m := blob(manifestType, encode(manifest{2, manifestType, configured, layers}))
		m.Platform = &platform{c.Architecture, c.OS}
		manifests = append(manifests, m)
	}
	const indexType = "application/vnd.oci.image.index.v1+json"
	top := manifests
	if len(manifests) > 1 { // a loader takes the platform that it needs from an index in the layout's own
		top = []descriptor{blob(indexType, encode(index{2, indexType, manifests}))}
	}
	top[0].Annotations = map[string]string{
		"org.opencontainers.image.ref.name": b.tag,
		"io.containerd.image.name":          "docker.io/library/" + b.name + ":" + b.tag,
	}
	files = append(files,
		file{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		file{"index.json", 0o644, encode(index{2, indexType, top})},
		file{"manifest.json", 0o644, encode([]saved{first})})
	return archive(b.created, files)
}
