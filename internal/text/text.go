// Package text makes text from outside fit for one line of a message.
package text

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Quote shortens and quotes a value from outside.
func Quote(v string) string {
	const most = 80
	if r := []rune(v); len(r) > most {
		v = string(r[:most]) + "…"
	}
	return strconv.QuoteToGraphic(v)
}

// Line escapes characters that would break a line or a terminal: control characters, those that change the direction of
// writing, and bytes that are not UTF-8.
func Line(s string) string { return escape(s, Safe) }

// Lines escapes as Line does, but keeps line ends.
func Lines(s string) string {
	return escape(s, func(r rune) bool { return r == '\n' || Safe(r) })
}

// Sprintf formats as fmt.Sprintf does. It escapes each argument with Line, and does not escape the format.
func Sprintf(format string, args ...any) string {
	escaped := make([]any, len(args))
	for i, a := range args {
		escaped[i] = argument{a}
	}
	return fmt.Sprintf(format, escaped...)
}

// argument is an argument of Sprintf.
type argument struct{ value any }

// Format implements fmt.Formatter.
func (a argument) Format(f fmt.State, verb rune) {
	_, _ = io.WriteString(f, Line(fmt.Sprintf(fmt.FormatString(f, verb), a.value))) // a buffer of fmt
}

func escape(s string, safe func(rune) bool) string {
	if isSafe(s, safe) {
		return s
	}
	var b strings.Builder
	for s != "" {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case safe(r):
			b.WriteRune(r)
		default:
			escaped := strconv.QuoteRuneToASCII(r)
			b.WriteString(escaped[1 : len(escaped)-1])
		}
		s = s[size:]
	}
	return b.String()
}

func isSafe(s string, safe func(rune) bool) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !safe(r) })
}

// Safe reports whether a terminal prints the character and does not interpret it.
func Safe(r rune) bool { return strconv.IsGraphic(r) }
