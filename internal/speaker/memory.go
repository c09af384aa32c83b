package speaker

import (
	"bytes"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
)

// usualMemory is the memory limit, in bytes, that a speaker assumes if no control group sets one: that of its container
// in our manifests.
const usualMemory = 512 << 20

// limitMemory sets the Go runtime's memory limit, and returns how many bytes peers' routes may fill. The runtime's
// limit is three quarters of the control group's; the rest is for sockets, stacks and other memory that the runtime's
// limit does not count. GOMEMLIMIT takes precedence.
func limitMemory(log *slog.Logger) (most uint64) {
	runtime := debug.SetMemoryLimit(-1)
	if runtime == math.MaxInt64 {
		runtime = groupMemory("/proc/self/cgroup", "/sys/fs/cgroup") / 4 * 3
		debug.SetMemoryLimit(runtime)
	}
	// The rest is for garbage, which grows faster than it is collected just when peers send most.
	most = uint64(runtime / 12 * 7)
	log.Info("memory limits set", "limit", runtime, "peers", most)
	return most
}

// groupMemory returns the lowest memory limit of this process's control group and of those that contain it.
func groupMemory(self, root string) int64 {
	group, ok := controlGroup(self)
	if !ok {
		return usualMemory
	}
	least := memoryLimit(filepath.Join(root, group))
	for up := filepath.Dir(group); up != group; up = filepath.Dir(group) {
		group = up
		least = min(least, memoryLimit(filepath.Join(root, group)))
	}
	if least == math.MaxInt64 {
		return usualMemory
	}
	return least
}

// controlGroup returns the path of this process's control group of version 2.
func controlGroup(self string) (path string, ok bool) {
	of, err := os.ReadFile(self)
	if err != nil {
		return "", false
	}
	_, group, ok := bytes.Cut(bytes.TrimSpace(of), []byte("0::"))
	return string(group), ok
}

// memoryLimit returns the memory limit of one control group, or math.MaxInt64 if it has none.
func memoryLimit(group string) int64 {
	b, err := os.ReadFile(filepath.Join(group, "memory.max"))
	if err != nil {
		return math.MaxInt64
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil {
		return math.MaxInt64
	}
	return n
}
