package text

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuote(t *testing.T) {
	require.Equal(t, `"a b"`, Quote("a b"))
	require.Equal(t, `"a\nb\x1b"`, Quote("a\nb\x1b"))
	require.Equal(t, `"`+strings.Repeat("ö", 80)+`…"`, Quote(strings.Repeat("ö", 81)))
}

func TestLine(t *testing.T) {
	require.Equal(t, `say "ö\"`, Line(`say "ö\"`))
	require.Equal(t, `a\nb\x1b[1m\u2028`, Line("a\nb\x1b[1m\u2028"))
	require.Equal(t, `\x7f\u0080\u009b\u200e\u202e\u2066\U000e0001`, Line("\x7f\u0080\u009b\u200e\u202e\u2066\U000e0001"))
	require.Equal(t, `\x9b31m`, Line("\x9b31m"), "a terminal of one byte a character takes 0x9b for ESC [")
	require.Equal(t, "�", Line("�"))
}

func TestLines(t *testing.T) {
	require.Equal(t, "a\n"+`b\t\x9b`, Lines("a\nb\t\x9b"))
}

func TestSprintf(t *testing.T) {
	type name string
	require.Equal(t, "a\t"+`x\ty     |0x0f|error \x1b[2J`, Sprintf("a\t%-8s|%#02x|%v", name("x\ty"), []byte{15}, errors.New("error \x1b[2J")))
}
