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
	ConditionProgrammed   = "Programmed"   // the host reports that it is in force there
	ConditionValid        = "Valid"        // nothing is wrong with it, nor with its Service
)

// Reasons of the conditions where nothing is wrong; otherwise the reason is a Problem's.
const (
	ReasonElected  cluster.Reason = "Elected"
	ReasonMoving   cluster.Reason = "Moving"
	ReasonInForce  cluster.Reason = "InForce"
	ReasonPending  cluster.Reason = "Pending"
	ReasonNoHost   cluster.Reason = "NoHost"
	ReasonAccepted cluster.Reason = "Accepted"
)

// View is what is known of one EgressService when its status is decided.
type View struct {
	Key      cluster.Key
	Choice   Choice            // who should be the host
	Problems []cluster.Problem // what is wrong with it or its Service
	// Since is the version of the object with its present spec, host and standby: a node whose report has applied it, serves it so.
	Since uint64
	// Patience is over: a node that should have reported by now is not waited for.
	Impatient bool
	// Pruned says that the API server keeps no more of a status than the host.
	Pruned bool
	// Dead nodes, see Dead. Where the host is one, nodes have gone over to its standby by themselves (Failover).
	Dead map[string]bool
	// Keep says that a host which is left while it can serve stays as the standby for a while: flows that go by it end there.
	Keep bool
	// Former is the standby that stays for that reason; empty: none does, or the time is over.
	Former string
}

// Next is what should stand in the status of an EgressService now, but for the times of its conditions.
//
// A host that could still serve is followed only by a node that serves already: the next host is made the standby first,
// and becomes the host once it reports that this is in force. The former one is the standby then, for a while. Where the host
// is gone, there is nothing to wait for nor to keep.
//
// A dead host, or one whose Node is gone, is followed by its standby, which every node that noticed treats as the host already, in the term that follows;
// a better one has its turn afterwards. Where it has to be another at once, its term is one more, or there would be two hosts of one term.
func Next(objects cluster.Objects, reports map[string]cluster.Report, v View) cluster.Status {
	spec := objects.EgressServices.At(v.Key)
	now, wanted := spec.Status, v.Choice
	next := cluster.Status{Host: wanted.Host, Standby: wanted.Standby, Term: now.Term}
	moving := false
	_, exists := objects.Nodes.Get(now.Host)
	dead := v.Dead[now.Host] || now.Host != "" && now.Host != cluster.AllHosts && !exists
	switch able := func(node string) bool { return slices.Contains(wanted.Serves, node) }; {
	case wanted.Host == "" || wanted.Host == cluster.AllHosts:
	case wanted.Host == now.Host:
		if v.Former != "" && v.Former == now.Standby && able(v.Former) {
			next.Standby = v.Former
		}
	case dead && now.Standby != "" && now.Standby != wanted.Host && !v.Dead[now.Standby] && !v.Pruned:
		next.Term++
		if moving = able(now.Standby); moving {
			next.Host, next.Standby = now.Standby, wanted.Host
		} else {
			next.Term++
		}
	case v.Pruned || v.Impatient || !able(now.Host) || now.Standby == wanted.Host && reports[wanted.Host].Applied >= v.Since:
		next.Term++
		if v.Keep && !v.Pruned && able(now.Host) {
			next.Standby = now.Host
		}
	default:
		moving = true
		next.Host, next.Standby = now.Host, wanted.Host
	}
	next.Conditions = slices.Clone(now.Conditions)
	for _, c := range []metav1.Condition{
		hostAssigned(next, wanted, moving), programmed(objects, reports, next, v), valid(v.Problems),
	} {
		c.ObservedGeneration = spec.Generation
		meta.SetStatusCondition(&next.Conditions, c)
	}
	return next
}

// Concerned lists the nodes that do something for an EgressService with that status, beside steering to its host.
func Concerned(objects cluster.Objects, key cluster.Key, s cluster.Status) (nodes []string) {
	switch s.Host {
	case "":
		return nil
	case cluster.AllHosts:
		for _, e := range objects.Endpoints.At(key) {
			if _, exists := objects.Nodes.Get(e.Node); exists && e.Target == cluster.TargetPod && !slices.Contains(nodes, e.Node) {
				nodes = append(nodes, e.Node)
			}
		}
		slices.Sort(nodes)
		return nodes
	}
	if nodes = append(nodes, s.Host); s.Standby != "" {
		nodes = append(nodes, s.Standby)
	}
	return nodes
}

func hostAssigned(s cluster.Status, wanted Choice, moving bool) metav1.Condition {
	c := metav1.Condition{Type: ConditionHostAssigned, Status: metav1.ConditionTrue, Reason: string(ReasonElected)}
	switch {
	case s.Host == "" && wanted.Problem != nil:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(wanted.Problem.Reason), explain(*wanted.Problem)
	case s.Host == "":
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(ReasonNoHost), "no host is elected yet"
	case s.Host == cluster.AllHosts:
		c.Message = "every node is the host of its own endpoints"
	case moving:
		c.Reason, c.Message = string(ReasonMoving), fmt.Sprintf("node %s is the host until node %s reports that it can take over: %s", s.Host, wanted.Host, wanted.Why)
	case s.Standby == "":
		c.Message = fmt.Sprintf("node %s is the host; no other node could take over", s.Host)
	case s.Standby != wanted.Standby:
		c.Message = fmt.Sprintf("node %s is the host; node %s, which was, stays as standby for flows that go by it", s.Host, s.Standby)
	default:
		c.Message = fmt.Sprintf("node %s is the host, node %s would take over", s.Host, s.Standby)
	}
	if wanted.Despite != "" && s.Host == wanted.Host {
		c.Message += "; " + wanted.Despite
	}
	return c
}

func programmed(objects cluster.Objects, reports map[string]cluster.Report, s cluster.Status, v View) metav1.Condition {
	c := metav1.Condition{Type: ConditionProgrammed, Status: metav1.ConditionTrue, Reason: string(ReasonInForce)}
	if s.Host == "" {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(ReasonNoHost), "its pods' packets to the outside are dropped, unless onNoPath allows them"
		return c
	}
	if v.Dead[s.Host] {
		c.Status, c.Reason = metav1.ConditionFalse, string(cluster.ReasonHostSilent)
		c.Message = silent(s.Host) + ": packets of pods on other nodes are dropped"
		return c
	}
	var pending []string
	changed := objects.EgressServices.At(v.Key).Status.Host != s.Host
	for _, node := range Concerned(objects, v.Key, s) {
		if node != s.Standby && (changed || reports[node].Applied < v.Since) {
			pending = append(pending, node)
		}
	}
	if len(pending) > 0 {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(ReasonPending), "not yet reported to be in force by "+some(pending)
	}
	return c
}

func valid(problems []cluster.Problem) metav1.Condition {
	c := metav1.Condition{Type: ConditionValid, Status: metav1.ConditionTrue, Reason: string(ReasonAccepted)}
	if len(problems) == 0 {
		return c
	}
	const most = 8 // a condition is read by people; the daemons' status has them all
	messages := make([]string, 0, most+1)
	for i, p := range problems {
		if i == most {
			messages = append(messages, fmt.Sprintf("and %d more", len(problems)-most))
			break
		}
		messages = append(messages, explain(p))
	}
	c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(problems[0].Reason), strings.Join(messages, "; ")
	return c
}

// explain is a problem without the name of the object, which the reader has before him.
func explain(p cluster.Problem) string {
	name := cluster.Problem{Kind: p.Kind, Object: p.Object}.Error()
	if p.Kind != "EgressService" {
		name = ""
	}
	p.Where = ""
	return strings.TrimPrefix(p.Error(), name)
}
