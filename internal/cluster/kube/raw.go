package kube

import (
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	egressv1 "github.com/egressway/egressway/api/v1"
	"github.com/egressway/egressway/internal/cluster"
)

// rawEgressService is an EgressService whose spec and status are still to be decoded. A CRD admits values that Go's
// types reject, such as times with a lower-case t; decoded at once, one such object would make the whole list fail.
type rawEgressService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   json.RawMessage `json:"spec"`
	Status json.RawMessage `json:"status"`
}

type rawEgressServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []rawEgressService `json:"items"`
}

// DeepCopyObject makes it a runtime.Object.
func (r *rawEgressService) DeepCopyObject() runtime.Object {
	c := &rawEgressService{TypeMeta: r.TypeMeta, Spec: slices.Clone(r.Spec), Status: slices.Clone(r.Status)}
	r.ObjectMeta.DeepCopyInto(&c.ObjectMeta)
	return c
}

// DeepCopyObject makes it a runtime.Object.
func (l *rawEgressServiceList) DeepCopyObject() runtime.Object {
	c := &rawEgressServiceList{TypeMeta: l.TypeMeta}
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].DeepCopyObject().(*rawEgressService))
	}
	return c
}

// rawScheme returns a scheme that decodes EgressServices as rawEgressService.
func rawScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypeWithName(egressv1.GroupVersion.WithKind("EgressService"), &rawEgressService{})
	s.AddKnownTypeWithName(egressv1.GroupVersion.WithKind("EgressServiceList"), &rawEgressServiceList{})
	metav1.AddToGroupVersion(s, egressv1.GroupVersion)
	return s
}

// decode returns the EgressService, with a Problem for each part that cannot be decoded. A bad status keeps its host,
// standby and term if these can be decoded; the leader replaces it. ok is false if the spec is bad.
func (r *rawEgressService) decode() (o *egressv1.EgressService, problems []cluster.Problem, ok bool) {
	o = &egressv1.EgressService{ObjectMeta: r.ObjectMeta}
	wrong := func(field string, err error) {
		problems = append(problems, cluster.Problem{
			Kind: "EgressService", Object: r.Namespace + "/" + r.Name, Field: field, Reason: cluster.ReasonInvalidValue,
			Message: "cannot be read: " + err.Error(),
		})
	}
	if err := decode(r.Spec, &o.Spec); err != nil {
		wrong("spec", err)
		return o, problems, false
	}
	if err := decode(r.Status, &o.Status); err != nil {
		wrong("status", err)
		var part struct {
			Host    string `json:"host"`
			Standby string `json:"standby"`
			Term    int64  `json:"term"`
		}
		o.Status = egressv1.EgressServiceStatus{}
		if decode(r.Status, &part) == nil {
			o.Status.Host, o.Status.Standby, o.Status.Term = part.Host, part.Standby, part.Term
		}
	}
	return o, problems, true
}

func decode(text json.RawMessage, into any) error {
	if len(text) == 0 {
		return nil
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(text, into)
}
