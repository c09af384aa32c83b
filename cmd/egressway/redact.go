package main

import (
	"regexp"
	"strings"
)

// removed stands where a secret was.
const removed = "[removed]"

var (
	// keyed is a value behind a name that tells of a secret. What is not quoted goes on to the end of the line: nobody knows
	// where a password ends.
	keyed = regexp.MustCompile(`(?i)([\w.-]*(?:passw(?:or)?d|passphrase|secret|token|credential|api[_-]?key|private[_-]?key|key-data|certificate-data|authorization|cookie)[\w-]*)(\\?["']?\s*[:=]\s*)(\\?"(?:[^"\\]|\\.)*"|'[^']*'|[^\n]*)`)
	// schemed is what follows the name of a way to authenticate.
	schemed = regexp.MustCompile(`(?i)\b(bearer|basic|negotiate)\s+[^\s"',]+`)
	inURL   = regexp.MustCompile(`://[^/\s@"']+@`)
	jwt     = regexp.MustCompile(`eyJ[\w-]{6,}\.[\w-]+(?:\.[\w-]*)?`)
	pem     = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\z)`)
)

// redact takes secrets out of text. Names of files with secrets stay: their content is never read.
func redact(s string) string {
	s = pem.ReplaceAllString(s, removed)
	s = jwt.ReplaceAllString(s, removed)
	s = inURL.ReplaceAllString(s, "://"+removed+"@")
	s = schemed.ReplaceAllString(s, "$1 "+removed)
	return keyed.ReplaceAllStringFunc(s, func(found string) string {
		parts := keyed.FindStringSubmatch(found)
		if name := strings.ToLower(parts[1]); strings.HasSuffix(name, "file") || strings.TrimSpace(parts[3]) == "" {
			return parts[1] + parts[2] + redactFileName(parts[3])
		}
		return parts[1] + parts[2] + removed
	})
}

// redactFileName keeps the first word behind passwordFile, and looks at what follows it.
func redactFileName(rest string) string {
	at := strings.IndexAny(rest, " \t,")
	if at < 0 {
		return rest
	}
	return rest[:at] + redact(rest[at:])
}
