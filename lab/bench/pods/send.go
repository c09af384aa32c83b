package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/lab"
)

// All packets of a pod are SYNs: each of a new flow, by another port, and now and then the first one again, as TCP
// repeats a SYN without an answer. Its sequence number, which SNAT does not change, holds the pod and the number of the
// SYN; its window, whether it is a repetition.
const (
	headers    = 14 + 20 + 20 // Ethernet, IPv4 and TCP without options
	firstPort  = 1024
	windowOnce = 1000
	windowMore = 2000
)

// sender sends the pods' packets.
type sender struct {
	fd     int
	frame  [headers]byte
	every  time.Duration
	again  int // SYNs of new flows between two repetitions
	ended  chan struct{}
	work   sync.WaitGroup
	mu     sync.Mutex
	active []*sending
}

type sending struct {
	pod *pod
	n   int
}

// newSender sends from a node's eth1 to another's eth3.
func newSender(from, to *lab.Node, o options) (*sender, error) {
	there, err := device(to, "eth3")
	if err != nil {
		return nil, err
	}
	here, err := device(from, "eth1")
	if err != nil {
		return nil, err
	}
	s := &sender{every: o.every, again: max(1, int(o.again/o.every)), ended: make(chan struct{})}
	err = from.Do(func() (err error) {
		if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(s.fd, &unix.SockaddrLinklayer{Ifindex: here.Index})
	})
	if err != nil {
		return nil, fmt.Errorf("open a socket for pods to send by: %w", err)
	}
	copy(s.frame[0:], there.HardwareAddr)
	copy(s.frame[6:], here.HardwareAddr)
	binary.BigEndian.PutUint16(s.frame[12:], unix.ETH_P_IP)
	s.work.Go(s.run)
	return s, nil
}

func device(n *lab.Node, name string) (net.Interface, error) {
	all, err := n.Interfaces()
	for _, d := range all {
		if d.Name == name {
			return d, nil
		}
	}
	return net.Interface{}, fmt.Errorf("node %s: no %s: %w", n.Name, name, err)
}

func (s *sender) add(p *pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = append(s.active, &sending{pod: p})
}

func (s *sender) remove(p *pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = slices.DeleteFunc(s.active, func(x *sending) bool { return x.pod == p })
}

func (s *sender) end() {
	close(s.ended)
	s.work.Wait()
	unix.Close(s.fd)
}

// run sends until the end. It leaves out packets for which it is late.
func (s *sender) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-tick.C:
		}
		s.mu.Lock()
		for _, x := range s.active {
			s.send(syn(s.frame, x.pod, x.n, false))
			if x.n%s.again == s.again-1 {
				s.send(syn(s.frame, x.pod, 0, true))
			}
			x.n++
		}
		s.mu.Unlock()
	}
}

func (s *sender) send(frame [headers]byte) {
	if _, err := unix.Write(s.fd, frame[:]); err != nil {
		fmt.Fprintln(os.Stderr, "pods: send a SYN:", err)
	}
}

// syn is the n-th of a pod.
func syn(frame [headers]byte, p *pod, n int, again bool) [headers]byte {
	ip, tcp := frame[14:34], frame[34:]
	source, destination := p.addr.As4(), target.As4()
	ip[0], ip[8], ip[9] = 4<<4|5, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(tcp)))
	copy(ip[12:], source[:])
	copy(ip[16:], destination[:])
	binary.BigEndian.PutUint16(ip[10:], ^sum(ip, 0))
	binary.BigEndian.PutUint16(tcp[0:], uint16(firstPort+n%(1<<16-firstPort)))
	binary.BigEndian.PutUint16(tcp[2:], 443)
	binary.BigEndian.PutUint32(tcp[4:], uint32(p.number)<<16|uint32(uint16(n)))
	tcp[12], tcp[13] = 5<<4, 2 // SYN
	binary.BigEndian.PutUint16(tcp[14:], windowOnce)
	if again {
		binary.BigEndian.PutUint16(tcp[14:], windowMore)
	}
	binary.BigEndian.PutUint16(tcp[16:], ^sum(tcp, uint32(sum(ip[12:20], unix.IPPROTO_TCP+uint32(len(tcp))))))
	return frame
}

// sum returns the Internet checksum (RFC 1071) of a text of even length, not inverted.
func sum(b []byte, from uint32) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		from += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for from > 0xffff {
		from = from>>16 + from&0xffff
	}
	return uint16(from)
}

// sight is a SYN that came in outside.
type sight struct {
	at     time.Time // by the kernel's clock
	device string
	source netip.Addr
	pod    int
	again  bool
}

// read reads an IPv4 packet; false: it is no SYN of a pod.
func read(packet []byte) (x sight, ok bool) {
	if len(packet) < headers-14 || packet[0] != 4<<4|5 || packet[9] != unix.IPPROTO_TCP ||
		netip.AddrFrom4([4]byte(packet[16:20])) != target {
		return x, false
	}
	x.source = netip.AddrFrom4([4]byte(packet[12:16]))
	x.pod = int(binary.BigEndian.Uint16(packet[24:]))
	x.again = binary.BigEndian.Uint16(packet[34:]) == windowMore
	return x, true
}
