package kubetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// tokenLife is longer than any run of the lab. A cluster renews its tokens, the lab does not; the server's default is an hour.
const tokenLife = 24 * time.Hour

// ServiceAccountConfig returns the configuration, also as a kubeconfig, of a client that acts as a ServiceAccount that
// exists. It makes a token for it.
func (a *API) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, []byte, error) {
	client, err := kubernetes.NewForConfig(a.config)
	if err != nil {
		return nil, nil, fmt.Errorf("make client: %w", err)
	}
	t, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(tokenLife / time.Second))},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("make a token for ServiceAccount %s/%s: %w", namespace, name, err)
	}
	k, err := clientcmd.Load(a.kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("read kubelab's kubeconfig: %w", err)
	}
	for _, user := range k.Contexts {
		k.AuthInfos[user.AuthInfo] = &clientcmdapi.AuthInfo{Token: t.Status.Token}
	}
	kubeconfig, err := clientcmd.Write(*k)
	if err != nil {
		return nil, nil, fmt.Errorf("write kubeconfig: %w", err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	return unlimited(config), kubeconfig, nil
}

// Event is a request that the server has answered, or has begun to answer if it is a watch.
type Event struct {
	User        string // system:serviceaccount:namespace:name for a ServiceAccount
	Verb        string
	Group       string
	Resource    string // empty for a request of no object, which has a Path only
	Subresource string
	Namespace   string
	Name        string
	Path        string // with the query
	Code        int    // HTTP status
}

// Forbidden reports whether the request was refused for want of a permission.
func (e Event) Forbidden() bool { return e.Code == 403 }

// Audit returns all requests since the start, in order of their answers, except those of the server itself. A request
// may appear a moment after its answer.
func (a *API) Audit(ctx context.Context) ([]Event, error) {
	var log bytes.Buffer
	if err := a.order(ctx, "audit", &log); err != nil {
		return nil, err
	}
	var events []Event
	var ids []string
	for line := range bytes.Lines(log.Bytes()) {
		var e struct {
			AuditID, Verb, RequestURI string
			User                      struct{ Username string }
			ObjectRef                 struct{ APIGroup, Resource, Subresource, Namespace, Name string }
			ResponseStatus            struct{ Code int }
		}
		if err := json.Unmarshal(line, &e); err != nil {
			if !bytes.HasSuffix(line, []byte("\n")) {
				break // it is being written, or its writer was killed
			}
			return nil, fmt.Errorf("decode audit event %q: %w", line, err)
		}
		event := Event{
			User: e.User.Username, Verb: e.Verb, Group: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource,
			Subresource: e.ObjectRef.Subresource, Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name,
			Path: e.RequestURI, Code: e.ResponseStatus.Code,
		}
		// A watch has two entries: at its begin and at its end.
		if e.Verb == "watch" && slices.Contains(ids, e.AuditID) {
			continue
		}
		if e.Verb == "watch" {
			ids = append(ids, e.AuditID)
		}
		events = append(events, event)
	}
	return events, nil
}
