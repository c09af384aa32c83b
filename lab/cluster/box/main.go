// Box is the only program in the images of a cluster of real nodes (lab/cluster), and the one that encloses the cluster:
//
//	box                  holds the namespaces of a pod, as the image "pause" does
//	box answer :8080     answers each HTTP request with the client's address and the name of the host
//	box ask URL...       prints such answers
//	box pod …            answers, and sends numbered datagrams all the time, see stream.go
//	box netexec …        answers with the name of the host, as Kubernetes' agnhost does
//	box outside …        answers, and records these datagrams by their sources
//	box hold …           starts a command in namespaces of its own, see hold
//	box root …           runs a command in another root file system, see root
//	box forward ADDRESS  hands the connections of a listener, its standard input, on to an address
package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

// Namespaces belong to a thread: main stays on the first one, which exec keeps.
func init() { runtime.LockOSThread() }

func main() {
	if len(os.Args) == 1 {
		pause()
		return
	}
	commands := map[string]func([]string) error{
		"answer": answer, "ask": ask, "forward": forward, "hold": hold, "root": root,
		"pod": pod, "outside": outside, "netexec": netexec,
	}
	run := commands[os.Args[1]]
	if run == nil {
		fmt.Fprintf(os.Stderr, "box: %s: must be answer, ask, pod, netexec, outside, forward, hold or root\n", os.Args[1])
		os.Exit(2)
	}
	if err := run(os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "box %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// pause reaps orphans until a signal ends it.
func pause() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
