package leader

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/cluster/kube"
	"github.com/egressway/egressway/internal/firewall"
	"github.com/egressway/egressway/internal/sorted"
)

const (
	conditionValid = "Valid"
	namesMost      = 8 // nodes, or faults, that a status names; it counts the others
	// detailsEvery is the least time between two writes of statuses whose details alone differ: the nodes that they name. A
	// thousand nodes that follow one after another cost a few writes of an object.
	detailsEvery = 5 * time.Second
	// believeFor is how long a new leader believes the statuses that it finds. Nodes renew their Leases every 20 seconds, and in large
	// clusters report only then that they have the present objects in force.
	believeFor = 25 * time.Second
)

// textObject is an object whose status is a text for people, with conditions.
type textObject interface {
	Revision() cluster.Revision
	Itself() cluster.Meta
}

// textKind is a kind of such objects.
type textKind[V textObject] struct {
	kind    cluster.Kind
	objects func(cluster.Objects) cluster.Map[cluster.Key, V]
	applied func(cluster.Report) applied
	status  func(m cluster.Meta, is standing) cluster.TextStatus
	inForce string // the condition that is true of a revision which is in force on all nodes
	// note returns a remark about an object that is valid, if the kind has such; servers are those of firewall.APIServers.
	note func(o V, servers []netip.AddrPort, nodes cluster.Map[string, cluster.Node]) string
}

// applied is the part of a node's report about a kind.
type applied struct {
	digest     string   // of the objects that are in force there, see cluster.Revisions
	namespaces []string // that have objects of the kind, and pods on the node
}

// standing is the state of an object in the cluster.
type standing struct {
	behind   []string // nodes that do not have it in force, sorted
	holders  []string // nodes that report pods of its namespace, sorted
	problems []cluster.Problem
	remarks  []string // for its users: all of its rules are in force
}

// found adds problems with the object.
func (is *standing) found(all []cluster.Problem) {
	for _, p := range all {
		if p.Reason == cluster.ReasonHostBits {
			is.remark(fault(p))
		} else {
			is.problems = append(is.problems, p)
		}
	}
}

// remark adds a remark, unless it is empty.
func (is *standing) remark(text string) {
	if text != "" {
		is.remarks = append(is.remarks, text)
	}
}

// texts writes the statuses of all objects of a kind in a term. An object is in force on a node when the node has reported the
// digest of objects among which was the object's present revision.
type texts[V textObject] struct {
	began     bool
	since     time.Time         // when the first ones were considered
	believes  bool              // some statuses are the former leader's, as not all nodes have confirmed them yet
	problems  []cluster.Problem // as last considered, as are objects and reports
	objects   cluster.Map[cluster.Key, V]
	servers   []netip.AddrPort
	nodes     cluster.Map[string, cluster.Node]
	reports   map[string]applied                     // by node
	confirmed map[string]cluster.Map[cluster.Key, V] // by node
	wanted    map[cluster.Key]kube.WantedText
	detailed  time.Time // when details were last brought up to date
	held      bool      // some are not
	drops     bool      // the CRD drops parts of them
	written   time.Time
}

// consider writes the statuses if anything on which they depend has changed. It returns the time after which it should be called
// again even without a change; 0: never.
func (x *texts[V]) consider(
	api API, of textKind[V], in Input, reports map[string]cluster.Report, now time.Time,
) (wait time.Duration) {
	parts, all := of.parts(reports), of.objects(in.Objects)
	if !x.began {
		x.since = now
	}
	changed := x.due(api.Drops(of.kind), now) || !x.began || !all.Same(x.objects) || !sorted.OneSlice(in.Problems, x.problems) ||
		!reflect.DeepEqual(parts, x.reports)
	if of.note != nil && all.Len() > 0 {
		changed = x.surroundings(in) || changed
	}
	if !changed {
		return x.waits(now)
	}
	had := x.objects.Len()
	x.began, x.objects, x.problems, x.reports = true, all, in.Problems, parts
	if all.Len() == 0 && had == 0 {
		return 0
	}
	x.confirm(cluster.Revisions(all))
	want := x.statuses(of, now.Sub(x.since) < believeFor)
	x.hold(want, now)
	x.wanted, x.written = want, now
	api.WriteTexts(of.kind, want)
	return x.waits(now)
}

// parts returns the parts of the nodes' reports about the kind. An old report may be of a dead node.
func (of textKind[V]) parts(reports map[string]cluster.Report) map[string]applied {
	parts := make(map[string]applied, len(reports))
	for node, r := range reports {
		if !r.Old {
			parts[node] = of.applied(r)
		}
	}
	return parts
}

// due reports whether statuses are to be written without any change: see waits. It notes whether the CRD drops parts of them.
func (x *texts[V]) due(drops bool, now time.Time) bool {
	another := drops != x.drops
	x.drops = drops
	return another || drops && now.Sub(x.written) >= lookAgain || x.held && now.Sub(x.detailed) >= detailsEvery ||
		x.believes && now.Sub(x.since) >= believeFor
}

// surroundings notes the API servers and nodes, on which remarks depend, and reports whether they differ.
func (x *texts[V]) surroundings(in Input) (differ bool) {
	servers := firewall.APIServers(&in.Objects, in.Config.PodCIDRs, in.Config.ClusterCIDRs)
	differ = !slices.Equal(servers, x.servers) || !in.Objects.Nodes.Same(x.nodes)
	x.servers, x.nodes = servers, in.Objects.Nodes
	return differ
}

// statuses returns the status of each object, with believes that of the former leader where it may still be true.
func (x *texts[V]) statuses(of textKind[V], believes bool) map[cluster.Key]kube.WantedText {
	found := map[string][]cluster.Problem{}
	for _, p := range x.problems {
		if p.Kind == of.kind.String() {
			found[p.Object] = append(found[p.Object], p)
		}
	}
	holders := x.holders()
	x.believes = false
	want := make(map[cluster.Key]kube.WantedText, x.objects.Len())
	for key, o := range x.objects.All() {
		is := standing{behind: x.behind(key, o.Revision()), holders: holders[key.Namespace]}
		if believes && stands(o.Itself(), of.inForce) {
			is.behind = x.silent(is.behind)
		}
		is.found(found[key.String()])
		if of.note != nil {
			is.remark(of.note(o, x.servers, x.nodes))
		}
		want[key] = kube.WantedText{Of: o.Revision(), Status: of.status(o.Itself(), is)}
	}
	return want
}

// stands reports whether a condition of an object is true of its present generation.
func stands(m cluster.Meta, condition string) bool {
	c := meta.FindStatusCondition(m.Status.Conditions, condition)
	return c != nil && c.Status == metav1.ConditionTrue && c.ObservedGeneration == m.Generation
}

// silent returns those of the nodes that report no objects in force. The others may have had a revision in force before other objects
// changed: a digest is of all objects.
func (x *texts[V]) silent(behind []string) (nodes []string) {
	for _, node := range behind {
		if x.reports[node].digest == "" {
			nodes = append(nodes, node)
		} else {
			x.believes = true
		}
	}
	return nodes
}

// waits returns the time until held details are due, statuses are believed no longer, or are written again where another CRD may be there
// by now; 0: none is to come.
func (x *texts[V]) waits(now time.Time) (wait time.Duration) {
	if x.held {
		wait = max(detailsEvery-now.Sub(x.detailed), time.Millisecond)
	}
	if x.believes {
		wait = soonest(wait, max(believeFor-now.Sub(x.since), time.Millisecond))
	}
	if x.drops {
		wait = soonest(wait, max(lookAgain-now.Sub(x.written), time.Millisecond))
	}
	return wait
}

// confirm notes the nodes that have all present objects in force, and forgets those that do not live any more.
func (x *texts[V]) confirm(present string) {
	if x.confirmed == nil {
		x.confirmed = map[string]cluster.Map[cluster.Key, V]{}
	}
	maps.DeleteFunc(x.confirmed, func(node string, _ cluster.Map[cluster.Key, V]) bool {
		_, lives := x.reports[node]
		return !lives
	})
	for node, r := range x.reports {
		if r.digest == present {
			x.confirmed[node] = x.objects
		}
	}
}

// behind returns the nodes that have not confirmed a revision, sorted.
func (x *texts[V]) behind(key cluster.Key, revision cluster.Revision) (nodes []string) {
	for node := range x.reports {
		if o, ok := x.confirmed[node].Get(key); !ok || o.Revision() != revision {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// holders returns the nodes that report pods of a namespace, sorted, by namespace.
func (x *texts[V]) holders() map[string][]string {
	nodes := map[string][]string{}
	for _, node := range slices.Sorted(maps.Keys(x.reports)) {
		for _, namespace := range x.reports[node].namespaces {
			nodes[namespace] = append(nodes[namespace], node)
		}
	}
	return nodes
}

// hold keeps the former status of objects of which details alone differ, until detailsEvery after they last came up to date.
func (x *texts[V]) hold(want map[cluster.Key]kube.WantedText, now time.Time) {
	due := now.Sub(x.detailed) >= detailsEvery
	x.held = false
	for key, w := range want {
		former, had := x.wanted[key]
		switch {
		case !had || former.Of != w.Of || !sameVerdict(former.Status, w.Status) || reflect.DeepEqual(former.Status, w.Status):
		case due:
			x.detailed = now
		default:
			want[key], x.held = former, true
		}
	}
}

// sameVerdict reports whether statuses differ in no more than the nodes that they name.
func sameVerdict(a, b cluster.TextStatus) bool {
	return a.Text == b.Text && slices.Equal(verdicts(a), verdicts(b))
}

// verdicts returns the conditions of an object as a whole, without messages that name nodes.
func verdicts(s cluster.TextStatus) (all []metav1.Condition) {
	for _, c := range s.Conditions {
		if strings.HasPrefix(c.Type, zoneReady) {
			continue
		}
		if c.Type != conditionValid {
			c.Message = ""
		}
		all = append(all, c)
	}
	return all
}

// textWriter collects a status. A condition that is false makes its text otherwise.
type textWriter struct {
	cluster.TextStatus
	generation int64
	otherwise  string
}

// condition adds a condition.
func (w *textWriter) condition(kind, reason, message string, is bool) {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: w.generation}
	if !is {
		c.Status, w.Text = metav1.ConditionFalse, w.otherwise
	}
	w.Conditions = append(w.Conditions, c)
}

// valid adds the condition Valid.
func (w *textWriter) valid(is standing) {
	message := "all rules can be used"
	if len(is.problems) > 0 {
		message = listed(faults(is.problems))
	}
	if len(is.remarks) > 0 {
		message += "; " + listed(is.remarks)
	}
	if len(is.problems) > 0 {
		w.condition(conditionValid, string(is.problems[0].Reason), message, false)
	} else {
		w.condition(conditionValid, "Valid", message, true)
	}
}

// faults returns the fields and messages of problems.
func faults(problems []cluster.Problem) []string {
	all := make([]string, len(problems))
	for i, p := range problems {
		all[i] = fault(p)
	}
	return all
}

func fault(p cluster.Problem) string { return strings.TrimPrefix(p.Field+": ", ": ") + p.Message }

// listed joins texts, of which it names at most namesMost.
func listed(all []string) string {
	if more := len(all) - namesMost; more > 0 {
		return strings.Join(all[:namesMost], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(all, ", ")
}
