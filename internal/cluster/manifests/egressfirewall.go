package manifests

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
)

// egressFirewall reads an EgressFirewall part by part: a value of the wrong type costs its rule alone.
func (r *reading) egressFirewall(d *document) {
	var raw struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     rawJSON           `json:"spec"`
	}
	if !r.into(d, &raw) {
		return
	}
	raw.Metadata.Namespace = namespaceOr(raw.Metadata.Namespace)
	fits := true
	decode := func(field string, data []byte, into any) *cluster.Problem {
		why := d.decodePart(field, data, into)
		if why == nil {
			return nil
		}
		fits = false
		return new(why.problem(d.kind, d.object))
	}
	key, e, problems, ok := cluster.DecodeEgressFirewall(raw.Metadata, raw.Spec, decode)
	if ok && fits {
		r.intoStrictly(d, &egressv1.EgressFirewall{}) // reports fields that it does not have
	}
	if ok {
		r.claim(d, egressFirewall{key, e}, problems...)
	} else {
		r.report(d, problems...)
	}
}
