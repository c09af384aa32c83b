// Package review has the API server judge who may read a path of the daemon: it says whose token a client has (TokenReview), and whether
// that user may get the path (SubjectAccessReview), as for a path of its own.
package review

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// allowedFor and refusedFor are how long a verdict holds: a scraper asks again and again, and a thousand daemons would make each
	// scrape two requests to the API server.
	allowedFor = 2 * time.Minute
	refusedFor = 10 * time.Second
	// verdictsMost bounds the verdicts that are kept.
	verdictsMost = 256
	// asksBurst and asksEvery limit the tokens that are reviewed: random ones must not load the API server.
	asksBurst = 10
	asksEvery = 200 * time.Millisecond
	// requestWithin bounds a review.
	requestWithin = 5 * time.Second
)

// ErrTooMany reports that the token is not reviewed, since too many others were.
var ErrTooMany = errors.New("too many unknown tokens: try again in a second")

// Verdict is the answer about a token.
type Verdict struct {
	User    string // empty: the API server does not accept the token
	Allowed bool
}

// Reviewer keeps verdicts for a while. Its methods may be called concurrently.
type Reviewer struct {
	asks *rate.Limiter

	mu    sync.Mutex
	known map[[sha256.Size]byte]kept
}

type kept struct {
	Verdict
	until time.Time
}

// New returns a Reviewer without verdicts.
func New() *Reviewer {
	return &Reviewer{asks: rate.NewLimiter(rate.Every(asksEvery), asksBurst), known: map[[sha256.Size]byte]kept{}}
}

// MayGet returns whether the owner of a token may get a path.
func (r *Reviewer) MayGet(ctx context.Context, client kubernetes.Interface, token, path string) (Verdict, error) {
	key, now := sha256.Sum256([]byte(path+"\x00"+token)), time.Now()
	r.mu.Lock()
	v, ok := r.known[key]
	r.mu.Unlock()
	if ok && now.Before(v.until) {
		return v.Verdict, nil
	}
	if !r.asks.Allow() {
		return Verdict{}, ErrTooMany
	}
	ctx, cancel := context.WithTimeout(ctx, requestWithin)
	defer cancel()
	verdict, err := ask(ctx, client, token, path)
	if err != nil {
		return Verdict{}, err
	}
	lasts := refusedFor
	if verdict.Allowed {
		lasts = allowedFor
	}
	r.keep(key, kept{verdict, now.Add(lasts)}, now)
	return verdict, nil
}

// keep stores a verdict. When there are too many it drops those that hold no more, and otherwise all.
func (r *Reviewer) keep(key [sha256.Size]byte, v kept, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= verdictsMost {
		for k, old := range r.known {
			if now.After(old.until) {
				delete(r.known, k)
			}
		}
	}
	if len(r.known) >= verdictsMost {
		clear(r.known)
	}
	r.known[key] = v
}

func ask(ctx context.Context, client kubernetes.Interface, token, path string) (Verdict, error) {
	who, err := client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return Verdict{}, fmt.Errorf("create TokenReview: %w", err)
	}
	if !who.Status.Authenticated {
		return Verdict{}, nil
	}
	user := who.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for k, v := range user.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	may, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return Verdict{}, fmt.Errorf("create SubjectAccessReview: %w", err)
	}
	return Verdict{User: user.Username, Allowed: may.Status.Allowed && !may.Status.Denied}, nil
}
