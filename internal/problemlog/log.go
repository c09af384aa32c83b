// Package problemlog remembers the problems of a node between passes. It logs those that appear and disappear, at a bounded
// rate, and finds the objects in the kernel that another program keeps removing.
package problemlog

import (
	"log/slog"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/sorted"
)

const (
	// linesAtOnce and lineEvery limit the log lines about problems of one namespace, whose owner can cause any number.
	linesAtOnce = 50
	lineEvery   = 10 * time.Second
	// omittedEvery is how often the log reports omitted lines.
	omittedEvery = time.Minute
)

// Log holds the problems that were last logged and published.
type Log struct {
	found, planned, node []cluster.Problem     // found by the sources, found by the plan, and of this node
	problems             []cluster.Problem     // all of them, sorted
	limits               map[string]*lineLimit // by namespace
}

// subject is the topic of a log line. Problems of an object in a namespace share one for each reason, however many
// values are wrong; any other problem has a subject of its own.
type subject struct {
	kind, object string
	reason       cluster.Reason
	text         string
}

func subjectOf(p *cluster.Problem) (s subject, namespace string) {
	s, namespace = subject{kind: p.Kind, object: p.Object, reason: p.Reason}, namespaceOf(p)
	if namespace == "" {
		s.text = p.Error()
	}
	return s, namespace
}

// namespaceOf returns the namespace of a problem's object; empty: the object has none, or is the configuration or a part of the node,
// whose name may be a path.
func namespaceOf(p *cluster.Problem) string {
	namespace, _, found := strings.Cut(p.Object, "/")
	if !found || !ofTenant(p.Kind) {
		return ""
	}
	return namespace
}

// ofTenant reports whether the owner of a namespace may write objects of this kind. An EgressIP is of none: its name has no namespace.
func ofTenant(kind string) bool {
	for k := range cluster.Kind(cluster.Kinds) {
		if kind == k.String() {
			return true
		}
	}
	return kind == "Service" || kind == "EndpointSlice" || kind == "Pod"
}

// value distinguishes the problems of a subject. It ignores how many more values a problem counts.
type value struct {
	subject
	field, value, message string
}

func valueOf(p *cluster.Problem) value {
	s, _ := subjectOf(p)
	return value{s, p.Field, p.Value, p.Message}
}

// lineLimit limits the log lines about one namespace.
type lineLimit struct {
	lines   *rate.Limiter
	omitted int       // since omitted lines were last logged
	said    time.Time // when omitted lines were last logged
}

// allows reports whether a line about a namespace may be logged. Problems without a namespace have no limit: the
// operator causes them.
func (l *Log) allows(namespace string, now time.Time) bool {
	if namespace == "" {
		return true
	}
	limit := l.limit(namespace)
	if limit.lines.AllowN(now, 1) {
		return true
	}
	limit.omitted++
	return false
}

// limit returns the limit of a namespace, which it makes if there is none.
func (l *Log) limit(namespace string) *lineLimit {
	limit := l.limits[namespace]
	if limit == nil {
		if l.limits == nil {
			l.limits = map[string]*lineLimit{}
		}
		limit = &lineLimit{lines: rate.NewLimiter(rate.Every(lineEvery), linesAtOnce)}
		l.limits[namespace] = limit
	}
	return limit
}

// logOmitted logs how many lines were omitted, and drops unused limits.
func (l *Log) logOmitted(log *slog.Logger, now time.Time) {
	for namespace, limit := range l.limits {
		switch {
		case limit.omitted > 0 && now.Sub(limit.said) >= omittedEvery:
			log.Warn("problems of a namespace come and go too often for the log, egressway status lists them",
				"namespace", namespace, "omitted", limit.omitted)
			limit.omitted, limit.said = 0, now
		case limit.omitted == 0 && limit.lines.TokensAt(now) >= linesAtOnce:
			delete(l.limits, namespace)
		}
	}
}

// Update sorts all problems and logs those that came and went. While none differs, it returns the same slice.
func (l *Log) Update(log *slog.Logger, now time.Time, found, planned, node []cluster.Problem) []cluster.Problem {
	l.logOmitted(log, now)
	if l.problems != nil && sorted.OneSlice(found, l.found) && sorted.OneSlice(planned, l.planned) && slices.Equal(node, l.node) {
		return l.problems
	}
	all := cluster.SortProblems(slices.Concat(found, planned, node))
	l.logChanges(log, now, all)
	if all == nil {
		all = []cluster.Problem{}
	}
	l.found, l.planned, l.node, l.problems = found, planned, node, all
	return all
}

// logChanges logs the problems that all has and the last ones do not, and the subjects that have no problem any more.
func (l *Log) logChanges(log *slog.Logger, now time.Time, all []cluster.Problem) {
	subjects, known, fresh := map[subject]bool{}, make(map[value]bool, len(l.problems)), map[subject]int{}
	for i := range l.problems {
		known[valueOf(&l.problems[i])] = true
	}
	for i := range all {
		v := valueOf(&all[i])
		if subjects[v.subject] = true; !known[v] {
			fresh[v.subject]++
		}
	}
	for i := range all {
		p := &all[i]
		s, namespace := subjectOf(p)
		more := fresh[s] - 1
		if more < 0 || known[valueOf(p)] {
			continue
		}
		if delete(fresh, s); l.allows(namespace, now) {
			logNew(log, p, more)
		}
	}
	l.logGone(log, now, subjects)
}

// logNew logs a new problem, and how many more its subject has.
func logNew(log *slog.Logger, p *cluster.Problem, more int) {
	attributes := []any{"kind", p.Kind, "object", p.Object, "reason", p.Reason, "problem", p.Error()}
	if more > 0 {
		attributes = append(attributes, "more", more)
	}
	log.Warn("problem", attributes...)
}

// logGone logs once each subject of the last problems that is not among the present ones, to which it adds it.
func (l *Log) logGone(log *slog.Logger, now time.Time, subjects map[subject]bool) {
	for i := range l.problems {
		p := &l.problems[i]
		s, namespace := subjectOf(p)
		if subjects[s] {
			continue
		}
		if subjects[s] = true; l.allows(namespace, now) {
			log.Info("problem gone", "kind", p.Kind, "object", p.Object, "reason", p.Reason)
		}
	}
}
