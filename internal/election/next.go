package election

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
)

// The types of the conditions of an EgressService.
const (
	ConditionHostAssigned = "HostAssigned" // it has a host
	ConditionProgrammed   = "Programmed"   // the host reports it in force
	ConditionValid        = "Valid"        // it has no problem, nor has its Service
	ConditionReady        = "Ready"        // all of it is served: see ready
)

// Reasons of the conditions without a problem; otherwise the reason is the Problem's.
const (
	ReasonElected  cluster.Reason = "Elected"
	ReasonMoving   cluster.Reason = "Moving"
	ReasonInForce  cluster.Reason = "InForce"
	ReasonPending  cluster.Reason = "Pending"
	ReasonNoHost   cluster.Reason = "NoHost"
	ReasonAccepted cluster.Reason = "Accepted"
)

// View holds the inputs for the status of one EgressService, besides objects and reports.
type View struct {
	Key      cluster.Key
	Kind     cluster.Kind      // of the object; by it nodes report what is in force
	Choice   Choice            // the elected host and standby
	Problems []cluster.Problem // of the object or its Service
	// Since is the version of the object with its present spec, host and standby: a node that reports it as applied serves
	// the object in this form.
	Since uint64
	// Impatient reports that nodes had enough time to report, so that Next does not wait for any.
	Impatient bool
	// Pruned reports that the API server drops all fields of a status but the host.
	Pruned bool
	// Dead holds the dead nodes, see Dead. If the host is dead, nodes have switched to its standby by themselves (Failover).
	Dead map[string]bool
	// Keep makes a host that could still serve the standby for a while after a move, so that its flows can end there.
	Keep bool
	// Former is the standby that stays for that reason; empty: none does, or the time is over.
	Former string
}

// Next returns the status that an EgressService should have now, without the times of its conditions.
//
// A host that could still serve hands over only to a node that serves already: the next host first becomes the standby, and
// becomes the host once it reports this as applied. The former host is then the standby for a while. If the host is gone,
// there is no reason to wait, and nothing to keep.
//
// If the host is dead or its Node is gone, its standby becomes the host in the following term: every node that noticed
// treats it as the host already. A better node becomes the host afterwards. If another node must become the host at once,
// the term grows by two, or there would be two hosts of one term.
func Next(objects cluster.Objects, reports map[string]cluster.Report, v View) cluster.Status {
	spec := objects.EgressServices.At(v.Key)
	next, moving := v.successor(objects, reports, spec.Status)
	next.Conditions = slices.Clone(spec.Status.Conditions)
	next.Generation, next.IngressIPs = spec.Generation, IngressIPs(objects.Services.At(v.Key))
	parts := []metav1.Condition{hostAssigned(next, v.Choice, moving), programmed(objects, reports, next, v), valid(v.Problems)}
	for _, c := range append(parts, v.ready(objects, reports, next, parts)) {
		c.ObservedGeneration = spec.Generation
		meta.SetStatusCondition(&next.Conditions, c)
	}
	return next
}

// successor returns host, standby and term of the status after now. moving reports that the wanted host becomes the standby
// first.
func (v View) successor(
	objects cluster.Objects, reports map[string]cluster.Report, now cluster.Status,
) (next cluster.Status, moving bool) {
	wanted := v.Choice
	next = cluster.Status{Host: wanted.Host, Standby: wanted.Standby, Term: now.Term}
	switch {
	case !isNode(wanted.Host):
	case wanted.Host == now.Host:
		next.Standby = v.standbyBeside(now)
	case v.lost(objects, now.Host) && v.tookOver(now.Standby):
		return v.afterFailover(now)
	case v.atOnce(reports, now):
		next.Standby, next.Term = v.standbyAfter(now), now.Term+1
	default:
		return cluster.Status{Host: now.Host, Standby: wanted.Host, Term: now.Term}, true
	}
	return next, false
}

// standbyBeside returns the standby of a host that stays: the former host for a while, else the wanted standby.
func (v View) standbyBeside(now cluster.Status) string {
	if v.Former != "" && v.Former == now.Standby && v.Choice.servedBy(v.Former) {
		return v.Former
	}
	return v.Choice.Standby
}

// standbyAfter returns the standby of the wanted host when it follows the present one.
func (v View) standbyAfter(now cluster.Status) string {
	if v.Keep && !v.Pruned && v.Choice.servedBy(now.Host) {
		return now.Host
	}
	return v.Choice.Standby
}

// afterFailover is successor where the standby has taken over by itself and another host is wanted.
func (v View) afterFailover(now cluster.Status) (next cluster.Status, moving bool) {
	if v.Choice.servedBy(now.Standby) {
		return cluster.Status{Host: now.Standby, Standby: v.Choice.Host, Term: now.Term + 1}, true
	}
	return cluster.Status{Host: v.Choice.Host, Standby: v.Choice.Standby, Term: now.Term + 2}, false
}

// isNode reports whether the host of a status or a choice is one node.
func isNode(host string) bool { return host != "" && host != cluster.AllHosts }

// lost reports whether a host is dead, or its Node is gone.
func (v View) lost(objects cluster.Objects, host string) bool {
	if !isNode(host) {
		return v.Dead[host]
	}
	_, exists := objects.Nodes.Get(host)
	return v.Dead[host] || !exists
}

// tookOver reports whether the standby of a lost host is the host by now, and is not the wanted one. A pruned status names
// no standby, so none took over.
func (v View) tookOver(standby string) bool {
	return standby != "" && standby != v.Choice.Host && !v.Dead[standby] && !v.Pruned
}

// atOnce reports whether the wanted host becomes the host now: it serves already, or waiting for it has no use.
func (v View) atOnce(reports map[string]cluster.Report, now cluster.Status) bool {
	return v.Pruned || v.Impatient || !v.Choice.servedBy(now.Host) ||
		now.Standby == v.Choice.Host && v.applied(reports, v.Choice.Host)
}

// applied reports whether a node has reported the object in its present form as in force.
func (v View) applied(reports map[string]cluster.Report, node string) bool {
	if v.Kind == cluster.KindEgressIP {
		return reports[node].AppliedIPs >= v.Since
	}
	return reports[node].Applied >= v.Since
}

// servedBy reports whether the node, host or standby in the object's status, can serve the object now.
func (c Choice) servedBy(node string) bool { return slices.Contains(c.Serves, node) }

// Concerned lists the nodes that do more for an EgressService with that status than steer to its host.
func Concerned(objects cluster.Objects, key cluster.Key, s cluster.Status) (nodes []string) {
	switch {
	case s.Host == "":
		return nil
	case s.Host == cluster.AllHosts:
		return nodesOf(objects, key)
	case s.Standby == "":
		return []string{s.Host}
	}
	return []string{s.Host, s.Standby}
}

// nodesOf lists the nodes that hold an endpoint of a Service.
func nodesOf(objects cluster.Objects, key cluster.Key) (nodes []string) {
	for _, e := range objects.Endpoints.At(key) {
		if _, exists := objects.Nodes.Get(e.Node); exists && e.Target == cluster.TargetPod && !slices.Contains(nodes, e.Node) {
			nodes = append(nodes, e.Node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

func hostAssigned(s cluster.Status, wanted Choice, moving bool) metav1.Condition {
	c := metav1.Condition{Type: ConditionHostAssigned, Status: metav1.ConditionTrue, Reason: string(ReasonElected)}
	switch {
	case s.Host == "":
		c.Status = metav1.ConditionFalse
		c.Reason, c.Message = unassigned(wanted.Problem)
	case moving:
		c.Reason, c.Message = string(ReasonMoving), fmt.Sprintf(
			"node %s is the host until node %s reports that it can take over: %s", s.Host, wanted.Host, wanted.Why)
	default:
		c.Message = roles(s, wanted)
	}
	if wanted.Despite != "" && s.Host == wanted.Host {
		c.Message += "; " + wanted.Despite
	}
	return c
}

// unassigned explains why an object has no host, by the problem of its election; nil: it has none.
func unassigned(p *cluster.Problem) (reason, message string) {
	if p == nil {
		return string(ReasonNoHost), "no host is elected yet"
	}
	return string(p.Reason), Explain(*p)
}

// roles describes a host that stays, and its standby.
func roles(s cluster.Status, wanted Choice) string {
	switch {
	case s.Host == cluster.AllHosts:
		return "every node is the host of its own endpoints"
	case s.Standby == "":
		return fmt.Sprintf("node %s is the host; no other node could take over", s.Host)
	case s.Standby != wanted.Standby:
		return fmt.Sprintf("node %s is the host; node %s, which was, stays as standby for flows that go by it", s.Host, s.Standby)
	}
	return fmt.Sprintf("node %s is the host, node %s would take over", s.Host, s.Standby)
}

func programmed(objects cluster.Objects, reports map[string]cluster.Report, s cluster.Status, v View) metav1.Condition {
	c := metav1.Condition{Type: ConditionProgrammed, Status: metav1.ConditionTrue, Reason: string(ReasonInForce)}
	if s.Host == "" {
		c.Status, c.Reason = metav1.ConditionFalse, string(ReasonNoHost)
		c.Message = "its pods' packets to the outside are dropped, unless onNoPath allows them"
		return c
	}
	if v.Dead[s.Host] {
		c.Status, c.Reason = metav1.ConditionFalse, string(cluster.ReasonHostSilent)
		c.Message = silent(s.Host) + ": packets of pods on other nodes are dropped"
		return c
	}
	if pending := v.pending(objects, reports, s); len(pending) > 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(ReasonPending), "not yet reported to be in force by "+some(pending)
	}
	return c
}

// pending lists the nodes besides the standby that have not reported the object with a status as applied.
func (v View) pending(objects cluster.Objects, reports map[string]cluster.Report, s cluster.Status) (nodes []string) {
	was := objects.EgressServices.At(v.Key).Status
	// An earlier CRD keeps no ingress IPs.
	changed := was.Host != s.Host || len(was.IngressIPs) > 0 && !slices.Equal(was.IngressIPs, s.IngressIPs)
	for _, node := range Concerned(objects, v.Key, s) {
		if node != s.Standby && (changed || !v.applied(reports, node)) {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

func valid(problems []cluster.Problem) metav1.Condition {
	c := metav1.Condition{Type: ConditionValid, Status: metav1.ConditionTrue, Reason: string(ReasonAccepted)}
	if len(problems) == 0 {
		return c
	}
	const most = 8 // a condition is for people to read; the daemons' status lists all problems
	messages := make([]string, 0, most+1)
	for i, p := range problems {
		if i == most {
			messages = append(messages, fmt.Sprintf("and %d more", len(problems)-most))
			break
		}
		messages = append(messages, Explain(p))
	}
	c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(problems[0].Reason), strings.Join(messages, "; ")
	return c
}

// Explain returns a problem's text without the name of the object, which the reader already sees.
func Explain(p cluster.Problem) string {
	name := cluster.Problem{Kind: p.Kind, Object: p.Object}.Error()
	if p.Kind != cluster.KindEgressService.String() && p.Kind != cluster.KindEgressIP.String() {
		name = ""
	}
	p.Where = ""
	return strings.TrimPrefix(p.Error(), name)
}
