package picture

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"io"
	"strings"

	"github.com/egressway/egressway/internal/status"
)

// script filters and sorts the table. It fetches the page again every few seconds and replaces the changed parts.
//
//go:embed page.js
var script string

// pageStyle has the styles of everything but the picture.
//
//go:embed page.css
var pageStyle string

// WritePage writes a report as a page for a browser: a verdict, a table of all objects, and the picture. The page
// needs no other files, and keeps itself up to date from its own URL. If scripts are not allowed, the browser reloads it.
func WritePage(out io.Writer, r status.Report) error {
	g := Of(r)
	head := g.State
	if g.When != "" {
		head += " · last pass " + g.When
	}
	rows, omitted := rowsOf(r)
	_, err := strings.NewReplacer(
		"{{policy}}", policy, "{{node}}", escaped(r.Node), "{{state}}", escaped(head), "{{style}}", pageStyle,
		"{{verdict}}", g.verdict(), "{{caption}}", captionOf(len(rows)+omitted, omitted),
		"{{columns}}", columnsOf(), "{{rows}}", tableRows(rows),
		"{{picture}}", g.svg(), "{{script}}", script,
	).WriteString(out, page)
	return err
}

// verdict returns the section that says first whether anything is broken.
func (g *Graph) verdict() string {
	if len(g.Broken) == 0 {
		return `<section class="well" aria-labelledby="verdict-title"><h2 id="verdict-title">Nothing is broken.</h2></section>`
	}
	const first = 2 // without unfolding the rest
	var b strings.Builder
	total := len(g.Broken) + g.MoreBroken
	title := "One thing is broken."
	if total > 1 {
		title = thousands(total) + " things are broken."
	}
	fmt.Fprintf(&b, `<section class="broken" aria-labelledby="verdict-title"><h2 id="verdict-title">%s</h2><ul>`, title)
	for i, reason := range g.Broken {
		if i == first {
			fmt.Fprintf(&b, `</ul><details id="others"><summary>%s more</summary><ul>`, thousands(total-first))
		}
		fmt.Fprintf(&b, "<li>%s</li>", escaped(reason))
	}
	b.WriteString("</ul>")
	if len(g.Broken) > first {
		if g.MoreBroken > 0 {
			fmt.Fprintf(&b, "<p>%s: egressway status -o wide lists them.</p>", more(g.MoreBroken, 0, ""))
		}
		b.WriteString("</details>")
	}
	b.WriteString("</section>")
	return b.String()
}

// policy allows the page its own script and styles, and requests to its own origin, nothing else.
var policy = func() string {
	sum := sha256.Sum256([]byte(script))
	return "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; script-src 'sha256-" +
		base64.StdEncoding.EncodeToString(sum[:]) + "'"
}()

// mostRows limits the table: a browser gets it every few seconds.
const mostRows = 1000

// rowsOf returns the rows of the table, and how many are omitted. Broken ones come first if not all have room, then those of this node.
func rowsOf(r status.Report) (rows []Service, omitted int) {
	fit := r.Fit()
	for s := range r.Rows() {
		v := serviceOf(r.Node, fit, *s)
		v.Network = s.Network
		rows = append(rows, v)
	}
	rows = append(rows, policies(r)...)
	if len(rows) <= mostRows {
		return rows, 0
	}
	n := Network{Services: rows}
	n.bound(r.Node, mostRows, 0)
	return n.Services, n.MoreServices
}

func captionOf(all, omitted int) string {
	caption := "EgressServices, addresses of EgressIPs, EgressQoSes and EgressFirewalls: " + thousands(all)
	if omitted > 0 {
		caption += fmt.Sprintf(", %s of them not shown: egressway status lists them", thousands(omitted))
	}
	return caption
}

var columns = []string{"Name", "State", "Network", "Host", "Standby", "Ingress IPs", "On this node"}

func columnsOf() string {
	var b strings.Builder
	for _, c := range columns {
		fmt.Fprintf(&b, `<th role="columnheader" scope="col" aria-sort="none"><button type="button">%s</button></th>`, c)
	}
	return b.String()
}

// tableRows returns a row for each object, to which its fragment leads.
func tableRows(rows []Service) string {
	var b strings.Builder
	for _, v := range rows {
		class, state := "well", "served"
		if v.Broken != "" {
			class, state = "broken", v.Broken
		}
		id := escaped(v.fragment())
		fmt.Fprintf(&b, `<tr role="row" class="%s" id="%s">`, class, id)
		fmt.Fprintf(&b, `<th role="rowheader" scope="row"><a href="#%s">%s</a></th>`, id, escaped(v.Name))
		cells := []string{state, v.Network, cmp.Or(v.Host, "none"), cmp.Or(v.Standby, "none"), strings.Join(v.IngressIPs, " "), v.Notes}
		if v.Policy {
			cells[1], cells[2], cells[3], cells[4] = "-", "-", "-", "-"
		}
		for i, text := range cells {
			fmt.Fprintf(&b, `<td role="cell" data-label="%s">%s</td>`, columns[i+1], escaped(text))
		}
		b.WriteString("</tr>\n")
	}
	return b.String()
}

// fragment identifies the row of an object in the page's URL, such as shop/web, EgressQoS/shop/default, or
// EgressIP/name/203.0.113.10.
func (v *Service) fragment() string {
	id := strings.ReplaceAll(v.Name, " ", "/")
	if strings.Contains(v.Name, " ") && !v.Policy {
		id += "/" + strings.Join(v.IngressIPs, "/")
	}
	return id
}

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
{{style}}</style>
</head>
<body>
<p id="silent" role="status" hidden></p>
<header>
<h1>Egress of node {{node}}</h1>
<p id="state">{{state}}</p>
</header>
<main>
<div id="verdict">{{verdict}}</div>
<h2 id="services">EgressServices</h2>
<div id="tools" role="search" hidden>
<label for="filter">Filter</label> <input id="filter" type="search" autocomplete="off" placeholder="name, network, node, address">
<span id="count" role="status"></span>
</div>
<div class="wide" role="region" aria-labelledby="services" tabindex="0">
<table role="table">
<caption id="caption">{{caption}}</caption>
<thead role="rowgroup"><tr role="row">{{columns}}</tr></thead>
<tbody role="rowgroup" id="rows">
{{rows}}</tbody>
</table>
</div>
<h2 id="paths">Picture</h2>
<div class="wide" role="region" aria-labelledby="paths" tabindex="0">
<div id="picture">
{{picture}}</div>
</div>
</main>
<script>{{script}}</script>
</body>
</html>
`
