package main

import (
	"errors"
	"fmt"
)

// By the router of the nodes' own network, to the hosts behind it.
const (
	byRouter4 = "via 172.18.0.101"
	byRouter6 = "via fc00:f853:ccd:e793::101"
)

// unlisted has a Service use a routing table that the operator filled, without BGP: the host outside has static routes to the Service's
// host. A blackhole in the table of every node stops its packets, and does not move the host.
func unlisted(r *run) (seen string, err error) {
	defer func() {
		err = errors.Join(err, r.unselect("plain"),
			r.inTable100("del", "default", byRouter4, "default", byRouter6),
			r.toIngress("del", ""))
	}()
	if err := r.inTable100("add", "default", byRouter4, "default", byRouter6); err != nil {
		return "", err
	}
	if err := r.apply("plain", loadBalancer("plain", "", 8080)+egressServiceBy("plain", "100")); err != nil {
		return "", err
	}
	if err := r.do(r.ctx, "-n plain wait --for=condition=Ready egressservice/plain --timeout=180s"); err != nil {
		return "", err
	}
	host, err := r.hostIn(r.ctx, "plain", "plain")
	if err != nil {
		return "", err
	}
	if err := r.toIngress("add", host); err != nil {
		return "", err
	}
	if err := r.leavesWith(scarce, "plain"); err != nil {
		return "", err
	}
	if err := r.inTable100("add", "blackhole 198.51.100.0/24", "", "blackhole 2001:db8:51::/64", ""); err != nil {
		return "", err
	}
	n, stopped := r.silent("plain")
	if err := errors.Join(stopped, r.inTable100("del", "blackhole 198.51.100.0/24", "", "blackhole 2001:db8:51::/64", "")); err != nil {
		return "", err
	}
	if err := r.leavesWith(scarce, "plain"); err != nil {
		return "", err
	}
	now, err := r.hostIn(r.ctx, "plain", "plain")
	if err == nil && now != host {
		err = fmt.Errorf("the host moved from %s to %s", host, now)
	}
	return fmt.Sprintf("none of its packets while %d of others arrived; %s stayed the host", n, host), err
}

// inTable100 adds a route of each family to table 100 of every node, or deletes it.
func (r *run) inTable100(act, route4, next4, route6, next6 string) error {
	command := fmt.Sprintf("ip -4 route %[1]s %[2]s %[3]s table 100 && ip -6 route %[1]s %[4]s %[5]s table 100",
		act, route4, next4, route6, next6)
	for _, name := range sorted(r.nodes) {
		if _, err := r.in(r.ctx, name, "bash", "-c", command); err != nil {
			return err
		}
	}
	return nil
}

// toIngress adds static routes to the scarce addresses at the host outside, by a node, or deletes them.
func (r *run) toIngress(act, node string) error {
	var by [2]string
	if node != "" {
		for i, address := range r.nodes[node].own {
			by[i] = "via " + address
		}
	}
	_, err := r.in(r.ctx, "outside", "bash", "-c", fmt.Sprintf("ip -4 route %[1]s %[2]s %[3]s && ip -6 route %[1]s %[4]s %[5]s",
		act, scarce[0], by[0], scarce[1], by[1]))
	return err
}
