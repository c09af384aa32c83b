package election

import "github.com/egressway/egressway/internal/cluster"

// Dead returns the nodes that are dead by the reports of living nodes about each other. It is nil if all nodes are alive.
//
// BFD shows a node that another node went silent, but not why: that node may be dead, the path between them may be broken,
// or the watching node may itself be cut off. So the nodes that watch a node are its witnesses, and it is dead when more of
// them report it dead than alive. A tie is no proof; a single witness is, if there is no other.
//
// A dead node is no witness. That holds for a node that died, whose last report calls all others alive, and for a node that
// is cut off, which calls all others dead. Of two nodes that accuse each other, the number of witnesses shows which one is
// cut off: the node with the largest majority against it is judged first, then its reports no longer count and the other
// nodes are judged again. Two nodes that accuse each other, without other witnesses, both count as dead: their services are
// best on a third node, and stay where they are if no third node exists.
//
// A witness that reports two or more nodes, all of them dead, and that no other witness confirms for any of them, is more
// likely cut off itself and does not count either: its own witnesses may not have reported yet.
func Dead(reports map[string]cluster.Report) map[string]bool {
	dead, _ := judge(reports)
	return dead
}

// judge returns the dead nodes, and those that a witness that counts reports alive.
func judge(reports map[string]cluster.Report) (dead, seen map[string]bool) {
	for {
		w := weigh(reports, dead)
		worst := w.worst()
		if worst == 0 {
			return dead, w.seen
		}
		if dead == nil {
			dead = map[string]bool{}
		}
		w.condemn(dead, worst)
	}
}

// testimony holds the reports of the witnesses that count.
type testimony struct {
	dead    map[string]bool // those judged so far, which are no witnesses
	balance map[string]int  // by node, the witnesses that report it dead minus those that report it alive
	seen    map[string]bool // nodes that some witness reports alive
}

// weigh collects the reports of the witnesses that count.
func weigh(reports map[string]cluster.Report, dead map[string]bool) testimony {
	accusers := accusersByNode(reports, dead)
	t := testimony{dead, map[string]int{}, map[string]bool{}}
	for witness, r := range reports {
		if !dead[witness] && !cutOff(r.Hosts, accusers) {
			t.add(witness, r.Hosts)
		}
	}
	return t
}

// add adds the report of a witness about other nodes, by whether they are alive.
func (t *testimony) add(witness string, others map[string]bool) {
	for node, alive := range others {
		switch {
		case t.dead[node] || node == witness:
		case alive:
			t.balance[node]--
			t.seen[node] = true
		default:
			t.balance[node]++
		}
	}
}

// condemn adds the nodes that have this majority against them.
func (t *testimony) condemn(dead map[string]bool, majority int) {
	for node, n := range t.balance {
		if n == majority {
			dead[node] = true
		}
	}
}

// worst returns the largest majority that reports some node dead; 0: there is none.
func (t *testimony) worst() (worst int) {
	for _, n := range t.balance {
		worst = max(worst, n)
	}
	return worst
}

// accusersByNode counts the living nodes that report each node dead.
func accusersByNode(reports map[string]cluster.Report, dead map[string]bool) map[string]int {
	accusers := map[string]int{}
	for witness, r := range reports {
		if dead[witness] {
			continue
		}
		for node, alive := range r.Hosts {
			if !alive && node != witness {
				accusers[node]++
			}
		}
	}
	return accusers
}

// cutOff reports whether a witness sees none of the nodes that it watches, and no other witness agrees about any of them.
func cutOff(watched map[string]bool, accusers map[string]int) bool {
	if len(watched) < 2 {
		return false
	}
	for node, alive := range watched {
		if alive || accusers[node] > 1 {
			return false
		}
	}
	return true
}
