// Plots draws the figures of docs/benchmarks.md as pictures, docs/pictures/bench-*.svg:
//
//	go run ./lab/bench/plots
package main

import (
	"bytes"
	"flag"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

var (
	blue   = color.RGBA{R: 0x1f, G: 0x5f, B: 0xa8, A: 0xff}
	orange = color.RGBA{R: 0xd9, G: 0x6b, B: 0x1d, A: 0xff}
	green  = color.RGBA{R: 0x2f, G: 0x8f, B: 0x4e, A: 0xff}
	red    = color.RGBA{R: 0xb0, G: 0x2a, B: 0x37, A: 0xff}
	gray   = color.RGBA{R: 0x77, G: 0x77, B: 0x77, A: 0xff}
)

// pictures are the names of the files, and the functions that draw them.
var pictures = map[string]func(document string) (*plot.Plot, error){
	"bench-packets.svg":  packets,
	"bench-changes.svg":  changes,
	"bench-failover.svg": failover,
}

func main() {
	from := flag.String("from", "docs/benchmarks.md", "the `document` with the figures")
	to := flag.String("to", "docs/pictures", "the `folder` of the pictures")
	flag.Parse()
	if err := run(*from, *to); err != nil {
		fmt.Fprintln(os.Stderr, "plots:", err)
		os.Exit(1)
	}
}

func run(from, to string) error {
	document, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	for name, picture := range pictures {
		svg, err := drawn(picture, string(document))
		if err != nil {
			return fmt.Errorf("%s: %s: %w", from, name, err)
		}
		if err := os.WriteFile(filepath.Join(to, name), svg, 0o644); err != nil { //nolint:gosec // a page's picture
			return err
		}
	}
	return nil
}

// drawn returns a picture as SVG.
func drawn(picture func(string) (*plot.Plot, error), document string) ([]byte, error) {
	p, err := picture(document)
	if err != nil {
		return nil, err
	}
	p.BackgroundColor = color.White
	w, err := p.WriterTo(16*vg.Centimeter, 9*vg.Centimeter, "svg")
	if err != nil {
		return nil, err
	}
	var svg bytes.Buffer
	_, err = w.WriteTo(&svg)
	return svg.Bytes(), err
}

// packets draws the cost of an established packet over the number of endpoints.
func packets(document string) (*plot.Plot, error) {
	found, err := tables(document, "## Packets")
	if err != nil {
		return nil, err
	}
	costs := found[0]
	p := newPlot("Packets of an established flow of a selected pod", "endpoints on the node", "ns of a processor for each packet")
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	for _, s := range []struct {
		layout, name string
		color        color.Color
	}{
		{"a rule per endpoint, ", "a routing rule for each endpoint", orange},
		{"egressway, ", "Egressway", blue},
	} {
		var points plotter.XYs
		for _, row := range costs.rows {
			count, ours := strings.CutPrefix(row[0], s.layout)
			endpoints, err := number(count)
			if !ours || err != nil {
				continue // another layout
			}
			cost, err := costs.cell("established", row[0])
			if err != nil {
				return nil, err
			}
			ns, err := number(cost)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", row[0], err)
			}
			points = append(points, plotter.XY{X: endpoints, Y: ns})
		}
		if err := addLine(p, s.name, points, s.color); err != nil {
			return nil, err
		}
	}
	for _, s := range []struct {
		layout string
		color  color.Color
	}{{"forwarding", gray}, {"one SNAT rule, one routing rule", green}} {
		cost, err := costs.cell("established", s.layout)
		if err != nil {
			return nil, err
		}
		ns, err := number(cost)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.layout, err)
		}
		l, err := plotter.NewLine(plotter.XYs{{X: 1, Y: ns}, {X: 50_000, Y: ns}})
		if err != nil {
			return nil, err
		}
		l.Color, l.Dashes = s.color, []vg.Length{4, 3}
		p.Add(l)
		p.Legend.Add(s.layout, l)
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 1, 100_000, 100, 300_000
	return p, nil
}

// changes draws the times from a request to the nft commit, at 100 changes a second.
func changes(document string) (*plot.Plot, error) {
	found, err := tables(document, "### Changes at 100 a second")
	if err != nil {
		return nil, err
	}
	p := newPlot("From a request to the API server to rules in the kernel, at 100 changes a second", "share of the changes, %", "ms")
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Left = true
	for _, s := range []struct {
		kind  string
		color color.Color
	}{
		{"an endpoint added", blue},
		{"another ingress IP", green},
		{"EgressService gets its host", orange},
		{"EgressService deleted", red},
	} {
		if err := addQuantiles(p, s.kind, s.color, found[0], "request: "+s.kind, "nft commit"); err != nil {
			return nil, err
		}
	}
	p.Y.Min, p.Y.Max = 0.2, 1000
	return p, nil
}

// failover draws the times from the death of a host.
func failover(document string) (*plot.Plot, error) {
	found, err := tables(document, "## Failover")
	if err != nil {
		return nil, err
	}
	p := newPlot("From the death of a host", "share of the nodes, routers and flows, %", "ms")
	p.Legend.Top, p.Legend.Left = true, true
	for _, s := range []struct {
		step, name string
		color      color.Color
	}{
		{"a node notices", "a node notices", gray},
		{"and steers to the standby (one pass)", "steers to the standby", orange},
		{"a router's kernel uses the standby's path", "a router uses the standby's path", green},
		{"a new flow works", "a new flow works", blue},
	} {
		if err := addQuantiles(p, s.name, s.color, found[0], s.step); err != nil {
			return nil, err
		}
	}
	p.Y.Min = 0
	return p, nil
}

// addQuantiles adds a line through p50, p90, p99 and the most of a row, at equal distances: the end of a distribution matters most.
func addQuantiles(p *plot.Plot, name string, c color.Color, t table, row ...string) error {
	var points plotter.XYs
	for i, column := range []string{"p50", "p90", "p99", "most"} {
		cell, err := t.cell(column, row...)
		if err != nil {
			return err
		}
		ms, err := milliseconds(cell)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", strings.Join(row, ", "), column, err)
		}
		points = append(points, plotter.XY{X: float64(i), Y: ms})
	}
	p.X.Tick.Marker = plot.ConstantTicks{
		{Value: 0, Label: "50"},
		{Value: 1, Label: "90"},
		{Value: 2, Label: "99"},
		{Value: 3, Label: "100"},
	}
	return addLine(p, name, points, c)
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(6)
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = color.Gray{Y: 0xdd}, color.Gray{Y: 0xdd}
	p.Add(grid)
	return p
}

func addLine(p *plot.Plot, name string, points plotter.XYs, c color.Color) error {
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	line.Color, line.Width = c, vg.Points(1.5)
	dots.Color, dots.Shape = c, draw.CircleGlyph{}
	p.Add(line, dots)
	p.Legend.Add(name, line, dots)
	return nil
}
