package main

import (
	"errors"
	"fmt"
)

// The addresses of an EgressIP for the pods of namespace plain: announced by BGP, and in the subnet of the nodes.
var (
	announced = [2]string{"203.0.113.60", "2001:db8:203::60"}
	onLink    = [2]string{"172.18.50.60", "fc00:f853:ccd:e793::5060"}
)

const assignable = "k8s.ovn.org/egress-assignable"

const anEgressIP = `apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: plain}
spec:
  egressIPs: [%s, "%s"]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: plain}}
`

// egressIP has the pods of a namespace leave with an EgressIP, and moves its first address to another host.
func egressIP(addresses [2]string) func(*run) (string, error) {
	return func(r *run) (string, error) { return r.leaveByEgressIP(addresses) }
}

func (r *run) leaveByEgressIP(addresses [2]string) (seen string, err error) {
	if err := r.do(r.ctx, "label node --all --overwrite "+assignable+"="); err != nil {
		return "", err
	}
	defer func() {
		r.given = nil
		err = errors.Join(err, r.do(r.ctx, "delete --ignore-not-found egressip plain", "label node --all "+assignable+"-"), r.unselect())
	}()
	if err := r.apply("egressip", fmt.Sprintf(anEgressIP, addresses[0], addresses[1])); err != nil {
		return "", err
	}
	if err := r.leavesWith(addresses, "plain", "twin"); err != nil {
		return "", err
	}
	r.given = map[string][2]string{"plain": addresses, "twin": addresses}
	if seen, err = r.lossless(nil, "plain", "twin"); err != nil {
		return seen, err
	}
	if err := r.do(r.ctx, "wait --for=condition=Programmed egressip/plain --timeout=180s"); err != nil {
		return "", err
	}
	host, err := r.hostOfAddress(addresses[0])
	if err != nil {
		return "", err
	}
	moved, err := r.lossless(func() error {
		if err := r.do(r.ctx, "label node "+host+" "+assignable+"-"); err != nil {
			return err
		}
		return await(r.ctx, "another host of the EgressIP than "+host, func() (bool, error) {
			now, err := r.hostOfAddress(addresses[0])
			return now != "" && now != host, err
		})
	})
	return seen + "; moved: " + moved, err
}

// hostOfAddress returns the host of an address of the EgressIP, empty if it has none.
func (r *run) hostOfAddress(address string) (string, error) {
	var e struct {
		Status struct {
			Items []struct{ EgressIP, Node string }
		}
	}
	if err := r.get(r.ctx, &e, "egressip", "plain"); err != nil {
		return "", err
	}
	for _, item := range e.Status.Items {
		if item.EgressIP == address {
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
