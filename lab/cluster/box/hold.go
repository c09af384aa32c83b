package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// hold runs "box root" with its arguments as process 1 of new namespaces (mount, process, network, host name, IPC, cgroup), in
// cgroups of its own, and returns. Its file 3 is a listener on 127.0.0.1 of the namespace that it left, the variable PORT its port.
// DIR gets pid, port, cgroups (a folder in each line) and log/machine.log. The end of that process ends all others in there; the
// cgroups are then empty, and remain.
func hold(args []string) error {
	f := flag.NewFlagSet("box hold", flag.ExitOnError)
	dir := f.String("dir", "", "`folder` of files about the process")
	name := f.String("cgroup", "", "`name` of its cgroups")
	if err := f.Parse(args); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	listener, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	groups, err := makeGroups(*name)
	if err != nil {
		return err
	}
	file := func(name string) string { return filepath.Join(*dir, name) }
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	if err := errors.Join(
		os.WriteFile(file("cgroups"), []byte(strings.Join(groups, "\n")+"\n"), 0o600),
		os.WriteFile(file("port"), []byte(port+"\n"), 0o600),
	); err != nil {
		return err
	}
	log, err := os.Create(file("log/machine.log"))
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, append([]string{"root", "-join", file("cgroups")}, f.Args()...)...)
	cmd.Env = []string{"HOME=/root", "PORT=" + port}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{listener}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	return os.WriteFile(file("pid"), []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o600)
}

const cgroupFolder = "/sys/fs/cgroup"

// hierarchy is a hierarchy of cgroups, version 1: its controllers as the kernel lists them, and the cgroup of this process.
type hierarchy struct{ controllers, path string }

// hierarchies returns the hierarchies of version 1 that have controllers. The list is empty where version 2 has all controllers.
func hierarchies(procCgroup string) (found []hierarchy) {
	for line := range strings.Lines(procCgroup) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && f[1] != "" && !strings.HasPrefix(f[1], "name=") {
			found = append(found, hierarchy{f[1], f[2]})
		}
	}
	return found
}

func ownHierarchies() ([]hierarchy, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	return hierarchies(string(text)), err
}

// makeGroups makes cgroups: below those of this process in version 1; in version 2 below the first one, since no other cgroup may have
// both processes and controllers.
func makeGroups(name string) (dirs []string, err error) {
	all, err := ownHierarchies()
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		enableControllers(cgroupFolder)
		dir := filepath.Join(cgroupFolder, name)
		return []string{dir}, os.MkdirAll(dir, 0o755)
	}
	for _, h := range all {
		parent := filepath.Join(cgroupFolder, h.controllers, h.path)
		dir := filepath.Join(parent, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		dirs = append(dirs, dir)
		if h.controllers == "cpuset" { // empty at first, which admits no process
			if err := errors.Join(copyFile(parent, dir, "cpuset.cpus"), copyFile(parent, dir, "cpuset.mems")); err != nil {
				return nil, err
			}
		}
	}
	return dirs, nil
}

// enableControllers gives the children of a cgroup of version 2 all controllers that the kernel gives them.
func enableControllers(dir string) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for c := range strings.FieldsSeq(string(text)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0) // the kernel refuses some
	}
}

func copyFile(from, to, name string) error {
	text, err := os.ReadFile(filepath.Join(from, name))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, name), text, 0)
}

// join moves this process into the cgroups that a file lists.
func join(list string) error {
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	for dir := range strings.FieldsSeq(string(text)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("join cgroup %s: %w", dir, err)
		}
	}
	return nil
}
