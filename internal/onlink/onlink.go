// Package onlink announces to the neighbours on a link that this node answers for addresses now: they may still know another
// node's MAC. The kernel answers their questions by itself.
package onlink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

const (
	// rounds is how often an address is announced: a frame may be lost.
	rounds = 3
	// roundEvery is the time between two announcements of an address.
	roundEvery = time.Second
)

// Announcer announces addresses when this node begins to answer for them. NewAnnouncer makes one.
type Announcer struct {
	send  func([]plan.OnLink) (failed map[plan.OnLink]error)
	now   func() time.Time
	after func(time.Duration) <-chan time.Time
	wake  chan struct{}

	mu    sync.Mutex // guards the fields below
	known map[plan.OnLink]progress
}

// progress is the state of an address's announcements.
type progress struct {
	left int
	due  time.Time
	err  error // of the last one
}

// NewAnnouncer returns an Announcer that sends frames, which takes CAP_NET_RAW.
func NewAnnouncer() *Announcer { return newAnnouncer(send, time.Now, time.After) }

func newAnnouncer(
	send func([]plan.OnLink) map[plan.OnLink]error, now func() time.Time, after func(time.Duration) <-chan time.Time,
) *Announcer {
	return &Announcer{send: send, now: now, after: after, wake: make(chan struct{}, 1), known: map[plan.OnLink]progress{}}
}

// Set replaces the addresses for which this node answers. It announces those that are new at once, and those whose last announcement
// failed; Run announces them again. An address that is no longer among them is not announced any more. Set returns why the last
// announcement of addresses failed, also of earlier ones.
func (a *Announcer) Set(all []plan.OnLink) error {
	a.mu.Lock()
	next := make(map[plan.OnLink]progress, len(all))
	var fresh []plan.OnLink
	for _, one := range all {
		p, known := a.known[one]
		if !known || p.left == 0 && p.err != nil {
			p = progress{left: rounds - 1, due: a.now().Add(roundEvery)}
			fresh = append(fresh, one)
		}
		next[one] = p
	}
	a.known = next
	a.mu.Unlock()
	if len(fresh) > 0 {
		select {
		case a.wake <- struct{}{}:
		default:
		}
		a.announce(fresh)
	}
	return a.failed()
}

// announce sends a frame for each address, and notes those that failed.
func (a *Announcer) announce(all []plan.OnLink) {
	failed := a.send(all)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range all {
		if p, known := a.known[one]; known {
			p.err = failed[one]
			a.known[one] = p
		}
	}
}

// failed returns why addresses could not be announced, each reason once.
func (a *Announcer) failed() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	seen := map[string]bool{}
	for _, one := range slices.SortedFunc(maps.Keys(a.known), plan.OnLink.Compare) {
		if err := a.known[one].err; err != nil && !seen[err.Error()] {
			seen[err.Error()] = true
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Run repeats announcements until ctx ends.
func (a *Announcer) Run(ctx context.Context) {
	for {
		due, wait := a.next()
		if len(due) > 0 {
			a.announce(due)
			continue
		}
		var later <-chan time.Time
		if wait > 0 {
			later = a.after(wait)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		case <-later:
		}
	}
}

// next returns the addresses to announce now, sorted, or the time until there are some; 0: none are left.
func (a *Announcer) next() (due []plan.OnLink, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	for one, p := range a.known {
		switch left := p.due.Sub(now); {
		case p.left == 0:
		case left <= 0:
			due = append(due, one)
			a.known[one] = progress{left: p.left - 1, due: now.Add(roundEvery), err: p.err}
		case wait == 0 || left < wait:
			wait = left
		}
	}
	slices.SortFunc(due, plan.OnLink.Compare)
	return due, wait
}

// send sends a frame for each address.
func send(all []plan.OnLink) (failed map[plan.OnLink]error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		err = fmt.Errorf("open a packet socket: %w", err)
		failed = make(map[plan.OnLink]error, len(all))
		for _, one := range all {
			failed[one] = err
		}
		return failed
	}
	defer unix.Close(fd)
	return announce(all, net.InterfaceByName, func(frame []byte, index int) error {
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: index})
	})
}

// announce writes a frame for each address. It looks each device up once, because net.InterfaceByName reads all links of the node.
func announce(
	all []plan.OnLink, byName func(name string) (*net.Interface, error), write func(frame []byte, index int) error,
) (failed map[plan.OnLink]error) {
	devices := map[string]device{}
	failed = map[plan.OnLink]error{}
	for _, one := range all {
		d, known := devices[one.Device]
		if !known {
			d = deviceOf(byName(one.Device))
			devices[one.Device] = d
		}
		err := d.err
		if err == nil {
			err = write(Frame(one.Addr, d.mac), d.index)
		}
		if err != nil {
			failed[one] = fmt.Errorf("announce %s on %s: %w", one.Addr, one.Device, err)
		}
	}
	return failed
}

// device is a link by which frames leave.
type device struct {
	index int
	mac   [6]byte
	err   error // why no frame can leave by it
}

// deviceOf returns the device of an interface that was looked up.
func deviceOf(i *net.Interface, err error) device {
	switch {
	case err != nil:
		return device{err: err}
	case len(i.HardwareAddr) != 6:
		return device{err: errors.New("the interface has no Ethernet address")}
	}
	return device{index: i.Index, mac: [6]byte(i.HardwareAddr)}
}
