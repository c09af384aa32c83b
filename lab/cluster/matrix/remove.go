package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// removed removes Egressway as docs/install.md says, and compares the network of each node with that before the deployment.
func removed(r *run) (string, error) {
	cleanup, deployed := filepath.Join(r.source, "cleanup"), filepath.Join(r.source, "egressway")
	if err := r.do(r.ctx,
		"delete egressservices,egressqoses,egressfirewalls -A --all --timeout=180s",
		"delete egressips --all --timeout=180s",
		"-n egressway-system delete daemonset egressway --timeout=180s",
		"apply -k "+cleanup,
		"-n egressway-system rollout status daemonset/egressway-cleanup --timeout=180s",
		"delete -k "+cleanup+" --timeout=180s",
		"delete --ignore-not-found -k "+deployed+" --timeout=180s",
	); err != nil {
		return "", err
	}
	lines := 0
	for _, node := range sorted(r.nodes) {
		before, err := os.ReadFile(filepath.Join(r.state, "before-"+node))
		if err != nil {
			return "", err
		}
		var found []string
		if err := await(r.ctx, "the state before the deployment", func() (bool, error) {
			now, err := r.in(r.ctx, node, "bash", "/lab/src/state.sh")
			found = differences(string(before), now)
			return len(found) == 0, err
		}); err != nil {
			some := strings.Join(found[:min(len(found), 20)], "; ")
			return "", errors.Join(err, fmt.Errorf("%s: %d lines differ: %s", node, len(found), some))
		}
		lines += strings.Count(string(before), "\n")
	}
	return fmt.Sprintf("%d lines of three nodes' links, routes, rules, tables and settings are the same", lines), nil
}

// differences lists lines that only one of two texts has.
func differences(before, now string) (found []string) {
	was, is := strings.Split(before, "\n"), strings.Split(now, "\n")
	for _, line := range was {
		if !slices.Contains(is, line) {
			found = append(found, "gone: "+line)
		}
	}
	for _, line := range is {
		if !slices.Contains(was, line) {
			found = append(found, "new: "+line)
		}
	}
	return found
}
