package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"
)

// cluster holds the Services of the API server, or of the folder: kubelab's seed with the changes since.
type cluster struct {
	options
	services []*service
	here     []*service // those that the node is the host of
	random   *rand.Rand
	fresh    int // addresses that were handed out
	waiting  []*service
}

// service is a Service with its EgressService.
type service struct {
	number    int
	namespace string
	name      string
	ingress   netip.Addr
	endpoints []endpoint
	host      int // the standby is the next of the hosts
	state     state
	changed   time.Time
	manifest  string // its part of a file; empty: to be written
}

type endpoint struct {
	addr netip.Addr
	node int
}

// state is that of the EgressService.
type state int

const (
	elected state = iota
	deleted
	created // it has no host yet
)

// apart is the least time between two changes of one Service: each is to be seen by itself.
const apart = 3 * time.Second

func newCluster(o options) *cluster {
	c := &cluster{options: o, random: rand.New(rand.NewPCG(o.seed, 0))}
	for i := range o.services {
		s := &service{number: i, namespace: "default", name: fmt.Sprintf("seed-%d", i), ingress: nth("198.18.0.0", i), host: i % o.hosts}
		if o.namespaces > 0 {
			s.namespace = fmt.Sprintf("team-%d", i%o.namespaces)
		}
		for e := range o.endpoints {
			k := i*o.endpoints + e
			s.endpoints = append(s.endpoints, endpoint{nth("10.128.0.0", k), k % o.nodes})
		}
		c.services = append(c.services, s)
		if s.host == 0 {
			c.here = append(c.here, s)
		}
	}
	return c
}

// nth is the i-th address from one on.
func nth(from string, i int) netip.Addr {
	a := netip.MustParseAddr(from).As4()
	n := int(a[1])<<16 + int(a[2])<<8 + int(a[3]) + i
	return netip.AddrFrom4([4]byte{a[0], byte(n >> 16), byte(n >> 8), byte(n)})
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

func (c *cluster) standby(s *service) int { return (s.host + 1) % c.hosts }

// announcedHere is how many ingress IPs the node announces, as host or standby.
func (c *cluster) announcedHere() (n int) {
	for _, s := range c.services {
		if s.state == elected && (s.host == 0 || c.standby(s) == 0) {
			n++
		}
	}
	return n
}

// pod and vip return addresses that are in no use.
func (c *cluster) pod() netip.Addr { c.fresh++; return nth("10.160.0.0", c.fresh) }
func (c *cluster) vip() netip.Addr { c.fresh++; return nth("198.19.0.0", c.fresh) }

// change is a change of an object, with its expected effects.
type change struct {
	what    string
	service *service
	commit  sight
	update  sight // of no address: none shall come

	sent, answered time.Time
	version        string // by the API server, or namespace/name of a deleted object
	err            error
}

// Kinds of changes.
const (
	endpointAdded   = "an endpoint added"
	endpointRemoved = "an endpoint removed"
	endpointMoved   = "an endpoint replaced"
	ingressChanged  = "another ingress IP"
	egressDeleted   = "EgressService deleted"
	egressCreated   = "EgressService created"
	egressElected   = "EgressService gets its host"
)

var kinds = []string{endpointAdded, endpointRemoved, endpointMoved, ingressChanged, egressDeleted, egressCreated, egressElected}

// next changes something at random: mostly an endpoint, on this node where the Service's host is another one. In a folder,
// an EgressService has its host when it comes.
func (c *cluster) next(now time.Time, folder bool) *change {
	switch n := c.random.IntN(10); {
	case n < 6:
		from, where := c.here, c.random.IntN(c.nodes)
		if n%2 == 0 {
			from, where = c.services, 0
		}
		if s := c.pick(from, now); s != nil {
			return c.endpoint(s, endpoint{c.pod(), where}, n/2)
		}
	case n < 8:
		if s := c.pick(c.here, now); s != nil {
			s.ingress, s.changed = c.vip(), now
			return &change{what: ingressChanged, service: s, commit: sight{added, s.ingress}, update: sight{announced, s.ingress}}
		}
	default:
		return c.egress(now, folder)
	}
	return nil
}

func (c *cluster) pick(from []*service, now time.Time) *service {
	for range 100 {
		if s := from[c.random.IntN(len(from))]; s.state == elected && now.Sub(s.changed) > apart {
			s.changed = now
			return s
		}
	}
	return nil
}

func (*cluster) endpoint(s *service, e endpoint, how int) *change {
	last := len(s.endpoints) - 1
	switch {
	case how == 0 && last > 0:
		gone := s.endpoints[last].addr
		s.endpoints = s.endpoints[:last:last]
		return &change{what: endpointRemoved, service: s, commit: sight{removed, gone}}
	case how == 1 && last >= 0:
		s.endpoints = append(s.endpoints[:last:last], e)
		return &change{what: endpointMoved, service: s, commit: sight{added, e.addr}}
	}
	s.endpoints = append(s.endpoints[:last+1:last+1], e)
	return &change{what: endpointAdded, service: s, commit: sight{added, e.addr}}
}

// egress goes on with an EgressService that was deleted or created, or deletes one.
func (c *cluster) egress(now time.Time, folder bool) *change {
	if len(c.waiting) > 0 && now.Sub(c.waiting[0].changed) > apart {
		s := c.waiting[0]
		c.waiting, s.changed = c.waiting[1:], now
		switch {
		case s.state == created:
			s.state = elected
			return &change{what: egressElected, service: s, commit: sight{added, s.endpoints[0].addr}, update: sight{announced, s.ingress}}
		case folder:
			s.state = elected
			return &change{what: egressCreated, service: s, commit: sight{added, s.endpoints[0].addr}, update: sight{announced, s.ingress}}
		}
		s.state = created
		c.waiting = append(c.waiting, s)
		return &change{what: egressCreated, service: s, commit: sight{added, s.endpoints[0].addr}}
	}
	s := c.pick(c.here, now)
	if s == nil || len(s.endpoints) == 0 {
		return nil
	}
	s.state = deleted
	c.waiting = append(c.waiting, s)
	return &change{what: egressDeleted, service: s, commit: sight{removed, s.endpoints[0].addr}, update: sight{withdrawn, s.ingress}}
}
