package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

type list []string

func (l *list) String() string     { return strings.Join(*l, " ") }
func (l *list) Set(s string) error { *l = append(*l, s); return nil }

// root replaces itself by a command that has a folder as its root file system. The folder stays as it is: changes go to a tmpfs, which
// ends with the mount namespace. It runs as process 1 of namespaces of its own, made by hold or by a container runtime.
func root(args []string) error {
	f := flag.NewFlagSet("box root", flag.ExitOnError)
	at := f.String("at", "", "`folder` to mount the tmpfs at")
	tree := f.String("tree", "", "`folder` that becomes the root")
	size := f.String("size", "50%", "size of the tmpfs")
	groups := f.String("join", "", "`file` with cgroups to enter, a folder in each line")
	var binds list
	f.Var(&binds, "bind", "`FROM:TO`: file or folder, and its path below the new root (repeatable)")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return errors.New("usage: box root [flag ...] COMMAND")
	}
	if *groups != "" {
		if err := join(*groups); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
			return fmt.Errorf("unshare cgroup namespace: %w", err)
		}
	}
	top, err := furnish(*at, *tree, *size, binds)
	if err != nil {
		return err
	}
	if err := enter(top); err != nil {
		return err
	}
	if err := os.Setenv("PATH", "/usr/sbin:/usr/bin:/lab/bin"); err != nil {
		return err
	}
	path, err := exec.LookPath(f.Arg(0))
	if err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", path, unix.Exec(path, f.Args(), os.Environ()))
}

// own are the folders in which programs have overlays of their own: those cannot be on an overlay.
var own = []string{"var/lib/docker", "var/lib/containerd", "var/lib/kubelet", "var/log"}

// furnish mounts the new root file system, and returns its path.
func furnish(at, tree, size string, binds []string) (string, error) {
	top, upper, work := filepath.Join(at, "root"), filepath.Join(at, "upper"), filepath.Join(at, "work")
	if err := mountAll([]mount{
		{to: "/", flags: unix.MS_REC | unix.MS_PRIVATE},
		{from: "tmpfs", to: at, kind: "tmpfs", data: "mode=755,size=" + size},
	}); err != nil {
		return "", err
	}
	if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
		return "", err
	}
	in := func(name string) string { return filepath.Join(top, name) }
	mounts := []mount{
		{from: "overlay", to: top, kind: "overlay", data: fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", tree, upper, work)},
		{from: "/dev", to: in("dev"), flags: unix.MS_BIND | unix.MS_REC},
		{from: "proc", to: in("proc"), kind: "proc"},
		{from: "sysfs", to: in("sys"), kind: "sysfs"},
		{from: "tmpfs", to: in("run"), kind: "tmpfs", data: "mode=755"},
		{from: "tmpfs", to: in("tmp"), kind: "tmpfs", data: "mode=1777"},
	}
	for _, name := range own {
		from := filepath.Join(at, "own", name)
		if err := os.MkdirAll(from, 0o755); err != nil {
			return "", err
		}
		mounts = append(mounts, mount{from: from, to: in(name), flags: unix.MS_BIND})
	}
	for _, b := range binds {
		from, to, _ := strings.Cut(b, ":")
		mounts = append(mounts, mount{from: from, to: in(to), flags: unix.MS_BIND | unix.MS_REC})
	}
	if err := mountAll(mounts); err != nil {
		return "", err
	}
	return top, mountGroups(in("sys/fs/cgroup"))
}

// mountGroups mounts the cgroups that this process sees, whose first one is its own. In version 2 the process moves to a child, so
// that other children may have controllers.
func mountGroups(to string) error {
	all, err := ownHierarchies()
	if err != nil {
		return err
	}
	if len(all) == 0 {
		if err := (mount{from: "cgroup2", to: to, kind: "cgroup2"}).do(); err != nil {
			return err
		}
		leaf := filepath.Join(to, "init")
		if err := os.Mkdir(leaf, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
		enableControllers(to)
		return nil
	}
	mounts := []mount{{from: "tmpfs", to: to, kind: "tmpfs", data: "mode=755"}}
	for _, h := range all {
		mounts = append(mounts, mount{from: "cgroup", to: filepath.Join(to, h.controllers), kind: "cgroup", data: h.controllers})
	}
	if err := mountAll(mounts); err != nil {
		return err
	}
	for _, h := range all {
		for c := range strings.SplitSeq(h.controllers, ",") {
			if c == h.controllers {
				continue
			}
			if err := os.Symlink(h.controllers, filepath.Join(to, c)); err != nil {
				return err
			}
		}
	}
	return nil
}

type mount struct {
	from, to, kind string
	flags          uintptr
	data           string
}

func mountAll(mounts []mount) error {
	for _, m := range mounts {
		if err := m.do(); err != nil {
			return err
		}
	}
	return nil
}

// do makes the mount point where it is missing, a file for a file, and mounts.
func (m mount) do() error {
	if err := m.point(); err != nil {
		return err
	}
	if err := unix.Mount(m.from, m.to, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", m.from, m.to, err)
	}
	return nil
}

func (m mount) point() error {
	if m.flags&unix.MS_BIND != 0 {
		info, err := os.Stat(m.from)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return errors.Join(os.MkdirAll(filepath.Dir(m.to), 0o755), os.WriteFile(m.to, nil, 0o644))
		}
	}
	return os.MkdirAll(m.to, 0o755)
}

// enter makes a folder the root of this mount namespace. Mounts in there reach the namespaces that come from it, as kubelet needs.
func enter(top string) error {
	old := ".old"
	if err := errors.Join(os.Chdir(top), os.Mkdir(old, 0o755)); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", old); err != nil {
		return fmt.Errorf("pivot_root %s: %w", top, err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/"+old, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the former root: %w", err)
	}
	if err := os.Remove("/" + old); err != nil {
		return err
	}
	return mount{to: "/", flags: unix.MS_REC | unix.MS_SHARED}.do()
}
