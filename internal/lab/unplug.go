package lab

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// bridgeName is that of the one bridge of a node which is a switch.
const bridgeName = "br0"

// Unplug cuts off an interface of a node, written node:interface, without either end noticing: its far end leaves the bridge
// of the switch that it is plugged into, and both stay up. The interface is one of a link to a switch, or the one in the
// management network.
func (l *Lab) Unplug(ctx context.Context, place string) error { return l.port(ctx, place, false) }

// Plug undoes Unplug.
func (l *Lab) Plug(ctx context.Context, place string) error { return l.port(ctx, place, true) }

func (l *Lab) port(ctx context.Context, place string, in bool) error {
	args := func(port, bridge string) []string {
		if in {
			return []string{"ip", "link", "set", port, "master", bridge}
		}
		return []string{"ip", "link", "set", port, "nomaster"}
	}
	name, device, _ := strings.Cut(place, ":")
	if n := l.Nodes[name]; n != nil && device == managementDevice && n.wire != "" {
		a := args(n.wire, managementBridge)
		if out, err := exec.CommandContext(ctx, a[0], a[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %s: %w: %s", place, strings.Join(a, " "), err, out)
		}
		return nil
	}
	far, err := l.farEnd(place)
	if err != nil {
		return err
	}
	name, port, _ := strings.Cut(far, ":")
	_, err = l.Nodes[name].Run(ctx, args(port, bridgeName)...)
	return err
}

// farEnd is the other end of a link.
func (l *Lab) farEnd(place string) (string, error) {
	for _, link := range l.Topology.Graph.Links {
		for i, e := range link.Endpoints {
			if e == place {
				return link.Endpoints[1-i], nil
			}
		}
	}
	return "", fmt.Errorf("%s: no such interface in the topology", place)
}
