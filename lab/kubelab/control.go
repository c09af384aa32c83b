package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// control serves kubelab to a test that cannot start it itself, for it runs on another kernel, or that wants to kill it:
//
//	POST /new               ends the server and forgets its state
//	POST /up ["-flag", …]   starts the server, again on the state, certificates and port that it had; answers with the
//	                        administrator's kubeconfig when it is ready. A server that runs is killed before.
//	POST /kill              as a crash would
//	POST /freeze, /thaw     stops it such that connections open and nothing is answered
//	GET  /audit             the audit log, where kubelab runs with -audit
//
// One server runs at a time. It ends with control, however that ends; the state goes too unless control is killed.
func control(ctx context.Context, args []string) (err error) {
	c := &controller{}
	f := flag.NewFlagSet("kubelab control", flag.ExitOnError)
	listen := f.String("listen", "127.0.0.1:0", "`address` to take requests on")
	f.StringVar(&c.serve, "serve", "127.0.0.1:0", "`address` that the API server listens on")
	if err := f.Parse(args); err != nil {
		return err
	}
	defer func() {
		c.mu.Lock() // what is still being done is cancelled
		defer c.mu.Unlock()
		err = errors.Join(err, c.forget())
	}()
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /new", c.locked(func(http.ResponseWriter, *http.Request) error { return c.forget() }))
	mux.HandleFunc("POST /up", c.locked(c.up))
	mux.HandleFunc("POST /kill", c.locked(func(http.ResponseWriter, *http.Request) error { c.kill(); return nil }))
	mux.HandleFunc("POST /freeze", c.locked(func(http.ResponseWriter, *http.Request) error { return c.signal(syscall.SIGSTOP) }))
	mux.HandleFunc("POST /thaw", c.locked(func(http.ResponseWriter, *http.Request) error { return c.signal(syscall.SIGCONT) }))
	mux.HandleFunc("GET /audit", c.locked(c.audit))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	fmt.Printf("CONTROL http://%s\n", l.Addr())
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// readyLimit is how long a server may take to start on a machine that is busy with other things.
const readyLimit = 2 * time.Minute

type controller struct {
	mu    sync.Mutex
	serve string // address wanted
	dir   string // of the state; empty: none yet
	addr  string // address that the state's server has
	child *child
}

// locked makes a handler that does f alone and answers with its error.
func (c *controller) locked(f func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if err := f(w, r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}

func (c *controller) forget() error {
	c.kill()
	dir := c.dir
	c.dir, c.addr = "", c.serve
	if dir == "" {
		return nil
	}
	return os.RemoveAll(dir)
}

func (c *controller) kill() {
	if c.child != nil {
		c.child.kill()
		c.child = nil
	}
}

func (c *controller) signal(s syscall.Signal) error {
	if c.child == nil {
		return errors.New("no server runs")
	}
	return c.child.cmd.Process.Signal(s)
}

func (c *controller) up(w http.ResponseWriter, r *http.Request) error {
	var args []string
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
		return fmt.Errorf("decode arguments: %w", err)
	}
	c.kill()
	if c.dir == "" {
		dir, err := os.MkdirTemp("/dev/shm", "kubelab-")
		if err != nil {
			return err
		}
		c.dir, c.addr = dir, c.serve
	}
	child, err := startChild(append(args, "-dir", c.dir, "-listen", c.addr))
	if err != nil {
		return err
	}
	c.child = child
	select {
	case line := <-child.ready:
		for field := range strings.FieldsSeq(line) {
			if addr, ok := strings.CutPrefix(field, "server=https://"); ok {
				c.addr = addr
			}
		}
	case <-child.ended:
		err = errors.New("it ended")
	case <-r.Context().Done():
		err = r.Context().Err()
	case <-time.After(readyLimit):
		err = fmt.Errorf("not within %s", readyLimit)
	}
	if err != nil {
		c.kill()
		return fmt.Errorf("the server is not ready: %w: %s", err, child.said())
	}
	kubeconfig, err := os.ReadFile(filepath.Join(c.dir, "kubeconfig"))
	if err != nil {
		return err
	}
	_, err = w.Write(kubeconfig)
	return err
}

func (c *controller) audit(w http.ResponseWriter, _ *http.Request) error {
	if c.dir == "" {
		return errors.New("there is no server")
	}
	f, err := os.Open(filepath.Join(c.dir, auditLog))
	if errors.Is(err, os.ErrNotExist) {
		return nil // nothing was asked yet
	}
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}

// child is kubelab that serves.
type child struct {
	cmd    *exec.Cmd
	ready  chan string   // gets the line that says so
	killed chan struct{} // closed before it is
	ended  chan struct{} // closed after it has

	mu     sync.Mutex
	output []byte // the end of it
}

func startChild(args []string) (*child, error) {
	c := &child{
		cmd:   exec.Command("/proc/self/exe", args...),
		ready: make(chan string, 1), killed: make(chan struct{}), ended: make(chan struct{}),
	}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.cmd.Stderr = c.cmd.Stdout
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go c.watch(out)
	return c, nil
}

// watch reads what the child says until it has ended, which it tells on standard error if nobody wanted it.
func (c *child) watch(out io.Reader) {
	defer close(c.ended)
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadString('\n')
		if rest, ok := strings.CutPrefix(line, "READY "); ok {
			c.ready <- rest
		}
		c.mu.Lock()
		const most = 16 << 10
		c.output = append(c.output, line...)
		c.output = c.output[max(0, len(c.output)-most):]
		c.mu.Unlock()
		if err != nil {
			break
		}
	}
	err := c.cmd.Wait()
	select {
	case <-c.killed:
	default:
		fmt.Fprintf(os.Stderr, "kubelab: the server ended: %v: %s\n", err, c.said())
	}
}

func (c *child) said() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.output)
}

func (c *child) kill() {
	close(c.killed)
	_ = c.cmd.Process.Kill() // it may have ended
	<-c.ended
}
