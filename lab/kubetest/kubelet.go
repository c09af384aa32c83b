package kubetest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// Exec runs a command in a container of a pod, and returns what an exec.Cmd does.
type Exec func(ctx context.Context, pod, container string, command []string, out, errs io.Writer) error

// Kubelet serves exec on a listener as a kubelet does, by Kubernetes' own streams, until it is closed.
func Kubelet(on net.Listener, run Exec) *httptest.Server {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		part := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/") // exec/NAMESPACE/POD/CONTAINER
		if len(part) != 4 || part[0] != "exec" {
			http.NotFound(w, r)
			return
		}
		of, hangUp := streams(w, r)
		if of == nil {
			return // it has been answered
		}
		defer hangUp()
		err := run(r.Context(), part[2], part[3], r.URL.Query()["command"], of[corev1.StreamTypeStdout], of[corev1.StreamTypeStderr])
		_ = json.NewEncoder(of[corev1.StreamTypeError]).Encode(outcome(err))
	}))
	_ = server.Listener.Close()
	server.Listener = on
	server.StartTLS()
	return server
}

// streams accepts the streams of an exec by their types.
func streams(w http.ResponseWriter, r *http.Request) (of map[string]httpstream.Stream, hangUp func()) {
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil, nil
	}
	const wanted = 3
	opened := make(chan httpstream.Stream, wanted)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		opened <- s
		return nil
	})
	if conn == nil {
		return nil, nil
	}
	of = map[string]httpstream.Stream{}
	for len(of) < wanted {
		select {
		case s := <-opened:
			of[s.Headers().Get(corev1.StreamType)] = s
		case <-conn.CloseChan():
			return nil, nil
		}
	}
	return of, func() { _ = conn.Close() }
}

// outcome describes the end of a command to the client.
func outcome(err error) metav1.Status {
	s := metav1.Status{Status: metav1.StatusSuccess}
	if err == nil {
		return s
	}
	s.Status, s.Reason, s.Message = metav1.StatusFailure, metav1.StatusReasonInternalError, err.Error()
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) {
		s.Reason = remotecommand.NonZeroExitCodeReason
		s.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{
			Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(ended.ExitCode()),
		}}}
	}
	return s
}
