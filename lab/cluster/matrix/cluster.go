package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The patience of the run: only a machine that hangs needs it.
const patience = 3 * time.Minute

// cluster is one that "make cluster" started: its folder has kubectl, docker and a kubeconfig.
type cluster struct {
	state, source string // its folder, and that of lab/cluster
	env           []string
	hosts         []string // hosts outside
}

func newCluster(state, source string) (*cluster, error) {
	if _, err := os.Stat(filepath.Join(state, "kubeconfig")); err != nil {
		return nil, fmt.Errorf("%s has no cluster: make cluster starts one", state)
	}
	return &cluster{
		state: state, source: source, hosts: []string{"outside", "outside-red"},
		env: append(os.Environ(), "PATH="+filepath.Join(state, "bin")+":"+os.Getenv("PATH"),
			"KUBECONFIG="+filepath.Join(state, "kubeconfig"), "KUBECACHEDIR="+filepath.Join(state, "cache")),
	}, nil
}

// run returns the output of a command. Its error has the command and its standard error.
func (c *cluster) run(ctx context.Context, name string, args ...string) (string, error) {
	path := filepath.Join(c.state, "bin", name)
	if strings.Contains(name, "/") {
		path = name
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = c.env
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		said := strings.TrimSpace(stderr.String())
		return string(out), fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, said)
	}
	return string(out), nil
}

func (c *cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	return c.run(ctx, "kubectl", args...)
}

// do runs commands of kubectl, given as words, one after another.
func (c *cluster) do(ctx context.Context, commands ...string) error {
	for _, command := range commands {
		if _, err := c.kubectl(ctx, strings.Fields(command)...); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) patch(ctx context.Context, object, patch string, more ...string) error {
	_, err := c.kubectl(ctx, append([]string{"-n", "shop", "patch", object, "--type=merge", "-p", patch}, more...)...)
	return err
}

// in runs a command in a container.
func (c *cluster) in(ctx context.Context, container string, command ...string) (string, error) {
	return c.run(ctx, "docker", append([]string{"exec", container}, command...)...)
}

func (c *cluster) get(ctx context.Context, into any, args ...string) error {
	out, err := c.kubectl(ctx, append([]string{"get", "-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), into)
}

// await repeats a question until its answer is yes. Errors count as no: an API server or a container may be about to answer.
func await(ctx context.Context, meaning string, yes func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticks := time.NewTicker(100 * time.Millisecond)
	defer ticks.Stop()
	for {
		ok, err := yes()
		if ok && err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("not seen within %s: %s", patience, meaning), err)
		case <-ticks.C:
		}
	}
}

// pod is a running pod of the test.
type pod struct {
	name, app, node string
	ips             []string
}

// pods lists the running pods of the test, by their names.
func (c *cluster) pods(ctx context.Context) (map[string]pod, error) {
	var list struct {
		Items []struct {
			Metadata struct {
				Name, DeletionTimestamp string
				Labels                  map[string]string
			}
			Spec   struct{ NodeName string }
			Status struct {
				Phase  string
				PodIPs []struct{ IP string }
			}
		}
	}
	if err := c.get(ctx, &list, "pods", "-A", "-l", "role"); err != nil {
		return nil, err
	}
	found := map[string]pod{}
	for _, i := range list.Items {
		p := pod{name: i.Metadata.Name, app: i.Metadata.Labels["role"], node: i.Spec.NodeName}
		for _, ip := range i.Status.PodIPs {
			p.ips = append(p.ips, ip.IP)
		}
		if i.Status.Phase == "Running" && i.Metadata.DeletionTimestamp == "" && len(p.ips) == 2 {
			found[p.name] = p
		}
	}
	return found, nil
}

// node is one of the cluster's, with its own addresses and those in the network red: IPv4, IPv6.
type node struct {
	own, red [2]string
	ready    bool
}

func (c *cluster) nodes(ctx context.Context) (map[string]node, error) {
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct {
				Addresses  []struct{ Type, Address string }
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := c.get(ctx, &list, "nodes"); err != nil {
		return nil, err
	}
	found := map[string]node{}
	for _, i := range list.Items {
		var n node
		for _, a := range i.Status.Addresses {
			switch {
			case a.Type != "InternalIP":
			case strings.Contains(a.Address, ":"):
				n.own[1] = a.Address
				n.red[1] = "fd00:10:1::" + a.Address[strings.LastIndex(a.Address, ":")+1:]
			default:
				n.own[0] = a.Address
				n.red[0] = "10.1.0." + a.Address[strings.LastIndex(a.Address, ".")+1:]
			}
		}
		for _, condition := range i.Status.Conditions {
			n.ready = n.ready || condition.Type == "Ready" && condition.Status == "True"
		}
		found[i.Metadata.Name] = n
	}
	return found, nil
}

// host returns the host of an EgressService of namespace shop, empty if it has none.
func (c *cluster) host(ctx context.Context, name string) (string, error) {
	return c.hostIn(ctx, "shop", name)
}

func (c *cluster) hostIn(ctx context.Context, namespace, name string) (string, error) {
	var e struct{ Status struct{ Host string } }
	err := c.get(ctx, &e, "-n", namespace, "egressservice", name)
	return e.Status.Host, err
}

// daemonPod returns the pod of a DaemonSet of Egressway on a node.
func (c *cluster) daemonPod(ctx context.Context, name, node string) (string, error) {
	out, err := c.kubectl(ctx, "-n", "egressway-system", "get", "pods", "-l", "app.kubernetes.io/name="+name,
		"--field-selector", "spec.nodeName="+node, "-o", "name")
	return strings.TrimSpace(out), err
}

// take adds the records since the last time to those of the wire.
func (c *cluster) take(ctx context.Context, w wire) error {
	for _, host := range c.hosts {
		out, err := c.in(ctx, host, "box", "ask", "http://127.0.0.1:9001/take")
		if err != nil {
			return err
		}
		var records []record
		if err := json.Unmarshal([]byte(out), &records); err != nil {
			return fmt.Errorf("records of %s: %w: %s", host, err, out)
		}
		w.add(host, records)
	}
	return nil
}

// answer is that of a pod's HTTP server: the address that it saw, and its name.
type answer struct{ client, name string }

// reaches asks the HTTP servers of pods by a command, and returns their answers in order.
func (c *cluster) reaches(ctx context.Context, asked []string, by ...string) (answers []answer, err error) {
	out, err := c.run(ctx, by[0], append(slices.Clone(by[1:]), asked...)...)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		client, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		answers = append(answers, answer{client, name})
	}
	if len(answers) != len(asked) || slices.ContainsFunc(answers, func(a answer) bool { return a.name == "" }) {
		return nil, fmt.Errorf("%s answered %q", strings.Join(asked, " "), out)
	}
	return answers, nil
}

// url is that of a host's HTTP server.
func url(ip string, port int) string {
	if strings.Contains(ip, ":") {
		ip = "[" + ip + "]"
	}
	return fmt.Sprintf("http://%s:%d/", ip, port)
}
