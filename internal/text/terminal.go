package text

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Colours writes parts of text in colour, or as they are.
type Colours struct{ on bool }

// ColoursOf are those for an output: none unless it is a terminal that shows some and nobody asked for none (no-color.org).
func ColoursOf(out io.Writer) Colours {
	f, ok := out.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return Colours{}
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return Colours{on: err == nil}
}

// AlwaysColours are there whatever the output is.
func AlwaysColours() Colours { return Colours{on: true} }

// Bad writes what is wrong.
func (c Colours) Bad(s string) string { return c.paint("31", s) }

// Good writes what is as it should be.
func (c Colours) Good(s string) string { return c.paint("32", s) }

// Faint writes what is only there to be looked up.
func (c Colours) Faint(s string) string { return c.paint("2", s) }

// Head writes a title.
func (c Colours) Head(s string) string { return c.paint("1", s) }

func (c Colours) paint(code, s string) string {
	if !c.on || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
