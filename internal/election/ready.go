package election

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
)

// Reasons of the condition Ready, beside those of the other conditions.
const (
	ReasonServed           cluster.Reason = "Served"
	ReasonNetworkNotUsable cluster.Reason = "NetworkNotUsable"
	ReasonNoSession        cluster.Reason = "NoSession"
	ReasonNoRoute          cluster.Reason = "NoRoute"
)

// ready returns the condition Ready, by whose name tools wait for an object. It is true if every part is true and the nodes that
// serve the object report a network that can carry its packets; otherwise it has the first cause. The nodes' reports are of their
// kernels and sessions, so it does not become true by a plan.
func (v View) ready(
	objects cluster.Objects, reports map[string]cluster.Report, s cluster.Status, parts []metav1.Condition,
) metav1.Condition {
	c := metav1.Condition{Type: ConditionReady, Status: metav1.ConditionFalse}
	for _, part := range parts {
		if part.Status != metav1.ConditionTrue {
			c.Reason, c.Message = part.Reason, part.Message
			return c
		}
	}
	network := networkOf(objects.EgressServices.At(v.Key))
	if reason, message := v.hindrance(network, servers(objects, v.Key, s), reports); reason != "" {
		c.Reason, c.Message = string(reason), message
		return c
	}
	by := "every node with an endpoint"
	if isNode(s.Host) {
		by = "node " + s.Host
	}
	c.Status, c.Reason = metav1.ConditionTrue, string(ReasonServed)
	c.Message = fmt.Sprintf("%s serves it by network %s", by, network)
	return c
}

// servers lists the nodes that serve an EgressService with a status: not the standby.
func servers(objects cluster.Objects, key cluster.Key, s cluster.Status) []string {
	if isNode(s.Host) {
		return []string{s.Host}
	}
	return Concerned(objects, key, s)
}

// hindrance returns why the nodes that serve the object cannot carry its packets, as far as they report; an empty reason: they can.
func (v View) hindrance(network string, nodes []string, reports map[string]cluster.Report) (reason cluster.Reason, message string) {
	if len(nodes) == 0 {
		return cluster.ReasonNoEndpoints, "its Service has no endpoint that is a pod of a node"
	}
	var unusable, down, routeless []string
	families := "IPv4 nor IPv6"
	for _, node := range nodes {
		n := reports[node].Networks[network] // a node reports none that it neither has nor lists
		switch {
		case !n.Usable:
			unusable = append(unusable, node)
		case node == v.Choice.Host && !n.Fit():
			down = append(down, node)
		case node == v.Choice.Host && v.Choice.Unrouted != "":
			routeless, families = append(routeless, node), v.Choice.Unrouted
		case !n.IPv4 && !n.IPv6:
			routeless = append(routeless, node)
		}
	}
	switch {
	case len(unusable) > 0:
		return ReasonNetworkNotUsable, fmt.Sprintf("network %s is not usable on %s", network, some(unusable))
	case len(down) > 0:
		return ReasonNoSession, fmt.Sprintf("no BGP session of network %s is up on %s", network, some(down))
	case len(routeless) > 0:
		return ReasonNoRoute, fmt.Sprintf("network %s has no %s route on %s", network, families, some(routeless))
	}
	return "", ""
}

// IngressIPs lists the ingress IPs of a Service, as its status has them.
func IngressIPs(s cluster.Service) (all []string) {
	for _, in := range s.Ingress {
		if in.IP != "" {
			all = append(all, in.IP)
		}
	}
	return all
}
