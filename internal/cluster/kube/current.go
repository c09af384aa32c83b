package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/egressway/egressway/internal/cluster"
)

// errBehind reports that the server's EgressServices differ from those that its watches have delivered.
var errBehind = errors.New("the EgressServices known here are older than the API server's")

// Current lists the EgressServices' versions and returns nil if Objects has the same, at the time of the list or later.
// It does not wait for the watch to catch up: call it again.
func (c *Cluster) Current(ctx context.Context) error {
	k := c.clients.Load()
	if k == nil {
		return errors.New("there is no connection to an API server")
	}
	var list struct {
		Items []struct {
			Metadata struct{ Namespace, Name, ResourceVersion string } `json:"metadata"`
		} `json:"items"`
	}
	// Without a resourceVersion the list is as new as the server's storage, not as its cache.
	text, err := k.raw.Get().Resource("egressservices").
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").Do(ctx).Raw()
	if err != nil {
		return fmt.Errorf("list EgressServices: %w", err)
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("list EgressServices: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.egressServices.objects.Map()
	there := make(map[cluster.Key]bool, len(list.Items))
	for _, i := range list.Items {
		key := cluster.Key{Namespace: i.Metadata.Namespace, Name: i.Metadata.Name}
		there[key] = true
		version, err := strconv.ParseUint(i.Metadata.ResourceVersion, 10, 64)
		e, ok := known.Get(key)
		if _, refused := c.egressServices.problems[key]; err == nil && (ok && e.Version < version || !ok && !refused) {
			return errBehind
		}
	}
	for key := range known.Keys() {
		if !there[key] {
			return errBehind
		}
	}
	return nil
}
