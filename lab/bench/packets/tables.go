package main

import (
	"fmt"
	"math"
	"os"

	"github.com/egressway/egressway/lab/bench/internal/figures"
)

// pairs are the subjects that are compared, and how that is called.
var pairs = []struct{ name, over, under string }{
	{"50,000 endpoints : one", "egressway, 50,000", "egressway, 1"},
	{"10,000 endpoints : one", "egressway, 10,000", "egressway, 1"},
	{"one endpoint : one SNAT and one routing rule", "egressway, 1", "one SNAT rule, one routing rule"},
	{"10,000 endpoints : one SNAT and one routing rule", "egressway, 10,000", "one SNAT rule, one routing rule"},
	{"10,000 endpoints : one SNAT rule", "egressway, 10,000", "one SNAT rule"},
	{"10,000 endpoints : forwarding", "egressway, 10,000", "forwarding"},
	{"10,000 endpoints : forwarding with one routing rule", "egressway, 10,000", "forwarding, one routing rule"},
	{"the same on a node with kube-proxy and a CNI : that node", "cluster, egressway, 10,000", "cluster"},
	{"a rule per endpoint, 10,000 : one SNAT rule", "a rule per endpoint, 10,000", "one SNAT rule"},
	{"services counted : not counted, one endpoint", "egressway, counting services, 1", "egressway, 1"},
	{"services counted : not counted, 10,000 endpoints", "egressway, counting services, 10,000", "egressway, 10,000"},
	{"steered, at the pods' node : direct", "egressway, 10,000, steered to a neighbour", "egressway, 10,000"},
	{"steered, at the host : direct", "egressway, 10,000, of a neighbour's pods", "egressway, 10,000"},
	{"IPv6, 10,000 endpoints : one SNAT rule", "IPv6, egressway, 10,000", "IPv6, one SNAT rule"},
	{"8,000 firewall rules : one", "firewall, 8,000 rules", "firewall, one rule"},
	{"8,000 firewall rules of 100 ports : one", "firewall, 8,000 rules, 100 ports", "firewall, one rule"},
	{"2,000 namespaces of a firewall rule : one", "firewall, 2,000 namespaces", "firewall, one rule"},
	{"a firewall rule : forwarding", "firewall, one rule", "forwarding"},
	{"IPv6, 8,000 firewall rules : one", "IPv6, firewall, 8,000 rules", "IPv6, firewall, one rule"},
	{"IPv6, 8,000 firewall rules of 100 ports : one", "IPv6, firewall, 8,000 rules, 100 ports", "IPv6, firewall, one rule"},
	{"IPv6, 2,000 namespaces of a firewall rule : one", "IPv6, firewall, 2,000 namespaces", "IPv6, firewall, one rule"},
	{"1,000 QoS rules : one", "QoS, 1,000 rules", "QoS, one rule"},
	{"2,000 namespaces of a QoS rule : one", "QoS, 2,000 namespaces", "QoS, one rule"},
	{"a QoS rule : forwarding", "QoS, one rule", "forwarding"},
	{"IPv6, 1,000 QoS rules : one", "IPv6, QoS, 1,000 rules", "IPv6, QoS, one rule"},
	{"IPv6, 2,000 namespaces of a QoS rule : one", "IPv6, QoS, 2,000 namespaces", "IPv6, QoS, one rule"},
	{"1,000 EgressIPs of 50 pods : one", "egress IPs, 1000", "egress IPs, 1"},
	{"IPv6, 1,000 EgressIPs of 50 pods : one", "IPv6, egress IPs, 1000", "IPv6, egress IPs, 1"},
	{"VRF, 50,000 endpoints : one", "VRF, egressway, 50,000", "VRF, egressway, 1"},
	{"VRF, one endpoint : one SNAT and one routing rule", "VRF, egressway, 1", "VRF, one SNAT rule, one routing rule"},
	{"VRF, 10,000 endpoints : one SNAT and one routing rule", "VRF, egressway, 10,000", "VRF, one SNAT rule, one routing rule"},
	{"VRF, 10,000 endpoints : forwarding", "VRF, egressway, 10,000", "VRF, forwarding"},
}

// tables prints how much a packet costs in each subject, and how subjects compare.
func (b *bench) tables() {
	if b.parts {
		b.perPart()
		return
	}
	byName := map[string]*subject{}
	head := append([]string{""}, kinds...)
	costs := figures.NewTable(head...)
	for _, s := range b.subjects {
		byName[s.name] = s
		row := []string{s.name}
		for _, kind := range kinds {
			cell := ""
			if _, median, _ := figures.Quartiles(s.took[kind]); !math.IsNaN(median) {
				cell = figures.Count(int(math.Round(median)))
			}
			row = append(row, cell)
		}
		costs.Add(row...)
	}
	costs.Print(os.Stdout)
	ratios := figures.NewTable(head...)
	compared := false
	for _, p := range pairs {
		over, under := byName[p.over], byName[p.under]
		if over == nil || under == nil {
			continue
		}
		row := []string{p.name}
		for _, kind := range kinds {
			row = append(row, figures.Ratio(figures.Ratios(over.took[kind], under.took[kind])))
		}
		ratios.Add(row...)
		compared = true
	}
	if compared {
		fmt.Print("Ratios of the same round: median, and quartiles.\n\n")
		ratios.Print(os.Stdout)
	}
}
