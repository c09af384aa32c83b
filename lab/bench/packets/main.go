// Bench measures what a packet costs on a node, with the daemon's plan in force and without, side by side in one run: it
// builds a node between a pod and the outside for every layout, and lets packets through each in turn, round by round. It
// prints Markdown. It needs root, ip(8), nft(8) and a kernel with BPF; without VRF devices it leaves out the layouts that have one.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	rounds := flag.Int("rounds", 30, "`number` of rounds")
	only := flag.String("only", "", "`words`, separated by semicolons, one of which the name of a layout must hold")
	size := flag.Int("packets", 16384, "`number` of packets of a batch")
	ofParts := flag.Bool("parts", false, "measure what rules are made of instead")
	kind := flag.String("kind", "", "measure only this `kind` of packets")
	wall := flag.Bool("wall", false, "measure by the clock on the wall, where the kernel counts processor time in ticks, as a user-mode "+
		"one does")
	flag.Parse()
	if *wall {
		clock = unix.CLOCK_MONOTONIC
	}
	runtime.LockOSThread() // the namespace is the thread's
	b := bench{size: *size, parts: *ofParts}
	if *kind != "" {
		kinds = []string{*kind}
	}
	for w := range strings.SplitSeq(*only, ";") {
		if w != "" {
			b.only = append(b.only, w)
		}
	}
	err := b.prepare()
	for i := 0; err == nil && i < *rounds; i++ {
		err = b.round()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	fmt.Printf("%d rounds. Medians, ns of one processor per packet:\n\n", *rounds)
	b.tables()
}
