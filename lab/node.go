package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The main thread stays in the namespaces that it was started in: Go runs no goroutine on it that enters a node's, and
// /proc/self describes this process.
func init() { runtime.LockOSThread() }

// Node is a machine of the lab: a network, a mount and a UTS namespace.
type Node struct {
	Name       string
	Definition Definition // including inherited settings
	Management netip.Addr // its address in the management network, if it has one

	wire                string // the bridge's end of its interface there
	netns, mntns, utsns *os.File
	tasks               chan task
	gone                chan struct{}
	threads             sync.WaitGroup
}

type task struct {
	run  func() error
	done chan error
}

var errGone = errors.New("the node is gone")

func newNode(name string, d Definition) *Node {
	return &Node{Name: name, Definition: d, tasks: make(chan task), gone: make(chan struct{})}
}

// Do runs f on a thread in the node's namespaces. Sockets that f opens stay in the node. Several may run at once. f must
// not end its goroutine, as a failed requirement of a test would.
func (n *Node) Do(f func() error) error { return n.do(f, n.enter) }

func (n *Node) do(f, enter func() error) error {
	t := task{run: f, done: make(chan error, 1)}
	select {
	case <-n.gone:
		return fmt.Errorf("node %s: %w", n.Name, errGone)
	case n.tasks <- t: // to a thread that waits for work
	default:
		n.threads.Go(func() { n.thread(enter, t) })
	}
	return <-t.done
}

// thread enters the node and works until the node is gone. Its OS thread is not unlocked and so ends with it.
func (n *Node) thread(enter func() error, t task) {
	runtime.LockOSThread()
	if err := enter(); err != nil {
		t.done <- fmt.Errorf("enter node %s: %w", n.Name, err)
		return
	}
	for {
		t.done <- t.run()
		select {
		case t = <-n.tasks:
		case <-n.gone:
			return
		}
	}
}

func (n *Node) enter() error {
	// A thread that shares its working directory with others cannot change its mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare working directory: %w", err)
	}
	for _, ns := range []*os.File{n.netns, n.utsns, n.mntns} {
		if err := unix.Setns(int(ns.Fd()), 0); err != nil {
			return fmt.Errorf("set namespace %s: %w", ns.Name(), err)
		}
	}
	return nil
}

// create makes the node's namespaces and furnishes them.
func (n *Node) create(im Image, dir string) error {
	return n.do(func() error { return n.furnish(im, dir) }, func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("make namespaces: %w", err)
		}
		for name, f := range map[string]**os.File{"net": &n.netns, "mnt": &n.mntns, "uts": &n.utsns} {
			var err error
			if *f, err = os.Open("/proc/thread-self/ns/" + name); err != nil {
				return err
			}
		}
		return nil
	})
}

func (n *Node) furnish(im Image, dir string) error {
	if err := unix.Sethostname([]byte(n.Name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	mount := func(kind, target, options string) error {
		if err := unix.Mount(kind, target, kind, 0, options); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
		return nil
	}
	// /run and /etc can be written to without anybody else seeing it.
	const upper, work = "/run/.etc/upper", "/run/.etc/work"
	if err := errors.Join(mount("sysfs", "/sys", ""), mount("tmpfs", "/run", "mode=755"),
		os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755),
		mount("overlay", "/etc", "lowerdir=/etc,upperdir="+upper+",workdir="+work)); err != nil {
		return err
	}
	for _, d := range im.Dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
		if err := mount("tmpfs", d, "mode=755"); err != nil {
			return err
		}
		if err := chown(d, im.Owner); err != nil {
			return err
		}
	}
	for _, b := range n.Definition.Binds {
		if err := bind(b, dir); err != nil {
			return fmt.Errorf("bind %s: %w", b, err)
		}
	}
	for name, value := range n.Definition.Sysctls {
		path := "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
		if err := os.WriteFile(path, fmt.Append(nil, value), 0o644); err != nil {
			return fmt.Errorf("set sysctl %s: %w", name, err)
		}
	}
	return nil
}

func chown(path, owner string) error {
	if owner == "" {
		return nil
	}
	u, err := user.Lookup(owner)
	if err != nil {
		return err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return err
	}
	return os.Chown(path, uid, gid)
}

// bind mounts source:target[:options]. A target that is missing is made where it does not show on the machine itself.
func bind(spec, dir string) error {
	parts := strings.Split(spec, ":")
	source, target := parts[0], filepath.Clean(parts[1])
	if !filepath.IsAbs(source) {
		source = filepath.Join(dir, source)
	}
	st, err := os.Stat(source)
	if err != nil {
		return err
	}
	if _, err := os.Stat(target); errors.Is(err, os.ErrNotExist) {
		if err := makeTarget(target, st.IsDir()); err != nil {
			return err
		}
	}
	return unix.Mount(source, target, "", unix.MS_BIND, "")
}

// makeTarget makes an empty folder or file for a mount.
func makeTarget(path string, folder bool) error {
	if !strings.HasPrefix(path, "/etc/") && !strings.HasPrefix(path, "/run/") {
		return errors.New("a target outside /etc and /run must exist")
	}
	if folder {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, nil, 0o644)
}

// Command prepares a program to run in the node. Run is quicker, it does not go through nsenter.
func (n *Node) Command(ctx context.Context, args ...string) *exec.Cmd {
	fd := func(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }
	enter := []string{"--net=" + fd(n.netns), "--uts=" + fd(n.utsns), "--mount=" + fd(n.mntns), "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
	cmd.Env = n.environ()
	return cmd
}

// environ is the environment of programs in the node. The tests' own variables that look like our configuration are not in it.
func (n *Node) environ() []string {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "EGRESSWAY_") })
	for k, v := range n.Definition.Env {
		env = append(env, k+"="+v)
	}
	return env
}

// start starts cmd in the node: a child has the namespaces of the thread that made it. It dies with this process.
func (n *Node) start(cmd *exec.Cmd) error {
	cmd.Env = n.environ()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	return n.Do(cmd.Start)
}

// leftOutput is how long a program's output is read after its end: a process that it left behind may hold it open
// without end.
const leftOutput = 10 * time.Second

// Run runs a program in the node and returns its standard output. The error holds its standard error.
func (n *Node) Run(ctx context.Context, args ...string) (string, error) {
	return n.Input(ctx, "", args...)
}

// Input is Run with text for the program to read.
func (n *Node) Input(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	cmd.WaitDelay = leftOutput
	err := n.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if err != nil {
		err = fmt.Errorf("node %s: %s: %w: %s", n.Name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), err
}

// exec runs the lines of the topology file. Most of the time goes into starting processes, so neighbouring lines for
// ip(8) become one batch, and neighbouring others one shell script.
func (n *Node) exec(ctx context.Context, lines []string) error {
	for len(lines) > 0 {
		ip := batchable(lines[0])
		count := 1
		for count < len(lines) && batchable(lines[count]) == ip {
			count++
		}
		var err error
		if ip {
			var batch strings.Builder
			for _, l := range lines[:count] {
				batch.WriteString(strings.TrimPrefix(l, "ip ") + "\n")
			}
			_, err = n.Input(ctx, batch.String(), "ip", "-batch", "-")
		} else {
			_, err = n.Run(ctx, "sh", "-ec", strings.Join(lines[:count], "\n"))
		}
		if err != nil {
			return fmt.Errorf("exec:\n%s\n%w", strings.Join(lines[:count], "\n"), err)
		}
		lines = lines[count:]
	}
	return nil
}

// batchable reports whether ip -batch accepts the line: options before the object do not go into one.
func batchable(line string) bool {
	return strings.HasPrefix(line, "ip ") && !strings.HasPrefix(line, "ip -")
}

// Interfaces lists the node's network devices.
func (n *Node) Interfaces() (devices []net.Interface, err error) {
	err = n.Do(func() (err error) { devices, err = net.Interfaces(); return err })
	return devices, err
}

// destroy waits for the node's threads, whose end, after that of its processes, is the end of the namespaces.
func (n *Node) destroy() {
	close(n.gone)
	n.threads.Wait()
	for _, f := range []*os.File{n.netns, n.mntns, n.utsns} {
		if f != nil {
			f.Close()
		}
	}
}
