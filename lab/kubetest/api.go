// Package kubetest gives a test a Kubernetes API server of its own: a real kube-apiserver over etcd, with RBAC, without
// nodes (lab/kubelab; `make kubelab` builds it). In the lab it runs on the host, and the lab's nodes reach it over their
// management network.
//
// Start is for tests; New, which it wraps, is for programs. One server runs at a time in a job of the lab; elsewhere each
// has a process of its own.
package kubetest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// BinaryEnv names the environment variable with the path of kubelab.
	BinaryEnv = "KUBELAB"
	// ControlEnv names the environment variable with the URL at which kubelab takes orders, where labexec has started it.
	ControlEnv = "KUBELAB_CONTROL"
)

// startLimit is how long kubelab may take to take orders, orderLimit how long an order may take.
const (
	startLimit = time.Minute
	orderLimit = 3 * time.Minute
)

// Options vary the server.
type Options struct {
	Args []string // further flags of kubelab, such as -seed-services=10000 or -nodelifecycle; kubelab -h has them
}

// API is an API server that lives until Close.
type API struct {
	control    string // URL
	args       []string
	stop       func() // ends a kubelab that was started here
	kubeconfig []byte
	config     *rest.Config
	objects    *objects
}

// New starts a fresh API server and waits until it is ready.
func New(ctx context.Context, o Options) (*API, error) {
	a := &API{args: append([]string{"-audit"}, o.Args...), control: os.Getenv(ControlEnv), stop: func() {}}
	if a.control == "" {
		if err := a.startControl(ctx); err != nil {
			return nil, err
		}
	}
	err := a.order(ctx, "new", nil)
	if err == nil {
		err = a.Up(ctx)
	}
	if err == nil {
		a.objects, err = newObjects(a.config)
	}
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

// startControl starts a kubelab of our own.
func (a *API) startControl(ctx context.Context) error {
	binary := os.Getenv(BinaryEnv)
	if binary == "" {
		return fmt.Errorf("%s is not set: it must name the program that `make kubelab` builds and prints the path of", BinaryEnv)
	}
	cmd := exec.Command(binary, "control")
	// Asked to end, it takes its state out of memory.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("start kubelab: %w", err)
	}
	a.stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = cmd.Wait()                          // which the signal makes an error
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	line, err := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(line, "CONTROL ")
	if !ok {
		a.stop()
		return fmt.Errorf("kubelab takes no orders: it said %q: %w", line, err)
	}
	a.control = strings.TrimSpace(url)
	return nil
}

// Close ends the server and forgets its state.
func (a *API) Close() error {
	err := a.order(context.Background(), "new", nil)
	a.stop()
	return err
}

// Up starts the server again, on the data, certificates, tokens and port that it had.
func (a *API) Up(ctx context.Context) error {
	var kubeconfig bytes.Buffer
	if err := a.order(ctx, "up", &kubeconfig); err != nil {
		return err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig.Bytes())
	if err != nil {
		return fmt.Errorf("read kubelab's kubeconfig: %w", err)
	}
	a.kubeconfig, a.config = kubeconfig.Bytes(), unlimited(config)
	return nil
}

// unlimited has a client ask as often as it likes, and ask the server itself.
func unlimited(c *rest.Config) *rest.Config {
	c.QPS = -1
	c.Proxy = http.ProxyURL(nil)
	return c
}

// Kill ends the server as a crash would.
func (a *API) Kill(ctx context.Context) error { return a.order(ctx, "kill", nil) }

// Freeze stops the server such that connections can be opened and nothing is answered, until Thaw.
func (a *API) Freeze(ctx context.Context) error { return a.order(ctx, "freeze", nil) }

// Thaw ends Freeze.
func (a *API) Thaw(ctx context.Context) error { return a.order(ctx, "thaw", nil) }

// Kubeconfig is the administrator's.
func (a *API) Kubeconfig() []byte { return bytes.Clone(a.kubeconfig) }

// Config is the administrator's, without a limit of requests.
func (a *API) Config() *rest.Config { return rest.CopyConfig(a.config) }

// order gives kubelab an order, and copies its answer.
func (a *API) order(ctx context.Context, what string, answer io.Writer) error {
	if answer == nil {
		answer = io.Discard
	}
	args, err := json.Marshal(a.args)
	if err != nil {
		return fmt.Errorf("encode kubelab's arguments: %w", err)
	}
	method := http.MethodPost
	if what == "audit" {
		method = http.MethodGet
	}
	ctx, cancel := context.WithTimeout(ctx, orderLimit)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, method, a.control+"/"+what, bytes.NewReader(args))
	if err != nil {
		return fmt.Errorf("kubelab: %s: %w", what, err)
	}
	// A transport of its own uses no proxy and leaves no connection behind.
	transport := &http.Transport{DisableKeepAlives: true}
	r, err := transport.RoundTrip(q)
	if err != nil {
		return fmt.Errorf("kubelab: %s: %w", what, err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(r.Body, 8<<10))
		return fmt.Errorf("kubelab: %s: %s: %s", what, r.Status, bytes.TrimSpace(b))
	}
	if _, err := io.Copy(answer, r.Body); err != nil {
		return fmt.Errorf("kubelab: %s: read the answer: %w", what, err)
	}
	return nil
}
