package figures

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Process holds the kernel's figures about a process.
type Process struct {
	CPU       time.Duration // processor time since its start
	Peak, Now int           // KiB resident: the most since its start, and now
}

// clockTick is the unit of processor time in /proc: USER_HZ, on every Linux.
const clockTick = 10 * time.Millisecond

// ReadProcess reads the resources that a process has used.
func ReadProcess(pid int) (p Process, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	for _, i := range []int{11, 12} { // utime and stime, proc(5)
		if n, err := strconv.Atoi(string(fields[i])); err == nil {
			p.CPU += time.Duration(n) * clockTick
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		switch key {
		case "VmHWM":
			p.Peak = n
		case "VmRSS":
			p.Now = n
		}
	}
	return p, nil
}

// Mebi is KiB in MiB.
func Mebi(kib int) string { return fmt.Sprintf("%.0f MiB", float64(kib)/1024) }
