package config

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestMain(m *testing.M) {
	for _, e := range os.Environ() { // variables of the test's own environment
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, envPrefix) {
			_ = os.Unsetenv(name)
		}
	}
	goleak.VerifyTestMain(m)
}

func TestEmptyFileIsDefaults(t *testing.T) {
	for _, text := range []string{"", "\n# nothing\n", "{}", "networks: []\nbgp:\n", "---\n"} {
		c, err := Parse("f.yaml", []byte(text))
		require.NoError(t, err, text)
		require.Equal(t, Defaults(), withoutPlaces(c), text)
	}
	c := Defaults()
	require.Equal(t, uint32(0x3f00), c.Marks.Mask)
	require.Equal(t, 700, c.Marks.RulePriority)
	n, ok := c.Network("")
	require.True(t, ok)
	require.Equal(t, DefaultNetwork, n.Name)
	_, ok = c.Network("red")
	require.False(t, ok)
}

func TestPeerDefaults(t *testing.T) {
	c, err := Parse("f.yaml", []byte(`
bgp: {asn: 64512, bfdProfiles: [{name: slow}]}
networks:
- {name: red, vrf: vrf-red, namespaces: {}, peers: [{address: 10.1.0.1, asn: 64601}, {address: 10.1.0.2, asn: 64601, holdTime: 3s}]}
`))
	require.NoError(t, err)
	n, ok := c.Network("red")
	require.True(t, ok)
	require.Equal(t, &metav1.LabelSelector{}, n.Namespaces)
	require.Equal(t, Peer{
		Address:         netip.MustParseAddr("10.1.0.1"),
		Port:            179,
		ASN:             64601,
		HoldTime:        Duration(9 * time.Second),
		KeepaliveTime:   Duration(3 * time.Second),
		ConnectTime:     Duration(5 * time.Second),
		AddressFamilies: []Family{IPv4Unicast, IPv6Unicast},
		MaxPrefixes:     10000,
	}, n.Peers[0])
	require.Equal(t, Duration(time.Second), n.Peers[1].KeepaliveTime)
	require.Equal(t, BFDProfile{Name: "slow", TransmitInterval: 300, ReceiveInterval: 300, DetectMultiplier: 3}, c.BGP.BFDProfiles[0])
	_, ok = c.Network(DefaultNetwork)
	require.True(t, ok, "the default network always exists")
}

func TestEveryKeyIsRead(t *testing.T) {
	c, err := Load("testdata/full.yaml")
	require.NoError(t, err)
	password, err := filepath.Abs("testdata/password")
	require.NoError(t, err)
	defaultPeer := Peer{}
	defaultPeer.setDefaults()
	unnumbered, far := defaultPeer, defaultPeer
	unnumbered.Interface, unnumbered.DynamicASN, unnumbered.KeepaliveTime = "eth1", DynamicInternal, Duration(3*time.Second)
	unnumbered.Advertise.LocalPref = 200
	far.Address, far.DynamicASN, far.EBGPMultiHop, far.HoldTime = netip.MustParseAddr("fd00::1"), DynamicExternal, 3, Duration(65535*time.Second)
	far.KeepaliveTime = Duration(21845 * time.Second)
	require.Equal(t, &Config{
		Node:         "worker-1",
		Source:       Source{Kubernetes: Kubernetes{Kubeconfig: "/etc/kubernetes/egressway.conf", Namespace: "egress", LabelHosts: true}},
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd96::/108")},
		PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		OnNoPath:     NoPathAllow,
		Steering:     Steering{Mode: SteeringVXLAN, Device: "egw0", VNI: 77, Port: 4791, MTU: 1400},
		Marks:        Marks{Mask: 0xff0000, AllowConflicts: []string{"calico", "cilium", "kube-router", "tailscale", "weave"}, RulePriority: 500},
		BGP: BGP{
			ASN:             64512,
			RouterID:        netip.MustParseAddr("10.0.0.11"),
			ListenPort:      179,
			GracefulRestart: GracefulRestart{RestartTime: Duration(time.Minute)},
			BFDProfiles:     []BFDProfile{{"fast", 100, 150, 4}},
		},
		AllowUnlisted: true,
		Election:      Election{Hosts: 30},
		Moves:         Moves{KeepFlows: Duration(90 * time.Second), Within: Duration(15 * time.Second)},
		OnStop:        OnStopDrain,
		Firewall: Firewall{
			Resolvers: Resolvers{Services: []string{"dns/coredns"}, Addresses: []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::53")}},
			Names:     Names{Grace: Duration(30 * time.Second), Wait: Duration(100 * time.Millisecond)},
		},
		Kinds: Kinds{EgressQoS: KindOff, EgressFirewall: KindOff, EgressIP: KindOff},
		Hold: []Hold{
			{
				Namespaces: &metav1.LabelSelector{MatchLabels: map[string]string{"egress": "held"}},
				Pods:       &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}},
			},
			{Pods: &metav1.LabelSelector{}},
		},
		Failover: Failover{
			BFD:   NodeBFD{Port: 4784, TransmitInterval: 50, ReceiveInterval: 60, DetectMultiplier: 5},
			Flows: NodeFlows{Port: 14785},
		},
		Speaker: Speaker{Socket: "/tmp/speaker.sock"},
		Networks: []Network{
			{
				Name: "red", VRF: "vrf-red", Table: 1001,
				Interfaces: []Interface{{Name: "eth1"}, {Name: "eth2.100"}, {
					Name: "vlan1001", Parent: "bond0", VLAN: 1001, MTU: 9000,
					Addresses: []netip.Prefix{netip.MustParsePrefix("10.3.0.11/24"), netip.MustParsePrefix("2001:db8:3::11/64")},
				}},
				Namespaces: &metav1.LabelSelector{
					MatchLabels: map[string]string{"example.com/Team": "Red"},
					MatchExpressions: []metav1.LabelSelectorRequirement{
						{Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpIn, Values: []string{"shop", "web"}},
					},
				},
				OnNoPath: NoPathDrop,
				Peers: []Peer{
					{
						Address: netip.MustParseAddr("10.1.0.1"), ASN: 64601, Port: 1179,
						HoldTime: Duration(30 * time.Second), KeepaliveTime: Duration(10 * time.Second), ConnectTime: Duration(time.Minute),
						TTLSecurity: 1, PasswordFile: password, BFDProfile: "fast",
						AddressFamilies: []Family{IPv4Unicast}, MaxPrefixes: 5,
						Receive: []PrefixPattern{
							{Prefix: netip.MustParsePrefix("0.0.0.0/0")},
							{Prefix: netip.MustParsePrefix("10.0.0.0/8"), GE: 16, LE: 24},
						},
						Advertise: Advertise{
							Communities: []string{"64512:1", "no-export"}, LargeCommunities: []string{"64512:1:2"},
							MED: 10, ASPathPrepend: 2,
						},
					},
					unnumbered,
				},
			},
			{Name: "100", Table: 100},
			{Name: "default", Peers: []Peer{far}},
		},
		Status:  Status{Socket: "/run/e.sock", ServiceCounters: true},
		FlowLog: FlowLog{File: "/var/log/egressway.jsonl", EventBuffer: 65536},
		Log:     Log{Level: "debug", Format: "json"},
	}, withoutPlaces(c))
}

// withoutPlaces removes from a configuration what Parse adds about the file.
func withoutPlaces(c *Config) *Config {
	own := *c
	own.file, own.places, own.selectors = "", nil, nil
	return &own
}

// TestBadFiles checks that each file of testdata/bad has exactly the errors in its .want file.
func TestBadFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			_, err := Load(file)
			require.Error(t, err)
			var all Errors
			require.ErrorAs(t, err, &all)
			var one Error
			require.ErrorAs(t, err, &one)
			got := strings.ReplaceAll(err.Error(), file+":", "") + "\n"
			want := strings.TrimSuffix(file, ".yaml") + ".want"
			if os.Getenv("UPDATE_GOLDEN") != "" {
				require.NoError(t, os.WriteFile(want, []byte(got), 0o644))
			}
			expected, err := os.ReadFile(want)
			require.NoError(t, err)
			require.Equal(t, string(expected), got)
		})
	}
}

func TestEnvironmentOverridesScalars(t *testing.T) {
	file := filepath.Join(t.TempDir(), "egressway.yaml")
	require.NoError(t, os.WriteFile(file, []byte("bgp: {asn: 64513}\nlog: {level: warn}\n"), 0o600))
	t.Setenv("EGRESSWAY_LOG_LEVEL", "debug")
	t.Setenv("EGRESSWAY_BGP_ASN", "64999")
	t.Setenv("EGRESSWAY_BGP_ROUTERID", "10.0.0.1")
	t.Setenv("EGRESSWAY_BGP_GRACEFULRESTART_RESTARTTIME", "30s")
	t.Setenv("EGRESSWAY_BGP_GRACEFULRESTART_ENABLED", "false")
	t.Setenv("EGRESSWAY_MARKS_MASK", "0xf00")
	t.Setenv("EGRESSWAY_NODE", "b")
	c, err := Load(file)
	require.NoError(t, err)
	require.Equal(t, "debug", c.Log.Level)
	require.Equal(t, uint32(64999), c.BGP.ASN)
	require.Equal(t, netip.MustParseAddr("10.0.0.1"), c.BGP.RouterID)
	require.Equal(t, GracefulRestart{RestartTime: Duration(30 * time.Second)}, c.BGP.GracefulRestart)
	require.Equal(t, uint32(0xf00), c.Marks.Mask)
	require.Equal(t, "b", c.Node)

	for _, name := range []string{"EGRESSWAY_LOG_LEVEL", "EGRESSWAY_BGP_ASN", "EGRESSWAY_STATUS_METRICSADDRESS"} {
		t.Setenv(name, "") // as not set
	}
	c, err = Load(file)
	require.NoError(t, err)
	require.Equal(t, "warn", c.Log.Level)
	require.Equal(t, uint32(64513), c.BGP.ASN)
	require.Equal(t, Defaults().Status.MetricsAddress, c.Status.MetricsAddress)

	t.Setenv("EGRESSWAY_BGP_ASN", "many")
	t.Setenv("EGRESSWAY_LOG_LEVEL", "loud")
	_, err = Load(file)
	require.EqualError(t, err, `$EGRESSWAY_BGP_ASN: bgp.asn: "many": not a whole number from 0 to 4294967295
$EGRESSWAY_LOG_LEVEL: log.level: "loud": one of debug, info, warn, error`)
}

// TestStrayVariables checks that a variable of a list is refused, that one without a key gets a warning with the nearest name, both
// without their values, and that the kubelet's are ignored.
func TestStrayVariables(t *testing.T) {
	file := filepath.Join(t.TempDir(), "egressway.yaml")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, value := range map[string]string{
		"EGRESSWAY_METRICS_SERVICE_HOST": "10.96.0.9", "EGRESSWAY_METRICS_SERVICE_PORT_HTTP": "9479", "EGRESSWAY_METRICS_PORT": "tcp://10.96.0.9:9479",
		"EGRESSWAY_METRICS_PORT_9479_TCP_ADDR": "10.96.0.9", "EGRESSWAYS": "x", "EGRESSWAY_LOG_FORMAT": "json",
	} {
		t.Setenv(name, value)
	}
	_, err := Load(file)
	require.NoError(t, err)
	require.Empty(t, StrayVariables())
	for _, name := range []string{"EGRESSWAY_LOGLEVEL", "EGRESSWAY_log_format", "EGRESSWAY_PORT", "EGRESSWAY_", "EGRESSWAY_NETWORK"} {
		t.Setenv(name, "secret")
	}
	c, err := Load(file)
	require.NoError(t, err)
	require.Equal(t, Log{Level: "info", Format: "json"}, c.Log)
	const lacks = ": no key of the configuration has this variable: "
	require.EqualError(t, Errors(StrayVariables()), `$EGRESSWAY_`+lacks+`unset it; docs/configuration.md lists the variables
$EGRESSWAY_LOGLEVEL`+lacks+`is EGRESSWAY_LOG_LEVEL meant?
$EGRESSWAY_NETWORK`+lacks+`unset it; docs/configuration.md lists the variables
$EGRESSWAY_PORT`+lacks+`unset it; docs/configuration.md lists the variables
$EGRESSWAY_log_format`+lacks+`is EGRESSWAY_LOG_FORMAT meant?`)

	for _, name := range []string{"EGRESSWAY_NETWORKS", "EGRESSWAY_BGP"} {
		t.Setenv(name, "secret")
	}
	_, err = Load(file)
	require.EqualError(t, err, `$EGRESSWAY_BGP: no single value: give this key in the file
$EGRESSWAY_NETWORKS: no single value: give this key in the file`)
}

// TestLoadFrom reads a configuration from a reader: with the environment, within the limit of its size, and with the name in errors.
func TestLoadFrom(t *testing.T) {
	t.Setenv("EGRESSWAY_LOG_FORMAT", "json")
	c, err := LoadFrom("standard input", strings.NewReader("log: {level: debug}\n"))
	require.NoError(t, err)
	require.Equal(t, Log{Level: "debug", Format: "json"}, c.Log)
	_, err = LoadFrom("standard input", strings.NewReader("\nnod: x\n"))
	require.ErrorContains(t, err, "standard input:2: nod: unknown key: is node meant? Known here: node, ")
	_, err = LoadFrom("standard input", strings.NewReader("#"+strings.Repeat("x", 1<<20)))
	require.EqualError(t, err, "standard input: larger than 1 MiB: not a configuration")
	_, err = LoadFrom("standard input", iotest.ErrReader(os.ErrClosed))
	require.EqualError(t, err, "read the configuration from standard input: file already closed")
}

// TestNoRegularFile checks that every named file must be regular: reading another one might never end.
func TestNoRegularFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for _, file := range []string{fifo, dir, "/dev/zero"} {
		_, err := Load(file)
		require.EqualError(t, err, "read the configuration: "+file+": not a regular file")
		_, err = ReadPassword(file)
		require.EqualError(t, err, "read the password: "+file+": not a regular file")
		_, err = Parse("f.yaml", []byte("status: {metricsTLS: {certFile: "+file+", keyFile: "+file+"}}\nsource: {kubernetes: {kubeconfig: "+file+"}}\n"))
		require.EqualError(t, err, `f.yaml:1: status.metricsTLS.certFile: "`+file+`": a PEM file is needed: `+file+`: not a regular file
f.yaml:1: status.metricsTLS.keyFile: "`+file+`": a PEM file is needed: `+file+`: not a regular file
f.yaml:2: source.kubernetes.kubeconfig: "`+file+`": not a regular file`)
	}
}

// certificate writes tls.crt, signed by itself, and tls.key into a folder.
func certificate(t *testing.T, dir string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(nil, template, template, public, private)
	require.NoError(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: der}, "tls.key": {Type: "PRIVATE KEY", Bytes: key}} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
}

// TestRelativePaths checks that a relative path of the configuration leads to the same Config as its absolute one, by which Watch
// reads it, with absolute paths of files; errors keep the name as it is given.
func TestRelativePaths(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.Mkdir("etc", 0o700))
	certificate(t, "etc")
	require.NoError(t, os.WriteFile("etc/red", []byte("secret\n"), 0o600))
	text := "bgp: {asn: 64512}\nstatus: {metricsTLS: {certFile: tls.crt, keyFile: tls.key, clientCAFile: tls.crt}}\n" +
		"networks: [{name: default, peers: [{address: 10.1.0.1, asn: 64601, passwordFile: red}]}]\n"
	require.NoError(t, os.WriteFile("etc/config.yaml", []byte(text), 0o600))
	there := func(name string) string { return filepath.Join(dir, "etc", name) }
	want := MetricsTLS{CertFile: there("tls.crt"), KeyFile: there("tls.key"), ClientCAFile: there("tls.crt")}
	for _, file := range []string{"etc/config.yaml", "./etc/../etc/config.yaml", there("config.yaml")} {
		c, err := Load(file)
		require.NoError(t, err)
		require.Equal(t, want, c.Status.MetricsTLS, file)
		require.Equal(t, there("red"), c.Networks[0].Peers[0].PasswordFile, file)
	}
	c, err := LoadFrom("standard input", strings.NewReader(strings.NewReplacer("tls.", "etc/tls.", "red}", "etc/red}").Replace(text)))
	require.NoError(t, err)
	require.Equal(t, want, c.Status.MetricsTLS)

	require.NoError(t, os.Remove("etc/red"))
	_, err = Load("etc/config.yaml")
	require.EqualError(t, err, `etc/config.yaml:3: networks[default].peers[10.1.0.1].passwordFile: "red": `+
		`read the password: open etc/red: no such file or directory`)
}

func TestNodeName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "egressway.yaml")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	t.Setenv("NODE_NAME", "")
	c, err := Load(file)
	require.NoError(t, err)
	host, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, strings.ToLower(host), c.Node)
	t.Setenv("NODE_NAME", "worker-7")
	c, err = Load(file)
	require.NoError(t, err)
	require.Equal(t, "worker-7", c.Node)
}

func TestLoadRefusesFiles(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "none.yaml"))
	require.ErrorIs(t, err, os.ErrNotExist)
	large := filepath.Join(t.TempDir(), "large.yaml")
	require.NoError(t, os.WriteFile(large, []byte("#"+strings.Repeat("x", 1<<20)), 0o600))
	_, err = Load(large)
	require.EqualError(t, err, large+": larger than 1 MiB: not a configuration")
}

func TestReadPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	for text, want := range map[string]string{"secret": "secret", "secret\n": "secret", " a b \r\n": " a b ", strings.Repeat("x", 80) + "\n": strings.Repeat("x", 80)} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		got, err := ReadPassword(file)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", "\n", strings.Repeat("x", 81), strings.Repeat("x", 1000)} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := ReadPassword(file)
		require.Error(t, err)
	}
}

func TestCommunities(t *testing.T) {
	c, err := ParseCommunity("64512:7")
	require.NoError(t, err)
	require.Equal(t, uint32(64512<<16|7), c)
	c, err = ParseCommunity("no-export")
	require.NoError(t, err)
	require.Equal(t, uint32(0xffffff01), c)
	l, err := ParseLargeCommunity("4200000000:1:2")
	require.NoError(t, err)
	require.Equal(t, [3]uint32{4200000000, 1, 2}, l)
	for _, bad := range []string{"", "1", "1:", "1:2:3", "65536:1", "-1:1", "no-such", "1: 2", "0x1:2"} {
		_, err := ParseCommunity(bad)
		require.Error(t, err, bad)
	}
	for _, bad := range []string{"", "1:2", "1:2:3:4", "4294967296:1:1", "no-export"} {
		_, err := ParseLargeCommunity(bad)
		require.Error(t, err, bad)
	}
}

func FuzzParse(f *testing.F) {
	full, err := os.ReadFile("testdata/full.yaml")
	require.NoError(f, err)
	f.Add(full)
	f.Add([]byte("a: &x [*x]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f.yaml", data)
		if err == nil {
			_, ok := c.Network(DefaultNetwork)
			require.True(t, ok)
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			require.True(t, strings.HasPrefix(line, "f.yaml"), "%q", line)
		}
	})
}

// TestOff: tools that read YAML 1.1, such as Helm, write off as false.
func TestOff(t *testing.T) {
	text := "node: a\nbgp: {asn: 64512}\nkinds: {egressQoS: false}\nnetworks: [{name: red, vrf: red, table: 100, onLink: false}]\n"
	c, err := Parse("config.yaml", []byte(text))
	require.NoError(t, err)
	require.Equal(t, KindOff, c.Kinds.EgressQoS)
	require.Equal(t, OnLinkOff, c.Networks[0].OnLink)
}
