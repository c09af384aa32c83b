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

// usualMemory is the memory that a speaker may take where nothing else says it, in bytes: the limit of its container as it is
// deployed.
const usualMemory = 512 << 20

// limitMemory has the garbage be collected in time, and returns how much peers may fill. The whole is the limit of the control group;
// a quarter of it is left for sockets, stacks and what the limit of the runtime does not count. GOMEMLIMIT has the last word.
func limitMemory(log *slog.Logger) (most uint64) {
	runtime := debug.SetMemoryLimit(-1)
	if runtime == math.MaxInt64 {
		runtime = groupMemory("/proc/self/cgroup", "/sys/fs/cgroup") / 4 * 3
		debug.SetMemoryLimit(runtime)
	}
	// Garbage comes faster than it is collected, just when peers send most: it has the rest.
	most = uint64(runtime / 12 * 7)
	log.Info("memory is limited", "limit", runtime, "peers", most)
	return most
}

// groupMemory is how much memory the control group of this process may take, or one around it.
func groupMemory(self, root string) int64 {
	of, err := os.ReadFile(self)
	_, path, unified := bytes.Cut(bytes.TrimSpace(of), []byte("0::"))
	if err != nil || !unified {
		return usualMemory
	}
	least := int64(math.MaxInt64)
	for dir := string(path); ; dir = filepath.Dir(dir) {
		b, err := os.ReadFile(filepath.Join(root, dir, "memory.max"))
		if n, failed := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64); err == nil && failed == nil {
			least = min(least, n)
		}
		if dir == "/" || dir == "." {
			break
		}
	}
	if least == math.MaxInt64 {
		return usualMemory
	}
	return least
}
