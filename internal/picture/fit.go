package picture

import (
	"strconv"
	"strings"
)

// tenths returns the width of a letter of a class, in tenths of a pixel. No font can be asked for its widths: these are
// those of the widest common font, so that text stays within its box in any.
func tenths(class string) int {
	switch class {
	case "ew-title":
		return 130
	case "ew-name", "ew-reason ew-name":
		return 85
	case "ew-address":
		return 73 // of a monospaced font
	}
	return 65
}

// letters returns how many letters of a class fit into room.
func letters(class string, room int) int { return max(4, room*10/tenths(class)) }

// wide reports whether a letter is twice as wide as others: East Asian ones, and those above them in Unicode.
func wide(r rune) bool { return r >= 0x1100 && r <= 0x115f || r >= 0x2e80 }

// size returns the width of a text in letters.
func size(s string) (n int) {
	for _, r := range s {
		n++
		if wide(r) {
			n++
		}
	}
	return n
}

// fit removes the middle of a text that is too long.
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

// cut returns how many runes fit into the room of most letters.
func cut(runes []rune, most int) int {
	for i, r := range runes {
		if most -= size(string(r)); most < 0 {
			return i
		}
	}
	return len(runes)
}

// fitAddresses returns as many addresses as fit, and the number of the others.
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

// brokenLines splits a reason into at most most lines that fit a box. An ellipsis marks a cut reason.
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
