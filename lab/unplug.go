package lab

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"
)

// bridgeName is that of the one bridge of a node which is a switch.
const bridgeName = "br0"

// Unplug cuts off interfaces of nodes, each written node:interface, without either end noticing: their far ends leave the
// bridges of the switches that they are plugged into, and both stay up. They leave in one moment, as with a node that loses its
// power: all that takes time comes before. The interface is one of a link to a switch, or the one in the management network.
func (l *Lab) Unplug(places ...string) error { return l.ports(places, false) }

// Plug undoes Unplug.
func (l *Lab) Plug(places ...string) error { return l.ports(places, true) }

func (l *Lab) ports(places []string, in bool) error {
	request := uint(unix.SIOCBRDELIF)
	if in {
		request = unix.SIOCBRADDIF
	}
	var all []*port
	var errs []error
	for _, place := range places {
		p, err := l.port(place)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", place, err))
			continue
		}
		all = append(all, p)
	}
	if len(errs) == 0 {
		for i, p := range all {
			if err := unix.IoctlIfreq(p.socket, request, p.order); err != nil {
				errs = append(errs, fmt.Errorf("%s: bridge %s: %w", places[i], p.order.Name(), err))
			}
		}
	}
	for _, p := range all {
		errs = append(errs, unix.Close(p.socket))
	}
	return errors.Join(errs...)
}

// port is the end of a cable that is plugged into a bridge.
type port struct {
	socket int // of the bridge's namespace
	order  *unix.Ifreq
}

// port finds the one that an interface's cable leads to.
func (l *Lab) port(place string) (p *port, err error) {
	name, device, _ := strings.Cut(place, ":")
	if n := l.Nodes[name]; n != nil && device == managementDevice && n.wire != "" {
		return openPort(n.wire, managementBridge)
	}
	far, err := l.farEnd(place)
	if err != nil {
		return nil, err
	}
	name, device, _ = strings.Cut(far, ":")
	err = l.Nodes[name].Do(func() (err error) {
		p, err = openPort(device, bridgeName)
		return err
	})
	return p, err
}

// openPort opens one of the namespace that the calling thread is in.
func openPort(device, bridge string) (*port, error) {
	i, err := net.InterfaceByName(device)
	if err != nil {
		return nil, err
	}
	order, err := unix.NewIfreq(bridge)
	if err != nil {
		return nil, err
	}
	order.SetUint32(uint32(i.Index))
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return &port{socket, order}, err
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
	return "", errors.New("no such interface in the topology")
}
