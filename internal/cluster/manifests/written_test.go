package manifests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/lab"
)

// endpointsText returns a Service, its EgressService, and its EndpointSlice up to its endpoints; then the text of each of these.
func endpointsText(count int) (head string, each []string) {
	head = twoObjects + `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: shop
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
endpoints:
`
	for i := range count {
		each = append(each, fmt.Sprintf("- addresses: [10.244.0.%d]\n  nodeName: a\n", i+1))
	}
	return head, each
}

// look is the part of a folder that one reading found.
type look struct {
	endpoints int    // of shop/web
	network   string // of default/good
	more      int    // EgressServices beside these two
	problems  []cluster.Problem
}

// follow reads a folder whenever its watch wants that, as the daemon does, and returns the looks at it. A file counts as being written for
// as long as given.
func follow(t *testing.T, dir string, writing time.Duration) <-chan look {
	t.Helper()
	f, looks, done := Open(dir), make(chan look), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- f.watch(ctx, 10*time.Millisecond, writing, func(settled bool) time.Duration {
			if settled {
				f.Read()
			} else {
				f.Glance()
			}
			o := f.objects.handOut()
			now := look{
				endpoints: len(o.Endpoints.At(cluster.Key{Namespace: "shop", Name: "web"})), more: o.EgressServices.Len() - 2,
				network: o.EgressServices.At(cluster.Key{Namespace: "default", Name: "good"}).Network, problems: f.problems,
			}
			select {
			case looks <- now:
			case <-ctx.Done():
			}
			return f.Again()
		})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return looks
}

// until returns the first look that is as wanted, and checks each look until then.
func until(t *testing.T, looks <-chan look, wanted func(look) bool, check func(look)) look {
	t.Helper()
	for late := time.After(lab.Patience); ; {
		select {
		case l := <-looks:
			if check(l); wanted(l) {
				return l
			}
		case <-late:
			require.FailNow(t, "not seen")
		}
	}
}

// TestSlowWrite rewrites a file in place, step by step, and then writes a new one so. Half a list of endpoints is valid, but no reading
// returns fewer endpoints than before; another file, which is replaced meanwhile, counts.
func TestSlowWrite(t *testing.T) {
	head, each := endpointsText(60)
	dir := write(t, map[string]string{"web.yaml": head + strings.Join(each[:40], ""), "b.yaml": good})
	looks := follow(t, dir, time.Hour)
	all := func(endpoints int) func(look) {
		return func(l look) {
			require.GreaterOrEqual(t, l.endpoints, endpoints)
			require.Zero(t, l.more)
		}
	}
	network := 0
	beside := func() look {
		network++
		name := fmt.Sprintf("net%d", network)
		path := filepath.Join(dir, "b.yaml")
		require.NoError(t, os.WriteFile(path+".new", []byte(good+"spec: {network: "+name+"}\n"), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
		return until(t, looks, func(l look) bool { return l.network == name }, all(40))
	}
	slowly := func(name string, texts ...string) {
		f, err := os.Create(filepath.Join(dir, name))
		require.NoError(t, err)
		defer f.Close()
		for _, text := range texts {
			_, err = f.WriteString(text)
			require.NoError(t, err)
			beside()
			l := until(t, looks, func(l look) bool { return len(l.problems) > 0 }, all(40))
			require.Equal(t, cluster.ReasonInvalidFile, l.problems[0].Reason)
			require.Equal(t, name, l.problems[0].Object)
			require.Contains(t, l.problems[0].Message, "is being written")
		}
	}
	beside()
	slowly("web.yaml", "# new\n"+head, strings.Join(each[:10], ""), strings.Join(each[10:60], ""))
	until(t, looks, func(l look) bool { return l.endpoints == 60 && len(l.problems) == 0 }, all(40))

	more := strings.ReplaceAll(good, "good", "more")
	slowly("new.yaml", more, "---"+strings.ReplaceAll(good, "good", "evenmore"))
	until(t, looks, func(l look) bool { return l.more == 2 && len(l.problems) == 0 }, func(l look) {
		require.Equal(t, 60, l.endpoints)
		require.Contains(t, []int{0, 2}, l.more)
	})
}

// TestNeverClosed writes a file that stays open: it is read in the end, and again after a further change.
func TestNeverClosed(t *testing.T) {
	head, each := endpointsText(60)
	dir := write(t, map[string]string{"web.yaml": head + strings.Join(each[:10], ""), "b.yaml": good})
	looks := follow(t, dir, time.Second)
	f, err := os.Create(filepath.Join(dir, "web.yaml"))
	require.NoError(t, err)
	defer f.Close()
	write := func(text string, endpoints int) {
		_, err := f.WriteString(text)
		require.NoError(t, err)
		until(t, looks, func(l look) bool { return l.endpoints == endpoints && len(l.problems) == 0 }, func(look) {})
	}
	write("# new\n"+head+strings.Join(each[:30], ""), 30)
	write(strings.Join(each[30:], ""), 60)
}

// TestOpenFileIsNotRead checks a file that is opened while the folder is read, with content that is valid, and its next reading.
func TestOpenFileIsNotRead(t *testing.T) {
	dir := write(t, map[string]string{"a.yaml": good, "b.yaml": twoObjects})
	f, _ := open(dir)
	before, _, _ := f.Read()
	path := filepath.Join(dir, "b.yaml")
	require.NoError(t, os.WriteFile(path, []byte("# another one\n"+good+"spec: {network: red}\n"), 0o600))
	var names [][]string // of the next calls
	f.open = func() []string {
		now := names[0]
		names = names[1:]
		return now
	}
	for _, names = range [][][]string{{{"b.yaml"}, {"b.yaml"}}, {nil, {"b.yaml"}}, {{"b.yaml"}, nil}} {
		o, changed, problems := f.Read()
		require.Empty(t, names)
		require.True(t, changed.Empty(), "%v", changed)
		require.Equal(t, before, o)
		require.Len(t, problems, 2)
		require.Equal(t, path, problems[0].Where)
		require.Contains(t, problems[0].Message, "is being written")
		require.Equal(t, cluster.ReasonFormerContent, problems[1].Reason)
	}
	require.NoError(t, os.WriteFile(path, []byte(twoObjects), 0o600))
	names = [][]string{nil, nil}
	o, changed, problems := f.Read()
	require.True(t, changed.Empty(), "%v", changed)
	require.Equal(t, before, o)
	require.Empty(t, problems)
}
