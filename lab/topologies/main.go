// Topologies deploys topology files as containerlab does, on the Docker engine of $DOCKER_HOST, and checks each: its containers,
// its links, its exec lines, and whether its pods leave as the file promises. Only containerlab's own code is missing: the images are
// those of "make images", and containers are started, cabled and configured in containerlab's order.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/egressway/egressway/lab"
)

func main() {
	keep := flag.Bool("keep", false, "leave the containers when all is checked")
	schema := flag.String("schema", "", "only judge the files by this JSON schema, containerlab's")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: topologies [-keep | -schema SCHEMA] FILE...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if *schema != "" {
		if err := valid(*schema, flag.Args()); err != nil {
			fmt.Fprintf(os.Stderr, "topologies: %v\n", err)
			os.Exit(1)
		}
		return
	}
	failed := false
	for _, file := range flag.Args() {
		if err := check(context.Background(), file, *keep); err != nil {
			fmt.Fprintf(os.Stderr, "topologies: %s: %v\n", file, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// check deploys a topology, checks it, and removes it unless its containers are to stay.
func check(ctx context.Context, file string, keep bool) error {
	t, err := lab.Load(file)
	if err != nil {
		return err
	}
	d := deployment{t, filepath.Dir(file)}
	if !keep {
		defer d.destroy(ctx)
	}
	failures, err := d.deploy(ctx)
	if err != nil {
		return err
	}
	return judge(ctx, d, failures)
}

// deployment is a topology whose relative paths begin in a folder.
type deployment struct {
	*lab.Topology
	dir string
}

// container is containerlab's name for the container of a node.
func (d deployment) container(node string) string {
	if d.external(node) {
		return node
	}
	return "clab-" + d.Name + "-" + node
}

// external reports whether a node is a container that was there before.
func (d deployment) external(node string) bool { return d.Graph.Nodes[node].Kind == lab.ExtContainer }

func (d deployment) nodes() []string { return slices.Sorted(maps.Keys(d.Graph.Nodes)) }

// started lists the nodes whose containers the deployment starts.
func (d deployment) started() []string { return slices.DeleteFunc(d.nodes(), d.external) }

// deploy starts all containers, lays the links, and then runs the exec lines. It returns those lines that failed: containerlab goes
// on then.
func (d deployment) deploy(ctx context.Context) (failures []string, err error) {
	for _, node := range d.started() {
		if _, err := docker(ctx, d.run(node)...); err != nil {
			return nil, err
		}
	}
	if err := d.cable(ctx); err != nil {
		return nil, err
	}
	for _, node := range d.nodes() {
		for _, line := range d.Graph.Nodes[node].Exec {
			if strings.ContainsAny(line, `'"\`) {
				return nil, fmt.Errorf("node %s: exec %q: quotes are not supported here", node, line)
			}
			if _, err := docker(ctx, append([]string{"exec", d.container(node)}, strings.Fields(line)...)...); err != nil {
				failures = append(failures, node+": "+line)
			}
		}
	}
	return failures, nil
}

// run is the docker command that starts a node, with the settings that containerlab gives nodes of the kind linux.
func (d deployment) run(node string) []string {
	n := d.Graph.Nodes[node]
	args := []string{
		"run", "--detach", "--name", d.container(node), "--hostname", node, "--network", n.NetworkMode,
		"--privileged", "--restart", "always", "--stop-signal", "SIGKILL", "--interactive", "--tty",
	}
	for _, key := range slices.Sorted(maps.Keys(n.Sysctls)) {
		args = append(args, "--sysctl", fmt.Sprintf("%s=%v", key, n.Sysctls[key]))
	}
	for _, key := range slices.Sorted(maps.Keys(n.Env)) {
		args = append(args, "--env", key+"="+n.Env[key])
	}
	for _, bind := range n.Binds {
		source, target, _ := strings.Cut(bind, ":")
		if !filepath.IsAbs(source) {
			source = filepath.Join(d.dir, source)
		}
		source, _ = filepath.Abs(source)
		args = append(args, "--volume", source+":"+target)
	}
	command := strings.Fields(n.Cmd)
	if entry := strings.Fields(n.Entrypoint); len(entry) > 0 {
		args, command = append(args, "--entrypoint", entry[0]), append(entry[1:], command...)
	}
	return append(append(args, n.Image), command...)
}

// cable makes a pair of veth devices for each link, with an end in each of its containers.
func (d deployment) cable(ctx context.Context) error {
	process := map[string]string{}
	for _, node := range d.nodes() {
		pid, err := docker(ctx, "inspect", "--format", "{{.State.Pid}}", d.container(node))
		if err != nil {
			return err
		}
		process[node] = strings.TrimSpace(pid)
	}
	var add strings.Builder
	up := map[string]string{}
	for _, l := range d.Graph.Links {
		add.WriteString("link add")
		for i, e := range l.Endpoints {
			node, device, _ := strings.Cut(e, ":")
			if i == 1 {
				add.WriteString(" type veth peer")
			}
			fmt.Fprintf(&add, " name %s netns %s", device, process[node])
			if l.MTU > 0 {
				fmt.Fprintf(&add, " mtu %d", l.MTU)
			}
			up[node] += "link set " + device + " up\n"
		}
		add.WriteString("\n")
	}
	if _, err := command(ctx, add.String(), "ip", "-batch", "-"); err != nil {
		return err
	}
	for node, batch := range up {
		if _, err := command(ctx, batch, "nsenter", "-t", process[node], "-n", "ip", "-batch", "-"); err != nil {
			return err
		}
	}
	return nil
}

func (d deployment) destroy(ctx context.Context) {
	for _, node := range d.started() {
		_, _ = docker(ctx, "rm", "--force", "--volumes", d.container(node)) // the machine's end removes the rest
	}
}

func docker(ctx context.Context, args ...string) (string, error) {
	return command(ctx, "", "docker", args...)
}

// command runs a program with a text as its standard input.
func command(ctx context.Context, input, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)+string(out)))
		}
		return string(out), fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return string(out), nil
}
