// Package text makes foreign text fit for one line of a message.
package text

import (
	"strconv"
	"strings"
)

// Quote shortens and quotes a value that came from outside.
func Quote(v string) string {
	const most = 80
	if r := []rune(v); len(r) > most {
		v = string(r[:most]) + "…"
	}
	return strconv.QuoteToGraphic(v)
}

// Line escapes what would break a line or a terminal.
func Line(s string) string {
	if strings.IndexFunc(s, notGraphic) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if notGraphic(r) {
			escaped := strconv.QuoteRuneToASCII(r)
			b.WriteString(escaped[1 : len(escaped)-1])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func notGraphic(r rune) bool { return !strconv.IsGraphic(r) }
