package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guest is the init of the user-mode kernel: it runs the one job, and powers off. It never returns with success.
func guest(jobFile string) int {
	if err := runJob(jobFile); err != nil {
		fmt.Println("labexec:", err) // to the kernel's log
	}
	syscall.Sync()
	return fail("power off: %v", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

func runJob(jobFile string) error {
	if err := mountAll(); err != nil {
		return err
	}
	b, err := os.ReadFile(jobFile)
	if err != nil {
		return fmt.Errorf("read job: %w", err)
	}
	var j job
	if err := json.Unmarshal(b, &j); err != nil {
		return fmt.Errorf("decode job: %w", err)
	}
	if err := prepare(); err != nil {
		return err
	}
	if j.API {
		if err := os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
			return err
		}
		if err := manage(guestIPv4, guestIPv6, "link set "+guestNIC+" master "+mgmt, "link set "+guestNIC+" up"); err != nil {
			return err
		}
	}
	stdout, err := openConsole("/dev/tty1")
	if err != nil {
		return err
	}
	stderr, err := openConsole("/dev/tty2")
	if err != nil {
		return err
	}
	signals, err := openConsole("/dev/tty3")
	if err != nil {
		return err
	}
	status, err := execute(j, stdout, stderr, signals)
	if err != nil {
		fmt.Fprintln(stderr, "labexec:", err)
	}
	for _, f := range []*os.File{stdout, stderr} {
		_ = unix.IoctlSetInt(int(f.Fd()), unix.TCSBRK, 1) // wait until all is written
	}
	// Renamed into place, so that a guest that dies here leaves no status rather than an empty one.
	if err := os.WriteFile(j.Status+".new", []byte(strconv.Itoa(status)), 0o644); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return os.Rename(j.Status+".new", j.Status)
}

// mountAll makes the host's file system a root one can work in. Nothing is mounted over /tmp: `go test` keeps its binary,
// its log and its coverage there, and the job's files are there too.
func mountAll() error {
	for _, m := range []struct{ kind, target, options string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"devtmpfs", "/dev", ""},
		{"devpts", "/dev/pts", ""},
		{"tmpfs", "/dev/shm", "mode=1777"},
		{"tmpfs", "/run", "mode=755"},
		{"tmpfs", "/run/tmp", "mode=1777"},
		{"cgroup2", "/sys/fs/cgroup", ""},
	} {
		if err := os.MkdirAll(m.target, 0o755); err != nil {
			return err
		}
		err := syscall.Mount(m.kind, m.target, m.kind, 0, m.options)
		if err != nil && !errors.Is(err, syscall.EBUSY) { // the kernel mounts devtmpfs itself
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := os.Symlink("/proc/self/fd", "/dev/fd"); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	// Namespaces come without tunl0, gre0, sit0 and the like, which makes them quicker and easier to read.
	if err := os.WriteFile("/proc/sys/net/core/fb_tunnels_only_for_init_net", []byte("1"), 0o644); err != nil {
		return err
	}
	return os.MkdirAll("/run/lock", 0o1777)
}

// execute runs the job and reaps everybody's orphans until it has ended.
func execute(j job, stdout, stderr, signals *os.File) (int, error) {
	stdin, err := os.Open(os.DevNull)
	if err != nil {
		return exitLab, err
	}
	env := slices.DeleteFunc(j.Env, func(e string) bool { return strings.HasPrefix(e, "TMPDIR=") })
	p, err := os.StartProcess(j.Args[0], j.Args, &os.ProcAttr{
		Dir: j.Dir, Env: append(env, "TMPDIR=/run/tmp"), Files: []*os.File{stdin, stdout, stderr},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return exitLab, err
	}
	if slices.ContainsFunc(j.Env, func(e string) bool { return strings.HasPrefix(e, "LAB_VERBOSE=") }) {
		fmt.Fprintf(stderr, "labexec: booted in %.2f s\n", time.Since(j.Started).Seconds())
	}
	go passSignals(p.Pid, signals)
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return exitLab, fmt.Errorf("wait: %w", err)
		case pid == p.Pid:
			return waitStatus(ws), nil
		}
	}
}

// passSignals gives the host's signals, a number a line, to the job's process group. It ends with the machine.
func passSignals(pid int, signals *os.File) {
	for lines := bufio.NewScanner(signals); lines.Scan(); {
		if n, err := strconv.Atoi(lines.Text()); err == nil {
			_ = syscall.Kill(-pid, syscall.Signal(n))
		}
	}
}

// openConsole opens a terminal line such that bytes pass as they are.
func openConsole(path string) (*os.File, error) {
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("get modes of %s: %w", path, err)
	}
	t.Oflag &^= unix.OPOST
	t.Iflag = 0
	t.Lflag &^= unix.ECHO | unix.ISIG
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("set modes of %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}
