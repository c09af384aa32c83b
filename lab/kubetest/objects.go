package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/util/retry"
)

// fieldManager owns the fields that Apply sets.
const fieldManager = "kubetest"

var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// objects finds objects of any kind.
type objects struct {
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newObjects(c *rest.Config) (*objects, error) {
	client, err := dynamic.NewForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	d, err := discovery.NewDiscoveryClientForConfig(c)
	if err != nil {
		return nil, fmt.Errorf("make discovery client: %w", err)
	}
	return &objects{client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d))}, nil
}

// of is where an object lives; one without a namespace lives in default if it has to live in one.
func (o *objects) of(u *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := u.GroupVersionKind()
	// A kind that is not known may be that of a new CRD: the mapper looks again by itself.
	m, err := o.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() != meta.RESTScopeNameNamespace {
		return o.client.Resource(m.Resource), nil
	}
	if u.GetNamespace() == "" {
		u.SetNamespace(metav1.NamespaceDefault)
	}
	return o.client.Resource(m.Resource).Namespace(u.GetNamespace()), nil
}

// Apply makes objects from YAML documents, one after the other. Fields of an earlier Apply that this one lacks are
// removed; of a status, the given fields are set, others stay. It returns when their CRDs are served.
func (a *API) Apply(ctx context.Context, documents ...string) error {
	return each(documents, func(u *unstructured.Unstructured) error {
		if err := a.objects.apply(ctx, u); err != nil {
			return fmt.Errorf("apply %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
		}
		if u.GroupVersionKind().GroupKind() == (schema.GroupKind{Group: crds.Group, Kind: "CustomResourceDefinition"}) {
			return a.AwaitCRD(ctx, u.GetName())
		}
		return nil
	})
}

func (o *objects) apply(ctx context.Context, u *unstructured.Unstructured) error {
	where, err := o.of(u)
	if err != nil {
		return err
	}
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
	status, has, err := unstructured.NestedMap(u.Object, "status")
	if err != nil {
		return err
	}
	delete(u.Object, "status")
	if _, err := where.Apply(ctx, u.GetName(), u, options); err != nil || !has {
		return err
	}
	// Not an apply: a node's addresses have their type as key, and a node in both families has two addresses of one
	// type.
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, err := where.Get(ctx, u.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		whole, _, err := unstructured.NestedMap(now.Object, "status")
		if err != nil {
			return err
		}
		if whole == nil {
			whole = map[string]any{}
		}
		maps.Copy(whole, status)
		now.Object["status"] = whole
		_, err = where.UpdateStatus(ctx, now, metav1.UpdateOptions{FieldManager: fieldManager})
		return err
	})
}

// Delete deletes the objects that the given YAML documents name.
func (a *API) Delete(ctx context.Context, documents ...string) error {
	return each(documents, func(u *unstructured.Unstructured) error {
		where, err := a.objects.of(u)
		if err == nil {
			err = where.Delete(ctx, u.GetName(), metav1.DeleteOptions{})
		}
		if err != nil {
			return fmt.Errorf("delete %s %s/%s: %w", u.GetKind(), u.GetNamespace(), u.GetName(), err)
		}
		return nil
	})
}

// AwaitCRD waits until a CRD's objects can be asked for: name is that of the CRD, plural.group.
func (a *API) AwaitCRD(ctx context.Context, name string) error {
	const every, limit = 20 * time.Millisecond, 30 * time.Second
	err := wait.PollUntilContextTimeout(ctx, every, limit, true, func(ctx context.Context) (bool, error) {
		crd, err := a.objects.client.Resource(crds).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		// They are null at first, which counts as none.
		conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Established" && c["status"] == "True" {
				return a.served(ctx, crd)
			}
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("CRD %s is not served: %w", name, err)
	}
	return nil
}

// served reports whether discovery knows an established CRD's kind: it learns a moment later.
func (a *API) served(ctx context.Context, crd *unstructured.Unstructured) (bool, error) {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
	a.objects.mapper.Reset()
	if _, err := a.objects.mapper.RESTMapping(schema.GroupKind{Group: group, Kind: kind}); err != nil {
		if meta.IsNoMatchError(err) {
			return false, nil
		}
		return false, err
	}
	return ctx.Err() == nil, nil
}

// each does f for every object in YAML documents, until one fails.
func each(documents []string, f func(*unstructured.Unstructured) error) error {
	for _, text := range documents {
		in := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096)
		for {
			u := &unstructured.Unstructured{}
			err := in.Decode(&u.Object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return fmt.Errorf("decode document: %w", err)
			}
			if len(u.Object) == 0 {
				continue
			}
			if err := f(u); err != nil {
				return err
			}
		}
	}
	return nil
}

// Names returns the objects in YAML documents, as kind namespace/name.
func Names(documents ...string) (names []string, err error) {
	err = each(documents, func(u *unstructured.Unstructured) error {
		names = append(names, fmt.Sprintf("%s %s/%s", u.GroupVersionKind().GroupKind(), u.GetNamespace(), u.GetName()))
		return nil
	})
	return names, err
}

// Get reads the object that a YAML document names into a value of its Go type.
func (a *API) Get(ctx context.Context, document string, into any) error {
	return each([]string{document}, func(u *unstructured.Unstructured) error {
		where, err := a.objects.of(u)
		if err != nil {
			return err
		}
		found, err := where.Get(ctx, u.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		return runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, into)
	})
}

// List reads all objects of the kind that a YAML document names into a list of its Go type.
func (a *API) List(ctx context.Context, document string, into any) error {
	return each([]string{document}, func(u *unstructured.Unstructured) error {
		m, err := a.objects.mapper.RESTMapping(u.GroupVersionKind().GroupKind(), u.GroupVersionKind().Version)
		if err != nil {
			return err
		}
		found, err := a.objects.client.Resource(m.Resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		return runtime.DefaultUnstructuredConverter.FromUnstructured(found.UnstructuredContent(), into)
	})
}
