package route

import (
	"cmp"
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
	a := newAdditions(len(changes.Set))
	for _, p := range changes.Set {
		flags := replace
		if fresh[p] {
			flags = create
		}
		if r := n.normal(p); r != nil {
			a.add(p, r, flags)
		} else if flags == replace {
			a.former = append(a.former, p)
		}
	}
	return c.addAll(ctx, a, judge, n.errs)
}

// Flags of a request for a route. A new route must not replace another program's route of the same key; our own is
// replaced in one step.
const (
	create  uint16 = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	replace uint16 = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
)

// additions are routes to add or replace, with their requests.
type additions struct {
	planned  []*plan.Route
	routes   []*Entry
	messages []nl.Message
	former   []*plan.Route // routes of the kernel whose replacement is left out: no peer advertises them any more
}

func newAdditions(most int) *additions {
	return &additions{
		planned: make([]*plan.Route, 0, most), routes: make([]*Entry, 0, most), messages: make([]nl.Message, 0, most),
	}
}

func (a *additions) add(p *plan.Route, r *Entry, flags uint16) {
	a.planned, a.routes = append(a.planned, p), append(a.routes, r)
	a.messages = append(a.messages, nl.Message{Type: unix.RTM_NEWROUTE, Flags: flags, Body: r.Encode(true)})
}

// judge returns the errors that the verdict lets stand. If a route that is left out was to replace another, judge adds
// it to former.
func (a *additions) judge(results []error, judge verdict) (errs []error) {
	for i, err := range results {
		if judged := judge(a.planned[i], err); judged != nil {
			errs = append(errs, addError(a.routes[i].Key, judged))
		} else if err != nil && a.messages[i].Flags&unix.NLM_F_REPLACE != 0 {
			a.former = append(a.former, a.planned[i])
		}
	}
	return errs
}

// addAll sends the requests, asks for a verdict on each answer, and removes the former routes. It joins its errors to
// errs.
func (c Socket) addAll(ctx context.Context, a *additions, judge verdict, errs []error) error {
	results, err := c.Change(ctx, a.messages)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	errs = append(errs, a.judge(results, judge)...)
	if len(a.former) > 0 {
		errs = append(errs, c.RemoveGone(ctx, a.former))
	}
	return nl.JoinErrors(errs)
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
		r := withoutLegs(p)
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
		results[i] = deleteError(keys[i], err)
	}
	return nl.JoinErrors(results)
}

func addError(key Key, err error) error {
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add route %s: another program's route is in the way: %w", key, err)
	}
	return fmt.Errorf("add route %s: %w", key, err)
}

// deleteError returns the error of deleting a route; nil: the route is gone.
func deleteError(key Key, err error) error {
	if err == nil || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return fmt.Errorf("delete route %s: %w", key, err)
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
	if !known {
		d = findDevice(n.h, name)
		n.devices[name] = d
	}
	return d
}

func findDevice(h *netlink.Handle, name string) device {
	link, err := h.LinkByName(name)
	if err != nil {
		return device{err: err}
	}
	if link.Attrs().RawFlags&unix.IFF_UP == 0 {
		return device{err: unix.ENETDOWN}
	}
	return device{index: link.Attrs().Index}
}

var errNoNextHop = errors.New("it has no next hop")

// normal returns a route in the kernel's normal form; nil: it cannot be installed.
func (n *normalizer) normal(p *plan.Route) *Entry {
	if p.Unreachable && p.Dst.Addr().Is6() && !n.ipv6 {
		return nil
	}
	r := withoutLegs(p)
	legs, failed := n.legs(p.NextHops)
	if len(legs) == 0 && !p.Unreachable {
		n.refuse(p, cmp.Or(failed, errNoNextHop))
		return nil
	}
	r.Legs = legs
	r.sortLegs()
	r.Legs = slices.Compact(r.Legs)
	return r
}

// refuse asks for a verdict on a route that cannot be installed, and keeps the error that it lets stand.
func (n *normalizer) refuse(p *plan.Route, err error) {
	if err := n.judge(p, err); err != nil {
		n.errs = append(n.errs, addError(KeyOf(p), err))
	}
}

// legs converts next hops. One whose device is missing or down is left out, as the kernel itself does when a link goes
// down; failed is the error of the last such device.
func (n *normalizer) legs(hops []plan.NextHop) (legs []Leg, failed error) {
	for _, hop := range hops {
		l := Leg{Gateway: hop.Gateway, onLink: hop.OnLink}
		if hop.Device != "" {
			d := n.device(hop.Device)
			if d.err != nil {
				failed = fmt.Errorf("device %s: %w", hop.Device, d.err)
				continue
			}
			l.Device = d.index
		}
		legs = append(legs, l)
	}
	return legs, failed
}

// withoutLegs returns a planned route in the kernel's normal form, without its next hops.
func withoutLegs(p *plan.Route) *Entry {
	r := &Entry{Key: KeyOf(p), Protocol: Protocol, Kind: unix.RTN_UNICAST}
	if p.Unreachable {
		r.Kind = unix.RTN_UNREACHABLE
	}
	return r
}
