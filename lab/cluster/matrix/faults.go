package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func stamp() string { return strconv.FormatInt(time.Now().UnixNano(), 10) }

// killed ends a host's container, with everything on it, and starts it again. Its disk is empty then, so the CNI is set up once more.
func killed(r *run) (string, error) {
	host, err := r.host(r.ctx, "web")
	if err != nil {
		return "", err
	}
	pods, err := r.pods(r.ctx)
	if err != nil {
		return "", err
	}
	// The pods of the others go on. Those of the host are counted as running until the API server knows better.
	w, survivors, ways := wire{}, []string{}, map[string]way{}
	for name, p := range pods {
		if ways[name] = r.way(p); p.node != host && p.app != "single" {
			survivors = append(survivors, name)
		}
	}
	if err := r.take(r.ctx, wire{}); err != nil {
		return "", err
	}
	if err := r.holdAtBoot(); err != nil {
		return "", err
	}
	if _, err := r.docker("kill", host); err != nil {
		return "", err
	}
	since := wire{}
	if err := await(r.ctx, "packets of the other nodes' pods", func() (bool, error) {
		recent := wire{}
		err := r.take(r.ctx, recent)
		for at, streams := range recent {
			for _, s := range streams {
				w.add(at, []record{*s})
				since.add(at, []record{*s})
			}
		}
		now, asked := r.host(r.ctx, "web")
		if now == host {
			since = wire{}
		}
		return since.least(ways, survivors) >= 2*settled, errors.Join(err, asked)
	}); err != nil {
		return "", err
	}
	if found := w.wrong(ways); len(found) > 0 {
		return "", errors.New("LEAK: " + strings.Join(found, "; "))
	}
	total, _ := w.sum(ways, survivors)
	seen := measured{total, len(survivors)}.String()
	m, err := r.measure(func() error { return r.startAgain(host) }, func(p pod) bool { return p.node != host })
	return seen + "; at its return " + m.String(), err
}

// holdAtBoot leaves a file that nodes load while they boot: pods send nothing outside before the daemon is ready.
func (r *run) holdAtBoot() error {
	boot, err := os.ReadFile(filepath.Join(r.source, "..", "..", "deploy", "systemd", "boot.nft"))
	if err != nil {
		return err
	}
	ranges := strings.NewReplacer("10.0.0.0/24", "172.18.0.0/16", "fd44::/16", "fd00:10:244::/56", "fd96::/112", "fd00:10:96::/112",
		"fd00::/64", "fc00:f853:ccd:e793::/64")
	return os.WriteFile(filepath.Join(r.state, "boot.nft"), []byte(ranges.Replace(string(boot))), 0o600)
}

func (r *run) docker(args ...string) (string, error) { return r.run(r.ctx, "docker", args...) }

// rebooted drains a host, and restarts its container. The pods of other nodes lose nothing, neither while it is away nor at its return.
func rebooted(r *run) (string, error) {
	host, err := r.host(r.ctx, "web")
	if err != nil {
		return "", err
	}
	if err := r.holdAtBoot(); err != nil {
		return "", err
	}
	stays := func(p pod) bool { return p.node != host && p.app != "single" }
	drained, err := r.measure(func() error {
		if err := r.do(r.ctx, "drain "+host+" --ignore-daemonsets --force --timeout=180s"); err != nil {
			return err
		}
		if err := r.moved("web", host); err != nil {
			return err
		}
		daemon, err := r.daemonPod(r.ctx, "egressway", host)
		if err != nil {
			return err
		}
		return r.do(r.ctx, "-n egressway-system exec "+daemon+" -- egressway drain --timeout=170s")
	}, stays)
	if err != nil {
		return "", err
	}
	back, err := r.measure(func() error {
		if _, err := r.docker("stop", "--time=0", host); err != nil {
			return err
		}
		return errors.Join(r.startAgain(host), r.do(r.ctx, "uncordon "+host))
	}, stays)
	if err == nil && drained.Lost+drained.Missing+back.Lost+back.Missing > 0 && !r.patient {
		err = fmt.Errorf("not without loss: drained: %s; rebooted: %s", drained, back)
	}
	drained.add(back.record)
	return drained.String(), err
}

// startAgain starts a node's container, and waits until its pods are as before.
func (r *run) startAgain(name string) error {
	if err := r.boot(name); err != nil {
		return err
	}
	const red, own = "-n shop rollout status daemonset/red --timeout=180s", "-n shop rollout status daemonset/own --timeout=180s"
	return errors.Join(r.do(r.ctx, red, own), r.ready())
}

// boot starts a node's container, sets its CNI up, and waits until the node and Egressway on it are ready.
func (r *run) boot(name string) error {
	if _, err := r.docker("start", name); err != nil {
		return err
	}
	if err := await(r.ctx, "kubelet of "+name, func() (bool, error) {
		_, err := r.in(r.ctx, name, "test", "-d", "/opt/cni/bin")
		return err == nil, err
	}); err != nil {
		return err
	}
	if _, err := r.run(r.ctx, "/bin/bash", filepath.Join(r.source, "cni", r.cni+".sh")); err != nil {
		return err
	}
	if err := r.do(r.ctx, "wait --for=condition=Ready node --all --timeout=180s", "-n shop rollout status daemonset/web --timeout=180s",
		"-n egressway-system rollout status daemonset/egressway --timeout=180s"); err != nil {
		return err
	}
	// These may be of before the boot. The table that holds pods back goes when the daemon of this boot is ready.
	return await(r.ctx, "Egressway on "+name, func() (bool, error) {
		tables, err := r.in(r.ctx, name, "nft", "list", "tables")
		return !strings.Contains(tables, "egressway-boot"), err
	})
}
