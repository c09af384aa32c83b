package status

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// hosting is what a daemon on node a publishes that has these hosts and standbys.
func hosting(draining bool, services ...plan.Service) Report {
	return From(&plan.NodePlan{Services: sorted.Of(services...)}, nil, nil, Pass{Began: time.Now(), Ended: time.Now(), InForce: true, Draining: draining})
}

func service(name, host, standby string) plan.Service {
	return plan.Service{Key: cluster.Key{Namespace: "shop", Name: name}, Host: host, Standby: standby}
}

func TestDrainIsForTheSocketOnly(t *testing.T) {
	s, c := withPass(t), config.Status{Socket: socketIn(t), MetricsAddress: freePort(t)}
	asked := make(chan bool, 10)
	s.OnDrain(func(yes bool) error { asked <- yes; return nil })
	serve(t, s, c)
	require.NoError(t, Drain(t.Context(), c.Socket, true))
	require.True(t, <-asked)
	require.NoError(t, Drain(t.Context(), c.Socket, false))
	require.False(t, <-asked)

	for _, method := range []string{http.MethodPost, http.MethodDelete, http.MethodPut, http.MethodGet} {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+c.MetricsAddress+"/drain", strings.NewReader("yes"))
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusNotFound, resp.StatusCode, method)
	}
	code, _ := ask(t, c.Socket, "", "/drain")
	require.Equal(t, http.StatusMethodNotAllowed, code, "a look changes nothing")
	require.Empty(t, asked)
}

func TestDrainRefused(t *testing.T) {
	s, c := withPass(t), config.Status{Socket: socketIn(t)}
	serve(t, s, c)
	require.ErrorContains(t, Drain(t.Context(), c.Socket, true), "501")
	require.ErrorIs(t, Drain(t.Context(), c.Socket+"x", true), ErrNoDaemon)
}

func TestDrainRefusedWithReason(t *testing.T) {
	s, c := withPass(t), config.Status{Socket: socketIn(t)}
	s.OnDrain(func(bool) error { return errors.New("nobody would move them") })
	serve(t, s, c)
	require.EqualError(t, Drain(t.Context(), c.Socket, true), "the daemon refuses: nobody would move them")
}

func TestHostedAndBacked(t *testing.T) {
	s := New("v", "a")
	publish(s, hosting(true, service("h", "a", "b"), service("s", "b", "a"), service("o", "b", "c"), service("n", "", ""), service("all", cluster.AllHosts, "")))
	r := s.Report()
	require.True(t, r.Draining)
	require.Equal(t, []string{"shop/h"}, r.Hosted())
	require.Equal(t, []string{"shop/s"}, r.Backed())
	var text strings.Builder
	require.NoError(t, WriteText(&text, r, false, time.Now()))
	require.Contains(t, text.String(), "Node a: ready, draining, egressway v,")
}

func TestAwait(t *testing.T) {
	s := New("v", "a")
	publish(s, hosting(true, service("h", "a", "b")))
	free := func(r Report) bool { return len(r.Hosted()) == 0 }
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.False(t, s.Await(ended, free))
	got := make(chan bool)
	go func() { got <- s.Await(t.Context(), free) }()
	publish(s, hosting(true, service("h", "a", "b"), service("i", "b", "")))
	publish(s, hosting(true, service("h", "b", "a")))
	require.True(t, <-got)
}

// TestWebPagesGiveNoOrders: a browser that reaches a forwarded socket carries out what any page asks it to.
func TestWebPagesGiveNoOrders(t *testing.T) {
	s := New("", "a")
	s.OnDrain(func(bool) error {
		t.Error("drained")
		return nil
	})
	for _, method := range []string{http.MethodPost, http.MethodDelete} {
		for name, value := range map[string]string{"Origin": "http://localhost:8080", "Sec-Fetch-Site": "same-origin"} {
			r := httptest.NewRequestWithContext(t.Context(), method, "/drain", http.NoBody)
			r.Header.Set(name, value)
			w := httptest.NewRecorder()
			s.socketMux().ServeHTTP(w, r)
			require.Equal(t, http.StatusForbidden, w.Code, "%s with %s", method, name)
		}
	}
}
