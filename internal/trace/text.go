package trace

import (
	"fmt"
	"io"
	"strconv"

	"github.com/egressway/egressway/internal/text"
)

// WriteText writes a walk for people.
func (r *Result) WriteText(out io.Writer, c text.Colours) error {
	r.writeHead(out, c)
	if err := r.writeSteps(out, c); err != nil {
		return err
	}
	r.writeFlows(out, c)
	writeList(out, c, "Damaged:", r.Damage)
	writeList(out, c, "Not as the daemon planned:", r.Differences)
	paint := c.Good
	if r.Verdict.bad() {
		paint = c.Bad
	}
	_, err := fmt.Fprintln(out, "\n"+paint(text.Line("=> "+r.Verdict.Text)))
	return err
}

// writeHead writes the packet and, if the daemon does not answer, its state.
func (r *Result) writeHead(out io.Writer, c text.Colours) {
	what := r.Proto
	if r.Port != 0 {
		what += " to port " + strconv.Itoa(int(r.Port))
	}
	if r.Reply {
		what += ", a reply"
	}
	node := ""
	if r.Node != "" {
		node = ", on node " + r.Node
	}
	fmt.Fprint(out, text.Sprintf("%s to %s, %s%s\n", r.From, r.To, what, node))
	if r.Daemon != "running" {
		fmt.Fprintln(out, c.Bad(text.Line("The daemon is "+r.Daemon+". This is the kernel's state; names of services are unknown.")))
	}
	fmt.Fprintln(out)
}

func (r *Result) writeSteps(out io.Writer, c text.Colours) error {
	steps := text.Table{Indent: "  "}
	for i, s := range r.Steps {
		asked := ""
		if s.Asked != "" {
			asked = "(" + s.Asked + ")"
		}
		steps.Row(strconv.Itoa(i+1)+".", s.What, s.Found, text.Cell(asked, c.Faint))
	}
	return steps.Write(out)
}

func (r *Result) writeFlows(out io.Writer, c text.Colours) {
	if len(r.Flows) > 0 {
		fmt.Fprintln(out, "\nExisting connections:")
	}
	for _, f := range r.Flows {
		line := text.Line("  " + f.Text)
		if f.Kind == Dropped {
			line = c.Bad(line)
		}
		fmt.Fprintln(out, line)
	}
}

// writeList writes lines about errors under a title, or nothing if there are none.
func writeList(out io.Writer, c text.Colours, title string, lines []string) {
	if len(lines) > 0 {
		fmt.Fprintln(out, "\n"+c.Bad(title))
	}
	for _, line := range lines {
		fmt.Fprintln(out, c.Bad(text.Line("  "+line)))
	}
}
