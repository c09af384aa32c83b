package main

import (
	"errors"
	"fmt"
)

// byEgressIP are the sources of an EgressIP for the pods of namespace plain.
var byEgressIP = [2]string{"203.0.113.60", "2001:db8:203::60"}

const assignable = "k8s.ovn.org/egress-assignable"

const anEgressIP = `apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: plain}
spec:
  egressIPs: [203.0.113.60, "2001:db8:203::60"]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: plain}}
`

// egressIP has the pods of a namespace leave with an EgressIP, and moves its first address to another host.
func egressIP(r *run) (seen string, err error) {
	if err := r.do(r.ctx, "label node --all --overwrite "+assignable+"="); err != nil {
		return "", err
	}
	defer func() {
		r.given = nil
		err = errors.Join(err, r.do(r.ctx, "delete --ignore-not-found egressip plain", "label node --all "+assignable+"-"), r.unselect())
	}()
	if err := r.apply("egressip", anEgressIP); err != nil {
		return "", err
	}
	if err := r.leavesWith(byEgressIP, "plain", "twin"); err != nil {
		return "", err
	}
	r.given = map[string][2]string{"plain": byEgressIP, "twin": byEgressIP}
	if seen, err = r.lossless(nil, "plain", "twin"); err != nil {
		return seen, err
	}
	if err := r.do(r.ctx, "wait --for=condition=Programmed egressip/plain --timeout=180s"); err != nil {
		return "", err
	}
	host, err := r.hostOfAddress()
	if err != nil {
		return "", err
	}
	moved, err := r.lossless(func() error {
		if err := r.do(r.ctx, "label node "+host+" "+assignable+"-"); err != nil {
			return err
		}
		return await(r.ctx, "another host of the EgressIP than "+host, func() (bool, error) {
			now, err := r.hostOfAddress()
			return now != "" && now != host, err
		})
	})
	return seen + "; moved: " + moved, err
}

// hostOfAddress returns the host of the EgressIP's first address, empty if it has none.
func (r *run) hostOfAddress() (string, error) {
	var e struct {
		Status struct {
			Items []struct{ EgressIP, Node string }
		}
	}
	if err := r.get(r.ctx, &e, "egressip", "plain"); err != nil {
		return "", err
	}
	for _, item := range e.Status.Items {
		if item.EgressIP == byEgressIP[0] {
			return item.Node, nil
		}
	}
	return "", nil
}

const anEgressFirewall = `apiVersion: k8s.ovn.org/v1
kind: EgressFirewall
metadata: {name: default, namespace: plain}
spec:
  egress:
  - {type: Deny, to: {cidrSelector: 198.51.100.0/24}}
  - {type: Deny, to: {cidrSelector: "2001:db8:51::/64"}}
`

// firewall denies the pods of a namespace the hosts outside, and allows them again.
func firewall(r *run) (seen string, err error) {
	defer func() {
		err = errors.Join(err, r.do(r.ctx, "-n plain delete --ignore-not-found egressfirewall default"), r.unselect())
	}()
	if err := r.apply("egressfirewall", anEgressFirewall); err != nil {
		return "", err
	}
	n, err := r.silent("plain", "twin")
	return fmt.Sprintf("none of its pods' packets while %d of others arrived", n), err
}

// silent waits until apps send nothing outside, and fails if a packet of theirs arrives after that. It counts others' meanwhile.
func (r *run) silent(apps ...string) (others int, err error) {
	sent := func(w wire) (n int) {
		for _, app := range apps {
			n += w.count(app)
		}
		return n
	}
	if err := await(r.ctx, fmt.Sprintf("silence of %s", apps), func() (bool, error) {
		w := wire{}
		_, err := r.arrived(w, settled, "web")
		return sent(w) == 0, err
	}); err != nil {
		return 0, err
	}
	w := wire{}
	others, err = r.arrived(w, 4*settled, "web")
	if err != nil {
		return 0, err
	}
	if n := sent(w); n > 0 {
		return 0, fmt.Errorf("LEAK: %d packets of %s", n, apps)
	}
	return others, nil
}
