package custom

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	egressv1 "github.com/egressway/egressway/api/v1"
)

// path is the path of all CRDs.
const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// errDeleted reports that the server deletes a CRD: it marks the CRD before it deletes the first object.
var errDeleted = errors.New("the CRD is being deleted")

// definition is the part of a CRD that is read.
type definition struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Versions []struct {
			Name   string `json:"name"`
			Served bool   `json:"served"`
		} `json:"versions"`
	} `json:"spec"`
	Status struct {
		Conditions []struct {
			Type   string                 `json:"type"`
			Status metav1.ConditionStatus `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

// serves reports whether the server should serve objects by the CRD, in the version that is read here.
func (d *definition) serves() bool {
	established, version := false, false
	for _, c := range d.Status.Conditions {
		established = established || c.Type == "Established" && c.Status == metav1.ConditionTrue
	}
	for _, v := range d.Spec.Versions {
		version = version || v.Name == egressv1.GroupVersion.Version && v.Served
	}
	return established && version && d.Metadata.DeletionTimestamp == nil
}

// read returns a CRD as the server's storage has it now.
func read(ctx context.Context, api rest.Interface, crd string) (d definition, err error) {
	text, err := api.Get().AbsPath(path, crd).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return d, err //nolint:wrapcheck // an answer of the API server, which the caller explains
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("read CRD %s: %w", crd, err)
	}
	return d, nil
}

// UID returns the UID of a CRD as the server's storage has it now, unless the server deletes it.
func UID(ctx context.Context, api rest.Interface, crd string) (types.UID, error) {
	d, err := read(ctx, api, crd)
	switch {
	case err != nil:
		return "", err
	case d.Metadata.DeletionTimestamp != nil:
		return "", errDeleted
	}
	return d.Metadata.UID, nil
}

// Creatable fails unless objects of a CRD can be created: a server refuses new ones while it deletes the CRD.
func Creatable(ctx context.Context, api rest.Interface, crd string) error {
	name, _, _ := strings.Cut(crd, ".")
	group := egressv1.GroupVersion
	var kinds metav1.APIResourceList
	err := api.Get().AbsPath("/apis", group.Group, group.Version).Do(ctx).Into(&kinds)
	if apierrors.IsForbidden(err) {
		return nil // this daemon may not ask
	}
	if err != nil {
		return err //nolint:wrapcheck // as above
	}
	for _, r := range kinds.APIResources {
		if r.Name == name && slices.Contains(r.Verbs, "create") {
			return nil
		}
	}
	return apierrors.NewNotFound(group.WithResource(name).GroupResource(), "")
}

// Absent reports whether a request for the objects of a CRD failed because the server does not have the CRD, or does not serve it
// in the version that is read here. failed is the error of the request. A server that starts, and one that has just
// got the CRD, may deny objects that they have: the CRD itself decides. Without the right to list the objects, discovery decides.
func Absent(ctx context.Context, api rest.Interface, crd string, failed error) bool {
	switch {
	case apierrors.IsNotFound(failed):
		d, err := read(ctx, api, crd)
		return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || err == nil && !d.serves()
	case apierrors.IsForbidden(failed):
		return apierrors.IsNotFound(Creatable(ctx, api, crd))
	default:
		return false
	}
}

// Await waits until the server serves the objects of a CRD, by a watch of the CRD that lasts for at most a duration. It returns an
// error if there is no such watch.
func Await(ctx context.Context, api rest.Interface, crd string, most time.Duration) error {
	const slack = 10 * time.Second // the server ends the watch in time
	ctx, cancel := context.WithTimeout(ctx, most+slack)
	defer cancel()
	events, err := api.Get().AbsPath(path).SetHeader("Accept", "application/json").Param("watch", "true").
		Param("fieldSelector", metav1.ObjectNameField+"="+crd).
		Param("timeoutSeconds", fmt.Sprint(max(int(most/time.Second), 1))).Stream(ctx)
	if err != nil {
		return fmt.Errorf("watch CRD %s: %w", crd, err)
	}
	defer events.Close()
	for decoder := json.NewDecoder(events); ; {
		var event struct {
			Type   string     `json:"type"`
			Object definition `json:"object"`
		}
		if decoder.Decode(&event) != nil { // the watch has ended
			return nil
		}
		if event.Type != "DELETED" && event.Object.serves() {
			return nil
		}
	}
}
