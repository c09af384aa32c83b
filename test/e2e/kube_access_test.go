package e2e

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// granted reads what the daemon's rights that we ship permit: verb, group and resource.
func granted(t *testing.T) map[string]bool {
	t.Helper()
	b, err := os.ReadFile("../../deploy/kustomize/base/rbac.yaml")
	require.NoError(t, err)
	all := map[string]bool{}
	for document := range strings.SplitSeq(string(b), "\n---\n") {
		var role rbacv1.ClusterRole // a Role is the same but for its kind
		require.NoError(t, yaml.Unmarshal([]byte(document), &role))
		if role.Name != "egressway" {
			continue // of users
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						all[fmt.Sprintf("%s %s.%s", verb, resource, group)] = true
					}
				}
			}
		}
	}
	require.NotEmpty(t, all)
	return all
}

// used reads in the API server's records what the daemons asked for; none of it may have been refused.
func used(t *testing.T, s *stage.Stage) map[string]bool {
	t.Helper()
	events, err := s.API.Audit(t.Context())
	require.NoError(t, err)
	all := map[string]bool{}
	for _, e := range events {
		if !strings.HasPrefix(e.User, "system:serviceaccount:"+stage.Namespace+":") || e.Resource == "" {
			continue
		}
		require.False(t, e.Forbidden(), "%s: %s %s", e.User, e.Verb, e.Path)
		resource := e.Resource
		if e.Subresource != "" {
			resource += "/" + e.Subresource
		}
		all[fmt.Sprintf("%s %s.%s", e.Verb, resource, e.Group)] = true
	}
	return all
}

// awaitUsed waits until the daemons have asked for something.
func awaitUsed(t *testing.T, s *stage.Stage, right string) {
	t.Helper()
	require.NoError(t, lab.Wait(t.Context(), patience, func() error {
		if !used(t, s)[right] {
			return fmt.Errorf("no daemon did %s", right)
		}
		return nil
	}))
}

// TestAccess holds the rights that we ship against what daemons do: none lacks, none is there for nothing.
func TestAccess(t *testing.T) {
	s := play(t, stage.Options{API: true, Config: func(c string) string { return c + "hold: [{namespaces: {matchLabels: {egress: held}}}]\n" }})
	ctx := t.Context()
	host, standby := hosts(t, s)
	const free = "network: red\n"
	at := func(node string) string {
		return free + "  nodeSelector: {matchLabels: {kubernetes.io/hostname: " + node + "}}\n"
	}
	// The same two moves again and again are the same two Events, counted.
	require.NoError(t, s.Edit(ctx, "web.yaml", free, at(standby)))
	require.NoError(t, s.AwaitHost(ctx, "shop", "web", standby, host))
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		if used(t, s)["patch events."] {
			return nil
		}
		if err := s.Edit(ctx, "web.yaml", at(standby), at(host)); err != nil {
			return err
		}
		if err := s.AwaitHost(ctx, "shop", "web", host, standby); err != nil {
			return err
		}
		if err := s.Edit(ctx, "web.yaml", at(host), at(standby)); err != nil {
			return err
		}
		if err := s.AwaitHost(ctx, "shop", "web", standby, host); err != nil {
			return err
		}
		return fmt.Errorf("no Event was counted up")
	}))
	// An EgressQoS and an EgressFirewall come with their CRDs.
	require.NoError(t, s.API.Apply(ctx, ourCRD(t, "egressqoses"), qosManifest, ourCRD(t, "egressfirewalls"), firewallManifest))
	awaitUsed(t, s, "patch egressqoses/status.k8s.ovn.org")
	awaitUsed(t, s, "patch egressfirewalls/status.k8s.ovn.org")
	// So does an EgressIP, whose members the leader writes while Pods come, change and go with it.
	require.NoError(t, s.API.Apply(ctx, ourCRD(t, "egressips"), egressIPInAPI()))
	awaitUsed(t, s, "patch egressips.k8s.ovn.org")
	require.NoError(t, s.API.Apply(ctx, strings.Split(podManifests(), "---\n")...))
	awaitUsed(t, s, "create endpointslices.discovery.k8s.io")
	left := strings.Replace(podManifests(), "name: a-p1, labels: {app: web}", "name: a-p1, labels: {app: db}", 1)
	require.NoError(t, s.API.Apply(ctx, strings.Split(left, "---\n")...))
	awaitUsed(t, s, "patch endpointslices.discovery.k8s.io")
	require.NoError(t, s.API.Delete(ctx, egressIPInAPI()))
	awaitUsed(t, s, "delete endpointslices.discovery.k8s.io")
	have := granted(t)
	require.NoError(t, lab.Wait(ctx, patience, func() error {
		need := used(t, s)
		for right := range have {
			// A list is what a server is asked for that cannot stream one: those before Kubernetes 1.34.
			if verb, resource, _ := strings.Cut(right, " "); verb == "list" && need["watch "+resource] {
				need[right] = true
			}
		}
		if !maps.Equal(have, need) {
			return fmt.Errorf("granted are %v, used were %v", slices.Sorted(maps.Keys(have)), slices.Sorted(maps.Keys(need)))
		}
		return nil
	}))
}
