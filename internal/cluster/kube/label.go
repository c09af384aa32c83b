package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// labelPrefix is the prefix of the labels that name the EgressServices of which a node is the host.
const labelPrefix = "egress-service.k8s.ovn.org/"

// labelWrite is a change of a node's labels; nil removes one.
type labelWrite map[string]*string

// Label sets the labels with labelPrefix that each node should have; want holds them without the prefix. Nothing is
// written unless this daemon leads and is configured to label hosts.
func (c *Cluster) Label(want map[string][]string) {
	t := c.leads()
	objects, ok := c.latest()
	if t == nil || !ok || !c.options.LabelHosts {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.labels = map[string]labelWrite{}
	for node, n := range objects.Nodes.All() {
		if change := relabel(n.Labels, want[node]); len(change) > 0 {
			t.labels[node] = change
			t.queue.Add(target{node: node})
		}
	}
}

// relabel returns the change from a node's labels to the wanted ones, whose values are empty.
func relabel(have map[string]string, want []string) labelWrite {
	change := labelWrite{}
	for name := range have {
		if strings.HasPrefix(name, labelPrefix) {
			change[name] = nil
		}
	}
	for _, name := range want {
		name = labelPrefix + name
		if value, there := have[name]; there && value == "" {
			delete(change, name)
			continue
		}
		change[name] = new(string)
	}
	return change
}

// writeLabels changes the labels of one node. The caller repeats it after an error.
func (t *term) writeLabels(ctx context.Context, node string) error {
	t.mu.Lock()
	change := t.labels[node]
	t.mu.Unlock()
	if len(change) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": change}})
	if err != nil {
		return fmt.Errorf("labels of Node %s: %w", node, err)
	}
	_, err = t.clients.core.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch labels of Node %s: %w", node, err)
	}
	return nil
}
