package trace

import (
	"fmt"
	"io"
	"strconv"

	"github.com/egressway/egressway/internal/text"
)

// WriteText writes a walk for people.
func (r *Result) WriteText(out io.Writer, c text.Colours) error {
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
	steps := text.Table{Indent: "  "}
	for i, s := range r.Steps {
		asked := ""
		if s.Asked != "" {
			asked = "(" + s.Asked + ")"
		}
		steps.Row(strconv.Itoa(i+1)+".", s.What, s.Found, text.Cell(asked, c.Faint))
	}
	if err := steps.Write(out); err != nil {
		return err
	}
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
	for _, list := range []struct {
		title string
		lines []string
	}{{"Damaged:", r.Damage}, {"Not as the daemon planned:", r.Differences}} {
		if len(list.lines) > 0 {
			fmt.Fprintln(out, "\n"+c.Bad(list.title))
		}
		for _, line := range list.lines {
			fmt.Fprintln(out, c.Bad(text.Line("  "+line)))
		}
	}
	paint := c.Good
	if r.Verdict.Kind == Dropped || r.Verdict.Kind == Damaged {
		paint = c.Bad
	}
	_, err := fmt.Fprintln(out, "\n"+paint(text.Line("=> "+r.Verdict.Text)))
	return err
}
