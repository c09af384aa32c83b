package picture

import (
	"cmp"
	"html"
	"slices"
)

// end is the start of an edge at a node, with its destination. Edges that start in the order of their destinations do
// not cross there.
type end struct {
	kind, tooltip string
	to            int // the height of its destination
	y             int // the height of its start
}

// edges draws edges from hosts and standbys to their services, and the sessions.
func (s *svg) edges(g *Graph, l layout) {
	for i, n := range g.Nodes {
		ends := endsOf(g, l, n.Name)
		b := l.nodes[i]
		for j := range ends {
			ends[j].y = b.y + (j+1)*b.height/(len(ends)+1)
		}
		for _, e := range ends {
			s.edge(nodeX+nodeWidth, e.y, networkX, e.to, e.kind, e.tooltip)
		}
	}
	for i := range g.Networks {
		n, b := &g.Networks[i], l.networks[i]
		for j, r := range n.Routers {
			kind, state := "up", "up"
			if !r.Up {
				kind, state = "down", "down: "+r.Broken
			}
			to := b.routers[j].middle()
			from := min(max(to, b.y+2*corner), b.y+b.height-2*corner) // straight if possible
			s.edge(networkX+networkWidth, from, routerX, to, kind, "session of "+n.Name+" with "+r.Peer+" is "+state)
		}
	}
}

// endsOf returns the edges of a node, from top to bottom.
func endsOf(g *Graph, l layout, node string) (ends []end) {
	for i := range g.Networks {
		for j, v := range g.Networks[i].Services {
			b := l.networks[i].services[j]
			if v.Host == node {
				ends = append(ends, end{kind: "host", tooltip: title(node) + " is the host of " + v.Name, to: b.y + b.height/2 - 6})
			}
			if v.Standby == node {
				ends = append(ends, end{kind: "standby", tooltip: title(node) + " is the standby of " + v.Name, to: b.y + b.height/2 + 6})
			}
		}
	}
	slices.SortStableFunc(ends, func(a, b end) int { return cmp.Compare(a.to, b.to) })
	return ends
}

func title(node string) string { return (Node{Name: node}).title() }

// edge draws an edge from left to right, horizontal at both ends, with an arrow at its end.
func (s *svg) edge(x1, y1, x2, y2 int, kind, tooltip string) {
	x2 -= arrow
	bend := (x1 + x2) / 2
	s.line(`<path d="M%d %dC%d %d %d %d %d %d" class="ew-edge ew-%s" marker-end="url(#ew-%s)"><title>%s</title></path>`,
		x1, y1, bend, y1, bend, y2, x2, y2, kind, kind, html.EscapeString(fold(tooltip)))
}
