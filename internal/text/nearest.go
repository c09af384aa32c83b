package text

import "strings"

// longestWord bounds the work for a word that is not known.
const longestWord = 64

// Nearest returns the one of known that word most probably stands for: the only one with the fewest typing errors, at most 3 and
// one in three letters, else the only one that begins or ends with word. Case does not count. It returns nothing if none is near, or two
// are.
func Nearest(word string, known []string) string {
	if len(word) > longestWord {
		return ""
	}
	word = strings.ToLower(word)
	if found := fewestErrors(word, known); found != "" || len(word) < 3 {
		return found
	}
	return only(known, func(k string) bool { return strings.HasPrefix(k, word) || strings.HasSuffix(k, word) })
}

// fewestErrors returns the only one of known with the fewest typing errors.
func fewestErrors(word string, known []string) (found string) {
	least := min(max(1, len(word)/3), 3) + 1
	for _, k := range known {
		switch errors := typingErrors(word, strings.ToLower(k)); {
		case errors < least:
			least, found = errors, k
		case errors == least:
			found = ""
		}
	}
	return found
}

// only returns the one of known whose lower case form matches, or nothing if none or several do.
func only(known []string, matches func(string) bool) (found string) {
	for _, k := range known {
		switch {
		case !matches(strings.ToLower(k)):
		case found != "":
			return ""
		default:
			found = k
		}
	}
	return found
}

// typingErrors returns the number of bytes to insert, remove, replace, or swap with their neighbours, to make b of a: the distance
// of optimal string alignment.
func typingErrors(a, b string) int {
	var before, last, row []int // the rows of the table for a[:i-2], a[:i-1] and a[:i]
	for i := range len(a) + 1 {
		before, last, row = last, row, make([]int, len(b)+1)
		for j := range row {
			row[j] = cheapest(a[:i], b[:j], before, last, row)
		}
	}
	return row[len(b)]
}

// cheapest returns the distance from a to b. The rows have the distances of shorter texts.
func cheapest(a, b string, before, last, row []int) int {
	i, j := len(a), len(b)
	if i == 0 || j == 0 {
		return i + j
	}
	replaced := last[j-1]
	if a[i-1] != b[j-1] {
		replaced++
	}
	errors := min(last[j]+1, row[j-1]+1, replaced)
	if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
		errors = min(errors, before[j-2]+1)
	}
	return errors
}
