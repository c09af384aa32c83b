package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// frameSize is the length of every injected frame: Ethernet, IPv4 or IPv6, UDP, and a few bytes.
const frameSize = 64

// frame is one packet as it comes by a cable.
type frame [frameSize]byte

// udpFrame makes a packet of UDP without a checksum, which spares the kernel to verify one, as network cards do.
func udpFrame(mac [6]byte, from, to netip.AddrPort) (f frame) {
	copy(f[:], mac[:])
	f[6] = 2 // a locally administered address as the sender's
	udp := f[34:]
	if from.Addr().Is4() {
		binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IP)
		ip := f[14:34]
		ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(ip[2:], frameSize-14)
		copy(ip[12:], from.Addr().AsSlice())
		copy(ip[16:], to.Addr().AsSlice())
		var sum uint32
		for i := 0; i < len(ip); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(ip[i:]))
		}
		for sum > 0xffff {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	} else {
		binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IPV6)
		ip := f[14:54]
		ip[0], ip[6], ip[7] = 0x60, unix.IPPROTO_UDP, 64
		binary.BigEndian.PutUint16(ip[4:], frameSize-54)
		copy(ip[8:], from.Addr().AsSlice())
		copy(ip[24:], to.Addr().AsSlice())
		udp = f[54:]
	}
	binary.BigEndian.PutUint16(udp, from.Port())
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	return f
}

// stream is packets in a row that come in by a device, again from the first after the last. A BPF program writes each into
// a page of the kernel's, which goes up the stack as if a driver had received it (BPF_F_TEST_XDP_LIVE_FRAMES): nothing is
// copied, allocated or scheduled per packet that is not the node's own work.
type stream struct {
	prog, next, frames int
	length             int
	ifindex            uint32
}

// newStream makes a stream that enters by the device of the index, in the namespace of the thread.
func newStream(ifindex uint32, frames []frame) (*stream, error) {
	s := &stream{ifindex: ifindex, length: len(frames)}
	var err error
	if s.next, err = newArray(8, 1); err != nil {
		return nil, err
	}
	if s.frames, err = newArray(frameSize, len(frames)); err != nil {
		return nil, err
	}
	for i := range frames {
		if err := setElement(s.frames, uint32(i), unsafe.Pointer(&frames[i])); err != nil {
			return nil, err
		}
	}
	s.prog, err = loadProgram(sender(s.next, s.frames, len(frames)))
	return s, err
}

// send lets n packets through the stack and returns how much processor time that took, softirqs included, which run in
// this thread's name.
func (s *stream) send(n int) (time.Duration, error) {
	const live = 1 << 1 // BPF_F_TEST_XDP_LIVE_FRAMES
	var data frame
	ctx := struct{ data, dataEnd, dataMeta, ifindex, queue, egress uint32 }{dataEnd: frameSize, ifindex: s.ifindex}
	attr := struct {
		prog, retval, sizeIn, sizeOut uint32
		dataIn, dataOut               uint64
		repeat, duration              uint32
		ctxSizeIn, ctxSizeOut         uint32
		ctxIn, ctxOut                 uint64
		flags, cpu, batch, _          uint32
	}{
		prog: uint32(s.prog), sizeIn: frameSize, dataIn: address(unsafe.Pointer(&data)), repeat: uint32(n),
		ctxSizeIn: uint32(unsafe.Sizeof(ctx)), ctxIn: address(unsafe.Pointer(&ctx)), flags: live,
	}
	began := processorTime()
	_, err := bpf(unix.BPF_PROG_TEST_RUN, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	took := processorTime() - began
	if err != nil {
		return 0, fmt.Errorf("inject %d packets: %w", n, err)
	}
	return took, nil
}

// restart lets the next packet be the first one.
func (s *stream) restart() error {
	var zero uint64
	return setElement(s.next, 0, unsafe.Pointer(&zero))
}

// clock measures the thread's processor time, without that of other processes.
var clock int32 = unix.CLOCK_THREAD_CPUTIME_ID

// processorTime returns how long this thread has used a processor.
func processorTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		panic(err) // both clocks exist since Linux 2.6.12
	}
	return time.Duration(t.Nano())
}

func address(p unsafe.Pointer) uint64 { return uint64(uintptr(p)) }

// bpf is the system call, without signals, which end some of its commands early.
func bpf(command int, attr unsafe.Pointer, size uintptr) (int, error) {
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return 0, os.NewSyscallError("sigmask", err)
	}
	r, _, errno := unix.RawSyscall(unix.SYS_BPF, uintptr(command), uintptr(attr), size)
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); err != nil {
		return 0, os.NewSyscallError("sigmask", err)
	}
	if errno != 0 {
		return 0, os.NewSyscallError("bpf", errno)
	}
	return int(r), nil
}

func newArray(valueSize, length int) (int, error) {
	attr := struct{ kind, keySize, valueSize, length, flags uint32 }{unix.BPF_MAP_TYPE_ARRAY, 4, uint32(valueSize), uint32(length), 0}
	fd, err := bpf(unix.BPF_MAP_CREATE, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err != nil {
		return 0, fmt.Errorf("make BPF array of %d: %w", length, err)
	}
	return fd, nil
}

func setElement(fd int, key uint32, value unsafe.Pointer) error {
	attr := struct {
		fd, _             uint32
		key, value, flags uint64
	}{fd: uint32(fd), key: address(unsafe.Pointer(&key)), value: address(value)}
	_, err := bpf(unix.BPF_MAP_UPDATE_ELEM, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	return err
}

// instruction is struct bpf_insn.
type instruction struct {
	code  uint8
	regs  uint8 // source in the upper four bits, destination in the lower
	off   int16
	value int32
}

func loadProgram(code []instruction) (int, error) {
	license := []byte("GPL\x00")
	log := make([]byte, 1<<16)
	attr := struct {
		kind, length      uint32
		code, license     uint64
		logLevel, logSize uint32
		log               uint64
	}{
		kind: unix.BPF_PROG_TYPE_XDP, length: uint32(len(code)), code: address(unsafe.Pointer(&code[0])),
		license: address(unsafe.Pointer(&license[0])), logLevel: 1, logSize: uint32(len(log)), log: address(unsafe.Pointer(&log[0])),
	}
	fd, err := bpf(unix.BPF_PROG_LOAD, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err != nil {
		return 0, fmt.Errorf("load BPF program: %w: %s", err, unix.ByteSliceToString(log))
	}
	return fd, nil
}

// sender is the program that writes the next packet and passes it to the stack.
func sender(next, frames, length int) []instruction {
	const (
		load64, load32            = unix.BPF_LDX | unix.BPF_MEM | unix.BPF_DW, unix.BPF_LDX | unix.BPF_MEM | unix.BPF_W
		store64, store32          = unix.BPF_STX | unix.BPF_MEM | unix.BPF_DW, unix.BPF_STX | unix.BPF_MEM | unix.BPF_W
		move, moveValue           = unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_X, unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K
		addValue, modValue        = unix.BPF_ALU64 | unix.BPF_ADD | unix.BPF_K, unix.BPF_ALU64 | unix.BPF_MOD | unix.BPF_K
		jumpIfZero, jumpIfGreater = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JGT | unix.BPF_X
		call, exit                = unix.BPF_JMP | unix.BPF_CALL, unix.BPF_JMP | unix.BPF_EXIT
		wide                      = unix.BPF_LD | unix.BPF_IMM | unix.BPF_DW
		mapFD                     = 1 // BPF_PSEUDO_MAP_FD
		lookup                    = 1 // BPF_FUNC_map_lookup_elem
		drop, pass                = 1, 2
	)
	r := func(destination, source uint8) uint8 { return source<<4 | destination }
	// find looks the key at the top of the stack up in a map, and ends the program when there is nothing.
	find := func(fd int) []instruction {
		return []instruction{
			{move, r(2, 10), 0, 0},
			{addValue, r(2, 0), 0, -4},
			{wide, r(1, mapFD), 0, int32(fd)},
			{},
			{call, 0, 0, lookup},
			{jumpIfZero, r(0, 0), 1, 0},
			{unix.BPF_JMP | unix.BPF_JA, 0, 2, 0},
			{moveValue, r(0, 0), 0, drop},
			{exit, 0, 0, 0},
		}
	}
	code := []instruction{
		{move, r(6, 1), 0, 0}, // the context
		{moveValue, r(7, 0), 0, 0},
		{store32, r(10, 7), -4, 0},
	}
	code = append(code, find(next)...)
	code = append(code,
		instruction{load64, r(7, 0), 0, 0},
		instruction{move, r(8, 7), 0, 0},
		instruction{addValue, r(8, 0), 0, 1},
		instruction{store64, r(0, 8), 0, 0},
		instruction{modValue, r(7, 0), 0, int32(length)},
		instruction{store32, r(10, 7), -4, 0},
	)
	code = append(code, find(frames)...)
	code = append(code,
		instruction{load32, r(2, 6), 0, 0}, // its data
		instruction{load32, r(3, 6), 4, 0}, // and end of data
		instruction{move, r(1, 2), 0, 0},
		instruction{addValue, r(1, 0), 0, frameSize},
		instruction{jumpIfGreater, r(1, 3), 2 * frameSize / 8, 0},
	)
	for at := int16(0); at < frameSize; at += 8 {
		code = append(code, instruction{load64, r(4, 0), at, 0}, instruction{store64, r(2, 4), at, 0})
	}
	return append(code, instruction{moveValue, r(0, 0), 0, pass}, instruction{exit, 0, 0, 0})
}
