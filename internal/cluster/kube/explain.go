package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
)

// Reasons of problems with the API server.
const (
	ReasonBadKubeconfig  cluster.Reason = "BadKubeconfig"
	ReasonUnreachable    cluster.Reason = "Unreachable"
	ReasonUntrusted      cluster.Reason = "UntrustedServer"
	ReasonExpired        cluster.Reason = "CertificateExpired"
	ReasonClockSkew      cluster.Reason = "ClockSkew"
	ReasonUnauthorized   cluster.Reason = "Unauthorized"
	ReasonForbidden      cluster.Reason = "Forbidden"
	ReasonCRDMissing     cluster.Reason = "CRDMissing"
	ReasonNotServed      cluster.Reason = "NotServed"
	ReasonServerFails    cluster.Reason = "ServerFails"
	ReasonListDoubted    cluster.Reason = "ListDoubted"
	ReasonUnintelligible cluster.Reason = "Unintelligible"
)

const kindAPI = "API"

// egressResource is how kubectl names EgressServices, and the name of their CRD.
const egressResource = "egressservices." + egressv1.GroupName

// explain returns the Problem for an error of a request for a resource, such as "services", with its remedy. It returns
// nil for errors that a different request avoids.
func explain(server, resource string, err error) *cluster.Problem {
	p := cluster.Problem{Kind: kindAPI, Object: "server " + server}
	say := func(reason cluster.Reason, format string, args ...any) *cluster.Problem {
		p.Reason, p.Message = reason, fmt.Sprintf(format, args...)
		return &p
	}
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return explainTransport(say, err)
	}
	switch text := status.Status().Message; {
	case again(err):
		return nil
	case apierrors.IsUnauthorized(err):
		return say(ReasonUnauthorized, "it does not accept this daemon's credentials: "+
			"its token or certificate is wrong, expired or revoked; renew it in the kubeconfig, or restart the pod")
	case apierrors.IsForbidden(err):
		p.Object = resource
		switch {
		case resource == podResource:
			return say(ReasonForbidden, "%s; hold in the configuration, and objects that select pods, need this right: apply the "+
				"ClusterRole that comes with Egressway; with hold, add the kustomize component hold, or let the chart have hold in "+
				"its value config", text)
		case isCustom(resource) && resource != egressResource:
			return say(ReasonForbidden, "%s; apply the ClusterRole that comes with Egressway, or switch this kind off by kinds in the "+
				"configuration", text)
		}
		return say(ReasonForbidden, "%s; apply the ClusterRole that comes with Egressway, and bind it to this daemon's account", text)
	case apierrors.IsNotFound(err) && isCustom(resource):
		return missingCRD(resource)
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err), apierrors.IsNotAcceptable(err):
		p.Object = resource
		return say(ReasonNotServed, "%s does not serve them (%s): it is no Kubernetes API server, or too old a one", server, text)
	default:
		return say(ReasonServerFails, "it answers with an error (%s): look at its log", text)
	}
}

// isCustom reports whether a resource is one of our API group, named as its CRD is.
func isCustom(resource string) bool { return strings.HasSuffix(resource, "."+egressv1.GroupName) }

// missingCRD returns the Problem of a CRD that is not installed. Without that of an optional kind, only objects that were in force
// before are one.
func missingCRD(crd string) *cluster.Problem {
	p := cluster.Problem{
		Kind: kindAPI, Object: crd, Reason: ReasonCRDMissing,
		Message: "this CRD is not installed: apply it, it comes with Egressway; what is in force stays",
	}
	if crd != egressResource {
		p.Message = "this CRD was deleted, and its objects with it: what they had in force stays; apply the CRD and the objects again, " +
			"or switch this kind off by kinds in the configuration"
	}
	return &p
}

// again reports whether the reflector recovers by asking in another way: the requested version is too old or too new
// for the server.
func again(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// explainTransport explains why there is no answer, or none that can be decoded.
func explainTransport(say func(cluster.Reason, string, ...any) *cluster.Problem, err error) *cluster.Problem {
	const unreachable = "it does not answer (%s): what is in force stays; see that it runs, and that this node reaches it"
	var (
		dns       *net.DNSError
		errno     syscall.Errno
		timeout   net.Error
		authority x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		name      x509.HostnameError
		alert     tls.AlertError
		record    tls.RecordHeaderError
	)
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return explainDates(say, invalid.Cert, time.Now())
	case errors.As(err, &authority), errors.As(err, &invalid), errors.As(err, &name):
		return say(ReasonUntrusted, "its certificate is not to be trusted (%s): "+
			"put its authority, and a name that is in its certificate, into the kubeconfig", innermost(err))
	case errors.As(err, &alert):
		return say(ReasonUnauthorized, "it does not accept this daemon's certificate (%s): renew it in the kubeconfig", alert)
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch),
		strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return say(ReasonUntrusted, "it does not speak TLS: it is no Kubernetes API server, or the port in the kubeconfig is wrong")
	case errors.As(err, &dns) && dns.IsNotFound:
		return say(ReasonUnreachable, unreachable, "there is no host "+dns.Name)
	case errors.As(err, &errno):
		return say(ReasonUnreachable, unreachable, errno)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return say(ReasonUnreachable, unreachable, "no answer in time")
	case errors.As(err, &timeout), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), isLost(err):
		return say(ReasonUnreachable, unreachable, "the connection was lost")
	default:
		return say(ReasonUnintelligible, "its answer cannot be read: %s", err)
	}
}

// isLost recognizes errors of the HTTP/2 client about a closed connection: they have no types, only texts.
func isLost(err error) bool {
	return slices.ContainsFunc([]string{"http2: ", "client connection lost", "connection reset by peer", "unexpected EOF"},
		func(part string) bool { return strings.Contains(err.Error(), part) })
}

// explainDates explains why a certificate is not valid now: by its dates, or by this node's clock.
func explainDates(say func(cluster.Reason, string, ...any) *cluster.Problem, cert *x509.Certificate, now time.Time) *cluster.Problem {
	if now.Before(cert.NotBefore) {
		return say(ReasonClockSkew, "its certificate is not valid before %s, but this node's clock is before that: set the clock",
			cert.NotBefore.UTC().Format(time.RFC3339))
	}
	return say(ReasonExpired, "its certificate was valid until %s, by this node's clock: renew the certificate, or set the clock",
		cert.NotAfter.UTC().Format(time.RFC3339))
}

// explainSkew returns the Problem of a server whose clock is ahead of this node's by more than skewMost, or behind;
// otherwise nil.
func explainSkew(server string, ahead time.Duration) *cluster.Problem {
	if ahead.Abs() <= skewMost {
		return nil
	}
	where := "ahead of"
	if ahead < 0 {
		where = "behind"
	}
	return &cluster.Problem{
		Kind: kindAPI, Object: "server " + server, Reason: ReasonClockSkew, Message: fmt.Sprintf(
			"its clock is %s %s this node's: certificates and tokens may be refused; synchronize both",
			ahead.Abs().Round(time.Second), where),
	}
}

// explainAccess returns the Problem of a kubeconfig, or of the service account if kubeconfig is empty; nil without an
// error.
func explainAccess(kubeconfig string, err error) *cluster.Problem {
	if err == nil {
		return nil
	}
	p := &cluster.Problem{Kind: kindAPI, Object: "kubeconfig " + kubeconfig, Reason: ReasonBadKubeconfig}
	var file *fs.PathError
	switch {
	case errors.Is(err, rest.ErrNotInCluster):
		p.Object = "kubeconfig"
		p.Message = "none is configured, and this is not a pod: set source.kubernetes.kubeconfig"
	case errors.As(err, &file):
		p.Message = fmt.Sprintf("%s cannot be read (%s): put it there", file.Path, file.Err)
	default:
		p.Message = fmt.Sprintf("it cannot be used (%s): correct it", innermost(err))
	}
	if kubeconfig == "" && p.Object != "kubeconfig" {
		p.Object = "service account"
	}
	return p
}

// innermost returns the text of the innermost wrapped error.
func innermost(err error) string {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err.Error()
}

// Keys of problems that no kind of object has.
const (
	aboutAccess = "access"
	aboutClock  = "clock"
)

// complaints holds the problems with the API server, each under the key of the request or check that found it.
type complaints struct {
	mu      sync.Mutex
	by      map[string]cluster.Problem
	changes int               // counts changes of by
	logged  []cluster.Problem // logged here; from the first snapshot on, the caller of Objects logs problems
}

// complain sets or, with nil, withdraws the Problem under a key. If another key has an alike Problem, its text is used
// for both, so that the same trouble is reported once.
func (c *Cluster) complain(about string, p *cluster.Problem) {
	if !c.complaints.set(about, p) {
		return
	}
	c.complaints.log(c.log, !c.synced.Load())
	c.wake()
}

// set sets or withdraws the Problem of complain, and reports whether that changed anything.
func (c *complaints) set(about string, p *cluster.Problem) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	former, had := c.by[about]
	if p == nil {
		if delete(c.by, about); had {
			c.changes++
		}
		return had
	}
	said := *p
	for _, other := range c.by {
		if alike(other, *p) {
			said = other
		}
	}
	c.by[about] = said
	if changed = !had || former != said; changed {
		c.changes++
	}
	return changed
}

// alike reports whether two Problems stand for the same trouble: a server whose requests time out refuses connections
// next.
func alike(a, b cluster.Problem) bool {
	if a.Reason == ReasonBadKubeconfig {
		return a == b // only one key has it, and each error needs its own remedy
	}
	return a.Object == b.Object && a.Reason == b.Reason
}

// count returns how often the problems have changed.
func (c *complaints) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes
}

// all returns the problems, sorted and without duplicates.
func (c *complaints) all() []cluster.Problem {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.each()
}

func (c *complaints) each() []cluster.Problem {
	return cluster.SortProblems(slices.Collect(maps.Values(c.by)))
}

// log writes new problems to the log if ours, and problems that are gone if it had logged them. Once there is a
// snapshot, the caller of Objects logs problems.
func (c *complaints) log(to *slog.Logger, ours bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.each()
	for _, p := range now {
		if ours && !slices.Contains(c.logged, p) {
			to.Warn("problem", "kind", p.Kind, "object", p.Object, "reason", p.Reason, "problem", p.Error())
			c.logged = append(c.logged, p)
		}
	}
	c.logged = slices.DeleteFunc(c.logged, func(p cluster.Problem) bool {
		gone := !slices.Contains(now, p)
		if gone {
			to.Info("problem gone", "kind", p.Kind, "object", p.Object, "reason", p.Reason)
		}
		return gone
	})
}
