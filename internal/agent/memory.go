package agent

import (
	"os"
	"runtime/debug"
)

// heapGrowth is by how much the heap grows between two collections, in percent of what is in use. What is known of a cluster
// stays, and little comes and goes: the usual 100 would hold twice the memory for garbage.
const heapGrowth = 25

// spareMemory has the heap take little more than what is in use, unless the environment says how much. While the objects are
// read, that would cost much: all is garbage but a little that grows.
func spareMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
}

// giveBack gives back what the start took, once what is known is in force.
func (a *Agent) giveBack(inForce bool) {
	if inForce && !a.last.gaveBack {
		a.last.gaveBack = true
		go debug.FreeOSMemory()
	}
}
