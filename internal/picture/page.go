package picture

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"io"
	"strconv"
	"strings"

	"github.com/egressway/egressway/internal/status"
)

// refresh fetches the page again every few seconds and replaces the changed parts.
//
//go:embed refresh.js
var refresh string

// WritePage writes the picture of a report as a page for a browser. The page needs no other files, and keeps itself up
// to date from its own URL. If scripts are not allowed, the browser reloads it.
func WritePage(out io.Writer, r status.Report) error {
	g := Of(r)
	_, err := strings.NewReplacer(
		"{{policy}}", policy, "{{node}}", escaped(r.Node), "{{width}}", strconv.Itoa(width), "{{picture}}", g.svg(), "{{refresh}}", refresh,
	).WriteString(out, page)
	return err
}

// policy allows the page its own script and styles, and requests to its own origin, nothing else.
var policy = func() string {
	sum := sha256.Sum256([]byte(refresh))
	return "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; script-src 'sha256-" +
		base64.StdEncoding.EncodeToString(sum[:]) + "'"
}()

const page = `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{policy}}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<noscript><meta http-equiv="refresh" content="5"></noscript>
<title>{{node}} - Egressway</title>
<style>
body { margin: 0 auto; max-width: {{width}}px; background: #ffffff; color: #1f2328; font: 14px system-ui, sans-serif; }
svg { display: block; width: 100%; height: auto; }
#silent { position: sticky; top: 0; margin: 0; padding: 10px 24px; background: #d1242f; color: #ffffff; }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #f0f6fc; } #silent { background: #b62324; } }
</style>
</head>
<body>
<p id="silent" role="status" hidden></p>
<main id="picture">
{{picture}}</main>
<script>{{refresh}}</script>
</body>
</html>
`
