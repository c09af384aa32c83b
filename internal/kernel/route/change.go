package route

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/nl"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

// Changes is the difference between the routes of two plans.
type Changes struct {
	Set, Fresh, Gone []*plan.Route // set: to add or replace; fresh: those of set whose key is new; gone: to remove
}

// None reports whether there is no difference.
func (c *Changes) None() bool { return len(c.Set)+len(c.Gone) == 0 }

// Touch reports whether routes of a table differ.
func (c *Changes) Touch(table uint32) bool {
	of := func(r *plan.Route) bool { return r.Table == table }
	return slices.ContainsFunc(c.Set, of) || slices.ContainsFunc(c.Gone, of)
}

// ChangesOf returns the difference between the routes of two plans. No plan has two routes that the kernel takes for one: an
// IPv6 route of metric 0, which is the kernel's 1024, is in a steering table, where all routes have metric 0.
func ChangesOf(before, now sorted.List[plan.Route]) (c Changes) {
	for former, next := range before.Changes(now) {
		switch {
		case next == nil:
			c.Gone = append(c.Gone, former)
		case former == nil:
			c.Set, c.Fresh = append(c.Set, next), append(c.Fresh, next)
		default:
			c.Set = append(c.Set, next)
		}
	}
	return c
}

// AddChanged adds and replaces the routes of set. It does not look at the kernel's routes first: after an error, the
// next pass re-reads everything.
func (c Socket) AddChanged(ctx context.Context, h *netlink.Handle, changes Changes, judge verdict) error {
	fresh := make(map[*plan.Route]bool, len(changes.Fresh))
	for _, r := range changes.Fresh {
		fresh[r] = true
	}
	n := newNormalizer(h, judge)
	messages := make([]nl.Message, 0, len(changes.Set))
	routes := make([]*Entry, 0, len(changes.Set))
	planned := make([]*plan.Route, 0, len(changes.Set))
	var former []*plan.Route
	for _, p := range changes.Set {
		r := n.normal(p)
		if r == nil {
			if !fresh[p] {
				former = append(former, p)
			}
			continue
		}
		flags := uint16(unix.NLM_F_CREATE | unix.NLM_F_REPLACE)
		if fresh[p] { // a new route must not replace another program's route of the same key
			flags = unix.NLM_F_CREATE | unix.NLM_F_EXCL
		}
		messages = append(messages, nl.Message{Type: unix.RTM_NEWROUTE, Flags: flags, Body: r.Encode(true)})
		routes, planned = append(routes, r), append(planned, p)
	}
	results, err := c.Change(ctx, messages)
	if err != nil {
		return errors.Join(append(n.errs, err)...)
	}
	return nl.JoinErrors(append(n.errs, c.judged(ctx, planned, former, routes, messages, results, judge)...))
}

// RemoveGone removes the routes that are no longer planned.
func (c Socket) RemoveGone(ctx context.Context, gone []*plan.Route) error {
	ipv6 := len(nl.Families()) > 1
	messages := make([]nl.Message, 0, len(gone))
	keys := make([]Key, 0, len(gone))
	for _, p := range gone {
		if p.Dst.Addr().Is6() && !ipv6 {
			continue
		}
		// Without legs, the request matches our route of this key, even if its legs changed.
		r := &Entry{Key: KeyOf(p), Protocol: Protocol, Kind: unix.RTN_UNICAST}
		if p.Unreachable {
			r.Kind = unix.RTN_UNREACHABLE
		}
		messages, keys = append(messages, nl.Message{Type: unix.RTM_DELROUTE, Flags: 0, Body: r.Encode(false)}), append(keys, r.Key)
	}
	return c.remove(ctx, messages, keys)
}

// remove deletes routes, in random order: deleting neighbours one after another makes the kernel rebuild its trie
// around each of them, which takes ten times as long with very many (100,000: 1.2 s instead of 0.1 s).
func (c Socket) remove(ctx context.Context, messages []nl.Message, keys []Key) error {
	rand.New(rand.NewPCG(0, 0)).Shuffle(len(messages), func(i, j int) {
		messages[i], messages[j] = messages[j], messages[i]
		keys[i], keys[j] = keys[j], keys[i]
	})
	results, err := c.Change(ctx, messages)
	if err != nil {
		return err
	}
	for i, err := range results {
		if results[i] = nil; err != nil && !errors.Is(err, unix.ESRCH) {
			results[i] = fmt.Errorf("delete route %s: %w", keys[i], err)
		}
	}
	return nl.JoinErrors(results)
}

func addError(key Key, err error) error {
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add route %s: another program's route is in the way: %w", key, err)
	}
	return fmt.Errorf("add route %s: %w", key, err)
}

// normalizer converts planned routes to the kernel's normal form. It resolves devices, asks for a verdict on routes that
// cannot be installed, and collects the errors that the verdict lets stand.
type normalizer struct {
	h       *netlink.Handle
	judge   verdict
	ipv6    bool
	devices map[string]device
	errs    []error
}

func newNormalizer(h *netlink.Handle, judge verdict) *normalizer {
	return &normalizer{h: h, judge: judge, ipv6: len(nl.Families()) > 1, devices: map[string]device{}}
}

// device is the index of a device, or the reason why no route can have it as a next hop.
type device struct {
	index int
	err   error
}

func (n *normalizer) device(name string) device {
	d, known := n.devices[name]
	if known {
		return d
	}
	link, err := n.h.LinkByName(name)
	if err == nil && link.Attrs().RawFlags&unix.IFF_UP == 0 {
		err = unix.ENETDOWN
	}
	if d.err = err; err == nil {
		d.index = link.Attrs().Index
	}
	n.devices[name] = d
	return d
}

// normal returns a route in the kernel's normal form; nil: it cannot be installed. A next hop whose device is missing or
// down is left out if another one remains, as the kernel itself does when a link goes down.
func (n *normalizer) normal(p *plan.Route) *Entry {
	if p.Unreachable && p.Dst.Addr().Is6() && !n.ipv6 {
		return nil
	}
	r := &Entry{Key: KeyOf(p), Protocol: Protocol, Kind: unix.RTN_UNICAST}
	if p.Unreachable {
		r.Kind = unix.RTN_UNREACHABLE
	}
	var failed error
	for _, hop := range p.NextHops {
		l := Leg{Gateway: hop.Gateway, onLink: hop.OnLink}
		if hop.Device != "" {
			d := n.device(hop.Device)
			if d.err != nil {
				failed = fmt.Errorf("device %s: %w", hop.Device, d.err)
				continue
			}
			l.Device = d.index
		}
		r.Legs = append(r.Legs, l)
	}
	if len(r.Legs) == 0 && !p.Unreachable {
		if failed == nil {
			failed = errors.New("it has no next hop")
		}
		if err := n.judge(p, failed); err != nil {
			n.errs = append(n.errs, addError(r.Key, err))
		}
		return nil
	}
	if len(r.Legs) > 1 {
		r.sortLegs()
		r.Legs = slices.Compact(r.Legs)
	}
	return r
}
