package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
)

// Labexec executes itself again in new namespaces: in a throw-away one to probe, to become the program of a native run, and
// to run the guest beside an API server.
const (
	stageEnv    = "LABEXEC_STAGE"
	stageProbe  = "probe"
	stageNative = "native"
	stageHost   = "host"
)

// again is labexec itself at another stage, in new network and mount namespaces.
func again(stage string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), stageEnv+"="+stage)
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	cmd.SysProcAttr = attr
	return cmd
}

func kernelHasVRF() bool { return again(stageProbe).Run() == nil }

// probe runs in a namespace of its own, which takes the device away again.
func probe() int {
	if err := addVRF("probe", 4242); err != nil {
		return fail("add VRF: %v", err)
	}
	return 0
}

func runStage(stage string, args []string) int {
	cmd := again(stage, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		return fail("start in new namespaces: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			if s != syscall.SIGINT { // a terminal sends that to the whole group itself
				_ = cmd.Process.Signal(s)
			}
		case err := <-done:
			return exitStatus(err)
		}
	}
}

// enter runs in the new namespaces and becomes the program.
func enter(args []string) int {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fail("make mounts private: %v", err)
	}
	// sysfs shows the network namespace it was mounted in.
	if err := syscall.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		return fail("mount /sys: %v", err)
	}
	if err := prepare(); err != nil {
		return fail("%v", err)
	}
	if apiWanted() {
		// A child dies with its thread, which has to be the one that becomes the program.
		runtime.LockOSThread()
		if err := manage(hostIPv4, hostIPv6); err != nil {
			return fail("%v", err)
		}
		if _, err := startControl(); err != nil {
			return fail("%v", err)
		}
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return fail("%v", err)
	}
	if err := os.Unsetenv(stageEnv); err != nil {
		return fail("%v", err)
	}
	return fail("%v", fmt.Errorf("exec %s: %w", path, syscall.Exec(path, args, os.Environ())))
}
