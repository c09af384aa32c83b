// Labexec runs one program as root on a kernel that has VRF devices:
//
//	go test -exec bin/labexec ./...
//	bin/labexec bin/demo
//
// Where the running kernel can create a VRF, the program runs natively in network and mount namespaces of its own.
// Everywhere else it runs as the only job of a user-mode Linux kernel whose root file system is the host's, and labexec
// is also the init of that guest. Neither needs root.
//
// Settings, all optional, by environment: LAB_MODE (native or uml; otherwise probed), LAB_UML (the kernel; otherwise
// the newest that `make lab-kernel` left in the cache), LAB_MEM (the guest's memory, 1536M), LAB_UML_ARGS (further
// kernel arguments), LAB_NOPIN (do not tie the guest to one CPU), LAB_API (have a Kubernetes API server at hand, see
// api.go), LAB_VERBOSE (print each step).
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// Statuses of a run that failed before the program could give one.
const (
	exitKernel = 124 // the user-mode kernel ended
	exitLab    = 125
)

func main() {
	switch {
	case os.Getpid() == 1 && os.Getenv(jobEnv) != "":
		os.Exit(guest(os.Getenv(jobEnv)))
	case os.Getenv(stageEnv) == stageProbe:
		os.Exit(probe())
	case os.Getenv(stageEnv) == stageNative:
		os.Exit(enter(os.Args[1:]))
	case os.Getenv(stageEnv) == stageHost:
		os.Exit(besideAPI(os.Args[1:]))
	}
	os.Exit(run(os.Args[1:]))
}

// run chooses the mode, and runs the program in it.
func run(args []string) int {
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: labexec program [argument ...]")
		return exitLab
	}
	mode := os.Getenv("LAB_MODE")
	if mode == "" {
		mode = "uml"
		if kernelHasVRF() {
			mode = "native"
		}
	}
	verbose("mode %s", mode)
	switch mode {
	case "native":
		return runStage(stageNative, args)
	case "uml":
		if apiWanted() {
			return runStage(stageHost, args)
		}
		return runUML(args)
	}
	return fail("LAB_MODE=%s: must be native or uml", mode)
}

func fail(format string, a ...any) int {
	fmt.Fprintf(os.Stderr, "labexec: "+format+"\n", a...)
	return exitLab
}

func verbose(format string, a ...any) {
	if os.Getenv("LAB_VERBOSE") != "" {
		fmt.Fprintf(os.Stderr, "labexec: "+format+"\n", a...)
	}
}

// exitStatus turns the end of a child into a status as a shell would.
func exitStatus(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return waitStatus(exit.Sys().(syscall.WaitStatus))
	}
	if err != nil {
		return fail("%v", err)
	}
	return 0
}

func waitStatus(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// prepare makes the settings on which every program may count, in both modes: loopback is up, packets are forwarded,
// and sockets outside a VRF do not answer for it.
func prepare() error {
	for name, value := range map[string]string{
		"net/ipv4/ip_forward":          "1",
		"net/ipv6/conf/all/forwarding": "1",
		"net/ipv4/tcp_l3mdev_accept":   "0",
		"net/ipv4/udp_l3mdev_accept":   "0",
	} {
		// Without VRF support the last two do not exist.
		err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o644)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return linkUp("lo")
}
