package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/egressway/egressway/lab"
)

// startWithin is how long a large cluster may take on a machine that is busy.
const startWithin = 10 * time.Minute

// home is where the server keeps its state: in the node's own /run.
const home = "/run/kubelab"

// Server is one that runs, and a client of its administrator.
type Server struct {
	*Client
	Kubeconfig []byte // the administrator's
	node       *lab.Node
}

// Start starts kubelab in a node, listening on one of its addresses, without controllers. It returns when it is ready.
func Start(ctx context.Context, l *lab.Lab, n *lab.Node, kubelab, listen string, flags ...string) (*Server, error) {
	if err := n.Do(func() error { return os.MkdirAll(home, 0o700) }); err != nil {
		return nil, err
	}
	program, err := l.Start(n, append([]string{kubelab, "-listen", listen, "-dir", home, "-endpointslice=false", "-run-pods=false"},
		flags...)...)
	if err != nil {
		return nil, err
	}
	err = lab.Wait(ctx, startWithin, func() error {
		if strings.Contains(program.Log(), "READY ") || program.Ended() {
			return nil
		}
		return errors.New("the API server is not ready")
	})
	if err != nil || program.Ended() {
		return nil, fmt.Errorf("start %s: %w: %s", kubelab, cmp.Or(err, errors.New("it ended")), Tail(program.Log()))
	}
	s := &Server{node: n}
	if s.Kubeconfig, err = s.File("kubeconfig"); err != nil {
		return nil, err
	}
	s.Client, err = newClient(s.Kubeconfig, func(ctx context.Context, kind, address string) (c net.Conn, err error) {
		err = n.Do(func() (err error) {
			c, err = new(net.Dialer).DialContext(ctx, kind, address)
			return err
		})
		return c, err
	})
	return s, err
}

// File returns the content of a file in the server's folder.
func (s *Server) File(name string) (content []byte, err error) {
	err = s.node.Do(func() (err error) {
		content, err = os.ReadFile(home + "/" + name)
		return err
	})
	return content, err
}

// Furnish makes the daemon's objects in the cluster: its namespace, the CRDs, each in a file, and, unless leader is empty, the Lease of
// a node that leads for longer than any benchmark lasts.
func (s *Server) Furnish(ctx context.Context, leader string, crds ...string) error {
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
	all := []Request{Post("/api/v1/namespaces", []byte(`{"metadata": {"name": "`+Namespace+`"}}`))}
	if err := s.Define(ctx, crds...); err != nil {
		return err
	}
	if leader != "" {
		all = append(all, Post("/apis/coordination.k8s.io/v1/namespaces/"+Namespace+"/leases", fmt.Appendf(nil,
			`{"metadata": {"name": "egressway"}, "spec": {"holderIdentity": "%[2]s_bench", "leaseDurationSeconds": 864000, `+
				`"acquireTime": %[1]q, "renewTime": %[1]q}}`,
			now, leader)))
	}
	for _, r := range all {
		if _, err := s.Ask(ctx, r); err != nil {
			return err
		}
	}
	return lab.Wait(ctx, startWithin, func() error {
		_, err := s.Ask(ctx, Get(EgressServices("default")+"?limit=1"))
		return err
	})
}

// Define makes CRDs, each in a file. It does not wait until they are served.
func (s *Server) Define(ctx context.Context, crds ...string) error {
	for _, crd := range crds {
		text, err := os.ReadFile(crd)
		if err != nil {
			return err
		}
		if _, err := s.Ask(ctx, post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "application/yaml", text)); err != nil {
			return err
		}
	}
	return nil
}

// Tail is the end of a log.
func Tail(log string) string { return log[max(0, len(log)-4000):] }
