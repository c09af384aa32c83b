package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/egressway/egressway/lab"
)

// The pods of web as objects, and an EgressQoS that selects them.
const (
	webPods = `apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: a-p1}
spec: {nodeName: a}
status: {phase: Running, podIPs: [{ip: 10.244.1.11}, {ip: "fd44:1::11"}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: b-p1}
spec: {nodeName: b}
status: {phase: Running, podIPs: [{ip: 10.244.2.11}, {ip: "fd44:2::11"}]}
`
	qosRules = `apiVersion: k8s.ovn.org/v1
kind: EgressQoS
metadata: {namespace: shop, name: default}
spec:
  egress:
  - {dscp: 46, dstCIDR: 198.51.100.0/24}
  - {dscp: 46, dstCIDR: "2001:db8:100::/64"}
  - {dscp: 10}
`
	toOutside, toPods = 46, 10 // by these rules
)

// tryDSCP looks at the DSCP values of packets of web's pods, while an EgressQoS is there and after it.
func (d *demo) tryDSCP(ctx context.Context) {
	d.try("an EgressQoS: DSCP of web's packets behind SNAT, and pod to pod", func() (string, error) {
		inside, err := d.Lab.Witness("b-p1")
		if err != nil {
			return "", err
		}
		defer inside.Close()
		if err := errors.Join(d.Write(ctx, "qos-pods.yaml", webPods), d.Write(ctx, "qos.yaml", qosRules)); err != nil {
			return "", err
		}
		by, err := d.marked(ctx, inside, toOutside, toPods)
		return fmt.Sprintf("%s saw %d, b-p1 saw %d from a-p1", by, toOutside, toPods), err
	})
	d.try("it is deleted", func() (string, error) {
		if err := errors.Join(d.Remove(ctx, "qos.yaml"), d.Remove(ctx, "qos-pods.yaml")); err != nil {
			return "", err
		}
		by, err := d.marked(ctx, nil, 0, 0)
		return by + " saw 0, as the programs sent it", err
	})
}

// marked asks the outside from web's pods, and one pod from the other, until the rules are in force. It returns the routers that saw the
// packets: all of these had the value for the outside, and all between the pods had theirs.
func (d *demo) marked(ctx context.Context, inside *lab.Witness, outwards, between uint8) (by string, err error) {
	self := addrs("10.244.1.11", "fd44:1::11")
	toPod := []netip.AddrPort{netip.MustParseAddrPort("10.244.2.11:8080"), netip.MustParseAddrPort("[fd44:2::11]:8080")}
	err = lab.Wait(ctx, lab.Patience, func() error {
		d.Witness.Reset()
		for i := range outside {
			for _, pod := range []string{"a-p1", "b-p1"} {
				if _, err := d.leaves(ctx, pod, "ext-red", web, []string{"red1", "red2"}); err != nil {
					return err
				}
			}
			if inside == nil {
				continue
			}
			inside.Reset()
			if _, err := d.Node("a-p1").AskTCP(ctx, toPod[i]); err != nil {
				return err
			}
			fromPod := func(p lab.Packet) bool { return p.Src == self[i] && p.Dst == toPod[i].Addr() }
			if _, err := had(inside.Find(fromPod), between); err != nil {
				return err
			}
		}
		by, err = had(d.Witness.Find(lab.Destinations(prefixes(outside[0].Addr(), outside[1].Addr())...)), outwards)
		return err
	})
	return by, err
}

// had returns the nodes that saw the packets; an error names a packet with another DSCP value.
func had(seen lab.Packets, dscp uint8) (by string, err error) {
	nodes := map[string]bool{}
	for p := range seen {
		if p.DSCP != dscp {
			return "", fmt.Errorf("%s, want DSCP %d", p, dscp)
		}
		nodes[p.Node] = true
	}
	if len(nodes) == 0 {
		return "", errors.New("no witness saw a packet")
	}
	return strings.Join(slices.Sorted(maps.Keys(nodes)), " and "), nil
}
