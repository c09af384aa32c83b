package picture

import (
	"cmp"
	"fmt"
	"io"
	"strings"
)

// WriteDOT writes the graph in the language of Graphviz, for the user to lay out and style: a cluster for each network.
// Broken items are red, with the reason as tooltip.
func (g *Graph) WriteDOT(out io.Writer) error {
	d := &dot{}
	d.line("digraph egressway {")
	d.line("  label=%s; labelloc=t; rankdir=LR; fontname=%s; tooltip=%s;",
		quoted("Node "+g.Node+": "+g.State), quoted("sans-serif"), quoted(g.summary()))
	d.line("  node [shape=box, style=rounded, fontname=%s];", quoted("sans-serif"))
	d.line("  edge [fontname=%s];", quoted("sans-serif"))
	for _, n := range g.Nodes {
		notes := n.Notes
		if n.Asked {
			notes = append([]string{"this node"}, notes...)
		}
		d.node("node/"+n.Name, append([]string{n.title()}, notes...), n.Broken, "")
	}
	if g.MoreNodes > 0 {
		d.node("nodes/more", []string{more(g.MoreNodes, 0, "") + " nodes"}, "", "shape=plaintext")
	}
	for i, n := range g.Networks {
		d.network(i, n, g)
	}
	if g.MoreNetworks > 0 {
		d.node("networks/more", []string{more(g.MoreNetworks, 0, "") + " networks"}, "", "shape=plaintext")
	}
	if len(g.Broken) > 0 {
		reasons := append([]string{"Broken:"}, g.Broken...)
		if g.MoreBroken > 0 {
			reasons = append(reasons, more(g.MoreBroken, 0, ""))
		}
		d.node("broken", reasons, "see the label", "shape=note")
	}
	d.line("}")
	_, err := io.WriteString(out, d.String())
	return err
}

type dot struct{ strings.Builder }

func (d *dot) line(format string, args ...any) { fmt.Fprintf(d, format+"\n", args...) }

// node writes a node whose label has the given lines; attributes are more attributes in DOT syntax.
func (d *dot) node(id string, lines []string, broken, attributes string) {
	label, tooltip := quoted(lines...), quoted(lines...)
	if broken != "" {
		tooltip = quoted(broken)
	}
	if attributes != "" {
		attributes = ", " + attributes
	}
	d.line("  %s [label=%s, tooltip=%s%s%s];", quoted(id), label, tooltip, red(broken), attributes)
}

func (d *dot) network(i int, n Network, g *Graph) {
	id := "network/" + n.Name
	d.line("  subgraph cluster_%d {", i)
	d.line("    label=%s; style=rounded; tooltip=%s;", quoted(n.Name, n.Notes), quoted(cmp.Or(n.Broken, n.Notes)))
	if n.Broken != "" {
		d.line("    color=red; fontcolor=red;")
	}
	d.node(id, []string{"out by " + n.Name}, n.Broken, "shape=ellipse")
	for _, s := range n.Services {
		d.node("service/"+s.Name, append(append([]string{s.Name}, s.IngressIPs...), s.Notes), s.Broken, "")
	}
	if n.MoreServices > 0 {
		d.node(id+"/more", []string{more(n.MoreServices, n.MoreBrokenServices, "broken")}, "", "shape=plaintext")
	}
	d.line("  }")
	for _, s := range n.Services {
		if s.Host != "" && g.has(s.Host) {
			d.edge("node/"+s.Host, "service/"+s.Name, "host", s.Broken, "")
		}
		if s.Standby != "" && g.has(s.Standby) {
			d.edge("node/"+s.Standby, "service/"+s.Name, "standby", "", "style=dashed")
		}
		d.edge("service/"+s.Name, id, "", "", "color=gray")
	}
	for _, r := range n.Routers {
		peer := "peer/" + n.Name + "/" + r.Peer
		d.node(peer, append([]string{r.Peer}, r.Notes...), r.Broken, "")
		style := ""
		if !r.Up {
			style = "style=dashed"
		}
		d.edge(id, peer, "", r.Broken, style)
	}
	if n.MoreRouters > 0 {
		d.node(id+"/peers", []string{more(n.MoreRouters, n.MoreRoutersDown, "down")}, "", "shape=plaintext")
		d.edge(id, id+"/peers", "", "", "color=gray")
	}
}

func (d *dot) edge(from, to, label, broken, attributes string) {
	var all []string
	if label != "" {
		all = append(all, "label="+quoted(label))
	}
	if broken != "" {
		all = append(all, "tooltip="+quoted(broken)+red(broken))
	}
	if attributes != "" {
		all = append(all, attributes)
	}
	d.line("  %s -> %s [%s];", quoted(from), quoted(to), strings.Join(all, ", "))
}

func red(broken string) string {
	if broken == "" {
		return ""
	}
	return ", color=red, fontcolor=red"
}

// quoted returns lines of text as one quoted string. In labels, Graphviz treats backslashes as escapes and & as the
// start of an HTML entity.
func quoted(lines ...string) string {
	all := make([]string, 0, len(lines))
	for _, l := range lines {
		if l != "" {
			all = append(all, escapeDOT.Replace(line(l)))
		}
	}
	return `"` + strings.Join(all, `\n`) + `"`
}

var escapeDOT = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "&", "&amp;")
