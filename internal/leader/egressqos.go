package leader

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/sorted"
)

// The texts of an EgressQoS's status, as OVN-Kubernetes writes them: users wait for them.
const (
	qosApplied    = "EgressQoS Rules applied"
	qosNotApplied = "EgressQoS Rules not correctly applied"
)

const (
	conditionReady = "Ready"
	conditionValid = "Valid"
	zoneReady      = "Ready-In-Zone-" // and the name of a node: only where it is false
	zonesMost      = 8                // such conditions; the message of Ready counts the others
)

// egressQoSes writes the statuses of EgressQoSes in a term. An EgressQoS is in force on a node when the node has reported the
// digest of objects among which was the object's present revision.
type egressQoSes struct {
	began     bool
	problems  []cluster.Problem // as last considered, as are objects and reports
	objects   cluster.Map[cluster.Key, cluster.EgressQoS]
	reports   map[string]string                                      // digests, by node
	confirmed map[string]cluster.Map[cluster.Key, cluster.EgressQoS] // by node
}

// consider writes the statuses if anything on which they depend has changed.
func (q *egressQoSes) consider(api API, in Input, reports map[string]cluster.Report) {
	digests := make(map[string]string, len(reports))
	for node, r := range reports {
		digests[node] = r.EgressQoSes
	}
	all := in.Objects.EgressQoSes
	if q.began && all.Same(q.objects) && sorted.OneSlice(in.Problems, q.problems) && reflect.DeepEqual(digests, q.reports) {
		return
	}
	had := q.objects.Len()
	q.began, q.objects, q.problems, q.reports = true, all, in.Problems, digests
	if all.Len() == 0 && had == 0 {
		return
	}
	q.confirm(cluster.Revisions(all))
	found := map[string][]cluster.Problem{}
	for _, p := range in.Problems {
		if p.Kind == cluster.KindEgressQoS.String() {
			found[p.Object] = append(found[p.Object], p)
		}
	}
	want := make(map[cluster.Key]cluster.TextStatus, all.Len())
	for key, o := range all.All() {
		want[key] = qosStatus(o.Meta, q.behind(key, o.Revision()), found[key.String()])
	}
	api.WriteTexts(cluster.KindEgressQoS, want)
}

// confirm notes the nodes that have all present objects in force, and forgets those that do not live any more.
func (q *egressQoSes) confirm(present string) {
	if q.confirmed == nil {
		q.confirmed = map[string]cluster.Map[cluster.Key, cluster.EgressQoS]{}
	}
	maps.DeleteFunc(q.confirmed, func(node string, _ cluster.Map[cluster.Key, cluster.EgressQoS]) bool {
		_, lives := q.reports[node]
		return !lives
	})
	for node, digest := range q.reports {
		if digest == present {
			q.confirmed[node] = q.objects
		}
	}
}

// behind returns the nodes that have not confirmed a revision, sorted.
func (q *egressQoSes) behind(key cluster.Key, revision cluster.Revision) (nodes []string) {
	for node := range q.reports {
		if o, ok := q.confirmed[node].Get(key); !ok || o.Revision() != revision {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// qosStatus returns the status of an EgressQoS that some nodes do not have in force, and that has problems.
func qosStatus(m cluster.Meta, behind []string, problems []cluster.Problem) cluster.TextStatus {
	s := cluster.TextStatus{Text: qosApplied}
	condition := func(kind, reason, message string, is bool) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: m.Generation}
		if !is {
			c.Status, s.Text = metav1.ConditionFalse, qosNotApplied
		}
		s.Conditions = append(s.Conditions, c)
	}
	switch {
	case len(problems) > 0:
		condition(conditionReady, string(problems[0].Reason), "some rules are left out: see "+conditionValid, false)
	case len(behind) > 0:
		condition(conditionReady, "Pending", "not in force yet on "+listed(behind), false)
	default:
		condition(conditionReady, "Applied", "in force on all nodes that report", true)
	}
	if len(problems) > 0 {
		texts := make([]string, len(problems))
		for i, p := range problems {
			texts[i] = strings.TrimPrefix(p.Field+": ", ": ") + p.Message
		}
		condition(conditionValid, string(problems[0].Reason), listed(texts), false)
	} else {
		condition(conditionValid, "Valid", "all rules can be used", true)
	}
	for _, node := range behind[:min(len(behind), zonesMost)] {
		condition(zoneReady+node, "Pending", "the node has not reported this generation as in force", false)
	}
	return s
}

// listed joins texts, of which it names at most zonesMost.
func listed(all []string) string {
	if more := len(all) - zonesMost; more > 0 {
		return strings.Join(all[:zonesMost], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(all, ", ")
}
