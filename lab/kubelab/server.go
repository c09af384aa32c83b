package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	utilversion "k8s.io/component-base/version"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// Files of the state folder.
const (
	caCert      = "ca.crt"
	serverCert  = "server.crt"
	serverKey   = "server.key"
	tokensKey   = "tokens.key" // signs the tokens of ServiceAccounts
	usersFile   = "users.csv"
	auditPolicy = "audit.yaml"
	auditLog    = "audit.log"
)

type serverOptions struct {
	dir         string
	listen, url string
	names       list
	serviceNets string
	token       string
	users       list
	flags       list
	audit       bool
	advertise   string
	seed        seedOptions
}

// server is a kube-apiserver over an etcd of its own, ready to be used.
type server struct {
	config *rest.Config // of the administrator
	url    string       // for others
	done   <-chan error
}

// policy records who asked for what, but for what the server asks itself and for the begin of requests.
const policy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, users: ["system:apiserver", "system:anonymous"]}
- {level: Metadata}
`

func start(ctx context.Context, o serverOptions) (*server, error) {
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return nil, err
	}
	addr := l.Addr().(*net.TCPAddr)
	host := addr.IP
	if host.IsUnspecified() {
		host = net.IPv4(127, 0, 0, 1)
	}
	fresh, err := furnish(o, host)
	if err != nil {
		return nil, err
	}
	etcd, endpoint, err := startEtcd(ctx, o.dir)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	if fresh {
		if err := seed(ctx, v3client.New(etcd.Server), o.seed); err != nil {
			return nil, fmt.Errorf("seed: %w", err)
		}
	}
	run, err := apiserver(ctx, o, l, host, endpoint)
	if err != nil {
		return nil, fmt.Errorf("start kube-apiserver: %w", err)
	}
	ca, err := os.ReadFile(filepath.Join(o.dir, caCert))
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		err := run(ctx)
		etcd.Close()
		done <- err
	}()
	s := &server{url: o.url, done: done, config: &rest.Config{
		Host:            "https://" + net.JoinHostPort(host.String(), strconv.Itoa(addr.Port)),
		BearerToken:     o.token,
		QPS:             -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: ca},
		Proxy:           http.ProxyURL(nil),
	}}
	if s.url == "" {
		s.url = s.config.Host
	}
	if err := s.awaitReady(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// furnish writes the files that kube-apiserver wants. Certificates of an earlier run stay, clients know them; where there
// are none, the state is fresh.
func furnish(o serverOptions, host net.IP) (fresh bool, err error) {
	write := func(name, text string) error {
		return os.WriteFile(filepath.Join(o.dir, name), []byte(text), 0o600)
	}
	users := append([]string{o.token + `,admin,admin,"system:masters"`}, o.users...)
	if err := errors.Join(write(usersFile, strings.Join(users, "\n")), write(auditPolicy, policy)); err != nil {
		return false, err
	}
	_, err = os.Stat(filepath.Join(o.dir, caCert))
	if errors.Is(err, os.ErrNotExist) {
		names := []string{"localhost", "127.0.0.1", "::1", "kubernetes.default.svc", host.String()}
		return true, makePKI(o.dir, append(names, o.names...))
	}
	return false, err
}

// apiserver prepares kube-apiserver as its own main does, but on a listener that is there already.
func apiserver(ctx context.Context, o serverOptions, l net.Listener, host net.IP, etcd string) (func(context.Context) error, error) {
	file := func(name string) string { return filepath.Join(o.dir, name) }
	flags := []string{
		"--etcd-servers=" + etcd,
		"--tls-cert-file=" + file(serverCert), "--tls-private-key-file=" + file(serverKey),
		"--authorization-mode=Node,RBAC",
		"--token-auth-file=" + file(usersFile),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + file(tokensKey), "--service-account-signing-key-file=" + file(tokensKey),
		"--service-cluster-ip-range=" + o.serviceNets,
		"--allow-privileged=true",
		"--shutdown-send-retry-after=false",
	}
	flags = append(flags, surroundings(o, host)...)
	if o.audit {
		flags = append(flags, "--audit-policy-file="+file(auditPolicy), "--audit-log-path="+file(auditLog), "--audit-log-mode=blocking")
	}

	s := options.NewServerRunOptions()
	set := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	groups := s.Flags()
	for _, g := range groups.FlagSets {
		set.AddFlagSet(g)
	}
	if err := set.Parse(append(flags, o.flags...)); err != nil {
		return nil, err
	}
	s.SecureServing.Listener = l
	s.SecureServing.BindPort = l.Addr().(*net.TCPAddr).Port
	if err := s.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return nil, err
	}
	completed, err := s.Complete(ctx)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(completed.Validate()...); err != nil {
		return nil, err
	}
	config, err := app.NewConfig(completed)
	if err != nil {
		return nil, err
	}
	complete, err := config.Complete()
	if err != nil {
		return nil, err
	}
	chain, err := app.CreateServerChain(complete)
	if err != nil {
		return nil, err
	}
	prepared, err := chain.PrepareRun()
	if err != nil {
		return nil, err
	}
	return prepared.Run, nil
}

// surroundings are the flags that depend on what is around the server: kubelets, kube-proxies and kube-controller-manager, or a test.
func surroundings(o serverOptions, host net.IP) []string {
	if o.advertise != "" {
		file := func(name string) string { return filepath.Join(o.dir, name) }
		return []string{
			"--advertise-address=" + o.advertise, "--endpoint-reconciler-type=lease",
			"--kubelet-preferred-address-types=InternalIP",
			"--kubelet-client-certificate=" + file(serverCert), "--kubelet-client-key=" + file(serverKey),
		}
	}
	advertised := host
	if advertised.IsLoopback() { // which it refuses to advertise
		advertised = net.IPv4(192, 0, 2, 1)
	}
	return []string{
		"--advertise-address=" + advertised.String(), "--endpoint-reconciler-type=none",
		"--disable-admission-plugins=ServiceAccount", // no controller makes the default accounts that it wants pods to have
	}
}

func (s *server) awaitReady(ctx context.Context) error {
	c, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		return err
	}
	for {
		var code int
		c.Discovery().RESTClient().Get().AbsPath("/readyz").Timeout(time.Second).Do(ctx).StatusCode(&code)
		if code == http.StatusOK {
			return nil
		}
		select {
		case err := <-s.done:
			return fmt.Errorf("kube-apiserver ended: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// writeKubeconfig writes the administrator's kubeconfig, at once for who looks on.
func (s *server) writeKubeconfig(path string) error {
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: lab, user: {token: %q}}]
contexts: [{name: lab, context: {cluster: lab, user: lab}}]
current-context: lab
`, s.url, base64.StdEncoding.EncodeToString(s.config.CAData), s.config.BearerToken)
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func version() string { return utilversion.Get().GitVersion }
