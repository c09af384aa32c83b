package plan_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/election"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/plan/show"
	"github.com/egressway/egressway/lab/stories"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestStories compares plans with those in testdata. Every folder is a story: its description (story.md), the input, and
// the plan of each node of interest (NODE.txt). NODE.facts.yaml holds the kernel's facts of a node, which are assumed without
// it; NODE.state.yaml that it drains or leaves, and in which networks announcements are held down. UPDATE_GOLDEN=1 rewrites the plans; an empty NODE.txt starts a new one.
func TestStories(t *testing.T) {
	goldens, err := filepath.Glob("testdata/*/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, goldens)
	for _, golden := range goldens {
		dir, file := filepath.Split(golden)
		node := strings.TrimSuffix(file, ".txt")
		t.Run(filepath.Base(dir)+"/"+node, func(t *testing.T) {
			require.FileExists(t, dir+"story.md")
			s, problems := story(t, dir, node)
			desired, found := plan.Build(s)
			for i, p := range problems {
				problems[i].Where = strings.TrimPrefix(p.Where, dir)
			}
			var got bytes.Buffer
			require.NoError(t, show.Plan(&got, desired, cluster.SortProblems(append(problems, found...))))
			for line := range strings.Lines(got.String()) {
				require.Equal(t, strings.TrimRight(line, " \n"), strings.TrimSuffix(line, "\n"), "blanks at the end")
			}
			if os.Getenv("UPDATE_GOLDEN") != "" {
				require.NoError(t, os.WriteFile(golden, got.Bytes(), 0o600))
				return
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), got.String())
		})
	}
}

// story reads a folder as node sees it.
func story(t *testing.T, dir, node string) (plan.Snapshot, []cluster.Problem) {
	t.Helper()
	s, err := stories.Read(dir, node)
	require.NoError(t, err)
	return s.Snapshot, s.Problems
}

// TestFormerHost expects a standby that could not be elected to ask routers for another path (RFC 8326).
func TestFormerHost(t *testing.T) {
	key := cluster.Key{Namespace: "shop", Name: "web"}
	for name, c := range map[string]struct {
		change   func(*plan.Snapshot)
		shutdown bool
	}{
		"standby":  {func(*plan.Snapshot) {}, false},
		"draining": {func(s *plan.Snapshot) { s.Draining = true }, true},
		"cordoned": {func(s *plan.Snapshot) {
			n := s.Objects.Nodes.At("a")
			n.Cordoned = true
			s.Objects.Nodes = s.Objects.Nodes.With("a", n)
		}, true},
		"not selected": {func(s *plan.Snapshot) {
			e := s.Objects.EgressServices.At(key)
			e.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "2"}}
			s.Objects.EgressServices = s.Objects.EgressServices.With(key, e)
		}, true},
		"host": {func(s *plan.Snapshot) {
			s.Draining, s.Hosts[election.ServiceSeat(key)] = true, election.Choice{Host: "a", Standby: "b", Term: 2}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := story(t, "testdata/one-service", "a")
			s.Hosts[election.ServiceSeat(key)] = election.Choice{Host: "b", Standby: "a", Term: 2}
			c.change(&s)
			desired, _ := plan.Build(s)
			require.Len(t, desired.Speakers, 1)
			require.Equal(t, 2, desired.Speakers[0].Announce.Len())
			for a := range desired.Speakers[0].Announce.All() {
				require.Equal(t, c.shutdown, a.Shutdown, "%+v", a)
			}
		})
	}
}
