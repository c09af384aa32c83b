package election

import "github.com/egressway/egressway/internal/cluster"

// Dead tells which nodes are dead by what living ones report of each other. It is nil where all are well.
//
// BFD tells a node that another one went silent, not why: that one may be dead, the way between them may be broken, or the
// one that watches may itself be cut off. So those that watch a node are its witnesses, and it is dead when more of them say so than say that
// it is alive. A tie is no proof; one witness is, if there is no other.
//
// A dead node is no witness. That holds for one that died, whose last report says that all is well, and for one that is cut
// off, which says that all others are dead. Who of two that accuse each other is cut off shows in the number of the
// witnesses: the node that most more of them call dead is judged first, then its word is struck out and the others are judged anew. Two that accuse each other,
// with nobody else to ask, are both taken for dead: their services are best with a third, and stay where they are if there is none.
//
// A witness to whom two nodes or more are all dead, and nobody else agrees about any of them, is more likely cut off itself, and does not count
// either: its own witnesses may not have told yet.
func Dead(reports map[string]cluster.Report) map[string]bool {
	dead, _ := judge(reports)
	return dead
}

// judge tells the dead, and those that somebody who counts sees alive.
func judge(reports map[string]cluster.Report) (dead, seen map[string]bool) {
	for {
		accusers, balance := map[string]int{}, map[string]int{} // of each node: who say it is dead, less those who say it is alive
		for witness, r := range reports {
			for node, alive := range r.Hosts {
				if !alive && !dead[witness] && node != witness {
					accusers[node]++
				}
			}
		}
		seen = map[string]bool{}
		for witness, r := range reports {
			if dead[witness] || cutOff(r.Hosts, accusers) {
				continue
			}
			for node, alive := range r.Hosts {
				switch {
				case dead[node] || node == witness:
				case alive:
					balance[node]--
					seen[node] = true
				default:
					balance[node]++
				}
			}
		}
		worst := 0
		for _, n := range balance {
			worst = max(worst, n)
		}
		if worst == 0 {
			return dead, seen
		}
		if dead == nil {
			dead = map[string]bool{}
		}
		for node, n := range balance {
			if n == worst {
				dead[node] = true
			}
		}
	}
}

// cutOff says whether a witness sees nobody, and is alone in that.
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
