package main

import (
	"go/ast"
	"regexp"
	"strings"
)

// markers match the wording that makes a reader start a sentence again: a clause in place of a noun, a pronoun in place of
// a subject, an everyday verb in place of the field's own. CONTRIBUTING.md has the rule.
var markers = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	`what`,
	`tells?|told|untold|telling`,
	`somebody|nobody|whoever|whatever|whomever`,
	`(takes?|took|taken|taking) (in|up|leave|over from|it that|for|no|out of)`,
	`says? (whether|so|how|which)`,
	`of (it|which|whom|theirs)`,
	`anew|likewise|for ever|hitherto|thereby|thereof|lately`,
	`(is|are|was) none`,
	`(only|by|of|to|for|from|than) who`,
	`(has|have|had) (it|them|the \w+|\w+s) (\w+ed|done|made|begin|look|do|see|wait|go|forget|know)`,
}, "|") + `)\b`)

var (
	sentenceEnd = regexp.MustCompile(`[.;!?:](\s+|$)`)
	codeLine    = regexp.MustCompile(`(?m)^(//)?\t.*$`)
	directive   = regexp.MustCompile(`^//(go:|nolint|\+)`)
)

// sentences splits the text of a comment.
func sentences(text string) (all []string) {
	for _, s := range sentenceEnd.Split(text, -1) {
		if s = strings.Join(strings.Fields(s), " "); strings.Count(s, " ") > 0 {
			all = append(all, s)
		}
	}
	return all
}

// comments returns the text of a file's comments, a group at a time, without directives and code.
func comments(f *ast.File) (all []string) {
	for _, group := range f.Comments {
		if directive.MatchString(group.List[0].Text) {
			continue
		}
		all = append(all, codeLine.ReplaceAllString(group.Text(), ""))
	}
	return all
}
