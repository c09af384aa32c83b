package text

import (
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
}
