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
	// linesAtOnce and lineEvery bound the log lines about problems of one namespace, whose owner can make any number of them.
	linesAtOnce = 50
	lineEvery   = 10 * time.Second
	// omittedEvery is how often the log says that it lacks some.
	omittedEvery = time.Minute
)

// told holds the problems that were last logged and published.
type told struct {
	found, planned, node []cluster.Problem // by the sources, by the plan, of this node
	problems             []cluster.Problem // all of them, sorted
	limits               map[string]*limit // by namespace
}

// subject is what a line of the log is about. Those of an object in a namespace are one for each reason, however many values are
// wrong; any other problem is a subject of its own.
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

// value is what makes a problem of a subject another one. How many more values it counts does not.
type value struct {
	subject
	field, value, message string
}

func valueOf(p *cluster.Problem) value {
	s, _ := subjectOf(p)
	return value{s, p.Field, p.Value, p.Message}
}

// limit bounds the lines about one namespace.
type limit struct {
	lines   *rate.Limiter
	omitted int       // since the log said so last
	said    time.Time // when that was
}

// allows reports whether the log may have a line about a namespace. Problems of none have no bound: their number is the operator's.
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

// tellOmitted logs how many lines the log lacks, and forgets limits that bind nothing.
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

// take sorts all problems and logs what comes and goes. While none differs, it gives the same slice.
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
