// Package election chooses the host of every EgressService. The choice is a pure function of the objects.
package election

import "github.com/egressway/egressway/internal/cluster"

// Choice is the outcome for one EgressService.
type Choice struct {
	Host    string // a node's name, cluster.AllHosts, or empty: none
	Standby string // the node that takes over; empty: none
	Term    int64  // how many hosts there have been; 0: not known
	Former  bool   // the standby was the host before, and has connections of that time
	Why     string // the former host is not the host any more, where it is not; empty: it is, or there was none
	Despite string // what speaks against the host, where any other would be no better; empty: nothing
	// Serves names those of the host and the standby which the object's status names that can serve it now: they may be left
	// without haste.
	Serves  []string
	Problem *cluster.Problem
}
