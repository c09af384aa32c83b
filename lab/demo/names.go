package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/egressway/egressway/lab"
)

// An EgressFirewall that allows the names of one domain, and the cluster's resolver, which is in pod c-p1.
const firewallRules = `apiVersion: k8s.ovn.org/v1
kind: EgressFirewall
metadata: {namespace: shop, name: default}
spec:
  egress:
  - {type: Allow, to: {dnsName: "*.example.com"}}
  - {type: Deny, to: {cidrSelector: 0.0.0.0/0}}
  - {type: Deny, to: {cidrSelector: "::/0"}}
---
apiVersion: v1
kind: Service
metadata: {namespace: kube-system, name: kube-dns}
spec: {clusterIP: None, selector: {app: dns}, ports: [{protocol: UDP, port: 53}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: kube-system, name: kube-dns-4, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{protocol: UDP, port: 53}]
endpoints: [{addresses: [10.244.3.11], nodeName: c}]
`

// deniedWithin is how long an answer may take while we look whether there is none: they come within milliseconds.
const deniedWithin = 300 * time.Millisecond

var resolver = netip.MustParseAddrPort("10.244.3.11:53")

// tryNames connects from web's pods under an EgressFirewall, before and after they have an answer about a name.
func (d *demo) tryNames(ctx context.Context) {
	d.try("an EgressFirewall allows *.example.com alone: web's pods connect", func() (string, error) {
		_, err := d.Lab.Resolve(d.Node("c-p1"), func(_ string, typ dnsmessage.Type) ([]lab.Record, bool) {
			of := map[dnsmessage.Type]netip.Addr{dnsmessage.TypeA: outside[0].Addr(), dnsmessage.TypeAAAA: outside[1].Addr()}
			if a, ok := of[typ]; ok {
				return []lab.Record{{Name: "www.example.com", TTL: 60, Addr: a}}, true
			}
			return nil, true
		})
		if err := errors.Join(err, d.Write(ctx, "names-pods.yaml", webPods), d.Write(ctx, "names.yaml", firewallRules)); err != nil {
			return "", err
		}
		return "denied: no router saw a packet", lab.Wait(ctx, lab.Patience, func() error { return d.denied(ctx) })
	})
	d.try("they ask for www.example.com, and connect with the answer", func() (seen string, err error) {
		for _, pod := range []string{"a-p1", "b-p1"} {
			for _, typ := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
				if _, err := d.Node(pod).Lookup(ctx, resolver, "www.example.com", typ, false); err != nil {
					return "", err
				}
			}
			if seen, err = d.leaves(ctx, pod, "ext-red", web, []string{"red1", "red2"}); err != nil {
				return "", err
			}
		}
		return seen, nil
	})
	d.try("it is deleted: the address beside a-p2, which had to wait", func() (seen string, err error) {
		if err := errors.Join(d.Remove(ctx, "names.yaml"), d.Remove(ctx, "names-pods.yaml")); err != nil {
			return "", err
		}
		err = lab.Wait(ctx, lab.Patience, func() error {
			d.Witness.Reset()
			seen, err = d.leaves(ctx, "a-p2", "ext-default", []string{"10.0.0.11", "fd00::11"}, []string{"gw"}, bystander...)
			return err
		})
		return seen, err
	})
}

// denied asks the outside from web's pods, and returns an error if a packet came out.
func (d *demo) denied(ctx context.Context) error {
	d.Witness.Reset()
	for _, pod := range []string{"a-p1", "b-p1"} {
		for _, to := range outside {
			limited, cancel := lab.Within(ctx, deniedWithin)
			_, err := d.Node(pod).AskUDP(limited, to, 100)
			cancel()
			if err == nil {
				return fmt.Errorf("%s is answered by %s", pod, to.Addr())
			}
		}
	}
	return none(d.Witness.Find(lab.Destinations(prefixes(outside[0].Addr(), outside[1].Addr())...)))
}
