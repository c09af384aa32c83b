package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/kernel/conntrack"
	"github.com/egressway/egressway/internal/kernel/walk"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/status"
)

func newDiagnoseCommand() *cobra.Command {
	var d diagnosis
	c := &cobra.Command{
		Use:   "diagnose [--config FILE] [--socket PATH] [-f FILE.tar.gz]",
		Short: "Collect the data for a bug report in one archive",
		Long: `Collect the data for a bug report in one archive: version, configuration, the daemon's status, metrics, goroutines and
recent log, our nftables table, rules, routes, links and addresses, settings of the kernel and connections of ours.

Changes nothing. If a part is missing, because a tool, a right or the daemon is missing, the archive's errors.txt has the reason. Each
step is limited to 10 s and 4 MiB.

Secrets are removed: files with passwords and kubeconfigs are never read, environment variables are listed without values, and text that
looks like a password, token or key is cut out of the configuration and the log. Addresses and names of objects stay: review the archive
before you publish it. Only its owner can read it.

Exit codes: 0 the archive is written, also if parts are missing; 1 it could not be written.`,
		Example: `  egressway diagnose
  egressway diagnose --config /etc/egressway/config.yaml -f report.tar.gz
  kubectl -n egressway-system exec POD -- egressway diagnose -f - > report.tar.gz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return d.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	c.Flags().StringVar(&d.config, "config", defaultConfig, "configuration `file` of the daemon")
	c.Flags().StringVar(&d.socket, "socket", "", "`path` of the daemon's socket (default: the configuration's)")
	c.Flags().StringVarP(&d.file, "file", "f", "",
		"archive `file` to write, - for standard output (default: egressway-HOST-TIME.tar.gz here)")
	_ = c.MarkFlagFilename("config", "yaml", "yml") // fails for an unknown flag only
	_ = c.MarkFlagFilename("socket", "sock")
	_ = c.MarkFlagFilename("file", "tar.gz", "tgz")
	return c
}

// defaultConfig is the path of the configuration in packages and images.
const defaultConfig = "/etc/egressway/config.yaml"

// Bounds of each step.
const (
	stepTime  = 10 * time.Second
	stepSize  = 4 << 20
	flowsMost = 1000
	logLines  = "5000"
)

// diagnosis collects files into an archive.
type diagnosis struct {
	config, socket, file string

	out   *tar.Writer
	dir   string
	began time.Time
	errs  []string
	conf  *config.Config
	live  *walk.Live
}

func (d *diagnosis) run(ctx context.Context, stdout, stderr io.Writer) error {
	d.began = time.Now().UTC()
	host, _ := os.Hostname()
	d.dir = fmt.Sprintf("egressway-%s-%s", cmp.Or(host, "node"), d.began.Format("20060102T150405Z"))
	file := cmp.Or(d.file, d.dir+".tar.gz")
	size := int64(0)
	if err := writeArchive(file, stdout, func(to io.Writer) (err error) {
		size, err = d.write(ctx, to)
		return err
	}); err != nil {
		return err
	}
	if file == "-" {
		fmt.Fprintf(stderr, "wrote %s%s\n", bytesText(size), d.missing())
		return nil
	}
	fmt.Fprintf(stdout, "wrote %s, %s%s\n", file, bytesText(size), d.missing())
	return nil
}

// writeArchive has write fill a file that its owner alone can read, or standard output, if the file is "-".
func writeArchive(file string, stdout io.Writer, write func(io.Writer) error) error {
	if file == "-" {
		return write(stdout)
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("-f %s: %w: name a file that can be written, or - for standard output", file, err)
	}
	err = f.Chmod(0o600) // it may exist
	if err == nil {
		err = write(f)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("-f %s: %w", file, err)
	}
	return nil
}

// missing returns a note about missing parts.
func (d *diagnosis) missing() string {
	switch n := len(d.errs); n {
	case 0:
		return ""
	case 1:
		return "; one part is missing: see errors.txt in it"
	default:
		return fmt.Sprintf("; %d parts are missing: see errors.txt in it", n)
	}
}

func bytesText(n int64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d bytes", n)
}

// counter counts written bytes.
type counter struct {
	io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n += int64(n)
	return n, err
}

// step is a file of the archive, with the function that makes its content.
type step struct {
	name string
	make func(context.Context) ([]byte, error)
}

// write writes the archive. It fails only if the archive cannot be written.
func (d *diagnosis) write(ctx context.Context, to io.Writer) (size int64, err error) {
	counted := &counter{Writer: to}
	zipped := gzip.NewWriter(counted)
	d.out = tar.NewWriter(zipped)
	if d.conf, err = config.Load(d.config); err != nil {
		d.conf = config.Unconfigured() // config-check.txt has its errors
	}
	d.socket = cmp.Or(d.socket, d.conf.Status.Socket)
	if d.live, err = walk.ReadLive(ctx); err != nil {
		d.failed("kernel", err)
	} else {
		defer d.live.Close()
	}
	for _, s := range d.steps() {
		if err := d.step(ctx, s); err != nil {
			return counted.n, err
		}
	}
	if err := d.add("errors.txt", []byte(strings.Join(d.errs, ""))); err != nil {
		return counted.n, err
	}
	err = errors.Join(d.out.Close(), zipped.Close())
	return counted.n, err
}

func (d *diagnosis) failed(name string, err error) {
	d.errs = append(d.errs, fmt.Sprintf("%s: %s\n", name, strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")))
}

// step adds a step's content, complete or not.
func (d *diagnosis) step(ctx context.Context, s step) error {
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	b, err := s.make(ctx)
	if len(b) > stepSize {
		b = append(b[:stepSize:stepSize], "\n[cut off here]\n"...)
		err = errors.Join(err, fmt.Errorf("longer than %s: the rest is cut off", bytesText(stepSize)))
	}
	if err != nil {
		d.failed(s.name, err)
	}
	if len(b) == 0 && err != nil {
		return nil
	}
	return d.add(s.name, b)
}

// add adds a file to the archive, without secrets.
func (d *diagnosis) add(name string, b []byte) error {
	b = []byte(redact(string(b)))
	err := d.out.WriteHeader(&tar.Header{Name: d.dir + "/" + name, Mode: 0o600, Size: int64(len(b)), ModTime: d.began})
	if err == nil {
		_, err = d.out.Write(b)
	}
	if err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return nil
}

func (d *diagnosis) steps() []step {
	all := []step{
		{"version.txt", d.versions},
		{"config.yaml", func(context.Context) ([]byte, error) { return readSome(d.config) }},
		{"config-check.txt", d.check},
		{"env.txt", func(context.Context) ([]byte, error) { return environment(os.Environ()), nil }},
		{"status.json", d.status},
		{"metrics.txt", d.fromDaemon("/metrics")},
		{"goroutines.txt", d.fromDaemon("/goroutines")},
		{"log.txt", command(
			"journalctl", "--no-pager", "-o", "short-iso-precise", "-n", logLines, "-u", "egressway", "-u", "egressway-speaker",
		)},
		{"nft-table.txt", command("nft", "list", "table", "inet", "egressway")},
		{"nft-tables.txt", command("nft", "list", "tables")},
		{"ip-link.txt", command("ip", "-d", "link", "show")},
		{"ip-addr.txt", command("ip", "addr", "show")},
		{"ip-rule-4.txt", command("ip", "-4", "rule", "show")},
		{"ip-rule-6.txt", command("ip", "-6", "rule", "show")},
		{"kernel.json", d.kernel},
		{"sysctl.txt", sysctls},
		{"conntrack.txt", d.conntrack},
	}
	for _, table := range d.tables() {
		for _, family := range []string{"4", "6"} {
			all = append(all, step{
				fmt.Sprintf("ip-route-%d-%s.txt", table, family),
				command("ip", "-"+family, "route", "show", "table", fmt.Sprint(table)),
			})
		}
	}
	return all
}

// tables returns the main table, those that our rules name and those of VRFs.
func (d *diagnosis) tables() []uint32 {
	tables := []uint32{unix.RT_TABLE_MAIN}
	if d.live != nil {
		for _, r := range d.live.Rules {
			tables = append(tables, r.Table)
		}
		for _, l := range d.live.Links {
			tables = append(tables, l.VRFTable)
		}
	}
	slices.Sort(tables)
	return slices.DeleteFunc(slices.Compact(tables), func(t uint32) bool { return t == 0 })
}

func (d *diagnosis) versions(context.Context) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "egressway %s %s %s/%s\ntime %s\n",
		version, runtime.Version(), runtime.GOOS, runtime.GOARCH, d.began.Format(time.RFC3339))
	var u unix.Utsname
	err := unix.Uname(&u)
	if err == nil {
		fmt.Fprintf(&b, "kernel %s %s %s\nhost %s\n", unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Version[:]),
			unix.ByteSliceToString(u.Machine[:]), unix.ByteSliceToString(u.Nodename[:]))
	}
	fmt.Fprintf(&b, "user %d\n", os.Geteuid())
	if release, err := os.ReadFile("/etc/os-release"); err == nil {
		b.WriteByte('\n')
		b.Write(release)
	}
	return b.Bytes(), err
}

// readSome reads a regular file, up to the limit of a step.
func readSome(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s: not a regular file", path))
	}
	return io.ReadAll(io.LimitReader(f, stepSize+1))
}

func (d *diagnosis) check(context.Context) ([]byte, error) {
	var b bytes.Buffer
	err := check("", func() (*config.Config, error) { return config.Load(d.config) }).write(&b, "text", nil)
	return b.Bytes(), err
}

// environment lists the names of variables and the sizes of their values, since values may be secrets.
func environment(all []string) []byte {
	var b bytes.Buffer
	slices.Sort(all)
	for _, v := range all {
		name, value, _ := strings.Cut(v, "=")
		fmt.Fprintf(&b, "%s, %d bytes\n", name, len(value))
	}
	return b.Bytes()
}

func (d *diagnosis) status(ctx context.Context) ([]byte, error) {
	r, err := status.Read(ctx, d.socket)
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(r, "", "  ")
}

func (d *diagnosis) fromDaemon(path string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) { return status.Text(ctx, d.socket, path, stepSize+1) }
}

// command runs a program that most nodes have. Its output is kept even if it fails.
func command(name string, args ...string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		c := exec.CommandContext(ctx, name, args...)
		c.WaitDelay = time.Second
		c.Env = []string{"PATH=" + cmp.Or(os.Getenv("PATH"), "/usr/sbin:/usr/bin:/sbin:/bin"), "LC_ALL=C"}
		out, said := &bounded{}, &bounded{}
		c.Stdout, c.Stderr = out, said
		err := c.Run()
		if err != nil {
			err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(said.String()))
		}
		return out.Bytes(), err
	}
}

// bounded keeps as much output as a step may have, and discards the rest, so that the writer can continue.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if room := stepSize + 1 - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

// kernel returns the data from which egressway trace starts.
func (d *diagnosis) kernel(context.Context) ([]byte, error) {
	if d.live == nil {
		return nil, errors.New("the kernel was not read")
	}
	return json.MarshalIndent(d.live, "", "  ")
}

// sysctls lists the settings that affect packets and connections.
func sysctls(context.Context) ([]byte, error) {
	var b bytes.Buffer
	var errs []error
	for _, pattern := range []string{
		"net/ipv4/ip_forward", "net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/forwarding", "net/ipv4/conf/*/src_valid_mark",
		"net/ipv4/*l3mdev_accept", "net/ipv4/fib_multipath_hash_policy",
		"net/ipv6/conf/*/forwarding", "net/ipv6/conf/*/disable_ipv6", "net/ipv6/conf/*/accept_ra",
		"net/ipv6/fib_multipath_hash_policy", "net/ipv6/route/max_size", "net/netfilter/nf_conntrack_*", "net/core/[rw]mem_max",
	} {
		files, err := filepath.Glob("/proc/sys/" + pattern)
		errs = append(errs, err)
		for _, file := range files {
			value, err := os.ReadFile(file)
			if err != nil {
				continue // some can only be written
			}
			fmt.Fprintf(&b, "%s = %s\n", strings.TrimPrefix(file, "/proc/sys/"), strings.TrimSpace(string(value)))
		}
	}
	return b.Bytes(), errors.Join(errs...)
}

// conntrack returns the usage of the table of connections, and some connections of ours.
func (d *diagnosis) conntrack(ctx context.Context) ([]byte, error) {
	var b bytes.Buffer
	c, err := conntrack.CountConnections()
	if err == nil {
		fmt.Fprintf(&b, "%d of %d connections\n", c.Entries, c.Limit)
	}
	marks, n := plan.Marks{Mask: d.conf.Marks.Mask}, 0
	if d.live != nil {
		marks = d.live.Marks
	}
	listed := conntrack.ListFlows(ctx, marks, func(f conntrack.Flow) bool {
		fmt.Fprintf(&b, "protocol %d %s to %s as %s, path %d, answered %t, %d s\n",
			f.Proto, f.Src, f.Dst, f.SNAT, f.Path, f.Answered, f.Timeout)
		n++
		return n < flowsMost
	})
	if n == flowsMost {
		fmt.Fprintf(&b, "and perhaps more: the first %d\n", flowsMost)
	}
	return b.Bytes(), errors.Join(err, listed)
}

// removed replaces a secret.
const removed = "[removed]"

var (
	// keyed matches a value behind a name of secrets. A value without quotes extends to the end of the line, since a password may
	// contain any character.
	keyed = regexp.MustCompile(`(?i)([\w.-]*(?:passw(?:or)?d|passphrase|secret|token|credential|api[_-]?key|private[_-]?key|` +
		`key-data|certificate-data|authorization|cookie)[\w-]*)` +
		`(\\?["']?\s*[:=]\s*)(\\?"(?:[^"\\]|\\.)*"|'[^']*'|[^\n]*)`)
	// schemed matches the credentials behind the name of an authentication scheme.
	schemed = regexp.MustCompile(`(?i)\b(bearer|basic|negotiate)\s+[^\s"',]+`)
	inURL   = regexp.MustCompile(`://[^/\s@"']+@`)
	jwt     = regexp.MustCompile(`eyJ[\w-]{6,}\.[\w-]+(?:\.[\w-]*)?`)
	pem     = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\z)`)
)

// redact removes secrets from text. It keeps names of files with secrets, whose content is never read.
func redact(s string) string {
	s = pem.ReplaceAllString(s, removed)
	s = jwt.ReplaceAllString(s, removed)
	s = inURL.ReplaceAllString(s, "://"+removed+"@")
	s = schemed.ReplaceAllString(s, "$1 "+removed)
	return redactKeyed(s)
}

// redactKeyed removes the values behind names of secrets.
func redactKeyed(s string) string {
	var b strings.Builder
	for from := 0; ; {
		at := keyed.FindStringSubmatchIndex(s[from:])
		if at == nil {
			b.WriteString(s[from:])
			return b.String()
		}
		for i := range at {
			at[i] += from
		}
		name, value, end := s[at[2]:at[3]], s[at[6]:at[7]], at[1]
		b.WriteString(s[from:at[6]])
		if strings.HasSuffix(strings.ToLower(name), "file") || strings.TrimSpace(value) == "" {
			b.WriteString(redactFileName(value))
		} else {
			b.WriteString(removed)
			end = valueEnd(s, at[2], end)
		}
		from = end
	}
}

// beforeKey matches a line's text before a key of YAML, also of one that is commented out.
var beforeKey = regexp.MustCompile(`^[ \t]*(#[# \t]*)?([-?][ \t]+)*["']?$`)

// valueEnd returns the end of a key's value, which extends to end on its own line. In YAML, the lines below belong to it that are
// indented deeper than the key, as those of a block, and items of a list at the same depth.
func valueEnd(s string, key, end int) int {
	line := strings.LastIndexByte(s[:key], '\n') + 1
	before := s[line:key]
	if !beforeKey.MatchString(before) {
		return end
	}
	margin := " \t"
	if strings.Contains(before, "#") {
		margin += "#"
	}
	depth, last := len(strings.TrimRight(before, `"'`)), end
	for rest := strings.TrimPrefix(s[end:], "\r"); strings.HasPrefix(rest, "\n"); {
		line, _, _ := strings.Cut(rest[1:], "\n")
		rest = rest[1+len(line):]
		content := strings.TrimLeft(line, margin)
		indent := len(line) - len(content)
		switch content = strings.TrimSpace(content); {
		case content == "": // part of the value if more of it follows
		case indent > depth, indent == depth && (content == "-" || strings.HasPrefix(content, "- ")):
			last = len(s) - len(rest)
		default:
			return last
		}
	}
	return last
}

// redactFileName keeps the first word behind passwordFile, and redacts the rest.
func redactFileName(rest string) string {
	at := strings.IndexAny(rest, " \t,")
	if at < 0 {
		return rest
	}
	return rest[:at] + redact(rest[at:])
}
