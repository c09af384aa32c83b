package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// bed is a node between a pod and the outside, each a network namespace: pod0 leads to the pods, eth1 is the default
// network, eth2 another one. Beyond, packets are counted by whether their source is right, and dropped as they come in.
type bed struct {
	name               string
	node, pod, outside int // namespaces
}

func newBed(name string, vrf bool) (*bed, error) {
	b := &bed{name: name}
	for _, ns := range []*int{&b.node, &b.pod, &b.outside} {
		fd, err := newNamespace()
		if err != nil {
			return nil, err
		}
		*ns = fd
	}
	pod, outside := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), b.pod), fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), b.outside)
	red := ""
	if vrf { // before eth2 has addresses: those of IPv6 would go
		red = "link add red type vrf table 1001\nlink set red up\nlink set eth2 master red\n"
	}
	err := in(b.node, func() error {
		return script(`
link set lo up
link add pod0 address 02:00:00:00:00:01 type veth peer name pod0 address 02:00:00:00:01:01 netns ` + pod + `
link add eth1 address 02:00:00:00:00:02 type veth peer name eth1 address 02:00:00:00:01:02 netns ` + outside + `
link add eth2 address 02:00:00:00:00:03 type veth peer name eth2 address 02:00:00:00:01:03 netns ` + outside + `
` + red + `address add 169.254.1.1/30 dev pod0
address add fd69::1/126 dev pod0 nodad
address add 10.0.0.11/24 dev eth1
address add fd00::11/64 dev eth1 nodad
address add 10.1.0.11/24 dev eth2
address add fd01::11/64 dev eth2 nodad
link set pod0 up
link set eth1 up
link set eth2 up
neighbour add 169.254.1.2 lladdr 02:00:00:00:01:01 dev pod0
neighbour add fd69::2 lladdr 02:00:00:00:01:01 dev pod0
neighbour add 10.0.0.254 lladdr 02:00:00:00:01:02 dev eth1
neighbour add fd00::254 lladdr 02:00:00:00:01:02 dev eth1
neighbour add 10.0.0.12 lladdr 02:00:00:00:01:02 dev eth1
neighbour add fd00::12 lladdr 02:00:00:00:01:02 dev eth1
neighbour add 10.1.0.254 lladdr 02:00:00:00:01:03 dev eth2
neighbour add fd01::254 lladdr 02:00:00:00:01:03 dev eth2
route add 10.64.0.0/14 via 169.254.1.2 dev pod0
route add fd64::/64 via fd69::2 dev pod0
route add 10.68.0.0/14 via 10.0.0.12 dev eth1
route add fd68::/64 via fd00::12 dev eth1
route add default via 10.0.0.254 dev eth1
route add default via fd00::254 dev eth1
route add default via 10.1.0.254 dev eth2 table 1001
route add default via fd01::254 dev eth2 table 1001
`)
	})
	if err != nil {
		return nil, err
	}
	for path, value := range map[string]string{
		"net/ipv4/ip_forward":          "1",
		"net/ipv6/conf/all/forwarding": "1",
		"net/ipv4/conf/all/rp_filter":  "2",
	} {
		if err := in(b.node, func() error { return os.WriteFile("/proc/sys/"+path, []byte(value), 0) }); err != nil {
			return nil, fmt.Errorf("set sysctl %s: %w", path, err)
		}
	}
	if err := in(b.pod, func() error {
		return script("link set lo up\nlink set pod0 up\n")
	}); err != nil {
		return nil, err
	}
	if err := in(b.outside, func() error { return script("link set lo up\nlink set eth1 up\nlink set eth2 up\n") }); err != nil {
		return nil, err
	}
	return b, in(b.node, func() error { return running("pod0", "eth1", "eth2") })
}

// running waits until devices have a carrier: without one they drop their packets.
func running(devices ...string) error {
	const patience = 5 * time.Second
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for began := time.Now(); ; <-poll.C {
		up := 0
		for _, d := range devices {
			if i, err := net.InterfaceByName(d); err == nil && i.Flags&net.FlagRunning != 0 {
				up++
			}
		}
		if up == len(devices) {
			return nil
		}
		if time.Since(began) > patience {
			return fmt.Errorf("devices %s are not running after %s", strings.Join(devices, ", "), patience)
		}
	}
}

// canVRF reports whether the kernel has VRF devices.
func canVRF() bool {
	ns, err := newNamespace()
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(ns) }()
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(home) }()
	made := in(ns, func() error { return script("link add red type vrf table 1001\n") })
	return errors.Join(made, unix.Setns(home, unix.CLONE_NEWNET)) == nil
}

// newNamespace makes a network namespace, which lasts as long as this process.
func newNamespace() (int, error) {
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open network namespace: %w", err)
	}
	defer func() { _ = unix.Close(home) }()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return 0, fmt.Errorf("make network namespace: %w", err)
	}
	ns, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open network namespace: %w", err)
	}
	return ns, unix.Setns(home, unix.CLONE_NEWNET)
}

// in has f run in a network namespace. The thread stays there.
func in(ns int, f func() error) error {
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return f()
}

// script has ip(8) run many commands.
func script(commands string) error { return run(commands, "ip", "-batch", "-") }

func rules(commands string) error { return run(commands, "nft", "-f", "-") }

func run(input, name string, args ...string) error {
	c := exec.Command(name, args...)
	c.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", c, err, out.String())
	}
	return nil
}

// index is the index of a device in the thread's namespace.
func index(device string) (uint32, error) {
	i, err := net.InterfaceByName(device)
	if err != nil {
		return 0, fmt.Errorf("find device %s: %w", device, err)
	}
	return uint32(i.Index), nil
}
