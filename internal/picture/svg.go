package picture

import (
	"cmp"
	_ "embed"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"

	"github.com/egressway/egressway/internal/cluster"
)

// Lengths are in the SVG's own units: pixels at its natural size.
const (
	margin = 24
	gap    = 16 // between boxes of a column
	pad    = 14 // between a box and its content
	corner = 8

	nodeWidth    = 168
	networkWidth = 400
	routerWidth  = 232
	edgeWidth    = 92 // room for edges, between columns

	nodeX    = margin
	networkX = nodeX + nodeWidth + edgeWidth
	routerX  = networkX + networkWidth + edgeWidth
	width    = routerX + routerWidth + margin

	headHeight   = 78  // title and the node's state
	bodyY        = 104 // the first box
	titleHeight  = 22  // a line of large text
	lineHeight   = 16
	boxPad       = 10 // above and below the text in a box
	legendHeight = 30

	arrow = 7 // distance between an edge's end and the box
)

// style has the colours, for light and dark backgrounds.
//
//go:embed style.css
var style string

// WriteSVG writes the graph as an SVG document.
func (g *Graph) WriteSVG(out io.Writer) error {
	_, err := io.WriteString(out, `<?xml version="1.0" encoding="UTF-8"?>`+"\n"+g.svg())
	return err
}

// svg returns the svg element, which can be part of a page.
func (g *Graph) svg() string {
	l := layoutOf(g)
	s := &svg{}
	s.line(`<svg xmlns="http://www.w3.org/2000/svg" class="egressway" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`role="img" aria-labelledby="ew-title ew-desc">`,
		width, l.height, width, l.height)
	s.line(`<title id="ew-title">%s</title>`, escaped("Egress paths of node "+g.Node))
	s.line(`<desc id="ew-desc">%s</desc>`, escaped(g.summary()))
	s.line("<style>%s</style>", style)
	s.line("<defs>")
	for _, kind := range []string{"host", "standby", "up", "down"} {
		s.line(`<marker id="ew-%s" class="ew-arrow-%s" viewBox="0 0 8 8" refX="1" refY="4" `+
			`markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8Z"/></marker>`, kind, kind)
	}
	s.line("</defs>")
	s.line(`<rect class="ew-ground" width="%d" height="%d"/>`, width, l.height)

	s.head(g)
	s.edges(g, l)
	for i, n := range g.Nodes {
		s.node(n, l.nodes[i])
	}
	if g.MoreNodes > 0 {
		s.text(nodeX+pad, l.moreNodes, "ew-note", more(g.MoreNodes, 0, ""), nodeWidth-pad)
	}
	for i := range g.Networks {
		s.network(&g.Networks[i], l.networks[i])
	}
	if g.MoreNetworks > 0 {
		s.text(networkX+pad, l.moreNetworks, "ew-note", more(g.MoreNetworks, 0, "")+" networks", networkWidth-pad)
	}
	if len(g.Networks) == 0 {
		s.text(networkX+pad, bodyY+lineHeight, "ew-note", "no networks", networkWidth)
	}
	s.broken(g, l.broken)
	s.legend(l.legend)
	s.line("</svg>")
	return s.String()
}

// box is the position of a drawn item.
type box struct{ y, height int }

func (b box) middle() int { return b.y + b.height/2 }

// layout holds the positions of all items, from top to bottom.
type layout struct {
	nodes                   []box
	networks                []networkBox
	moreNodes, moreNetworks int // base lines
	broken                  box
	legend, height          int
}

type networkBox struct {
	box
	services []box
	routers  []box
	more     int // base line of the count of services that are not drawn
	routersY int // base line of the count of routers that are not drawn
}

func layoutOf(g *Graph) layout {
	var l layout
	y := bodyY
	for i := range g.Networks {
		n := &g.Networks[i]
		b := networkBox{box: box{y: y}}
		at := y + titleHeight + 2*boxPad + lineHeight*(1+len(brokenLines(n.Broken, networkWidth-2*pad, 2)))
		for _, s := range n.Services {
			h := serviceHeight(s)
			b.services = append(b.services, box{at, h})
			at += h
		}
		switch {
		case n.MoreServices > 0:
			b.more = at + boxPad + lineHeight - 4
			at += lineHeight + 2*boxPad
		case len(n.Services) == 0:
			b.more = at + lineHeight - 4
			at += lineHeight + boxPad
		}
		b.height = at - y

		routers := 0
		for _, r := range n.Routers {
			routers += routerHeight(r) + gap
		}
		if n.MoreRouters > 0 {
			routers += lineHeight
		} else {
			routers = max(0, routers-gap)
		}
		span := max(b.height, routers)
		b.y += (span - b.height) / 2
		for j := range b.services {
			b.services[j].y += (span - b.height) / 2
		}
		b.more += (span - b.height) / 2
		at = y + (span-routers)/2
		for _, r := range n.Routers {
			b.routers = append(b.routers, box{at, routerHeight(r)})
			at += routerHeight(r) + gap
		}
		b.routersY = at + lineHeight - 4 - gap/2
		l.networks = append(l.networks, b)
		y += span + gap + gap/2
	}
	bottom := max(y-gap-gap/2, bodyY+2*lineHeight)
	if g.MoreNetworks > 0 {
		l.moreNetworks = bottom + gap + lineHeight
		bottom += gap + lineHeight
	}
	bottom = max(bottom, l.placeNodes(g, bottom))

	l.broken = box{bottom + gap + gap/2, 2*boxPad + lineHeight}
	if len(g.Broken) > 0 {
		l.broken.height += lineHeight*len(g.Broken) + lineHeight/2
		if g.MoreBroken > 0 {
			l.broken.height += lineHeight
		}
	}
	l.legend = l.broken.y + l.broken.height + gap
	l.height = l.legend + legendHeight + margin/2
	return l
}

// placeNodes spreads the nodes over the height of the networks, each close to the ends of its edges if possible, and
// returns where they end.
func (l *layout) placeNodes(g *Graph, bottom int) int {
	sum := 0
	order, goal := make([]int, len(g.Nodes)), make([]int, len(g.Nodes))
	for i, n := range g.Nodes {
		sum += nodeHeight(n)
		order[i], goal[i] = i, bottom
		if ends := endsOf(g, *l, n.Name); len(ends) > 0 {
			goal[i] = 0
			for _, e := range ends {
				goal[i] += e.to / len(ends)
			}
		}
	}
	if g.MoreNodes > 0 {
		sum += gap/2 + lineHeight
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(goal[a], goal[b]) })
	between := max(gap, (bottom-bodyY-sum)/max(1, len(g.Nodes)))
	sum += between * (len(g.Nodes) - 1)
	y := bodyY + max(0, (bottom-bodyY-sum)/2)
	l.nodes = make([]box, len(g.Nodes))
	for _, i := range order {
		h := nodeHeight(g.Nodes[i])
		l.nodes[i] = box{y, h}
		y += h + between
	}
	y -= between
	if g.MoreNodes > 0 {
		l.moreNodes = y + gap/2 + lineHeight - 4
		y += gap/2 + lineHeight
	}
	return y
}

func nodeNotes(n Node) []string {
	if n.Asked {
		return append([]string{"this node"}, n.Notes...)
	}
	return n.Notes
}

func nodeHeight(n Node) int {
	return titleHeight + lineHeight*(len(nodeNotes(n))+len(brokenLines(n.Broken, nodeWidth-2*pad, 3))) + 2*boxPad - 4
}

func routerHeight(r Router) int {
	return titleHeight + lineHeight*(len(r.Notes)+len(brokenLines(r.Broken, routerWidth-2*pad, 3))) + 2*boxPad - 4
}

func serviceHeight(s Service) int {
	h := titleHeight + lineHeight + 2*boxPad - 4 + lineHeight*len(brokenLines(s.Broken, networkWidth-2*pad, 2))
	if len(s.IngressIPs) > 0 {
		h += lineHeight
	}
	return h
}

// svg writes elements.
type svg struct{ strings.Builder }

func (s *svg) line(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

// escaped returns untrusted text escaped for XML.
func escaped(text string) string { return html.EscapeString(line(text)) }

// text writes text with its base line at y. Text that does not fit loses its middle, since similar names differ at both
// ends.
func (s *svg) text(x, y int, class, text string, room int) {
	s.line(`<text x="%d" y="%d" class="%s">%s</text>`, x, y, class, html.EscapeString(fit(line(text), class, room)))
}

// group opens a group with a tooltip.
func (s *svg) group(class, tooltip string) {
	s.line(`<g class="%s"><title>%s</title>`, class, html.EscapeString(fold(tooltip)))
}

func (s *svg) end() { s.line("</g>") }

func (s *svg) rect(x int, b box, w int, class string) {
	if class == "ew-box" || strings.HasPrefix(class, "ew-box ew-every") || class == "ew-box ew-well" {
		// A line one pixel wide is sharp in the middle of pixels, one of two pixels between them.
		s.line(`<rect x="%d.5" y="%d.5" width="%d" height="%d" rx="%d" class="%s"/>`, x, b.y, w-1, b.height-1, corner, class)
		return
	}
	s.line(`<rect x="%d" y="%d" width="%d" height="%d" rx="%d" class="%s"/>`, x, b.y, w, b.height, corner, class)
}

// rule draws a thin line from left to right.
func (s *svg) rule(x1, x2, y int) {
	s.line(`<line x1="%d" y1="%d.5" x2="%d" y2="%d.5" class="ew-rule"/>`, x1, y, x2, y)
}

func (s *svg) head(g *Graph) {
	s.text(margin, margin+16, "ew-title", "Egress paths of node "+g.Node, width-2*margin)
	said := g.State
	if g.When != "" {
		said += " · last pass " + g.When
	}
	s.text(margin, margin+38, "ew-note", said, width-2*margin)
	s.rule(margin, width-margin, headHeight-6)
	s.text(nodeX, bodyY-10, "ew-caption", "NODES", nodeWidth)
	s.text(networkX, bodyY-10, "ew-caption", "EGRESSSERVICES BY NETWORK", networkWidth)
	s.text(routerX, bodyY-10, "ew-caption", "ROUTERS", routerWidth)
}

// boxClass returns the class of a box.
func boxClass(broken string) string {
	if broken != "" {
		return "ew-box ew-broken"
	}
	return "ew-box"
}

func (s *svg) node(n Node, b box) {
	s.group("ew-node", tooltip(n.title(), nodeNotes(n), n.Broken))
	class := boxClass(n.Broken)
	if n.Asked {
		class += " ew-asked"
	}
	if n.Name == cluster.AllHosts {
		class += " ew-every"
	}
	s.rect(nodeX, b, nodeWidth, class)
	s.lines(nodeX+pad, b.y+boxPad, nodeWidth-2*pad, "ew-name", n.title(), nodeNotes(n), brokenLines(n.Broken, nodeWidth-2*pad, 3))
	s.end()
}

// lines writes the text in a box: name, notes, and why it is broken.
func (s *svg) lines(x, y, room int, class, name string, notes, broken []string) {
	y += titleHeight - 8
	s.text(x, y, class, name, room)
	for _, n := range notes {
		y += lineHeight
		s.text(x, y, "ew-note", n, room)
	}
	s.reasons(x, y, broken)
}

// reasons writes lines of fitted text below each other, starting below base line y.
func (s *svg) reasons(x, y int, broken []string) {
	for _, reason := range broken {
		y += lineHeight
		s.line(`<text x="%d" y="%d" class="ew-reason">%s</text>`, x, y, html.EscapeString(reason))
	}
}

func (s *svg) network(n *Network, b networkBox) {
	room := networkWidth - 2*pad
	s.group("ew-network", tooltip("network "+n.Name, []string{n.Notes}, n.Broken))
	s.rect(networkX, b.box, networkWidth, boxClass(n.Broken))
	s.lines(networkX+pad, b.y+boxPad, room, "ew-name", n.Name, []string{n.Notes}, brokenLines(n.Broken, room, 2))
	s.end()
	for i, v := range n.Services {
		s.service(v, b.services[i])
	}
	switch {
	case n.MoreServices > 0:
		s.rule(networkX+pad, networkX+networkWidth-pad, b.more-boxPad-lineHeight+4)
		s.text(networkX+pad, b.more, "ew-note", more(n.MoreServices, n.MoreBrokenServices, "broken"), room)
	case len(n.Services) == 0:
		s.text(networkX+pad, b.more, "ew-note", "no EgressService leaves by it", room)
	}
	const routerRoom = routerWidth - 2*pad
	for i, r := range n.Routers {
		s.group("ew-router", tooltip("peer "+r.Peer, r.Notes, r.Broken))
		s.rect(routerX, b.routers[i], routerWidth, boxClass(r.Broken))
		s.lines(routerX+pad, b.routers[i].y+boxPad, routerRoom, "ew-address", r.Peer, r.Notes, brokenLines(r.Broken, routerRoom, 3))
		s.end()
	}
	if n.MoreRouters > 0 {
		s.text(routerX+pad, b.routersY, "ew-note", more(n.MoreRouters, n.MoreRoutersDown, "down"), routerWidth-pad)
	}
}

func (s *svg) service(v Service, b box) {
	room := networkWidth - 2*pad
	s.group("ew-service", tooltip(v.Name, append(slices.Clone(v.IngressIPs), v.Notes), v.Broken))
	class := "ew-row" // invisible, but a target for the tooltip
	if v.Broken != "" {
		class += " ew-broken"
	}
	s.rect(networkX+6, box{b.y + 5, b.height - 9}, networkWidth-12, class)
	s.rule(networkX+pad, networkX+networkWidth-pad, b.y)
	y := b.y + boxPad + titleHeight - 8
	s.text(networkX+pad, y, "ew-name", v.Name, room)
	if len(v.IngressIPs) > 0 {
		y += lineHeight
		s.text(networkX+pad, y, "ew-address", fitAddresses(v.IngressIPs, room), room)
	}
	y += lineHeight
	s.text(networkX+pad, y, "ew-note", v.Notes, room)
	s.reasons(networkX+pad, y, brokenLines(v.Broken, room, 2))
	s.end()
}

func (s *svg) broken(g *Graph, b box) {
	if len(g.Broken) == 0 {
		s.rect(margin, b, width-2*margin, "ew-box ew-well")
		s.text(margin+pad, b.y+boxPad+12, "ew-good", "Nothing is broken.", width)
		return
	}
	s.line(`<g class="ew-problems">`)
	s.rect(margin, b, width-2*margin, "ew-box ew-broken")
	y := b.y + boxPad + 12
	s.text(margin+pad, y, "ew-reason ew-name", "Broken", width)
	y += lineHeight / 2
	for _, reason := range g.Broken {
		y += lineHeight
		s.group("ew-problem", reason)
		s.text(margin+pad, y, "ew-line", reason, width-2*margin-2*pad)
		s.end()
	}
	if g.MoreBroken > 0 {
		s.text(margin+pad, y+lineHeight, "ew-note", more(g.MoreBroken, 0, ""), width-2*margin-2*pad)
	}
	s.end()
}

func (s *svg) legend(y int) {
	x := margin
	for _, l := range []struct{ kind, means string }{
		{"host", "host: traffic leaves by it"},
		{"standby", "standby: would take over"},
		{"up", "session is up"},
		{"down", "session is down"},
	} {
		s.line(`<path d="M%d %dH%d" class="ew-edge ew-%s" marker-end="url(#ew-%s)"/>`, x, y+legendHeight/2-4, x+34, l.kind, l.kind)
		s.text(x+50, y+legendHeight/2, "ew-note", l.means, width)
		x += 66 + len([]rune(l.means))*7
	}
}

// tooltip returns the full text of an item, one fact per line.
func tooltip(name string, notes []string, broken string) string {
	if broken != "" {
		notes = append(slices.Clone(notes), "Broken: "+broken)
	}
	return strings.Join(append([]string{cmp.Or(name, "unnamed")}, notes...), "\n")
}

// fold applies line to each line of a text.
func fold(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = line(l)
	}
	return strings.Join(lines, "\n")
}
