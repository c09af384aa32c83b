package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Where LAB_API is set, the job has a Kubernetes API server at hand: kubelab, which KUBELAB names, takes its orders at
// KUBELAB_CONTROL. It does not run in the guest, which is far too slow for it, but on the host in a network namespace:
//
//	host's namespace   lab0 10.98.0.1, kubelab
//	                     | veth
//	                   lab1, opened by the guest's kernel, whose vec0 it is
//	guest              bridge mgmt 10.98.0.2 with vec0, and what lab adds: eth0 of each node
//
// In a native run the bridge is in the job's namespace, has 10.98.0.1, and kubelab runs beside the job.
const (
	hostIPv4, hostIPv6   = "10.98.0.1", "fd98::1"
	guestIPv4, guestIPv6 = "10.98.0.2", "fd98::2"
	controlPort, apiPort = "6440", "6443"

	mgmt     = "mgmt" // lab knows it by this name too
	guestNIC = "vec0"
)

const (
	kubelabEnv = "KUBELAB"
	controlEnv = "KUBELAB_CONTROL"
)

// packetType is where classic BPF finds a packet's type: SKF_AD_OFF + SKF_AD_PKTTYPE.
const packetType = 0xfffff000 + 4

// incoming is a filter of packets in classic BPF. A raw socket also receives the packets that it has sent; passed back
// to the guest's bridge, these would make it look for its nodes on the wrong side.
var incoming = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: packetType},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.PACKET_OUTGOING, Jf: 1},
	{Code: unix.BPF_RET, K: 0},
	{Code: unix.BPF_RET, K: math.MaxUint32},
}

// guestWire is the argument by which the guest's kernel opens the host's lab1. A raw socket, other than a tap, needs no
// /dev/net/tun, which in a container is missing or root's alone.
func guestWire(files string) (string, error) {
	filter := filepath.Join(files, "incoming.bpf")
	var b []byte
	for _, f := range incoming {
		b = binary.NativeEndian.AppendUint16(b, f.Code)
		b = append(b, f.Jt, f.Jf)
		b = binary.NativeEndian.AppendUint32(b, f.K)
	}
	if err := os.WriteFile(filter, b, 0o600); err != nil {
		return "", fmt.Errorf("write filter of the guest's wire: %w", err)
	}
	return guestNIC + ":transport=raw,ifname=lab1,bpffile=" + filter, nil
}

func apiWanted() bool { return os.Getenv("LAB_API") != "" }

// besideAPI runs in the host's namespace: it starts kubelab there, and the guest.
func besideAPI(args []string) int {
	if err := os.Unsetenv(stageEnv); err != nil {
		return fail("%v", err)
	}
	if err := linkUp("lo"); err != nil {
		return fail("%v", err)
	}
	// The guest accepts no packets larger than its MTU, which a veth passes to save work unless that is turned off.
	err := ip("link add lab0 gso_max_segs 1 type veth peer name lab1", "link set lab1 up", "link set lab0 up",
		"addr add "+hostIPv4+"/24 dev lab0", "addr add "+hostIPv6+"/64 dev lab0 nodad")
	if err != nil {
		return fail("%v", err)
	}
	stop, err := startControl()
	if err != nil {
		return fail("%v", err)
	}
	defer stop()
	return runUML(args)
}

// manage makes the bridge that lab plugs its nodes into.
func manage(ipv4, ipv6 string, more ...string) error {
	// Without an address of its own, a bridge uses one of its ports', and another one when that port goes: a neighbour
	// that knows the former one loses its packets for half a minute.
	const address = "02:00:00:98:00:02"
	return ip(append([]string{
		"link add " + mgmt + " address " + address + " type bridge", "link set " + mgmt + " up",
		"addr add " + ipv4 + "/24 dev " + mgmt, "addr add " + ipv6 + "/64 dev " + mgmt + " nodad",
	}, more...)...)
}

// ip runs its lines.
func ip(lines ...string) error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make the management network: %w: %s", err, out)
	}
	return nil
}

// startControl starts kubelab, waits until it accepts orders, and passes its address to the job. It dies with the
// calling thread.
func startControl() (stop func(), err error) {
	program := os.Getenv(kubelabEnv)
	if program == "" {
		return nil, fmt.Errorf("LAB_API is set, but not %s: it must name the program that `make kubelab` builds", kubelabEnv)
	}
	addr := net.JoinHostPort(hostIPv4, controlPort)
	cmd := exec.Command(program, "control", "-listen", addr, "-serve", net.JoinHostPort(hostIPv4, apiPort))
	// Asked to end, it takes its state out of memory.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start kubelab: %w", err)
	}
	begin := time.Now()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("kubelab takes no orders: it said %q", line), cmd.Wait())
	}
	verbose("kubelab takes orders after %.2f s", time.Since(begin).Seconds())
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()                          // which the signal makes an error
	}
	return stop, os.Setenv(controlEnv, "http://"+addr)
}
