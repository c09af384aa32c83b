package picture

import (
	"strconv"
	"strings"
)

// tenths is how wide a letter of a class is, in tenths of a pixel. There is no font to ask: these are the widths of the widest
// that is usual, so that text stays within its box in any.
func tenths(class string) int {
	switch class {
	case "ew-title":
		return 130
	case "ew-name", "ew-reason ew-name":
		return 85
	case "ew-address":
		return 73 // of a font whose letters are all as wide
	}
	return 65
}

// letters is how many letters of a class have room.
func letters(class string, room int) int { return max(4, room*10/tenths(class)) }

// wide says whether a letter takes the room of two: those of East Asia, and what comes after them.
func wide(r rune) bool { return r >= 0x1100 && r <= 0x115f || r >= 0x2e80 }

// size is how many letters wide a text is.
func size(s string) (n int) {
	for _, r := range s {
		n++
		if wide(r) {
			n++
		}
	}
	return n
}

// fit has a text lose its middle where it is too long.
func fit(s, class string, room int) string {
	most := letters(class, room)
	if size(s) <= most {
		return s
	}
	runes := []rune(s)
	head := cut(runes, most/2)
	last := len(runes)
	for n := 0; last > head; last-- {
		if n += size(string(runes[last-1])); n > most-most/2-1 {
			break
		}
	}
	return strings.TrimSpace(string(runes[:head])) + "…" + strings.TrimSpace(string(runes[last:]))
}

// cut is how many runes take the room of most letters.
func cut(runes []rune, most int) int {
	for i, r := range runes {
		if most -= size(string(r)); most < 0 {
			return i
		}
	}
	return len(runes)
}

// fitAddresses writes as many as have room, and how many others there are.
func fitAddresses(all []string, room int) string {
	const between = " · "
	for shown := len(all); shown > 0; shown-- {
		s := strings.Join(all[:shown], between)
		if shown < len(all) {
			s += between + "+" + strconv.Itoa(len(all)-shown)
		}
		if size(s) <= letters("ew-address", room) || shown == 1 {
			return s
		}
	}
	return ""
}

// brokenLines breaks a reason into lines that fit a box, most of them at most. What does not fit is left out with a sign.
func brokenLines(reason string, room, most int) (lines []string) {
	const mark, class = "✗ ", "ew-reason"
	if reason == "" {
		return nil
	}
	width := letters(class, room)
	rest := []rune(mark + line(reason))
	for len(rest) > 0 {
		n := cut(rest, width)
		if n < len(rest) {
			if len(lines) == most-1 {
				n = max(1, cut(rest, width-1))
				return append(lines, strings.TrimRight(string(rest[:n]), " ")+"…")
			}
			if blank := strings.LastIndex(string(rest[:n]), " "); blank > len(string(rest[:n]))/2 {
				n = len([]rune(string(rest[:n])[:blank])) + 1
			}
			n = max(1, n)
		}
		lines = append(lines, strings.TrimRight(string(rest[:n]), " "))
		rest = rest[n:]
	}
	return lines
}
