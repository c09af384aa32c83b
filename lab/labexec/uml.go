package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// job is the program for the guest. It travels in a file, since a kernel command line is too short for it.
type job struct {
	Args    []string
	Env     []string
	Dir     string
	Status  string // file for the exit status
	API     bool   // there is an API server on the host
	Started time.Time
}

// jobEnv names the job's file. The kernel passes arguments it does not know to init as environment.
const jobEnv = "labjob"

// grace is how long a guest may take to end after a signal.
const grace = 10 * time.Second

// findKernel is LAB_UML, or the newest kernel in the cache.
func findKernel() (string, error) {
	if path := os.Getenv("LAB_UML"); path != "" {
		return path, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the lab kernel: %w", err)
	}
	pattern := filepath.Join(cache, "egressway", "uml-*")
	found, err := filepath.Glob(pattern)
	if err != nil {
		return "", fmt.Errorf("find the lab kernel: %w", err)
	}
	var newest string
	var when time.Time
	for _, path := range found {
		st, err := os.Stat(path)
		if err == nil && st.Mode().IsRegular() && st.ModTime().After(when) {
			newest, when = path, st.ModTime()
		}
	}
	if newest == "" {
		return "", fmt.Errorf("this kernel has no VRF and there is no lab kernel %s: run `make lab-kernel`", pattern)
	}
	return newest, nil
}

func runUML(args []string) int {
	kernel, err := findKernel()
	if err != nil {
		return fail("%v", err)
	}
	verbose("kernel %s", kernel)
	path, err := exec.LookPath(args[0])
	if err != nil {
		return fail("%v", err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return fail("%v", err)
	}
	// The guest sees the host's files, so the job and its status are files. The guest mounts nothing over the directory
	// they are in. The guest's memory is a file too, wanted in RAM; only pages that were touched count.
	files, err := os.MkdirTemp("", "labexec-")
	if err != nil {
		return fail("%v", err)
	}
	defer os.RemoveAll(files)
	memory, err := os.MkdirTemp(memoryDir(), "labexec-")
	if err != nil {
		return fail("%v", err)
	}
	defer os.RemoveAll(memory)
	g := guestProcess{kernel: kernel, files: files, memory: memory, job: job{
		Args: append([]string{path}, args[1:]...), Env: os.Environ(), Status: filepath.Join(files, "status"), API: apiWanted(),
		Started: time.Now(),
	}}
	if g.job.Dir, err = os.Getwd(); err != nil {
		return fail("%v", err)
	}
	status, err := g.run()
	if err != nil {
		if code := fail("%v", err); !errors.Is(err, errEnded) {
			return code
		}
		return exitKernel
	}
	verbose("done after %.2f s", time.Since(g.job.Started).Seconds())
	return status
}

func memoryDir() string {
	const shm = "/dev/shm"
	if st, err := os.Stat(shm); err == nil && st.IsDir() {
		return shm
	}
	return os.TempDir()
}

// guestProcess is the user-mode kernel as the host sees it.
type guestProcess struct {
	kernel, files, memory string
	job                   job
}

func (g guestProcess) run() (int, error) {
	spec, err := json.Marshal(g.job)
	if err != nil {
		return 0, fmt.Errorf("encode job: %w", err)
	}
	jobFile := filepath.Join(g.files, "job.json")
	if err := os.WriteFile(jobFile, spec, 0o600); err != nil {
		return 0, fmt.Errorf("write job: %w", err)
	}
	kernelLog, err := os.Create(filepath.Join(g.files, "kernel.log"))
	if err != nil {
		return 0, fmt.Errorf("create kernel log: %w", err)
	}
	defer kernelLog.Close()
	signalsIn, signalsOut, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("make pipe for signals: %w", err)
	}
	defer signalsIn.Close()
	defer signalsOut.Close()
	init, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find labexec itself: %w", err)
	}

	unpin := pin()
	defer unpin()
	// Consoles: 0 is the kernel's log, 1 and 2 are standard output and error, 3 takes signals. ExtraFiles start at 3.
	args := []string{
		"mem=" + getenv("LAB_MEM", "1536M"), "umid=" + filepath.Base(g.memory), "uml_dir=" + g.memory + "/",
		"root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw", "init=" + init, jobEnv + "=" + jobFile,
		"con=null", "con0=null,fd:3", "con1=null,fd:1", "con2=null,fd:2", "con3=fd:4,null", "ssl=null",
		"quiet", "loglevel=4", "panic=-1", "ncpus=1", "seccomp=auto",
	}
	if g.job.API {
		wire, err := guestWire(g.files)
		if err != nil {
			return 0, err
		}
		args = append(args, wire)
	}
	cmd := exec.Command(g.kernel, append(args, strings.Fields(os.Getenv("LAB_UML_ARGS"))...)...)
	cmd.Env = []string{"TMPDIR=" + g.memory, "HOME=" + g.memory, "PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{kernelLog, signalsIn}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start lab kernel: %w", err)
	}
	waited := g.wait(cmd, signals, signalsOut)

	if b, err := os.ReadFile(g.job.Status); err == nil {
		return strconv.Atoi(string(b))
	}
	log, _ := os.ReadFile(kernelLog.Name())
	//nolint:errorlint // waited may be nil
	return 0, fmt.Errorf("the guest's kernel said:\n%s\n%w (%v): %s", log[max(0, len(log)-8000):], errEnded, waited, panicOf(log))
}

// errEnded means that the guest's kernel ended before the job did.
var errEnded = errors.New("it ended without a status")

// panicOf returns the line of a kernel's log that says why it ended, which the registers and the stack follow.
func panicOf(log []byte) string {
	for line := range strings.Lines(string(log)) {
		if _, why, ok := strings.Cut(line, "Kernel panic - "); ok {
			return strings.TrimSpace(why)
		}
	}
	return "no panic"
}

// wait passes signals to the guest until it has ended; the third one, or a guest that ignores the first, kills it.
func (g guestProcess) wait(cmd *exec.Cmd, signals <-chan os.Signal, toGuest *os.File) error {
	kill := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	// The guest notices text that was written before it opened its end only when more comes.
	var late, again <-chan time.Time
	for n := 0; ; {
		select {
		case s := <-signals:
			fmt.Fprintf(toGuest, "%d\n", s)
			if n++; n == 1 {
				late, again = time.After(grace), time.Tick(100*time.Millisecond)
			} else if n > 2 {
				kill()
			}
		case <-again:
			fmt.Fprintln(toGuest)
		case <-late:
			kill()
		case err := <-done:
			kill() // the guest's processes are processes of the host, in the kernel's group
			return err
		}
	}
}

// pin ties this process, and so the guest, to one CPU that no other labexec has, and returns a function that frees it.
// A guest's processes hand over to one another on every system call, which is twice as quick on one CPU. With no CPU
// free the guest runs unpinned.
func pin() func() {
	free := func() {}
	var mine unix.CPUSet
	if os.Getenv("LAB_NOPIN") != "" || unix.SchedGetaffinity(0, &mine) != nil {
		return free
	}
	for cpu := range 1024 {
		if !mine.IsSet(cpu) {
			continue
		}
		f, err := os.OpenFile(filepath.Join(memoryDir(), "labexec.cpu"+strconv.Itoa(cpu)), os.O_CREATE|os.O_RDWR, 0o666)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			f.Close()
			continue
		}
		runtime.LockOSThread() // the guest is started by this thread and inherits its CPU
		var one unix.CPUSet
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			verbose("pin to CPU %d: %v", cpu, err)
		}
		return func() { f.Close() }
	}
	return free
}

func getenv(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}
