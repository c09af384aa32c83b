package text

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Colours writes parts of text in colour, or plain.
type Colours struct{ on bool }

// ColoursOf returns the Colours of an output: plain unless it is a terminal with colours and the environment does not
// forbid them (no-color.org).
func ColoursOf(out io.Writer) Colours {
	f, ok := out.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return Colours{}
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return Colours{on: err == nil}
}

// AlwaysColours returns Colours that are on for any output.
func AlwaysColours() Colours { return Colours{on: true} }

// Bad paints faults.
func (c Colours) Bad(s string) string { return c.paint("31", s) }

// Good paints text about a healthy state.
func (c Colours) Good(s string) string { return c.paint("32", s) }

// Faint paints details.
func (c Colours) Faint(s string) string { return c.paint("2", s) }

// Head paints a title.
func (c Colours) Head(s string) string { return c.paint("1", s) }

func (c Colours) paint(code, s string) string {
	if !c.on || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
