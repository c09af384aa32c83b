package main

import (
	"errors"
	"fmt"
)

// lacking is the result of a row about something that a CNI does not have.
const lacking = "the CNI has none"

// Of two apps one may reach hosts outside alone, and the other none of them.
const networkPolicies = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: outside, namespace: plain}
spec:
  podSelector: {matchLabels: {app: plain}}
  policyTypes: [Egress]
  egress: [{to: [{ipBlock: {cidr: 198.51.100.0/24}}, {ipBlock: {cidr: "2001:db8:51::/64"}}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: inside, namespace: plain}
spec:
  podSelector: {matchLabels: {app: twin}}
  policyTypes: [Egress]
  egress: [{to: [{namespaceSelector: {}}]}]
`

// policies has NetworkPolicies decide for pods behind EgressServices: allowed packets leave with the ingress IP, others
// stay inside. A CNI may let connections go on that a later policy does not allow, so the pods that may not reach the hosts are new.
func policies(r *run) (seen string, err error) {
	if r.cni != "calico" && r.cni != "cilium" {
		return lacking, nil
	}
	defer func() {
		err = errors.Join(err, r.do(r.ctx, "-n plain delete --ignore-not-found networkpolicy outside inside"), r.unselect("plain", "twin"))
	}()
	if err := r.serveBoth(); err != nil {
		return "", err
	}
	if err := r.apply("networkpolicy", networkPolicies); err != nil {
		return "", err
	}
	const restart, status = "-n plain rollout restart deployment/twin", "-n plain rollout status deployment/twin --timeout=180s"
	if err := r.do(r.ctx, restart, status); err != nil {
		return "", err
	}
	n, err := r.silent("twin")
	if err != nil {
		return "", err
	}
	if err := r.leavesWith(scarce, "plain"); err != nil {
		return "", err
	}
	pods, err := r.pods(r.ctx)
	if err != nil {
		return "", err
	}
	from, to := ofApp(pods, "plain")[0], ofApp(pods, "web")[0]
	for _, ip := range to.ips {
		if out, err := r.kubectl(r.ctx, "-n", "plain", "exec", from.name, "--", "box", "ask", url(ip, 8080)); err == nil {
			return "", fmt.Errorf("%s reached %s, which no policy allows: %s", from.name, ip, out)
		}
	}
	return fmt.Sprintf("none of the packets that are not allowed while %d of others arrived", n), nil
}
