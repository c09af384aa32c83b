package text

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	for on, want := range map[bool]string{
		false: "  NAME  STATE\n  ö     down  why\n  long  up\n\n",
		true:  "  NAME  STATE\n  ö     \x1b[31mdown\x1b[0m   why\n  long  \x1b[32mup\x1b[0m\n\n",
	} {
		c := Colours{on}
		table := Table{Indent: "  "}
		table.Row("NAME", "STATE", "")
		table.Row("ö", Cell("down", c.Bad), "why")
		table.Row("long", Cell("up", c.Good), Cell("", c.Bad))
		table.Row()
		var out bytes.Buffer
		require.NoError(t, table.Write(&out))
		if !on {
			want = strings.Replace(want, "down  why", "down   why", 1)
		}
		require.Equal(t, want, out.String())
	}
}

func TestTableEscapes(t *testing.T) {
	var table Table
	table.Row("a\nb", Cell("\x1b[31m", nil))
	var out bytes.Buffer
	require.NoError(t, table.Write(&out))
	require.Equal(t, `a\nb  \x1b[31m`+"\n", out.String())
}

// TestNoColoursInPipes checks that only terminals get colours.
func TestNoColoursInPipes(t *testing.T) {
	require.Equal(t, Colours{}, ColoursOf(&bytes.Buffer{}))
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	require.Equal(t, Colours{}, ColoursOf(w))
	require.Equal(t, "bad", ColoursOf(w).Bad("bad"))
	require.Equal(t, "\x1b[31mbad\x1b[0m", AlwaysColours().Bad("bad"))

	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer terminal.Close()
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	require.Equal(t, AlwaysColours(), ColoursOf(terminal))
	t.Setenv("NO_COLOR", "1")
	require.Equal(t, Colours{}, ColoursOf(terminal))
}
