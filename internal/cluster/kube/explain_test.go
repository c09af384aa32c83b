package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
)

func TestExplain(t *testing.T) {
	services, egress := schema.GroupResource{Resource: "services"}, schema.GroupResource{Group: "k8s.ovn.org", Resource: "egressservices"}
	get := func(err error) error { return &url.Error{Op: "Get", URL: "https://api:6443/api/v1/services", Err: err} }
	dial := func(err error) error { return get(&net.OpError{Op: "dial", Net: "tcp", Err: err}) }
	trust := func(err error) error { return get(&tls.CertificateVerificationError{Err: err}) }
	dates := func(begin, end time.Duration) *x509.Certificate {
		return &x509.Certificate{NotBefore: time.Now().Add(begin), NotAfter: time.Now().Add(end)}
	}
	const server = "server https://api:6443"
	for name, test := range map[string]struct {
		err    error
		object string
		reason cluster.Reason
		words  string
	}{
		"unauthorized":   {apierrors.NewUnauthorized("Unauthorized"), server, ReasonUnauthorized, "renew it"},
		"forbidden":      {apierrors.NewForbidden(services, "", errors.New(`User "x" cannot list resource "services"`)), "services", ReasonForbidden, `User "x" cannot list`},
		"no CRD":         {apierrors.NewNotFound(egress, ""), egressResource, ReasonCRDMissing, "apply it"},
		"no kind":        {apierrors.NewNotFound(services, ""), "services", ReasonNotServed, "no Kubernetes API server"},
		"busy":           {apierrors.NewTooManyRequests("later", 1), server, ReasonServerFails, "later"},
		"internal error": {apierrors.NewInternalError(errors.New("etcd")), server, ReasonServerFails, "etcd"},
		"refused":        {dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), server, ReasonUnreachable, "(connection refused)"},
		"no route":       {dial(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), server, ReasonUnreachable, "(no route to host)"},
		"no name":        {dial(&net.DNSError{Name: "api", IsNotFound: true}), server, ReasonUnreachable, "there is no host api"},
		"resolver":       {dial(&net.DNSError{Name: "api", IsTimeout: true}), server, ReasonUnreachable, "in time"},
		"deadline":       {get(context.DeadlineExceeded), server, ReasonUnreachable, "in time"},
		"TLS timeout":    {get(os.ErrDeadlineExceeded), server, ReasonUnreachable, "in time"},
		"end":            {get(io.EOF), server, ReasonUnreachable, "lost"},
		"HTTP/2":         {get(errors.New("http2: client connection lost")), server, ReasonUnreachable, "lost"},
		"authority":      {trust(x509.UnknownAuthorityError{}), server, ReasonUntrusted, "unknown authority"},
		"name":           {trust(x509.HostnameError{Certificate: &x509.Certificate{DNSNames: []string{"other"}}, Host: "api"}), server, ReasonUntrusted, "not api"},
		"not yet":        {trust(x509.CertificateInvalidError{Cert: dates(time.Hour, 2*time.Hour), Reason: x509.Expired}), server, ReasonClockSkew, "set the clock"},
		"expired":        {trust(x509.CertificateInvalidError{Cert: dates(-2*time.Hour, -time.Hour), Reason: x509.Expired}), server, ReasonExpired, "was valid until"},
		"own expired":    {get(&net.OpError{Op: "remote error", Err: tls.AlertError(45)}), server, ReasonUnauthorized, "expired certificate"},
		"no TLS":         {get(http.ErrSchemeMismatch), server, ReasonUntrusted, "does not speak TLS"},
		"gibberish":      {fmt.Errorf("couldn't get version/kind; json parse error: %w", errors.New("invalid character 'x'")), server, ReasonUnintelligible, "invalid character"},
	} {
		t.Run(name, func(t *testing.T) {
			resource := "services"
			if test.object == egressResource {
				resource = egressResource
			}
			p := explain("https://api:6443", resource, test.err)
			require.NotNil(t, p)
			require.Equal(t, test.object, p.Object)
			require.Equal(t, test.reason, p.Reason, p.Message)
			require.Contains(t, p.Message, test.words)
			require.Equal(t, kindAPI, p.Kind)
		})
	}
	require.Nil(t, explain("", "services", apierrors.NewResourceExpired("too old")))
	require.Nil(t, explain("", "services", &apierrors.StatusError{ErrStatus: metav1.Status{
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}},
	}}))
}

func TestExplainAccess(t *testing.T) {
	require.Nil(t, explainAccess("f", nil))
	for name, test := range map[string]struct {
		file string
		err  error
		want string
	}{
		"no file":    {"f", &os.PathError{Op: "open", Path: "f", Err: syscall.ENOENT}, "API kubeconfig f: f cannot be read (no such file or directory): put it there"},
		"no account": {"", &os.PathError{Op: "open", Path: "token", Err: syscall.ENOENT}, "API service account: token cannot be read (no such file or directory): put it there"},
		"no cluster": {"", rest.ErrNotInCluster, "API kubeconfig: none is configured, and this is not a pod: set source.kubernetes.kubeconfig"},
		"not YAML":   {"f", fmt.Errorf("error loading: %w", errors.New("yaml: bad")), "API kubeconfig f: it cannot be used (yaml: bad): correct it"},
	} {
		t.Run(name, func(t *testing.T) {
			p := explainAccess(test.file, test.err)
			require.Equal(t, test.want, p.Error())
			require.Equal(t, ReasonBadKubeconfig, p.Reason)
		})
	}
}

// kubeconfigs checks that each fault of a kubeconfig is reported on one line, and that a better file ends it.
func (s *site) kubeconfigs(t *testing.T) {
	change := func(f func(c *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo)) []byte {
		config, err := clientcmd.Load(s.Kubeconfig())
		require.NoError(t, err)
		for _, c := range config.Clusters {
			for _, u := range config.AuthInfos {
				f(c, u)
			}
		}
		text, err := clientcmd.Write(*config)
		require.NoError(t, err)
		return text
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	file := fileOf(t, nil)
	require.NoError(t, os.Remove(file))
	r := read(t, file)
	write := func(text []byte) {
		t.Helper()
		require.NoError(t, os.WriteFile(file+".new", text, 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	require.Contains(t, r.untilProblem(t, "kubeconfig "+file, ReasonBadKubeconfig), "no such file")
	write([]byte("{"))
	r.until(t, "not YAML", func(_ cluster.Objects, problems []cluster.Problem, _ bool) bool {
		return len(problems) == 1 && problems[0].Reason == ReasonBadKubeconfig && strings.Contains(problems[0].Message, "cannot be used")
	})
	for _, bad := range []struct {
		text   []byte
		reason cluster.Reason
	}{
		{change(func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			c.Server = "https://" + listener.Addr().String()
		}), ReasonUnreachable},
		{change(func(c *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) { c.CertificateAuthorityData = nil }), ReasonUntrusted},
		{change(func(_ *clientcmdapi.Cluster, u *clientcmdapi.AuthInfo) { *u = clientcmdapi.AuthInfo{Token: "wrong"} }), ReasonUnauthorized},
	} {
		write(bad.text)
		r.untilProblem(t, "server ", bad.reason)
		r.until(t, "only that", func(_ cluster.Objects, problems []cluster.Problem, _ bool) bool { return len(problems) == 1 })
		require.Equal(t, 1, r.log.count("level=WARN", string(bad.reason)), r.log)
	}
	write(s.Kubeconfig())
	r.untilWell(t)
	require.Equal(t, 5, r.log.count("problem gone"), r.log)

	// A bad file later changes only the Problem.
	write([]byte("{"))
	r.untilProblem(t, "kubeconfig "+file, ReasonBadKubeconfig)
	s.Apply(t, webService)
	r.until(t, "heard", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool {
		_, there := o.EgressServices.Get(web)
		return there
	})
	s.Delete(t, webService)
	write(s.Kubeconfig())
	r.untilWell(t)
}

// forbidden checks that a missing permission is named, and used once it is granted.
func (s *site) forbidden(t *testing.T) {
	const role = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules: [{apiGroups: ["", discovery.k8s.io, networking.k8s.io, k8s.ovn.org, coordination.k8s.io], resources: [%s], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: default}]
`
	const most = "services, nodes, namespaces, egressservices, servicecidrs, leases, events"
	s.Apply(t, fmt.Sprintf(role, most))
	_, kubeconfig := s.ServiceAccountConfig(t, "default", "reader")
	r := read(t, fileOf(t, kubeconfig))
	message := r.untilProblem(t, "endpointslices.discovery.k8s.io", ReasonForbidden)
	require.Contains(t, message, `User "system:serviceaccount:default:reader" cannot`)
	s.Apply(t, fmt.Sprintf(role, most+", endpointslices"))
	r.untilWell(t)
	require.Equal(t, 1, r.log.count("level=WARN", "endpointslices"), r.log)
	require.Equal(t, 1, r.log.count("problem gone", "endpointslices"), r.log)
	s.Apply(t, webService)
	has := func(want bool) func(cluster.Objects, []cluster.Problem, bool) bool {
		return func(o cluster.Objects, _ []cluster.Problem, _ bool) bool {
			_, there := o.EgressServices.Get(web)
			return there == want
		}
	}
	r.until(t, "there", has(true))
	s.Delete(t, webService)
	r.until(t, "gone although this daemon may not read the CRD", has(false))
	s.Apply(t, webService)

	// EgressIPs that this daemon may not list delay nothing.
	s.applyCRD(t, ipCRD)
	s.Apply(t, anEgressIP("default"))
	defer s.Delete(t, anEgressIP("default"))
	late := read(t, fileOf(t, kubeconfig))
	late.untilProblem(t, "egressips."+egressv1.GroupName, ReasonForbidden)
	late.until(t, "served without EgressIPs", func(o cluster.Objects, _ []cluster.Problem, synced bool) bool {
		_, there := o.EgressServices.Get(web)
		return synced && there && o.EgressIPs.Len() == 0
	})
	s.Apply(t, fmt.Sprintf(role, most+", endpointslices, egressips, pods"))
	late.until(t, "granted", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool {
		return o.EgressIPs.Len() == 1 && o.PodsKnown
	})
	late.untilWell(t)
}

// outage checks that known objects stay during an outage, and that changes right after it arrive.
func (s *site) outage(t *testing.T, begin, end func(testing.TB)) {
	s.Apply(t, webService)
	r := read(t, s.kubeconfig)
	r.untilWell(t)
	r.until(t, "heard", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool {
		_, there := o.EgressServices.Get(web)
		return there
	})
	before := r.objects(t)
	begin(t)
	r.untilProblem(t, "server https://", ReasonUnreachable)
	require.Equal(t, before, r.objects(t))
	end(t)
	s.Delete(t, webService)
	r.until(t, "heard", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool {
		_, there := o.EgressServices.Get(web)
		return !there
	})
	r.untilWell(t)
}

// deletedAtOnce checks that an EgressService that is deleted goes without a pause, by a CRD that is not being deleted.
func (s *site) deletedAtOnce(t *testing.T) {
	patient := impatient
	patient.deletion = 24 * time.Hour
	s.Apply(t, webService)
	r := readWith(t, patient, s.kubeconfig)
	r.untilWell(t)
	s.Delete(t, webService)
	r.until(t, "gone", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool {
		_, there := o.EgressServices.Get(web)
		return !there
	})
}

// crdDeleted checks that EgressServices stay in force when their CRD is deleted with all of them.
func (s *site) crdDeleted(t *testing.T) {
	s.Apply(t, webService)
	r := read(t, s.kubeconfig)
	r.untilWell(t)
	there := r.objects(t).EgressServices.Len()
	const many = 30
	for i := range many {
		s.Apply(t, fmt.Sprintf(`{apiVersion: k8s.ovn.org/v1, kind: EgressService, metadata: {name: web-%d, namespace: default}}`, i))
	}
	r.until(t, "all", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool { return o.EgressServices.Len() == there+many })
	before := r.objects(t).EgressServices
	s.Delete(t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: egressservices.k8s.ovn.org}}`)
	require.True(t, waitFor(t, func() bool {
		require.Len(t, maps.Collect(r.objects(t).EgressServices.All()), there+many)
		err := s.egress.Get().Resource("egressservices").Do(t.Context()).Error()
		return apierrors.IsNotFound(err)
	}))
	r.untilProblem(t, egressResource, ReasonCRDMissing)
	require.Equal(t, before, r.objects(t).EgressServices)
	s.applyCRD(t, ourCRD)
	r.until(t, "gone now", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool { return o.EgressServices.Len() == 0 })
	r.untilWell(t)
	s.Apply(t, webService)
	r.until(t, "heard", func(o cluster.Objects, _ []cluster.Problem, _ bool) bool {
		_, there := o.EgressServices.Get(web)
		return there
	})
}
