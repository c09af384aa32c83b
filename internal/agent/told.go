package agent

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

// told holds the problems that were last logged and published.
type told struct {
	found, planned, node []cluster.Problem // found by the sources, found by the plan, and of this node
	problems             []cluster.Problem // all of them, sorted
	limits               map[string]*limit // by namespace
}

// subject is the topic of a log line. Problems of an object in a namespace share one for each reason, however many
// values are wrong; any other problem has a subject of its own.
type subject struct {
	kind, object string
	reason       cluster.Reason
	text         string
}

func subjectOf(p *cluster.Problem) (s subject, namespace string) {
	s = subject{kind: p.Kind, object: p.Object, reason: p.Reason}
	switch p.Kind {
	case "EgressService", "Service", "EndpointSlice", "Pod":
		namespace, _, _ = strings.Cut(p.Object, "/")
	default:
		s.text = p.Error()
	}
	return s, namespace
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

// limit limits the log lines about one namespace.
type limit struct {
	lines   *rate.Limiter
	omitted int       // since omitted lines were last logged
	said    time.Time // when omitted lines were last logged
}

// allows reports whether a line about a namespace may be logged. Problems without a namespace have no limit: the
// operator causes them.
func (t *told) allows(namespace string, now time.Time) bool {
	if namespace == "" {
		return true
	}
	l := t.limits[namespace]
	if l == nil {
		if t.limits == nil {
			t.limits = map[string]*limit{}
		}
		l = &limit{lines: rate.NewLimiter(rate.Every(lineEvery), linesAtOnce)}
		t.limits[namespace] = l
	}
	if l.lines.AllowN(now, 1) {
		return true
	}
	l.omitted++
	return false
}

// tellOmitted logs how many lines were omitted, and drops unused limits.
func (t *told) tellOmitted(log *slog.Logger, now time.Time) {
	for namespace, l := range t.limits {
		switch {
		case l.omitted > 0 && now.Sub(l.said) >= omittedEvery:
			log.Warn("problems of a namespace come and go too often for the log, egressway status lists them", "namespace", namespace, "omitted", l.omitted)
			l.omitted, l.said = 0, now
		case l.omitted == 0 && l.lines.TokensAt(now) >= linesAtOnce:
			delete(t.limits, namespace)
		}
	}
}

// take sorts all problems and logs those that came and went. While none differs, it returns the same slice.
func (t *told) take(log *slog.Logger, now time.Time, found, planned, node []cluster.Problem) []cluster.Problem {
	t.tellOmitted(log, now)
	if t.problems != nil && sorted.OneSlice(found, t.found) && sorted.OneSlice(planned, t.planned) && slices.Equal(node, t.node) {
		return t.problems
	}
	all := cluster.SortProblems(slices.Concat(found, planned, node))
	subjects, known, fresh := map[subject]bool{}, make(map[value]bool, len(t.problems)), map[subject]int{}
	for i := range t.problems {
		known[valueOf(&t.problems[i])] = true
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
		if delete(fresh, s); !t.allows(namespace, now) {
			continue
		}
		attributes := []any{"kind", p.Kind, "object", p.Object, "reason", p.Reason, "problem", p.Error()}
		if more > 0 {
			attributes = append(attributes, "more", more)
		}
		log.Warn("problem", attributes...)
	}
	for i := range t.problems {
		p := &t.problems[i]
		if s, namespace := subjectOf(p); !subjects[s] {
			if subjects[s] = true; t.allows(namespace, now) { // once
				log.Info("problem gone", "kind", p.Kind, "object", p.Object, "reason", p.Reason)
			}
		}
	}
	if all == nil {
		all = []cluster.Problem{}
	}
	t.found, t.planned, t.node, t.problems = found, planned, node, all
	return all
}
