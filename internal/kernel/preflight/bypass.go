package preflight

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/kernel/link"
)

// Reasons of the Problems about packets that never meet our rules.
const (
	ReasonNetfilterBypassed cluster.Reason = "NetfilterBypassed"
	ReasonFlowOffload       cluster.Reason = "FlowOffload"
)

// bypasses maps device names that reveal a CNI's eBPF data plane to the message of the Problem.
var bypasses = map[string]string{
	"cilium_host": "Cilium is on this node: with eBPF host routing, pods' packets bypass netfilter and are not steered; " +
		"set bpf.hostLegacyRouting: true",
	"bpfin.cali": "Calico's eBPF data plane is on this node: pods' packets bypass netfilter and are not steered; " +
		"use its iptables or nftables data plane",
}

// Bypasses returns a Problem for each thing that may carry pods' packets past our rules: a CNI's eBPF data plane,
// or a flowtable, whose offloaded packets are routed without a mark.
func Bypasses(h *netlink.Handle, node string) ([]cluster.Problem, error) {
	var problems []cluster.Problem
	links, err := link.ReadLinks(h)
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if why, ok := bypasses[l.Name]; ok {
			problems = append(problems, cluster.Problem{
				Kind: "Node", Object: node, Field: "device", Value: l.Name, Reason: ReasonNetfilterBypassed, Message: why,
			})
		}
	}
	c, err := nftables.New()
	if err != nil {
		return problems, fmt.Errorf("open nftables socket: %w", err)
	}
	tables, err := c.ListTables()
	if err != nil {
		return problems, fmt.Errorf("list nftables tables: %w", err)
	}
	for _, t := range tables {
		flowtables, err := c.ListFlowtables(t)
		if err != nil {
			return problems, fmt.Errorf("list flowtables of table %s: %w", t.Name, err)
		}
		for _, f := range flowtables {
			if len(f.Devices) > 0 {
				problems = append(problems, offloads(node, t, f))
			}
		}
	}
	return problems, nil
}

// offloads returns the Problem about a flowtable with devices.
func offloads(node string, t *nftables.Table, f *nftables.Flowtable) cluster.Problem {
	slices.Sort(f.Devices)
	return cluster.Problem{
		Kind: "Node", Object: node, Field: "flowtable", Value: t.Name + " " + f.Name, Reason: ReasonFlowOffload,
		Message: "packets offloaded between " + strings.Join(f.Devices, ", ") + " are routed without our mark: they are dropped, " +
			"or replies leave by another network; keep the devices of selected pods and uplinks out of it",
	}
}
