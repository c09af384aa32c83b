package config

import (
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The range of routing tables that steering to hosts uses; no network may use one of them.
const (
	SteeringTableBase  = 794600
	SteeringTableCount = 4096
)

// ReservedTable reports whether a table is the kernel's own or one of our steering, which no network may use.
func ReservedTable(table uint32) bool {
	return table == 0 || table >= 253 && table <= 255 || table >= SteeringTableBase && table < SteeringTableBase+SteeringTableCount
}

// validator checks a decoded Config. Its paths are the keys of decoder.places.
type validator struct {
	*decoder
	c       *Config
	noFiles bool // files of passwords and certificates are not read
}

// bad reports the value at path, or that it is missing if the file does not have it.
func (v *validator) bad(path, format string, args ...any) {
	if v.undecoded(path) {
		return // the decoder has reported it
	}
	e := Error{File: v.file, Message: fmt.Sprintf(format, args...)}
	if p, ok := v.places[path]; ok {
		e.File, e.Value = p.file, p.text
	}
	e.Line, e.Field = v.locate(path)
	v.errs = append(v.errs, e)
}

// undecoded reports whether the value at path, or an entry around it, could not be decoded.
func (v *validator) undecoded(path string) bool {
	for around := range enclosing(path) {
		if v.failed[around] {
			return true
		}
	}
	return false
}

// locate returns the line and the name in messages of the value at path, by the nearest entry around it that the file has.
func (v *validator) locate(path string) (line int, shown string) {
	for around := range enclosing(path) {
		if p, ok := v.places[around]; ok {
			return p.line, join(p.shown, strings.TrimPrefix(path[len(around):], "."))
		}
	}
	return 0, path
}

// enclosing iterates over path and the paths of the entries around it, up to the whole file's, which is empty.
func enclosing(path string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for end := len(path); yield(path[:end]) && end > 0; {
			end = max(strings.LastIndexAny(path[:end], ".["), 0)
		}
	}
}

func (v *validator) validate() {
	c := v.c
	if c.Node != "" && len(validation.IsDNS1123Subdomain(c.Node)) > 0 {
		v.bad("node", "not a node's name: lower case letters, digits, '-' and '.', at most 253 bytes")
	}
	v.source()
	v.ranges("clusterCIDRs", c.ClusterCIDRs)
	v.ranges("podCIDRs", c.PodCIDRs)
	oneOf(v, "onNoPath", c.OnNoPath, NoPathDrop, NoPathAllow)
	v.steering()
	v.marks()
	v.bgp()
	v.networks()
	v.hold()
	if n := v.c.Election.Hosts; n < 0 || n == 1 {
		v.bad("election.hosts", "2, for a host and its standby, or more, or 0 for all nodes")
	}
	v.moves()
	v.firewall()
	v.failover()
	v.sockets(c.Speaker.Socket, c.Status.Socket)
	v.listenAddress("status.metricsAddress", c.Status.MetricsAddress)
	v.metricsTLS()
	v.flowLog()
	oneOf(v, "log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf(v, "log.format", c.Log.Format, "text", "json")
}

// ranges checks a list of ranges of the cluster.
func (v *validator) ranges(key string, prefixes []netip.Prefix) {
	for i, p := range prefixes {
		path := fmt.Sprintf("%s[%d]", key, i)
		if v.prefix(path, p) && p.Bits() == 0 {
			v.bad(path, "every address: nothing would ever be steered")
		}
	}
}

func (v *validator) source() {
	s := v.c.Source
	if s.Manifests != "" && s.Kubernetes.Kubeconfig != "" {
		v.bad("source.manifests", "objects come from one source: leave either this or kubernetes.kubeconfig out")
	}
	if file := s.Kubernetes.Kubeconfig; file != "" {
		if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
			v.bad("source.kubernetes.kubeconfig", "not a regular file")
		}
	}
	if n := s.Kubernetes.Namespace; n != "" && len(validation.IsDNS1123Label(n)) > 0 {
		v.bad("source.kubernetes.namespace", "not a namespace: lower case letters, digits and '-', at most 63 bytes")
	}
}

func (v *validator) sockets(speaker, status string) {
	v.socket("speaker.socket", speaker)
	v.socket("status.socket", status)
	if filepath.Clean(speaker) == filepath.Clean(status) {
		v.bad("speaker.socket", "the same as status.socket: two processes listen there, each needs its own")
	}
}

func (v *validator) socket(path, file string) {
	if !filepath.IsAbs(file) || len(file) > 107 { // the size of sockaddr_un
		v.bad(path, "an absolute path of at most 107 bytes is needed")
		return
	}
	info, err := os.Stat(file)
	switch {
	case strings.HasSuffix(file, "/"), err == nil && info.IsDir():
		v.bad(path, "that is a folder: the path of a file in it is needed, such as %s", filepath.Join(file, filepath.Base(defaultOf(path))))
	case err == nil && info.Mode().Type() != os.ModeSocket:
		v.bad(path, "another file, not a socket, has this path: remove it, or choose another path")
	}
}

// defaultOf returns the default of a socket's path.
func defaultOf(path string) string {
	if c := Defaults(); path == "speaker.socket" {
		return c.Speaker.Socket
	}
	return Defaults().Status.Socket
}

func (v *validator) steering() {
	s := v.c.Steering
	oneOf(v, "steering.mode", s.Mode, SteeringAuto, SteeringDirect, SteeringVXLAN)
	v.device("steering.device", s.Device)
	if s.VNI == 0 || s.VNI >= 1<<24 {
		v.bad("steering.vni", "not a VXLAN network identifier: 1 to %d", 1<<24-1)
	}
	if s.Port == 0 {
		v.bad("steering.port", "not a UDP port: 1 to 65535")
	}
	if s.MTU != 0 && (s.MTU < 1280 || s.MTU > 65000) {
		v.bad("steering.mtu", "0, for the underlay's less the encapsulation, or 1280 (the least IPv6 allows) to 65000")
	}
}

func (v *validator) hold() {
	for i, h := range v.c.Hold {
		path := fmt.Sprintf("hold[%d]", i)
		if h.Namespaces == nil && h.Pods == nil {
			v.bad(path, "an entry needs namespaces, pods or both: \"pods: {}\" is for every pod")
		}
		v.selector(path+".namespaces", h.Namespaces)
		v.selector(path+".pods", h.Pods)
	}
}

// selector checks a label selector; nil: there is none.
func (v *validator) selector(path string, s *metav1.LabelSelector) bool {
	if s == nil {
		return true
	}
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		if _, given := v.places[join(path+".matchLabels", key)]; !given {
			v.bad(path, "matchLabels has no value for %q: give one, or ask for the key with the operator Exists", key)
			return false
		}
		// Alone, so that of several faults each load names the same: Watch compares errors.
		if !v.parsedSelector(path, &metav1.LabelSelector{MatchLabels: map[string]string{key: s.MatchLabels[key]}}) {
			return false
		}
	}
	return v.parsedSelector(path, s)
}

func (v *validator) parsedSelector(path string, s *metav1.LabelSelector) bool {
	if _, err := metav1.LabelSelectorAsSelector(s); err != nil {
		v.bad(path, "not a label selector: %s", err)
		return false
	}
	return true
}

func (v *validator) moves() {
	c := v.c
	v.duration("moves.keepFlows", c.Moves.KeepFlows, 0, time.Hour, "0s, to leave a former host at once, to 1h")
	v.duration("moves.within", c.Moves.Within, time.Second, time.Hour,
		"1s to 1h, and less than the time before a stopping daemon is killed, 30s for a pod")
	oneOf(v, "kinds.egressQoS", c.Kinds.EgressQoS, KindAuto, KindOff)
	oneOf(v, "kinds.egressFirewall", c.Kinds.EgressFirewall, KindAuto, KindOff)
	oneOf(v, "kinds.egressIP", c.Kinds.EgressIP, KindAuto, KindOff)
	oneOf(v, "onStop", c.OnStop, OnStopKeep, OnStopDrain)
	if c.OnStop == OnStopDrain && c.Source.Manifests != "" {
		v.bad("onStop", "services do not move if objects come from source.manifests: choose %s", OnStopKeep)
	}
}

func (v *validator) firewall() {
	f := v.c.Firewall
	for i, s := range f.Resolvers.Services {
		if !isService(s) {
			v.bad(fmt.Sprintf("firewall.resolvers.services[%d]", i), "a Service as namespace/name, such as kube-system/kube-dns")
		}
	}
	for i, a := range f.Resolvers.Addresses {
		if !isServer(a) {
			v.bad(fmt.Sprintf("firewall.resolvers.addresses[%d]", i), "the address of one server, without a zone, such as 169.254.20.10")
		}
	}
	v.duration("firewall.names.grace", f.Names.Grace, 0, time.Hour, "0s to 1h")
	v.duration("firewall.names.wait", f.Names.Wait, 10*time.Millisecond, 5*time.Second, "10ms to 5s: clients ask again after 5s")
}

// isService reports whether s is the namespace and the name of a Service.
func isService(s string) bool {
	namespace, name, ok := strings.Cut(s, "/")
	return ok && isLabel(namespace) && isLabel(name)
}

// isServer reports whether a is the address of one server, without a zone.
func isServer(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6() && !a.IsUnspecified() && !a.IsMulticast()
}

func isLabel(s string) bool { return len(validation.IsDNS1123Label(s)) == 0 }

func (v *validator) bgp() {
	b := v.c.BGP
	v.givenASN("bgp.asn", b.ASN)
	v.routerID("bgp.routerID", b.RouterID)
	v.bgpOverrides()
	if b.ListenPort != -1 && (b.ListenPort < 1 || b.ListenPort > 65535) {
		v.bad("bgp.listenPort", "a TCP port, 1 to 65535, or -1 to dial only")
	}
	if t := b.GracefulRestart.RestartTime; b.GracefulRestart.Enabled || t != 0 {
		v.seconds("bgp.gracefulRestart.restartTime", t, 1, 4095)
	}
	v.bfdProfiles()
}

func (v *validator) bfdProfiles() {
	seen := map[string]string{}
	for i, p := range v.c.BGP.BFDProfiles {
		path := fmt.Sprintf("bgp.bfdProfiles[%d]", i)
		if p.Name == "" {
			v.bad(path+".name", "missing: the name by which peers refer to it")
		} else {
			v.unique(seen, p.Name, path+".name", "another profile has this name")
		}
		v.bfdIntervals(path, p)
		if p.DetectMultiplier == 0 {
			v.bad(path+".detectMultiplier", "1 to 255 missed packets")
		}
	}
}

// asn refuses AS numbers that no speaker may use: 0 (RFC 7607), AS_TRANS (RFC 6793), and the last ones (RFC 7300).
func (v *validator) asn(path string, asn uint32) {
	switch asn {
	case 0, 23456, 65535, 4294967295:
		v.bad(path, "a reserved AS number: private ones are 64512 to 65534 and 4200000000 to 4294967294")
	}
}

// seconds checks for whole seconds, since BGP messages carry no fractions.
func (v *validator) seconds(path string, d Duration, least, most int) bool {
	t := time.Duration(d)
	if t%time.Second != 0 || t < time.Duration(least)*time.Second || t > time.Duration(most)*time.Second {
		v.bad(path, "whole seconds, %ds to %ds", least, most)
		return false
	}
	return true
}

// duration checks that d lies between two bounds. right names them in the message.
func (v *validator) duration(path string, d Duration, least, most time.Duration, right string) {
	if t := time.Duration(d); t < least || t > most {
		v.bad(path, "%s", right)
	}
}

// oneOf checks that value is one of known.
func oneOf[T ~string](v *validator, path string, value T, known ...T) {
	if !slices.Contains(known, value) {
		words := make([]string, len(known))
		for i, k := range known {
			words[i] = string(k)
		}
		v.bad(path, "one of %s", strings.Join(words, ", "))
	}
}

// deviceName is stricter than the kernel, for which '%' makes a name a template, and than other tools, for which '@',
// '*' or a leading '-' have a meaning.
var deviceName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$`)

// DeviceName reports whether a VRF, an uplink or the tunnel may have this name. "all" and "default" are not devices
// below /proc/sys/net, and no network may have the loopback device.
func DeviceName(name string) bool {
	return deviceName.MatchString(name) && name != "all" && name != "default" && name != "lo"
}

// device checks a DeviceName.
func (v *validator) device(path, name string) bool {
	switch {
	case name == "":
		v.bad(path, "missing: an interface's name")
	case len(name) > maxDeviceName:
		v.bad(path, "not an interface's name: at most %d bytes, this has %d", maxDeviceName, len(name))
	case !DeviceName(name):
		v.bad(path, "not a usable interface's name: letters, digits, '.', '_' and '-', a letter, digit or '_' first, "+
			"and not lo, all or default")
	default:
		return true
	}
	return false
}

// prefix checks that p is set, masked, and not an IPv4-mapped prefix.
func (v *validator) prefix(path string, p netip.Prefix) bool {
	switch {
	case !p.IsValid():
		v.bad(path, "missing: a prefix such as 10.0.0.0/8")
	case p.Addr().Is4In6():
		v.bad(path, "an IPv4-mapped IPv6 prefix: write it as IPv4")
	case p != p.Masked():
		v.bad(path, "bits are set after the prefix length: is %s meant?", p.Masked())
	default:
		return true
	}
	return false
}

// unique reports path if value was seen before.
func (v *validator) unique(seen map[string]string, value, path, message string) {
	first, twice := seen[value]
	if !twice {
		seen[value] = path
		return
	}
	if line := v.places[first].line; line > 0 {
		message += fmt.Sprintf(", on line %d", line)
	}
	v.bad(path, "%s", message)
}

func (v *validator) metricsTLS() {
	t := v.c.Status.MetricsTLS
	if t == (MetricsTLS{}) {
		return
	}
	if v.c.Status.MetricsAddress == "" {
		v.bad("status.metricsTLS", "status.metricsAddress is empty: no client can connect")
	}
	if t.TokenReview && v.c.Source.Manifests != "" {
		v.bad("status.metricsTLS.tokenReview", "an API server has to judge the tokens, and source.manifests names a folder: remove one")
	}
	if !v.pemFiles(t) || v.noFiles {
		return
	}
	if _, err := t.Load(); err != nil {
		v.bad("status.metricsTLS", "%s", err)
	}
}

// pemFiles checks that the files of status.metricsTLS can be read, each of them.
func (v *validator) pemFiles(t MetricsTLS) bool {
	certificate := v.pemFile("certFile", t.CertFile, "a certificate")
	key := v.pemFile("keyFile", t.KeyFile, "the certificate's private key")
	authorities := t.ClientCAFile == "" || v.pemFile("clientCAFile", t.ClientCAFile, "authorities")
	return certificate && key && authorities
}

// pemFile checks that a file of status.metricsTLS can be read. content is the content that TLS needs.
func (v *validator) pemFile(key, file, content string) bool {
	path := "status.metricsTLS." + key
	if file == "" {
		v.bad(path, "TLS needs %s: a PEM file", content)
		return false
	}
	if v.noFiles {
		return true
	}
	if _, err := readAtMost(file, maxSize); err != nil {
		v.bad(path, "a PEM file is needed: %s", err)
		return false
	}
	return true
}

func (v *validator) flowLog() {
	l := v.c.FlowLog
	switch info, err := os.Stat(l.File); {
	case l.File == "" || l.File == StandardOutput:
	case !filepath.IsAbs(l.File):
		v.bad("flowLog.file", "an absolute path, or %s for standard output", StandardOutput)
	case strings.HasSuffix(l.File, "/"), err == nil && info.IsDir():
		v.bad("flowLog.file", "that is a folder: the path of a file in it is needed, such as %s", filepath.Join(l.File, "flows.jsonl"))
	}
	if l.EventBuffer < 4096 || l.EventBuffer > 1<<30 {
		v.bad("flowLog.eventBuffer", "4096 to %d bytes", 1<<30)
	}
}

func (v *validator) listenAddress(path, address string) {
	if address != "" && !listenable(address) {
		v.bad(path, "an IP address and a port from 1 to 65535, such as 127.0.0.1:9479 or [::1]:9479, or empty for none")
	}
}

// listenable reports whether address is an IP address, localhost or nothing, and a port.
func listenable(address string) bool {
	host, port, err := net.SplitHostPort(address)
	if err == nil && host != "" && host != "localhost" {
		_, err = netip.ParseAddr(host)
	}
	if err != nil {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}
