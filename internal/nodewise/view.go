package nodewise

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/text"
)

// View is the configuration of one node for people and programs: each value that may depend on nodes, with its origin.
type View struct {
	Node     string            `json:"node"`
	Labels   map[string]string `json:"labels,omitempty"`
	RouterID string            `json:"routerID,omitempty"`
	By       string            `json:"routerIDFrom,omitempty"`
	Given    []config.Given    `json:"given"`

	of config.OfNode
}

// ViewOf returns the configuration of a node among all nodes.
func ViewOf(c *config.Config, nodes Nodes, name string) *View {
	n := nodes.At(name)
	v := &View{Node: name, Labels: n.Labels, of: c.For(n.Labels)}
	v.Given = v.of.Given
	if !v.of.BGP.RouterID.IsValid() && hasPeers(v.of.Config) {
		id := identityOf(v.of.BGP, name, n).id
		v.RouterID, v.By = id.String(), "the node's InternalIP"
		if id == config.RouterIDOf(name) {
			v.By = "a hash of the node's name"
		}
	}
	return v
}

// Config returns the node's configuration.
func (v *View) Config() *config.Config { return v.of.Config }

// Write writes the view as text.
func (v *View) Write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(format string, args ...any) { _, _ = io.WriteString(w, text.Sprintf(format+"\n", args...)) }
	of := "no labels"
	if len(v.Labels) > 0 {
		of = "labels " + labels.Set(v.Labels).String()
	}
	line("Configuration of node %s, with %s", v.Node, of)
	for _, g := range v.Given {
		if g.Network == "" {
			line("  bgp.%s\t%s\t%s", g.Field, g.Value, origin(g))
		}
	}
	if v.RouterID != "" {
		line("  bgp.routerID\t%s\t%s", v.RouterID, v.By)
	}
	for _, n := range v.of.Networks {
		v.network(line, n)
	}
	for _, f := range v.of.Faults {
		line("  contradiction: %s", f.Error.Error())
	}
	return w.Flush()
}

// network writes the entries of a network that the node has, and the number of the others.
func (v *View) network(line func(string, ...any), n config.Network) {
	if n.Elsewhere != "" {
		line("  network %s: %s", n.Name, n.Elsewhere)
		return
	}
	line("%s", v.title(n.Name))
	own, left := v.entries(n.Name)
	for _, g := range own {
		line("    %s\t%s\t%s", g.Field, g.Value, origin(g))
	}
	if left > 0 {
		line("    %d entries for other nodes", left)
	}
}

// title names a network, and the line and selector that give it to the node.
func (v *View) title(network string) string {
	title := "  network " + network
	i := slices.IndexFunc(v.Given, func(g config.Given) bool { return g.Network == network && g.Field == "network" })
	if i >= 0 && v.Given[i].Selector != "" {
		title += ", " + origin(v.Given[i])
	}
	return title
}

// entries returns the entries of a network that the node has, and counts the others.
func (v *View) entries(network string) (own []config.Given, left int) {
	for _, g := range v.Given {
		switch {
		case g.Network != network || g.Field == "network":
		case g.Left:
			left++
		default:
			own = append(own, g)
		}
	}
	return own, left
}

// origin describes the line and the selector that give a value.
func origin(g config.Given) string {
	var parts []string
	if g.Line > 0 {
		parts = append(parts, fmt.Sprintf("line %d", g.Line))
	}
	if g.Selector != "" {
		parts = append(parts, "for "+g.Selector)
	}
	return strings.Join(parts, ", ")
}
