package election

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/cluster"
)

// lack is the set of defects of a candidate. As a number, a larger value is worse.
type lack uint8

const (
	lacksWill   lack = 1 << iota // cordoned
	lacksStay                    // draining
	lacksReady                   // its Node is not Ready, but its daemon reports
	lacksForce                   // its kernel refuses what is planned
	lacksNews                    // its report is old
	lacksOne                     // one needed family has no route
	lacksBoth                    // neither of two needed families has a route
	lacksLife                    // other nodes report it dead
	lacksRoutes = lacksOne | lacksBoth
	lacksChange = lacksForce | lacksNews // it may well serve as before, but should get nothing new
	everyLack   = ^lack(0)
)

// families is a set of address families.
type families struct{ ipv4, ipv6 bool }

func (f families) and(o families) families { return families{f.ipv4 || o.ipv4, f.ipv6 || o.ipv6} }

// among returns the families that both sets have.
func (f families) among(o families) families { return families{f.ipv4 && o.ipv4, f.ipv6 && o.ipv6} }

// routeless returns the lack of routes on a node.
func routeless(n cluster.NetworkState, need families) lack {
	switch missing4, missing6 := need.ipv4 && !n.IPv4, need.ipv6 && !n.IPv6; {
	case missing4 && missing6:
		return lacksBoth
	case missing4 || missing6:
		return lacksOne
	}
	return 0
}

// demand is the part of a contender on which the lacks of nodes depend.
type demand struct {
	network string
	need    families
}

// lacksFor returns the lacks of every node, by its number, for contenders with a demand.
func (e *elector) lacksFor(d demand) []lack {
	lacks, known := e.lacks[d]
	if known {
		return lacks
	}
	lacks = make([]lack, len(e.nodes))
	for i, name := range e.nodes {
		lacks[i] = e.lackOf(name, d)
	}
	e.lacks[d] = lacks
	return lacks
}

// lackOf returns the lacks of a node for a demand.
func (e *elector) lackOf(node string, d demand) (l lack) {
	r, reports := e.reports[node]
	if e.objects.Nodes.At(node).Cordoned {
		l |= lacksWill
	}
	if r.Draining {
		l |= lacksStay
	}
	if reports && !e.objects.Nodes.At(node).Ready {
		l |= lacksReady
	}
	if r.Refusing {
		l |= lacksForce
	}
	if r.Old {
		l |= lacksNews
	}
	if e.dead[node] {
		l |= lacksLife
	}
	if reports {
		l |= routeless(r.Networks[d.network], d.need)
	}
	return l
}

// least returns the smallest lack among the unit's candidates.
func (u *unit) least() lack {
	least := everyLack
	for _, i := range u.candidates {
		least = min(least, u.lacks[i])
	}
	return least
}

// leastOf returns the smallest lack among the unit's candidates other than except that lack nothing beyond may; everyLack: there
// is no such candidate, or it lacks everything.
func (u *unit) leastOf(except int, may lack) lack {
	least := everyLack
	for _, i := range u.candidates {
		if l := u.lacks[i]; l < least && l&^may == 0 && i != except {
			least = l
		}
	}
	return least
}

// bearable returns the lacks that a new standby may have: those of its host, except that it may be neither dead nor
// refusing nor draining, and must have reported recently.
func bearable(host lack) lack {
	may := host &^ (lacksLife | lacksChange | lacksStay)
	if may&lacksBoth != 0 {
		may |= lacksOne
	}
	return may
}

// serving lists the host and the standby of the contender's tenure, as far as they can serve it now, elected or not. A node
// that is not Ready can serve if another node reports it alive.
func (e *elector) serving(c *contender, u *unit) (nodes []string) {
	for _, name := range []string{c.had.host, c.had.standby} {
		n, exists := e.objects.Nodes.Get(name)
		state := e.reports[name].Networks[c.network]
		apart := name != e.name(u.host) && slices.Contains(e.apart[e.name(u.host)], name)
		if exists && (n.Ready || e.seen[name]) && !e.dead[name] && !apart && state.Fit() && routeless(state, u.demand.need) == 0 {
			nodes = append(nodes, name)
		}
	}
	return nodes
}

// against describes the worst lack of a node; empty: it lacks nothing.
func against(node string, l lack, n cluster.NetworkState, d demand) string {
	switch {
	case l&lacksLife != 0:
		return silent(node)
	case l&lacksRoutes != 0:
		return fmt.Sprintf("network %s has no %s route on node %s", d.network, strings.Join(missing(n, d.need), " nor "), node)
	case l&lacksNews != 0:
		return fmt.Sprintf("node %s has not reported recently", node)
	case l&lacksForce != 0:
		return fmt.Sprintf("the kernel of node %s refuses what is planned", node)
	case l&lacksReady != 0:
		return fmt.Sprintf("node %s is not Ready", node)
	case l&lacksStay != 0:
		return fmt.Sprintf("node %s is draining", node)
	case l&lacksWill != 0:
		return fmt.Sprintf("node %s is cordoned", node)
	}
	return ""
}

// missing names the needed families without a route on a node.
func missing(n cluster.NetworkState, need families) (names []string) {
	if need.ipv4 && !n.IPv4 {
		names = append(names, "IPv4")
	}
	if need.ipv6 && !n.IPv6 {
		names = append(names, "IPv6")
	}
	return names
}

func (e *elector) against(node int, u *unit) string {
	name := e.nodes[node]
	return against(name, u.lacks[node], e.reports[name].Networks[u.demand.network], u.demand)
}

// despite describes the worst lack of a unit's host.
func (e *elector) despite(u *unit) string {
	text, l := e.against(u.host, u), u.lacks[u.host]
	switch {
	case text == "":
		return ""
	case l == lacksForce && u.least() == 0:
		return text + ", so it serves as before"
	case l&^lacksChange == 0 && u.least() == 0:
		return text + ", but may serve as before"
	case len(u.candidates) == 1:
		return text + ", but no other node may be the host"
	}
	return text + ", but no other node would be better"
}

// unfit explains why the host of a contender's tenure is not its host any more.
func (e *elector) unfit(c *contender, u *unit) string {
	host := c.had.host
	i, known := slices.BinarySearch(e.nodes, host)
	switch {
	case host == cluster.AllHosts:
		return "sourceIPBy is not Network any more"
	case !e.exists(host):
		return gone(host)
	case e.dead[host]:
		return silent(host)
	case !known: // nor reports
		return fmt.Sprintf("node %s is not Ready", host)
	}
	return e.unfitAlive(c, u, i)
}

// unfitAlive is unfit for a host that is alive, and is Ready or reports.
func (e *elector) unfitAlive(c *contender, u *unit, i int) string {
	host := c.had.host
	switch {
	case e.succeeded(c.had):
		return fmt.Sprintf("node %s, its standby, does not hear node %s, and has taken over", c.had.standby, host)
	case !c.selector.Matches(labels.Set(e.objects.Nodes.At(host).Labels)) && c.seat.Slot.IsValid():
		return fmt.Sprintf("node %s has no label %s any more", host, cluster.LabelAssignable)
	case !c.selector.Matches(labels.Set(e.objects.Nodes.At(host).Labels)):
		return fmt.Sprintf("node %s does not match spec.nodeSelector any more", host)
	case e.reports != nil && !e.reports[host].Networks[c.network].Fit():
		return e.lacking([]int{i}, c.network)
	}
	return e.unfitBeside(c, u, i)
}

// unfitBeside is unfit for a host that fits the object and its network.
func (e *elector) unfitBeside(c *contender, u *unit, i int) string {
	host := c.had.host
	_, has := slices.BinarySearch(c.candidates, i)
	switch text := e.against(i, u); {
	case !has:
		return fmt.Sprintf("node %s has no endpoint any more, as externalTrafficPolicy: Local asks", host)
	case text != "" && i != u.host:
		return text
	}
	return "an older " + c.seat.Kind.String() + " with the same ingress IP has another host"
}
