package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Image stands in for a container image: programs of this machine.
type Image struct {
	Dirs  []string                                 // empty and private to the node
	Owner string                                   // user that Dirs belong to; empty: root
	Start func(ctx context.Context, n *Node) error // runs when the links are there and the exec lines are done
}

// Images maps image names without tag to their stand-ins. An image that is not listed has nothing to start.
type Images map[string]Image

// StandIns are the images that every lab has.
var StandIns = Images{"quay.io/frrouting/frr": FRR}

// Options vary a topology.
type Options struct {
	Images Images              // beside StandIns
	Exec   map[string][]string // further lines per node, after those of the file

	// Management gives each node an eth0, unless it has one, in a network by which it reaches the lab's API server. Its
	// addresses are 10.98.0.10 and fd98::10 and on, in order of the nodes' names.
	Management bool
}

// Lab is a topology that runs.
type Lab struct {
	Topology *Topology
	Nodes    map[string]*Node

	flows   atomic.Int64 // that Probes have asked by
	asking  sync.Mutex
	asked   map[netip.Addr]*ports // the source ports of Streams, by destination
	mu      sync.Mutex
	closers []func() // end the programs that watch and answer in the lab
	end     sync.Once
}

// Deploy builds the topology of a file. It is complete when Deploy returns, but for sessions between routers.
func Deploy(ctx context.Context, path string, o Options) (*Lab, error) {
	t, err := Load(path)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("find folder of %s: %w", path, err)
	}
	l := &Lab{Topology: t, Nodes: map[string]*Node{}}
	for name, d := range t.Graph.Nodes {
		if d.Kind != Linux {
			return nil, fmt.Errorf("%s: node %s: kind %q: must be linux here", path, name, d.Kind)
		}
		d.Exec = slices.Concat(d.Exec, o.Exec[name])
		l.Nodes[name] = newNode(name, d)
	}
	if o.Management {
		l.manage()
	}
	for name := range o.Exec {
		if l.Nodes[name] == nil {
			return nil, fmt.Errorf("options: exec: no node %q in %s", name, path)
		}
	}
	images := Images(merged(StandIns, o.Images))
	if err := l.build(ctx, images, dir); err != nil {
		return nil, errors.Join(fmt.Errorf("deploy %s: %w", path, err), l.Destroy())
	}
	return l, nil
}

func (l *Lab) build(ctx context.Context, images Images, dir string) error {
	err := l.each(func(n *Node) error { return n.create(images[repository(n.Definition.Image)], dir) })
	if err != nil {
		return err
	}
	if err := l.plug(ctx); err != nil {
		return err
	}
	return l.each(func(n *Node) error {
		if err := n.exec(ctx, n.Definition.Exec); err != nil {
			return err
		}
		if start := images[repository(n.Definition.Image)].Start; start != nil {
			return start(ctx, n)
		}
		return nil
	})
}

// each does f for every node at once.
func (l *Lab) each(f func(*Node) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(l.Nodes))
	for i, name := range slices.Sorted(maps.Keys(l.Nodes)) {
		wg.Go(func() {
			if err := f(l.Nodes[name]); err != nil {
				errs[i] = fmt.Errorf("node %s: %w", name, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// plug makes all links in one go; each end is born in its node, so that no two names can clash.
func (l *Lab) plug(ctx context.Context) error {
	var batch strings.Builder
	end := func(endpoint string) (device, netns string) {
		node, device, _ := strings.Cut(endpoint, ":")
		return device, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), l.Nodes[node].netns.Fd())
	}
	for _, link := range l.Topology.Graph.Links {
		var mtu string
		if link.MTU > 0 {
			mtu = "mtu " + strconv.Itoa(link.MTU)
		}
		left, leftNS := end(link.Endpoints[0])
		right, rightNS := end(link.Endpoints[1])
		fmt.Fprintf(&batch, "link add %s %s netns %s type veth peer name %s %s netns %s\n", left, mtu, leftNS, right, mtu, rightNS)
	}
	for _, n := range l.Nodes {
		if n.Management.IsValid() {
			_, netns := end(n.Name + ":" + managementDevice)
			batch.WriteString(n.managementWire(netns))
		}
	}
	cmd := exec.CommandContext(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make links: %w: %s", err, out)
	}
	return l.each(func(n *Node) error {
		devices, err := n.Interfaces()
		if err != nil {
			return fmt.Errorf("list interfaces: %w", err)
		}
		return n.Do(func() error {
			for _, d := range devices {
				if err := linkUp(d.Name); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// linkUp is for the thread's own network namespace.
func linkUp(device string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(device)
	if err != nil {
		return fmt.Errorf("interface %s: %w", device, err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request); err != nil {
		return fmt.Errorf("read flags of %s: %w", device, err)
	}
	request.SetUint16(request.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("set %s up: %w", device, err)
	}
	return nil
}

// Node returns a node by name, nil if the topology has none of that name.
func (l *Lab) Node(name string) *Node { return l.Nodes[name] }

// atEnd has f called by Destroy, before the nodes go.
func (l *Lab) atEnd(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closers = append(l.closers, f)
}

// Destroy ends everything that runs in the lab, and the lab. A second call does nothing.
func (l *Lab) Destroy() (err error) {
	l.end.Do(func() {
		for _, c := range slices.Backward(l.closers) {
			c()
		}
		err = l.killProcesses()
		for _, n := range l.Nodes {
			n.destroy()
		}
	})
	return err
}

// killProcesses kills all processes in the nodes, also daemons that left their parent, and waits for their end.
func (l *Lab) killProcesses() error {
	ours := map[uint64]bool{}
	for _, n := range l.Nodes {
		var st unix.Stat_t
		if n.netns != nil && unix.Fstat(int(n.netns.Fd()), &st) == nil {
			ours[st.Ino] = true
		}
	}
	return Wait(context.Background(), Patience, func() error {
		killed, err := killIn(ours)
		if len(killed) > 0 {
			return fmt.Errorf("processes %s are still in the lab", strings.Join(killed, ", "))
		}
		return err
	})
}

// killIn kills all processes in network namespaces, except this one, and returns their ids.
func killIn(namespaces map[uint64]bool) (killed []string, err error) {
	all, err := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, path := range all {
		var st unix.Stat_t
		pid, err := strconv.Atoi(strings.Split(path, "/")[2])
		if err != nil || pid == os.Getpid() || unix.Stat(path, &st) != nil || !namespaces[st.Ino] {
			continue
		}
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed = append(killed, strconv.Itoa(pid))
		}
	}
	return killed, err
}

// Patience is a limit for Wait: long enough for anything that happens soon, on a machine with much other load.
const Patience = 2 * time.Minute

// pollEvery is how often Wait looks: a question to a socket takes a few milliseconds. pollMost bounds its pauses where looking starts
// programs.
const (
	pollEvery = 20 * time.Millisecond
	pollMost  = time.Second / 2
)

// Wait asks until ok is nil, at most for limit, and returns its last error. After programs that ok started it pauses for as long as they
// used a processor, which those have that are waited for: a kernel of the lab has one.
func Wait(ctx context.Context, limit time.Duration, ok func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for before := programs(); ; before = programs() {
		err := ok()
		if err == nil {
			return nil
		}
		pause.Reset(min(max(pollEvery, programs()-before), pollMost))
		select {
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", limit, err)
		case <-pause.C:
		}
	}
}

// programs is for how long programs that this process started and that have ended used a processor.
func programs() time.Duration {
	var used unix.Rusage
	if unix.Getrusage(unix.RUSAGE_CHILDREN, &used) != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
