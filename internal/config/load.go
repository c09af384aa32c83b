package config

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// maxSize bounds the size of a configuration file: far more than any needs, and little enough to read at once.
const maxSize = 1 << 20

// Load reads the configuration file at path, overrides its values by those of the environment, and sets defaults.
// Faults in the content come back as Errors, all at once.
func Load(path string, options ...Option) (*Config, error) {
	c, _, err := load(path, options...)
	return c, err
}

// Option changes what Load checks.
type Option int

// WithoutFiles leaves the files of passwords and certificates unread: elsewhere than on a node they may be missing.
const WithoutFiles Option = 1

// LoadFrom is Load for a configuration from a reader, such as standard input. Errors name it name; relative paths in it are
// relative to the working directory.
func LoadFrom(name string, in io.Reader, options ...Option) (*Config, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("read the configuration from %s: %w", name, err)
	}
	if err := small(name, data); err != nil {
		return nil, err
	}
	return loaded(name, data, options...)
}

// load also returns the file's content, for Watch to compare.
func load(path string, options ...Option) (*Config, []byte, error) {
	data, err := read(path)
	if err != nil {
		return nil, data, err
	}
	c, err := loaded(path, data, options...)
	return c, data, err
}

// loaded returns the configuration with this content, overridden by the environment.
func loaded(file string, data []byte, options ...Option) (*Config, error) {
	_, unusable := strayVariables(os.Environ())
	c, err := parse(file, data, environment(), unusable, options...)
	if err != nil {
		return nil, err
	}
	// Only now, so that the errors of parse name files as the operator does. The speaker, which reads passwords, may have another
	// working directory, and Watch names the configuration by its absolute path: it has to find no difference.
	folder, err := filepath.Abs(".")
	if err != nil {
		return nil, fmt.Errorf("make paths of %s absolute: %w", file, err)
	}
	c.locateFiles(folder)
	if c.Node == "" {
		if c.Node, err = nodeName(); err != nil {
			return nil, err
		}
	}
	if c.Source.Kubernetes.Namespace == "" {
		c.Source.Kubernetes.Namespace = namespace()
	}
	return c, nil
}

// nodeName returns the name of the daemon's node: $NODE_NAME, or the host name in lower case, as kubelet does.
func nodeName() (string, error) {
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("node: take the host name: %w", err)
	}
	return strings.ToLower(host), nil
}

// serviceAccountNamespace is the file with a pod's namespace.
const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Unconfigured returns the configuration without a file: the defaults, overridden by valid values of the environment.
func Unconfigured() *Config {
	c := Defaults()
	newDecoder("").override(reflect.ValueOf(c).Elem(), "", environment())
	return c
}

// namespace returns the namespace of the daemon's pod, or the default.
func namespace() string {
	file, _ := os.ReadFile(serviceAccountNamespace) // outside a cluster there is no such file
	return cmp.Or(os.Getenv("POD_NAMESPACE"), strings.TrimSpace(string(file)), "egressway-system")
}

// Parse is Load for content that was already read, without the environment: the same content results in the same
// Config. Relative paths in it are relative to the folder of file.
func Parse(file string, data []byte) (*Config, error) { return parse(file, data, viper.New(), nil) }

func parse(file string, data []byte, env *viper.Viper, wrong []Error, options ...Option) (*Config, error) {
	c := Defaults()
	d := newDecoder(file)
	d.errs = append(d.errs, wrong...)
	d.decode(data, c)
	d.override(reflect.ValueOf(c).Elem(), "", env)
	c.locateFiles(filepath.Dir(file))
	c.complete()
	v := &validator{decoder: d, c: c, noFiles: slices.Contains(options, WithoutFiles)}
	v.validate()
	if len(d.errs) > 0 {
		d.errs.sort()
		return nil, d.errs
	}
	c.file, c.places = file, d.places
	c.readSelectors()
	return c, nil
}

// locateFiles prepends folder to the relative paths of files.
func (c *Config) locateFiles(folder string) {
	tls := &c.Status.MetricsTLS
	named := []*string{&tls.CertFile, &tls.KeyFile, &tls.ClientCAFile}
	for i := range c.Networks {
		for j := range c.Networks[i].Peers {
			named = append(named, &c.Networks[i].Peers[j].PasswordFile)
		}
	}
	for _, path := range named {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(folder, *path)
		}
	}
}

func read(path string) ([]byte, error) {
	data, err := readAtMost(path, maxSize+1)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return data, small(path, data)
}

// small refuses content that is too large for a configuration.
func small(file string, data []byte) error {
	if len(data) > maxSize {
		return Errors{{File: file, Message: "larger than 1 MiB: not a configuration"}}
	}
	return nil
}

// readAtMost reads the first bytes of a regular file. Other files may block the reader or never end: FIFOs, devices,
// sockets.
func readAtMost(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// environment maps each scalar outside lists to a variable: log.level to EGRESSWAY_LOG_LEVEL.
func environment() *viper.Viper {
	v := viper.New()
	v.SetEnvPrefix(strings.TrimSuffix(strings.ToLower(envPrefix), "_"))
	v.SetEnvKeyReplacer(strings.NewReplacer(".", "_"))
	v.AutomaticEnv()
	return v
}

const envPrefix = "EGRESSWAY_"

func envName(path string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// StrayVariables returns a warning for each variable of the environment that has our prefix and names no key, with the nearest one
// that does. It has no effect. Load refuses variables of keys that only a file can set.
func StrayVariables() []Error {
	unknown, _ := strayVariables(os.Environ())
	return unknown
}

// strayVariables returns the variables with our prefix that set no key: those that name none, and those of lists and mappings. It
// ignores those that the kubelet sets for a Service named like us. The errors lack the values, which may be secrets.
func strayVariables(environ []string) (unknown, unusable []Error) {
	known, scalars := map[string]bool{}, []string{}
	variables(reflect.TypeFor[Config](), "", known)
	for name, scalar := range known {
		if scalar {
			scalars = append(scalars, strings.TrimPrefix(name, envPrefix))
		}
	}
	set := ourVariables(environ)
	for _, name := range slices.Sorted(maps.Keys(set)) {
		scalar, isKey := known[name]
		switch {
		case scalar || ofService(name, set):
		case isKey:
			unusable = append(unusable, Error{File: "$" + name, Message: "no single value: give this key in the file"})
		default:
			unknown = append(unknown, Error{
				File: "$" + name, Message: "no key of the configuration has this variable: " + remedy(name, scalars),
			})
		}
	}
	return unknown, unusable
}

// ourVariables returns the names of the variables that have our prefix.
func ourVariables(environ []string) map[string]bool {
	set := map[string]bool{}
	for _, e := range environ {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, envPrefix) {
			set[name] = true
		}
	}
	return set
}

// ofService reports whether the kubelet sets a variable for a Service: then the Service's _SERVICE_HOST is also set.
func ofService(name string, set map[string]bool) bool {
	for other := range set {
		service, ok := strings.CutSuffix(other, "_SERVICE_HOST")
		if ok && (name == service+"_PORT" || strings.HasPrefix(name, service+"_PORT_") || strings.HasPrefix(name, service+"_SERVICE_")) {
			return true
		}
	}
	return false
}

// variables adds the variables of a struct's keys to known, and whether each key is a single value.
func variables(t reflect.Type, path string, known map[string]bool) {
	for i, name := range fieldsOf(t) {
		if name == "" {
			continue
		}
		field, path := t.Field(i).Type, join(path, name)
		scalar := nodeKind(field) == yaml.ScalarNode
		known[envName(path)] = scalar
		if !scalar && field.Kind() == reflect.Struct {
			variables(field, path, known)
		}
	}
}

// override sets the scalars that env has.
func (d *decoder) override(v reflect.Value, path string, env *viper.Viper) {
	for i, name := range fieldsOf(v.Type()) {
		field, path := v.Field(i), join(path, name)
		switch {
		case name == "":
		case nodeKind(field.Type()) != yaml.ScalarNode:
			if field.Kind() == reflect.Struct {
				d.override(field, path, env)
			}
		case env.IsSet(path):
			d.overrideScalar(field, path, env.GetString(path))
		}
	}
}

// overrideScalar sets the value at path to that of its variable.
func (d *decoder) overrideScalar(v reflect.Value, path, text string) {
	from := "$" + envName(path)
	d.places[path] = place{file: from, shown: path, text: text}
	delete(d.failed, path)
	if err := setScalar(v, text, ""); err != nil {
		d.failed[path] = true
		d.errs = append(d.errs, Error{File: from, Field: path, Value: text, Message: err.Error()})
	}
}

// ReadPassword reads a peer's TCP MD5 password (RFC 2385): the file's content without its last line end. The kernel
// accepts at most 80 bytes.
func ReadPassword(path string) (string, error) {
	const most = 80
	data, err := readAtMost(path, most+3)
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	password := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	switch {
	case password == "":
		return "", fmt.Errorf("read the password: %s is empty", path)
	case len(password) > most:
		return "", fmt.Errorf("read the password: %s holds more than %d bytes", path, most)
	}
	return password, nil
}
