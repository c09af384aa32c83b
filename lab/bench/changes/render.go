package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/egressway/egressway/lab/bench/internal/apiserver"
)

// request returns the request to the API server that makes a change.
func (c *cluster) request(x *change) apiserver.Request {
	s := x.service
	switch x.what {
	case endpointAdded, endpointRemoved, endpointMoved:
		return apiserver.Merge(apiserver.Slices(s.namespace)+"/"+s.name, encode(map[string]any{"endpoints": s.endpointsJSON()}))
	case ingressChanged:
		return apiserver.Merge(apiserver.Services(s.namespace)+"/"+s.name+"/status", encode(map[string]any{"status": s.serviceStatus()}))
	case egressDeleted:
		return apiserver.Delete(apiserver.EgressServices(s.namespace) + "/" + s.name)
	case egressCreated:
		o := s.egressService()
		return apiserver.Post(apiserver.EgressServices(s.namespace), encode(o))
	}
	return apiserver.Merge(apiserver.StatusOf(s.namespace, s.name), encode(map[string]any{"status": c.egressStatus(s)}))
}

func (s *service) endpointsJSON() []any {
	all := []any{}
	for i, e := range s.endpoints {
		all = append(all, map[string]any{
			"addresses": []string{e.addr.String()}, "nodeName": nodeName(e.node),
			"conditions": map[string]any{"ready": true, "serving": true, "terminating": false},
			"targetRef":  map[string]any{"kind": "Pod", "namespace": s.namespace, "name": fmt.Sprintf("%s-%d", s.name, i)},
		})
	}
	return all
}

func (s *service) metadata() map[string]any {
	return map[string]any{
		"namespace": s.namespace, "name": s.name,
		"labels": map[string]any{"app": s.name, "kubernetes.io/service-name": s.name},
	}
}

func (s *service) serviceStatus() map[string]any {
	return map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": s.ingress.String(), "ipMode": "VIP"}}}}
}

func (s *service) egressService() map[string]any {
	return map[string]any{
		"apiVersion": "k8s.ovn.org/v1", "kind": "EgressService", "metadata": s.metadata(),
		"spec": map[string]any{
			"sourceIPBy": "LoadBalancerIP", "network": network,
			"nodeSelector": map[string]any{"matchLabels": map[string]any{"egress": "true"}},
		},
	}
}

func (c *cluster) egressStatus(s *service) map[string]any {
	return map[string]any{"host": nodeName(s.host), "standby": nodeName(c.standby(s)), "term": 1}
}

func (s *service) core() map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Service", "metadata": s.metadata(), "status": s.serviceStatus(),
		"spec": map[string]any{
			"type": "LoadBalancer", "clusterIP": nth("10.100.0.1", s.number).String(),
			"clusterIPs": []string{nth("10.100.0.1", s.number).String()},
			"ports":      []any{map[string]any{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}},
		},
	}
}

func (s *service) slice() map[string]any {
	return map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": s.metadata(), "addressType": "IPv4",
		"ports": []any{map[string]any{"name": "http", "port": 8080, "protocol": "TCP"}}, "endpoints": s.endpointsJSON(),
	}
}

// file is the manifest that has a Service, which has changed: a line of YAML, which JSON is too, an object.
func (c *cluster) file(changed *service) (name, manifest string) {
	number := changed.number / c.perFile
	changed.manifest = ""
	var b strings.Builder
	for _, s := range c.services[number*c.perFile : min((number+1)*c.perFile, len(c.services))] {
		if s.manifest == "" {
			s.manifest = c.manifest(s)
		}
		b.WriteString(s.manifest)
	}
	return fmt.Sprintf("services-%d.yaml", number), b.String()
}

// manifest is the part of a file that describes a Service.
func (c *cluster) manifest(s *service) string {
	objects := []map[string]any{s.core(), s.slice()}
	if s.state != deleted {
		e := s.egressService()
		e["status"] = c.egressStatus(s)
		objects = append(objects, e)
	}
	var b strings.Builder
	for _, o := range objects {
		b.WriteString("---\n")
		b.Write(encode(o))
		b.WriteByte('\n')
	}
	return b.String()
}

// nodesFile is the manifest of the Nodes.
func (c *cluster) nodesFile() string {
	var b strings.Builder
	for i := range c.nodes {
		labels := map[string]any{"kubernetes.io/hostname": nodeName(i)}
		if i < c.hosts {
			labels["egress"] = "true"
		}
		b.WriteString("---\n")
		b.Write(encode(map[string]any{
			"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": nodeName(i), "labels": labels},
			"status": map[string]any{
				"addresses":  []any{map[string]any{"type": "InternalIP", "address": fmt.Sprintf("172.31.%d.%d", i/250, i%250+1)}},
				"conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
			},
		}))
		b.WriteByte('\n')
	}
	return b.String()
}

// encode returns JSON. Its argument must be a value that can be encoded.
func encode(o any) []byte {
	b, _ := json.Marshal(o)
	return b
}
