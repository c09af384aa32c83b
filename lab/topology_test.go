package lab

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLoadIsStrict(t *testing.T) {
	for name, c := range map[string]struct{ file, message string }{
		"unknown field of a node": {
			"name: x\ntopology: {nodes: {a: {kind: linux, imagine: y}}}", "line 2: field imagine not found",
		},
		"unknown field at the top": {"name: x\ntopologies: {}", "field topologies not found"},
		"field twice":              {"name: x\nname: y", `mapping key "name" already defined`},
		"wrong type":               {"topology: {nodes: {a: {kind: linux, exec: ip link}}}", "cannot unmarshal !!str `ip link`"},
		"other kind":               {"topology: {nodes: {a: {kind: bridge}}}", `node a: kind "bridge": must be linux or ext-container`},
		"no kind":                  {"topology: {nodes: {a: {}}}", `node a: kind ""`},
		"bind without target":      {"topology: {nodes: {a: {kind: linux, binds: [x]}}}", `bind "x": must be source:target`},
		"link to nowhere":          {"topology: {nodes: {a: {kind: linux}}, links: [{endpoints: [a:e, b:e]}]}", `endpoint "b:e": must be node:interface of a known node`},
		"link with one end":        {"topology: {nodes: {a: {kind: linux}}, links: [{endpoints: [a:e]}]}", "link 0: 1 endpoints: must be two"},
		"interface twice":          {"topology: {nodes: {a: {kind: linux}}, links: [{endpoints: [a:e, a:e]}]}", `endpoint "a:e" is taken`},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.clab.yml")
			require.NoError(t, os.WriteFile(path, []byte(c.file), 0o600))
			_, err := Load(path)
			require.ErrorContains(t, err, c.message)
			require.ErrorContains(t, err, path)
		})
	}
	_, err := Load("no such file")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestInheritance(t *testing.T) {
	topology, err := parse([]byte(`
name: x
prefix: ""
topology:
  defaults: {kind: linux, image: plain, exec: [one], sysctls: {a: 1, b: 1}, env: {A: "1"}}
  kinds: {linux: {image: better, exec: [two], sysctls: {b: 2, c: 2}, binds: ["f:/etc/f"]}}
  nodes:
    n: {exec: [three], sysctls: {c: 3}, env: {B: "2"}}
    m: {image: best, network-mode: none, labels: {x: y}, cmd: run}
`))
	require.NoError(t, err)
	n := topology.Graph.Nodes["n"]
	require.Equal(t, "better", n.Image)
	require.Equal(t, []string{"one", "two", "three"}, n.Exec)
	require.EqualValues(t, map[string]any{"a": 1, "b": 2, "c": 3}, n.Sysctls)
	require.Equal(t, map[string]string{"A": "1", "B": "2"}, n.Env)
	require.Equal(t, []string{"f:/etc/f"}, n.Binds)
	require.Equal(t, "best", topology.Graph.Nodes["m"].Image)
}

func TestRepository(t *testing.T) {
	for image, want := range map[string]string{
		"quay.io/frrouting/frr:8.4.4": "quay.io/frrouting/frr", "localhost:5000/egressway": "localhost:5000/egressway",
		"egressway:dev": "egressway", "": "",
	} {
		require.Equal(t, want, repository(image))
	}
}

func TestTopologiesLoad(t *testing.T) {
	files, err := filepath.Glob("../containerlab/*.clab.yml")
	require.NoError(t, err)
	files = append(files, "../containerlab/kind/tors.clab.yml")
	require.NotEmpty(t, files)
	for _, f := range files {
		_, err := Load(f)
		require.NoError(t, err)
	}
}

func TestParsePacket(t *testing.T) {
	v6 := make([]byte, 48)
	v6[0], v6[6], v6[8], v6[24] = 0x60, 44, 0xfd, 0xfe // a fragment
	v6[40] = byte(UDP)
	p, ok := parsePacket(v6)
	require.True(t, ok)
	require.Equal(t, UDP, p.Protocol)
	require.Equal(t, "fd00:: fe00::", p.Src.String()+" "+p.Dst.String())

	v4 := make([]byte, 20)
	v4[0], v4[9], v4[12], v4[16] = 0x45, byte(TCP), 10, 11
	p, ok = parsePacket(v4)
	require.True(t, ok)
	require.Equal(t, "x:y in 10.0.0.0 > 11.0.0.0 tcp", Packet{"x", "y", false, p.Src, p.Dst, p.Protocol, false, 0}.String())

	for _, bad := range [][]byte{nil, {0x45}, v6[:39], make([]byte, 60)} {
		_, ok := parsePacket(bad)
		require.False(t, ok)
	}
}

func TestParseHeader(t *testing.T) {
	v4 := make([]byte, 40)
	v4[0], v4[3], v4[9] = 0x45, 40, byte(TCP)
	v4[20], v4[21], v4[22], v4[23], v4[33] = 0x1f, 0x90, 0, 80, 0x12
	h, ok := parseHeader(Packet{Protocol: TCP}, v4)
	require.True(t, ok)
	require.Equal(t, "port 8080 > 80, 40 bytes SYN ACK", h.String())

	v6 := make([]byte, 60)
	v6[0], v6[5], v6[6], v6[43] = 0x60, 20, byte(UDP), 80
	h, ok = parseHeader(Packet{Protocol: UDP}, v6)
	require.True(t, ok)
	require.Equal(t, Header{DstPort: 80, Length: 60}, h)

	for _, p := range []Packet{{Protocol: ICMP}, {Protocol: TCP}} { // no ports, or another header first
		_, ok := parseHeader(p, v6)
		require.False(t, ok)
	}
	_, ok = parseHeader(Packet{Protocol: TCP}, v4[:30])
	require.False(t, ok)
}
