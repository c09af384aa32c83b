package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// rows are the behaviours of the table, in the order in which they are checked.
var rows = []row{
	{"pods leave with the ingress IP, on the host and steered by the LAN", leaves("web")},
	{"`network: red`: they leave by the other router", leaves("red")},
	{"`sourceIPBy: Network`: each pod by its own node, with the node's address there", leaves("own")},
	{"pod in its node's network, with the Service's labels: not selected", leaves("hostnet")},
	{"pod that no Service selects", leaves("plain")},
	{"steered by VXLAN, after a change of the configuration", tunnelled},
	{"the ingress IPs from outside: `externalTrafficPolicy: Cluster`", asked("web", "red", "own")},
	{"`externalTrafficPolicy: Local`: the pod's node is the host, the pod sees the client", local},
	{"ClusterIP and other pods: no ingress IP inside the cluster", inside},
	{"NodePort of every node from outside", nodePort},
	{"a second address of another node counts as the node's", secondary},
	{"MetalLB gives a Service other addresses", readdressed},
	{"MetalLB has no address for a Service: its pod's packets are dropped until one is free", withoutAddress},
	{"two Services share addresses by MetalLB's key: one host", shared},
	{"`network: \"100\"`, a table of the operator's: a blackhole in it appears and goes, the host stays", unlisted},
	{"EgressIP: its pods leave with it; planned move of an address", egressIP(announced)},
	{"EgressIP in the nodes' subnet, by ARP and NDP; planned move of an address", egressIP(onLink)},
	{"EgressFirewall: denied packets stay inside", firewall},
	{"NetworkPolicy of the CNI: allowed packets leave with the ingress IP, others stay inside", policies},
	{"planned move: `kubectl cordon` of the host", cordoned},
	{"planned move: `nodeSelector` and labels of nodes", selected},
	{"daemon's pod deleted, on the host", deleted("egressway")},
	{"speaker's pod deleted, on the host", deleted("egressway-speaker")},
	{"rolling update of the DaemonSet", rolled},
	{"host killed, and started again", killed},
	{"host drained, by kubectl and Egressway, rebooted, and back", rebooted},
	{"Egressway removed: nothing of it is left on any node, and all else is as it was before", removed},
}

func leaves(app string) func(*run) (string, error) {
	return func(r *run) (string, error) { return r.lossless(nil, app) }
}

// other returns a node that is not the given one.
func (r *run) other(than string) string {
	for _, name := range sorted(r.nodes) {
		if name != than {
			return name
		}
	}
	return ""
}

// configure changes a part of the configuration, waits until it is in force, and returns how to go back. A kubelet looks at ConfigMaps when
// their Pod changes.
func (r *run) configure(from, to string, applied func() (bool, error)) (back func() error, err error) {
	old, err := r.kubectl(r.ctx, "-n", "egressway-system", "get", "configmap", "egressway-config", "-o", `jsonpath={.data.config\.yaml}`)
	if err != nil {
		return nil, err
	}
	set := func(text string, done func() (bool, error)) error {
		text = strings.ReplaceAll(strings.ReplaceAll(text, `"`, `\"`), "\n", `\n`)
		patch := `{"data":{"config.yaml":"` + text + `"}}`
		_, err := r.kubectl(r.ctx, "-n", "egressway-system", "patch", "configmap", "egressway-config", "--type=merge", "-p", patch)
		if err != nil {
			return err
		}
		return await(r.ctx, "the changed configuration in force", func() (bool, error) {
			annotate := "-n egressway-system annotate pod --overwrite -l app.kubernetes.io/name=egressway seen=" + stamp()
			if err := r.do(r.ctx, annotate); err != nil {
				return false, err
			}
			return done()
		})
	}
	back = func() error {
		return set(old, func() (bool, error) {
			ok, err := applied()
			return !ok, err
		})
	}
	return back, set(strings.Replace(old, from, to, 1), applied)
}

func tunnelled(r *run) (seen string, err error) {
	host, err := r.host(r.ctx, "web")
	if err != nil {
		return "", err
	}
	sender := r.other(host)
	back := func() error { return nil }
	defer func() { err = errors.Join(err, back()) }()
	change, err := r.measure(func() error {
		undo, err := r.configure("bgp:\n", "steering: {mode: vxlan}\nbgp:\n", func() (bool, error) {
			out, err := r.in(r.ctx, sender, "ip", "-4", "route", "show", "table", "all", "proto", "142")
			return strings.Contains(out, "dev egressway"), err
		})
		if undo != nil {
			back = undo
		}
		return err
	}, everyPod)
	if err != nil {
		return "", err
	}
	before, err := r.transmitted(sender)
	if err != nil {
		return "", err
	}
	seen, err = r.lossless(nil, "web", "red")
	if err != nil {
		return seen, err
	}
	after, err := r.transmitted(sender)
	if after-before < settled {
		return seen, fmt.Errorf("%d packets went through the tunnel of %s: %w", after-before, sender, err)
	}
	return seen + "; the change itself: " + change.String(), err
}

// transmitted counts the packets that a node sent through Egressway's tunnel.
func (r *run) transmitted(node string) (n int, err error) {
	out, err := r.in(r.ctx, node, "cat", "/sys/class/net/egressway/statistics/tx_packets")
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(out, &n)
	return n, err
}

// asked has the hosts outside reach Services by their ingress IPs, with new connections until each pod has answered.
func asked(services ...string) func(*run) (string, error) {
	return func(r *run) (string, error) {
		answers := 0
		for _, service := range services {
			for i, ip := range ingress[service] {
				n, err := r.allAnswer(service, url(ip, 8080), client[i])
				if err != nil {
					return "", err
				}
				answers += n
			}
		}
		return fmt.Sprintf("%d questions, each pod answered", answers), nil
	}
}

// allAnswer asks until each pod of a Service has answered, and returns how often. A Service chooses by chance.
func (r *run) allAnswer(service, asked, from string) (answers int, err error) {
	pods, err := r.pods(r.ctx)
	if err != nil {
		return 0, err
	}
	maps.DeleteFunc(pods, func(_ string, p pod) bool { return p.app != service })
	few := slices.Repeat([]string{asked}, 2*len(pods))
	for answers < 50 {
		saw, err := r.asks(few, "docker", "exec", network(service), "box", "ask", "-from", from)
		if err != nil {
			return 0, err
		}
		answers += len(saw)
		for _, a := range saw {
			delete(pods, a.name)
		}
		if len(pods) == 0 {
			return answers, nil
		}
	}
	return 0, fmt.Errorf("%s: %d answers, none of %s", asked, answers, strings.Join(sorted(pods), " "))
}

func local(r *run) (string, error) {
	if err := await(r.ctx, "the node of the pod is the host", func() (bool, error) {
		host, err := r.host(r.ctx, "single")
		if err != nil {
			return false, err
		}
		pods, err := r.pods(r.ctx)
		if err != nil {
			return false, err
		}
		of := ofApp(pods, "single")
		if len(of) != 1 || of[0].node != host {
			return false, fmt.Errorf("the pods are %+v, the host is %s", of, host)
		}
		return true, nil
	}); err != nil {
		return "", err
	}
	for i, ip := range ingress["single"] {
		saw, err := r.asks([]string{url(ip, 8080)}, "docker", "exec", "outside", "box", "ask", "-from", client[i])
		if err != nil {
			return "", err
		}
		if saw[0].client != client[i] {
			return "", fmt.Errorf("by %s the pod saw %s, not %s", ip, saw[0].client, client[i])
		}
	}
	return r.lossless(nil, "single")
}

// inside asks from each pod that leaves with an ingress IP: the Service's ClusterIPs, and a pod that sees it with its own address.
func inside(r *run) (string, error) {
	pods, err := r.pods(r.ctx)
	if err != nil {
		return "", err
	}
	var service struct{ Spec struct{ ClusterIPs []string } }
	if err := r.get(r.ctx, &service, "-n", "shop", "service", "web"); err != nil {
		return "", err
	}
	answers := 0
	for _, p := range ofApp(pods, "web") {
		foreign := func(saw string) bool { return saw != ingress["web"][0] && saw != ingress["web"][1] }
		for _, to := range []struct {
			ips   []string
			right func(saw string) bool
		}{
			{service.Spec.ClusterIPs, foreign}, // a pod that reaches itself sees its node's address
			{ofApp(pods, "plain")[0].ips, func(saw string) bool { return slices.Contains(p.ips, saw) }},
		} {
			if err := r.seenBy(p, to.ips, to.right); err != nil {
				return "", err
			}
			answers += len(to.ips)
		}
	}
	return fmt.Sprintf("%d answers", answers), nil
}

func ofApp(pods map[string]pod, app string) (found []pod) {
	for _, name := range sorted(pods) {
		if pods[name].app == app {
			found = append(found, pods[name])
		}
	}
	return found
}

// seenBy has a pod ask addresses inside the cluster, where a right source has to be seen. With Cilium a pod does not reach itself by an
// IPv6 ClusterIP, with Egressway or without it, so it asks until another pod answers.
func (r *run) seenBy(p pod, ips []string, right func(saw string) bool) error {
	ask := []string{"kubectl", "-n", "shop", "exec", p.name, "--", "box", "ask"}
	var asked []string
	for _, ip := range ips {
		asked = append(asked, url(ip, 8080))
	}
	answers, err := r.asks(asked, ask...)
	for range 19 {
		if err == nil || r.cni != "cilium" {
			break
		}
		answers, err = r.asks(asked, ask...)
	}
	for i, a := range answers {
		if !right(a.client) {
			err = errors.Join(err, fmt.Errorf("%s, asked at %s, saw %s as %s", a.name, ips[i], p.name, a.client))
		}
	}
	return err
}

func nodePort(r *run) (string, error) {
	var service struct {
		Spec struct{ Ports []struct{ NodePort int } }
	}
	if err := r.get(r.ctx, &service, "-n", "shop", "service", "web"); err != nil {
		return "", err
	}
	answers := 0
	for i, from := range client {
		var asked []string
		for _, name := range sorted(r.nodes) {
			one := url(r.nodes[name].own[i], service.Spec.Ports[0].NodePort)
			asked = append(asked, slices.Repeat([]string{one}, 4)...)
		}
		if _, err := r.asks(asked, "docker", "exec", "outside", "box", "ask", "-from", from); err != nil {
			return "", err
		}
		answers += len(asked)
	}
	return fmt.Sprintf("%d answers", answers), nil
}

func secondary(r *run) (seen string, err error) {
	pods, err := r.pods(r.ctx)
	if err != nil {
		return "", err
	}
	answering := ofApp(pods, "hostnet")[0]
	asking := ofApp(pods, "web")[0]
	if asking.node == answering.node {
		asking = ofApp(pods, "web")[1]
	}
	const second = "172.18.9.9"
	if _, err := r.in(r.ctx, answering.node, "ip", "address", "add", second+"/16", "dev", "eth0"); err != nil {
		return "", err
	}
	defer func() {
		_, undo := r.in(r.ctx, answering.node, "ip", "address", "del", second+"/16", "dev", "eth0")
		err = errors.Join(err, undo)
	}()
	err = await(r.ctx, "a question that arrives without an ingress IP", func() (bool, error) {
		saw, err := r.reaches(r.ctx, []string{url(second, 8080)}, "kubectl", "-n", "shop", "exec", asking.name, "--", "box", "ask")
		if err != nil {
			return false, err
		}
		seen = asking.node + "'s pod was seen as " + saw[0].client
		return saw[0].client != ingress["web"][0], nil
	})
	return seen, err
}

func cordoned(r *run) (string, error) {
	return r.lossless(func() error {
		host, err := r.host(r.ctx, "web")
		if err != nil {
			return err
		}
		if err := r.do(r.ctx, "cordon "+host); err != nil {
			return err
		}
		err = r.moved("web", host)
		return errors.Join(err, r.do(r.ctx, "uncordon "+host))
	})
}

func selected(r *run) (string, error) {
	seen, err := r.lossless(func() error {
		host, err := r.host(r.ctx, "web")
		if err != nil {
			return err
		}
		if err := r.do(r.ctx, "label node "+r.other(host)+" egress=preferred"); err != nil {
			return err
		}
		if err := r.patch(r.ctx, "egressservice/web", `{"spec":{"nodeSelector":{"matchLabels":{"egress":"preferred"}}}}`); err != nil {
			return err
		}
		return r.moved("web", host)
	})
	return seen, errors.Join(err, r.patch(r.ctx, "egressservice/web", `{"spec":{"nodeSelector":null}}`),
		r.do(r.ctx, "label node --all egress-"))
}

func deleted(daemonSet string) func(*run) (string, error) {
	return func(r *run) (string, error) {
		return r.lossless(func() error {
			host, err := r.host(r.ctx, "web")
			if err != nil {
				return err
			}
			former, err := r.daemonPod(r.ctx, daemonSet, host)
			if err != nil {
				return err
			}
			if err := r.do(r.ctx, "-n egressway-system delete "+former); err != nil {
				return err
			}
			if err := await(r.ctx, "another pod of "+daemonSet, func() (bool, error) {
				next, err := r.daemonPod(r.ctx, daemonSet, host)
				return next != former && next != "" && !strings.Contains(next, "\n"), err
			}); err != nil {
				return err
			}
			return errors.Join(r.do(r.ctx, "-n egressway-system wait --for=condition=Ready pod --all --timeout=180s"), r.ready())
		})
	}
}

func rolled(r *run) (string, error) {
	return r.lossless(func() error {
		return r.do(r.ctx, "-n egressway-system rollout restart daemonset/egressway",
			"-n egressway-system rollout status daemonset/egressway --timeout=180s")
	})
}
