package agent

import (
	"os"
	"runtime/debug"
)

// heapGrowth is by how many percent the heap grows between two garbage collections. Most of the heap are the objects,
// which stay: the default of 100 would use twice the memory, for garbage.
const heapGrowth = 25

// spareMemory limits the garbage in the heap, unless GOGC is set. It is not for the time in which the objects are read:
// then nearly everything is garbage, and collecting it would cost much.
func spareMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
}

// giveBack returns the memory that the start used, once the first plan is in force.
func (a *Agent) giveBack(inForce bool) {
	if inForce && !a.last.gaveBack {
		a.last.gaveBack = true
		go debug.FreeOSMemory()
	}
}
