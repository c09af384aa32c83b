package main

import (
	"encoding/binary"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab/bench/internal/figures"
)

// check lets every flow begin and be answered, and makes sure that all packets come out where they should.
func (s *subject) check() error {
	for _, c := range []struct {
		kind, device string
		ns           int
	}{
		{established, s.device, s.outside},
		{answers, s.enters, s.behind(s.enters)},
		{fresh, s.device, s.outside},
		{passing, "eth1", s.outside},
		{passingBack, "pod0", s.pod},
		{passingNew, "eth1", s.outside},
	} {
		before, err := s.counted(c.ns, c.device)
		if err != nil {
			return err
		}
		n := flows
		if err := in(s.node, func() error { _, err := s.streams[c.kind].send(n); return err }); err != nil {
			return err
		}
		after, err := s.counted(c.ns, c.device)
		if err != nil {
			return err
		}
		if after-before != n {
			return fmt.Errorf("%s: %d of %d packets came out by %s", c.kind, after-before, n, c.device)
		}
	}
	return nil
}

// behind is the namespace that a device of the node leads to.
func (s *subject) behind(device string) int {
	if device == "pod0" {
		return s.pod
	}
	return s.outside
}

func (s *subject) counted(ns int, device string) (n int, err error) {
	err = in(ns, func() error {
		out, err := exec.Command("nft", "list", "counter", "netdev", "sink", device).Output()
		if err != nil {
			return fmt.Errorf("read counter: %w", err)
		}
		_, rest, _ := strings.Cut(string(out), "packets ")
		_, err = fmt.Sscan(rest, &n)
		return err
	})
	return n, err
}

// round measures everything once.
func (b *bench) round() error {
	for _, kind := range kinds {
		if b.parts && kind != passing {
			continue
		}
		for _, s := range b.subjects {
			if err := in(s.node, func() error { return s.measure(kind, b.size/s.scale) }); err != nil {
				return fmt.Errorf("%s: %s: %w", s.name, kind, err)
			}
		}
	}
	return nil
}

func (s *subject) measure(kind string, n int) error {
	if kind == pingPong && s.enters != "pod0" {
		return nil
	}
	n = batch(kind, n)
	took, err := s.pass(kind, n)
	if err != nil {
		return err
	}
	s.took[kind] = append(s.took[kind], float64(took)/float64(n))
	return nil
}

// batch returns how many packets of a kind are measured at once, at most n.
func batch(kind string, n int) int {
	switch kind {
	case pingPong:
		return min(n, 2048)
	case local:
		return min(n, newFlows)
	case fresh, passingNew:
		if n = min(n, newFlows); n > 256 {
			n &^= 63
		}
	}
	return n
}

// pass lets n packets of a kind pass, and returns how long that took.
func (s *subject) pass(kind string, n int) (time.Duration, error) {
	switch kind {
	case pingPong:
		return s.talk(n)
	case local:
		return s.sendLocal(n)
	case fresh, passingNew:
		return s.sendNew(kind, n)
	}
	if _, err := s.streams[kind].send(min(flows, n)); err != nil { // fills the caches
		return 0, err
	}
	return s.streams[kind].send(n)
}

// sendNew sends first packets of n flows that the kernel does not know. Afterwards it knows those of the other streams
// again.
func (s *subject) sendNew(kind string, n int) (time.Duration, error) {
	if err := flushConntrack(); err != nil {
		return 0, err
	}
	if err := s.streams[kind].restart(); err != nil {
		return 0, err
	}
	took, err := s.streams[kind].send(n)
	if err == nil {
		err = flushConntrack()
	}
	for _, again := range []string{established, answers, passing, passingBack} {
		if err == nil {
			_, err = s.streams[again].send(flows)
		}
	}
	return took, err
}

// sendLocal has the node itself send.
func (s *subject) sendLocal(n int) (time.Duration, error) {
	data := make([]byte, 22) // as long as injected packets
	if s.v6 {
		data = data[:2]
	}
	began := processorTime()
	for range n {
		if _, err := unix.Write(s.socket, data); err != nil {
			return 0, err
		}
	}
	return processorTime() - began, nil
}

// talk makes a pod ask and a host outside answer, one after another. Packets arrive while the system call that sends
// them runs.
func (s *subject) talk(n int) (time.Duration, error) {
	question := make([]byte, 30)
	buf := make([]byte, 64)
	began := processorTime()
	for range n {
		if _, err := unix.Write(s.ends[0], question); err != nil {
			return 0, fmt.Errorf("ask: %w", err)
		}
		size, from, err := unix.Recvfrom(s.ends[1], buf, 0)
		if err != nil {
			return 0, fmt.Errorf("hear the question: %w", err)
		}
		if err := unix.Sendto(s.ends[1], buf[:size], 0, from); err != nil {
			return 0, fmt.Errorf("answer: %w", err)
		}
		if _, err := unix.Read(s.ends[0], buf); err != nil {
			return 0, fmt.Errorf("hear the answer: %w", err)
		}
	}
	return processorTime() - began, nil
}

// flushConntrack forgets every connection in the thread's namespace.
func flushConntrack() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	m := make([]byte, unix.NLMSG_HDRLEN+4)
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	binary.NativeEndian.PutUint16(m[4:], unix.NFNL_SUBSYS_CTNETLINK<<8|2) // IPCTNL_MSG_CT_DELETE
	binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	if err := unix.Sendto(fd, m, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	if _, _, err = unix.Recvfrom(fd, answer, 0); err != nil {
		return err
	}
	if errno := int32(binary.NativeEndian.Uint32(answer[unix.NLMSG_HDRLEN:])); errno != 0 {
		return fmt.Errorf("flush connections: %w", unix.Errno(-errno))
	}
	return nil
}

// perPart prints how much each part adds to a packet, ns.
func (b *bench) perPart() {
	fmt.Println("\n| | ns | quartiles |\n|---|---|---|")
	base, empty := b.subjects[0].took[passing], b.subjects[1].took[passing]
	for i, s := range b.subjects {
		added := make([]float64, len(base))
		for r := range added {
			switch {
			case i < 3 || strings.HasSuffix(s.name, "routing rules"):
				added[r] = s.took[passing][r] - base[r]
			default:
				added[r] = (s.took[passing][r] - empty[r]) / repeated
			}
		}
		q1, median, q3 := figures.Quartiles(added)
		fmt.Printf("| `%s` | %.1f | %.1f-%.1f |\n", s.name, median, q1, q3)
	}
}
