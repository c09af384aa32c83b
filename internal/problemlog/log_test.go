package problemlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/status"
)

// crowd is a cluster with two nodes and the pods of one namespace behind as many EgressServices as its owner likes.
func crowd(services int, endpoints []cluster.Endpoint, service cluster.Service) plan.Snapshot {
	c := config.Defaults()
	s := plan.Snapshot{Node: "a", Config: c}
	for i, name := range []string{"a", "b"} {
		s.Objects.Nodes = s.Objects.Nodes.With(name, cluster.Node{
			Ready: true, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)})}, Internal: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(11 + i)})},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i+1))},
		})
	}
	for i := range services {
		key := cluster.Key{Namespace: "tenant", Name: fmt.Sprintf("s%d", i)}
		s.Objects.EgressServices = s.Objects.EgressServices.With(key, cluster.EgressService{Created: time.Unix(int64(i), 0), SourceIPBy: cluster.SourceIPByLoadBalancer})
		s.Objects.Services = s.Objects.Services.With(key, service)
		s.Objects.Endpoints = s.Objects.Endpoints.With(key, endpoints)
	}
	s.Hosts, s.Facts = election.Elect(s.Objects, nil), plan.Assume(c, s.Objects, s.Node)
	return s
}

// The owner of a namespace can make up as many problems as he likes. What they cost has a bound for each of his objects, and what the log
// and the status list of them has one for all of his objects together.
func TestProblemsHaveABound(t *testing.T) {
	var pods, odd []cluster.Endpoint
	for i := range 240 {
		pods = append(pods, cluster.Endpoint{Address: fmt.Sprintf("10.244.1.%d", i+1), Node: "a"})
	}
	for i := range 200_000 {
		odd = append(odd, cluster.Endpoint{Address: fmt.Sprintf("169.254.%d.%d", i/256%256, i%256), Node: fmt.Sprint("n", i/65536)})
	}
	for name, test := range map[string]struct {
		world              plan.Snapshot
		problems, log, all int // at most
	}{
		"400 on ClusterIP Services of the same pods": {crowd(400, pods, cluster.Service{}), 400 * 4, 40_000, 1_000_000},
		"400 odd LoadBalancer Services": {
			crowd(400, slices.Concat(pods, odd[:100]), cluster.Service{LoadBalancer: true, Ingress: []cluster.Ingress{{IP: "127.0.0.1"}, {IP: "10.0.0.11"}}}),
			400 * 10, 40_000, 1_000_000,
		},
		"200,000 odd endpoints": {crowd(1, odd, cluster.Service{}), 10, 2_000, 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			logger := slog.New(slog.NewTextHandler(&log, nil))
			var planner plan.Planner
			p, planned := planner.Plan(test.world, cluster.Everything())
			require.NotEmpty(t, planned)
			require.LessOrEqual(t, len(planned), test.problems)
			var l Log
			now := time.Now()
			problems := l.Update(logger, now, nil, planned, nil)
			require.LessOrEqual(t, log.Len(), test.log)
			require.Contains(t, log.String(), "tenant/s0")
			report, err := json.Marshal(status.From(p, problems, nil, status.Pass{}))
			require.NoError(t, err)
			require.LessOrEqual(t, len(report), test.all)

			// Objects that come and go all the time, and values that change, fill no log either.
			log.Reset()
			for range 100 {
				now = now.Add(time.Second)
				l.Update(logger, now, nil, nil, nil)
				planned = slices.Clone(planned)
				for i := range planned {
					planned[i].Value += "0"
				}
				l.Update(logger, now, nil, planned, nil)
				l.Update(logger, now, nil, planned[1:], nil)
			}
			require.LessOrEqual(t, strings.Count(log.String(), "\n"), linesAtOnce+100/10+3)
			l.Update(logger, now, nil, nil, nil)
			l.Update(logger, now.Add(time.Hour), nil, nil, nil)
			l.Update(logger, now.Add(2*time.Hour), nil, nil, nil)
			require.Empty(t, l.limits)
		})
	}
}

// The owner of a namespace who changes any of its objects in a loop fills no log. An object without a namespace has no limit.
func TestObjectsOfANamespaceShareALimit(t *testing.T) {
	kinds := []string{"Service", "EndpointSlice", "Pod"}
	for kind := range cluster.Kind(cluster.Kinds) {
		kinds = append(kinds, kind.String())
	}
	const times = 4 * linesAtOnce
	logged := func(kind, object string) int {
		var log bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&log, nil))
		var l Log
		for i := range times {
			p := cluster.Problem{Kind: kind, Object: object, Value: fmt.Sprint(i), Reason: cluster.ReasonInvalidValue}
			l.Update(logger, time.Unix(1000, 0), nil, []cluster.Problem{p}, nil)
		}
		return strings.Count(log.String(), "\n")
	}
	for _, kind := range kinds {
		require.LessOrEqual(t, logged(kind, "tenant/default"), linesAtOnce+1, kind)
	}
	require.Greater(t, logged("EgressIP", "web"), times)
	require.Greater(t, logged("Config", "conf/egressway.yaml"), times, "a path has no namespace")
}

// A problem that says something else of the same field is another one.
func TestAnotherMessageIsLogged(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	var l Log
	for _, message := range []string{"its Service has no IPv4 ingress IP", "its Service has no usable ingress IP yet"} {
		l.Update(logger, time.Now(), nil, []cluster.Problem{{Kind: "EgressService", Object: "shop/web", Reason: cluster.ReasonNoIngressIP, Message: message}}, nil)
		require.Equal(t, 1, strings.Count(log.String(), message))
	}
}

// A problem is logged once for each object and reason. Problems of the node are logged one by one, however many there are.
func TestProblemsAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	var l Log
	of := func(kind, object, value string, reason cluster.Reason) cluster.Problem {
		return cluster.Problem{Kind: kind, Object: object, Value: value, Reason: reason, Message: "is odd"}
	}
	lines := func() (lines []string) {
		for line := range strings.Lines(log.String()) {
			_, line, _ = strings.Cut(line, "level=")
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
		log.Reset()
		return lines
	}
	web := of("EgressService", "shop/web", "1", "Odd")
	l.Update(logger, time.Now(), nil, []cluster.Problem{web, of("EgressService", "shop/web", "2", "Odd"), of("EgressService", "shop/web", "1", "Even")}, nil)
	require.Equal(t, []string{
		`WARN msg=problem kind=EgressService object=shop/web reason=Even problem="EgressService shop/web: \"1\": is odd"`,
		`WARN msg=problem kind=EgressService object=shop/web reason=Odd problem="EgressService shop/web: \"1\": is odd" more=1`,
	}, lines())
	counted := web
	counted.More = 7
	l.Update(logger, time.Now(), nil, []cluster.Problem{counted}, nil)
	require.Equal(t, []string{`INFO msg="problem gone" kind=EgressService object=shop/web reason=Even`}, lines())
	l.Update(logger, time.Now(), nil, []cluster.Problem{of("EgressService", "shop/web", "3", "Odd")}, nil)
	require.Equal(t, []string{`WARN msg=problem kind=EgressService object=shop/web reason=Odd problem="EgressService shop/web: \"3\": is odd"`}, lines())
	var node []cluster.Problem
	for i := range 2 * linesAtOnce {
		node = append(node, of("Node", "a", fmt.Sprint(i), "Odd"))
	}
	l.Update(logger, time.Now(), nil, []cluster.Problem{of("EgressService", "shop/web", "3", "Odd")}, node)
	require.Len(t, lines(), len(node))
	l.Update(logger, time.Now(), nil, nil, nil)
	require.Len(t, lines(), len(node)+1)
}
