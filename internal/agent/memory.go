package agent

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// The heap grows by heapGrowth percent between two garbage collections. Most of it are the objects, which stay: the default of 100
// would use twice the memory, for garbage. A small heap grows by leastGrowth bytes: collections of little would come so often that
// learning 100,000 routes takes a tenth longer.
const (
	heapGrowth  = 25
	leastGrowth = 16 << 20
)

// spareMemory limits the garbage in the heap, unless GOGC is set. It is not for the time in which the objects are read:
// then nearly everything is garbage, and collecting it would cost much.
func spareMemory() {
	if os.Getenv("GOGC") == "" {
		limitGarbage(struct{}{})
	}
}

// limitGarbage sets the growth of the heap by its size, and again after each collection.
func limitGarbage(struct{}) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	debug.SetGCPercent(growthOf(live[0].Value.Uint64()))
	collected := &struct{ _ *int }{} // unreachable: its cleanup runs after the next collection
	runtime.AddCleanup(collected, limitGarbage, struct{}{})
}

// growthOf returns the growth, in percent, of a heap whose objects take so many bytes.
func growthOf(live uint64) int {
	return max(heapGrowth, int(leastGrowth*100/max(live, 1<<20)))
}

// giveBack returns the memory that the start used, once the first plan is in force.
func (a *Agent) giveBack(inForce bool) {
	if inForce && !a.last.gaveBack {
		a.last.gaveBack = true
		go debug.FreeOSMemory()
	}
}
