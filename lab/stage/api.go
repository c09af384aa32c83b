package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/kubetest"
)

// Namespace is where the daemons' ServiceAccounts and Leases are.
const Namespace = "egressway-system"

// The daemons' right, as it is shipped: every node's ServiceAccount has it.
const rbac = "deploy/kustomize/base/rbac.yaml"

// startAPI starts an API server with our CRD, our rights and the topology's objects.
func (s *Stage) startAPI(ctx context.Context, containerlab string, o Options) error {
	var err error
	s.API, err = kubetest.New(ctx, kubetest.Options{Args: []string{"-endpointslice=false", "-service-nets=10.96.0.0/16,fd96::/112"}})
	if err != nil {
		return err
	}
	repository := filepath.Join(containerlab, "..")
	crd := o.CRD
	if crd == "" {
		b, err := os.ReadFile(filepath.Join(repository, "config", "crd", "k8s.ovn.org_egressservices.yaml"))
		if err != nil {
			return fmt.Errorf("read the CRD: %w", err)
		}
		crd = string(b)
	}
	nodes, err := os.ReadFile(filepath.Join(repository, "config", "crd", "egressway.io_egressnodes.yaml"))
	if err != nil {
		return fmt.Errorf("read the CRD of EgressNodes: %w", err)
	}
	shipped, err := os.ReadFile(filepath.Join(repository, rbac))
	if err != nil {
		return fmt.Errorf("read our RBAC: %w", err)
	}
	documents := append([]string{crd, string(nodes), namespaces}, rights(string(shipped))...)
	if err := s.API.Apply(ctx, append(documents, o.Objects...)...); err != nil {
		return err
	}
	return s.applyManifests(ctx)
}

// rights returns the shipped RBAC with a ServiceAccount for each node, and these accounts.
func rights(shipped string) (documents []string) {
	for document := range strings.SplitSeq(shipped, "\n---\n") {
		if strings.Contains(document, "\nkind: ServiceAccount\n") || strings.HasPrefix(document, "kind: ServiceAccount") {
			continue // there is one a node
		}
		for _, kind := range []string{"Role", "RoleBinding"} { // kustomize adds the namespace
			head := "kind: " + kind + "\nmetadata:\n"
			document = strings.Replace(document, head, head+"  namespace: "+Namespace+"\n", 1)
		}
		documents = append(documents, forAllNodes(document))
	}
	for _, node := range Nodes {
		documents = append(documents, fmt.Sprintf(
			"{apiVersion: v1, kind: ServiceAccount, metadata: {namespace: %s, name: %s}}", Namespace, account(node)))
	}
	return documents
}

// forAllNodes gives a binding the accounts of all nodes as subjects.
func forAllNodes(document string) string {
	_, subject, ok := strings.Cut(document, "subjects:\n")
	if !ok {
		return document
	}
	subjects := ""
	for _, node := range Nodes {
		subjects += strings.Replace(subject, "name: egressway\n", "name: "+account(node)+"\n", 1)
		if !strings.HasSuffix(subjects, "\n") {
			subjects += "\n"
		}
	}
	return strings.Replace(document, subject, subjects, 1)
}

// applyManifests applies the stage's manifests, in the order of their names.
func (s *Stage) applyManifests(ctx context.Context) error {
	names, err := filepath.Glob(filepath.Join(s.manifests(), "*.yaml"))
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		content, err := s.Manifest(filepath.Base(name))
		if err != nil {
			return err
		}
		if err := s.apply(ctx, "", content); err != nil {
			return err
		}
	}
	return nil
}

const namespaces = `{apiVersion: v1, kind: Namespace, metadata: {name: ` + Namespace + `}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
`

// account is the ServiceAccount of a node's daemon.
func account(node string) string { return "egressway-" + node }

// User is the name by which the API server knows a node's daemon.
func User(node string) string {
	return fmt.Sprintf("system:serviceaccount:%s:%s", Namespace, account(node))
}

// apply makes the objects of the API server those of a changed file.
func (s *Stage) apply(ctx context.Context, before, after string) error {
	// The range of Services is the server's own.
	documents := func(content string) (all []string) {
		for d := range strings.SplitSeq(content, "\n---\n") {
			if strings.Contains(d, "kind:") && !strings.Contains(d, "kind: ServiceCIDR") {
				if strings.Contains(d, "kind: EndpointSlice") { // a folder's slices need not have the fields of a cluster's
					d = strings.ReplaceAll(d, "- {addresses:", "- {targetRef: {kind: Pod, name: pod}, addresses:")
				}
				all = append(all, d)
			}
		}
		return all
	}
	if err := s.API.Apply(ctx, documents(after)...); err != nil {
		return err
	}
	kept, err := kubetest.Names(documents(after)...)
	if err != nil {
		return err
	}
	for _, d := range documents(before) {
		names, err := kubetest.Names(d)
		if err != nil {
			return err
		}
		for _, name := range names {
			if !slices.Contains(kept, name) {
				if err := s.API.Delete(ctx, d); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Kubeconfig is the path of the kubeconfig of a node's daemon.
func (s *Stage) Kubeconfig(node string) string { return filepath.Join(s.dir, node+".kubeconfig") }

// apiConfig writes the configuration of a node's daemon, which reads objects from the API server.
func (s *Stage) apiConfig(ctx context.Context, node string) (path string, err error) {
	k := s.Kubeconfig(node)
	path = filepath.Join(s.dir, node+".yaml")
	if _, err := os.Stat(path); err != nil { // a daemon that starts again is the same, and the server may be away
		_, kubeconfig, err := s.API.ServiceAccountConfig(ctx, Namespace, account(node))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(k, kubeconfig, 0o600); err != nil {
			return "", err
		}
	}
	c, err := os.ReadFile(filepath.Join(s.dir, "vrf-egress", "config.yaml"))
	if err != nil {
		return "", err
	}
	const folder = "  manifests: /etc/egressway/manifests\n"
	if !strings.Contains(string(c), folder) {
		return "", fmt.Errorf("the configuration does not hold %q", folder)
	}
	source := fmt.Sprintf("  kubernetes: {kubeconfig: %s, namespace: %s, labelHosts: %t}\n", k, Namespace, s.labelHosts)
	return path, os.WriteFile(path, []byte(strings.Replace(string(c), folder, source, 1)), 0o644)
}

// Partition takes a node's interface towards the API server down, or up again.
func (s *Stage) Partition(ctx context.Context, node string, cut bool) error {
	state := "up"
	if cut {
		state = "down"
	}
	_, err := s.Node(node).Run(ctx, "ip", "link", "set", "eth0", state)
	return err
}

// EgressService reads one from the API server.
func (s *Stage) EgressService(ctx context.Context, namespace, name string) (e egressv1.EgressService, err error) {
	err = s.API.Get(ctx, fmt.Sprintf("{apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {namespace: %s, name: %s}}",
		namespace, name), &e)
	return e, err
}

// AwaitStatus waits until the status of an EgressService is as wanted.
func (s *Stage) AwaitStatus(ctx context.Context, namespace, name string,
	wanted func(egressv1.EgressServiceStatus) error,
) (e egressv1.EgressService, err error) {
	err = lab.Wait(ctx, lab.Patience, func() error {
		if e, err = s.EgressService(ctx, namespace, name); err != nil {
			return err
		}
		if err := wanted(e.Status); err != nil {
			return fmt.Errorf("EgressService %s/%s: %w; its status is %+v", namespace, name, err, e.Status)
		}
		return nil
	})
	return e, err
}

// AwaitHost waits until an EgressService has this host and this standby, and both are in force.
func (s *Stage) AwaitHost(ctx context.Context, namespace, name, host, standby string) error {
	_, err := s.AwaitStatus(ctx, namespace, name, func(e egressv1.EgressServiceStatus) error {
		if e.Host != host || e.Standby != standby {
			return fmt.Errorf("want host %q and standby %q", host, standby)
		}
		if host != "" && !meta.IsStatusConditionTrue(e.Conditions, "Programmed") {
			return errors.New("is not programmed")
		}
		return nil
	})
	return err
}
