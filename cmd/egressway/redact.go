package main

import (
	"regexp"
	"strings"
)

// removed replaces a secret.
const removed = "[removed]"

var (
	// keyed matches a value behind a name of secrets. A value without quotes extends to the end of the line, since a password may
	// contain any character.
	keyed = regexp.MustCompile(`(?i)([\w.-]*(?:passw(?:or)?d|passphrase|secret|token|credential|api[_-]?key|private[_-]?key|` +
		`key-data|certificate-data|authorization|cookie)[\w-]*)` +
		`(\\?["']?\s*[:=]\s*)(\\?"(?:[^"\\]|\\.)*"|'[^']*'|[^\n]*)`)
	// schemed matches the credentials behind the name of an authentication scheme.
	schemed = regexp.MustCompile(`(?i)\b(bearer|basic|negotiate)\s+[^\s"',]+`)
	inURL   = regexp.MustCompile(`://[^/\s@"']+@`)
	jwt     = regexp.MustCompile(`eyJ[\w-]{6,}\.[\w-]+(?:\.[\w-]*)?`)
	pem     = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\z)`)
)

// redact removes secrets from text. It keeps names of files with secrets, whose content is never read.
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

// redactFileName keeps the first word behind passwordFile, and redacts the rest.
func redactFileName(rest string) string {
	at := strings.IndexAny(rest, " \t,")
	if at < 0 {
		return rest
	}
	return rest[:at] + redact(rest[at:])
}
