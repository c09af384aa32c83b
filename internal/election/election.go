// Package election chooses the host of every EgressService. The choice is a pure function of the objects.
package election

import "github.com/egressway/egressway/internal/cluster"

// Choice is the outcome for one EgressService.
type Choice struct {
	Host    string // a node's name, cluster.AllHosts, or empty: none
	Standby string // the node that takes over; empty: none
	Term    int64  // counts the hosts so far; 0: not known
	Former  bool   // the standby was the host before, and has connections of that time
	Why     string // why the former host lost the role; empty: it did not
	Despite string // the host's worst lack, where no other node would be better; empty: it lacks nothing
	// Serves names the host and the standby of the object's status, as far as they can serve it now: a move away from them
	// need not be hasty.
	Serves  []string
	Problem *cluster.Problem
}
