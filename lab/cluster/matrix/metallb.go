package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// scarce are the only addresses of MetalLB's pool of that name.
var scarce = [2]string{"203.0.113.100", "2001:db8:203::100"}

// readdressed has MetalLB give a Service other addresses, and its former ones again. While they change, packets may have either source.
func readdressed(r *run) (string, error) {
	const service = "red"
	former := ingress[service]
	next := [2]string{"203.0.113.21", "2001:db8:203::21"}
	seen, err := r.readdress(service, next)
	if err != nil {
		return seen, err
	}
	if _, err := r.lossless(nil, service); err != nil {
		return seen, err
	}
	back, err := r.readdress(service, former)
	return seen + "; back: " + back, err
}

func (r *run) readdress(service string, to [2]string) (string, error) {
	r.former = map[string][2]string{service: ingress[service]}
	defer func() { r.former = nil }()
	ingress[service] = to
	m, err := r.measure(func() error {
		set := "-n shop annotate --overwrite service " + service + " metallb.io/loadBalancerIPs=" + to[0] + "," + to[1]
		if err := r.do(r.ctx, set); err != nil {
			return err
		}
		return await(r.ctx, "packets of "+service+" with "+to[0], func() (bool, error) {
			now := wire{}
			if err := r.take(r.ctx, now); err != nil {
				return false, err
			}
			return now.only(service, to), nil
		})
	}, func(p pod) bool { return p.app == service })
	return m.String(), err
}

// only reports whether streams of an app arrived, and all with these sources.
func (w wire) only(app string, sources [2]string) bool {
	n := 0
	for _, streams := range w {
		for name, record := range streams {
			if !strings.HasPrefix(name, app+"-") {
				continue
			}
			for source := range record.Sources {
				if source != sources[0] && source != sources[1] {
					return false
				}
				n++
			}
		}
	}
	return n > 0
}

// withoutAddress has a Service wait for an address that another holds: its pod's packets stop, and leave with that address later.
func withoutAddress(r *run) (seen string, err error) {
	if err := r.apply("holder", loadBalancer("holder", "", 8080)); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, r.unselect("holder", "plain")) }()
	if err := r.addressed("holder"); err != nil {
		return "", err
	}
	if err := r.apply("plain", loadBalancer("plain", "", 8080)+egressService("plain")); err != nil {
		return "", err
	}
	refused := "-n plain wait --for=condition=HostAssigned=false egressservice/plain --timeout=180s"
	if err := r.do(r.ctx, refused); err != nil {
		return "", err
	}
	n, err := r.silent("plain")
	if err != nil {
		return "", err
	}
	if err := r.do(r.ctx, "-n plain delete service holder"); err != nil {
		return "", err
	}
	if err := r.leavesWith(scarce, "plain"); err != nil {
		return "", err
	}
	return fmt.Sprintf("none of its packets while %d of others arrived, then with the address", n), nil
}

// shared has two Services share addresses by MetalLB's key: one node is the host of both.
func shared(r *run) (seen string, err error) {
	defer func() { err = errors.Join(err, r.unselect("plain", "twin")) }()
	if err := r.serveBoth(); err != nil {
		return "", err
	}
	hosts := map[string]string{}
	for _, name := range []string{"plain", "twin"} {
		if hosts[name], err = r.hostIn(r.ctx, "plain", name); err != nil {
			return "", err
		}
	}
	if hosts["plain"] != hosts["twin"] {
		return "", fmt.Errorf("hosts: %v", hosts)
	}
	return "both leave by " + hosts["plain"], nil
}

// serveBoth has the pods of both apps of namespace plain leave with the addresses that their Services share.
func (r *run) serveBoth() error {
	const key = "metallb.io/allow-shared-ip: together"
	services := loadBalancer("plain", key, 8080) + loadBalancer("twin", key, 8081)
	if err := r.apply("plain", services+egressService("plain")+egressService("twin")); err != nil {
		return err
	}
	return r.leavesWith(scarce, "plain", "twin")
}

// leavesWith waits until the packets of apps arrive outside, all with these sources.
func (r *run) leavesWith(sources [2]string, apps ...string) error {
	return await(r.ctx, fmt.Sprintf("packets of %s with %s", strings.Join(apps, " and "), sources[0]), func() (bool, error) {
		w := wire{}
		if _, err := r.arrived(w, settled, "web"); err != nil {
			return false, err
		}
		for _, app := range apps {
			if !w.only(app, sources) {
				return false, nil
			}
		}
		return true, nil
	})
}

// arrived adds to a wire what arrives until so many datagrams of each stream of an app have, and counts those.
func (r *run) arrived(w wire, least int, app string) (n int, err error) {
	if err := r.take(r.ctx, wire{}); err != nil {
		return 0, err
	}
	err = await(r.ctx, "packets of "+app, func() (bool, error) {
		if err := r.take(r.ctx, w); err != nil {
			return false, err
		}
		pods, err := r.pods(r.ctx)
		if err != nil {
			return false, err
		}
		names, ways := []string{}, map[string]way{}
		for _, p := range ofApp(pods, app) {
			names = append(names, p.name)
			ways[p.name] = r.way(p)
		}
		total, _ := w.sum(ways, names)
		n = total.received()
		return w.least(ways, names) >= least, nil
	})
	return n, err
}

// count returns how many datagrams of an app arrived anywhere.
func (w wire) count(app string) (n int) {
	for _, streams := range w {
		for name, record := range streams {
			if strings.HasPrefix(name, app+"-") {
				n += record.received()
			}
		}
	}
	return n
}

// unselect removes Services and EgressServices of namespace plain, and waits until all pods send as they did.
func (r *run) unselect(names ...string) error {
	for _, name := range names {
		const remove = "-n plain delete --ignore-not-found "
		if err := r.do(r.ctx, remove+"egressservice "+name, remove+"service "+name); err != nil {
			return err
		}
	}
	pods, err := r.pods(r.ctx)
	if err != nil {
		return err
	}
	for _, app := range []string{"plain", "twin"} {
		if err := r.leavesWith(r.way(ofApp(pods, app)[0]).sources, app); err != nil {
			return err
		}
	}
	_, err = r.flowing(wire{})
	return err
}

// addressed waits until a Service of namespace plain has addresses.
func (r *run) addressed(name string) error {
	return r.do(r.ctx, "-n plain wait --for=jsonpath={.status.loadBalancer.ingress[1].ip} service/"+name+" --timeout=180s")
}

func (r *run) apply(name, manifests string) error {
	file := filepath.Join(r.state, name+".yaml")
	if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
		return err
	}
	return r.do(r.ctx, "apply -f "+file)
}

// loadBalancer is a Service with an address of the scarce pool; annotation may be one more.
func loadBalancer(name, annotation string, port int) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata:
  name: %[1]s
  namespace: plain
  annotations: {metallb.io/address-pool: scarce, %[2]s}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  selector: {app: %[1]s}
  ports: [{name: http, port: %[3]d, targetPort: 8080}]
`, name, annotation, port)
}

func egressService(name string) string { return egressServiceBy(name, "") }

// egressServiceBy is one in a network.
func egressServiceBy(name, network string) string {
	return fmt.Sprintf(`---
apiVersion: k8s.ovn.org/v1
kind: EgressService
metadata: {name: %s, namespace: plain}
spec: {sourceIPBy: LoadBalancerIP, network: %q}
`, name, network)
}
