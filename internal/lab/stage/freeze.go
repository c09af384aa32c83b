package stage

import (
	"context"
	"errors"
	"syscall"

	"github.com/egressway/egressway/internal/lab"
)

// cables are a node's interfaces: towards the API server, in the LAN, and of the two networks.
var cables = []string{"eth0", "eth1", "eth2", "eth3"}

// Freeze makes a node silent: no packet leaves it or comes to it, and neither its daemon nor its speaker runs. Nobody is told:
// its neighbours' links stay up, no connection is ended.
func (s *Stage) Freeze(ctx context.Context, node string) error {
	for _, c := range cables {
		if c == "eth0" && s.API == nil {
			continue
		}
		if err := s.Unplug(ctx, node+":"+c); err != nil {
			return err
		}
	}
	return s.signal(node, syscall.SIGSTOP)
}

// Thaw undoes Freeze. What was in the node goes on where it stopped.
func (s *Stage) Thaw(ctx context.Context, node string) error {
	errs := []error{s.signal(node, syscall.SIGCONT)}
	for _, c := range cables {
		if c != "eth0" || s.API != nil {
			errs = append(errs, s.Plug(ctx, node+":"+c))
		}
	}
	return errors.Join(errs...)
}

func (s *Stage) signal(node string, signal syscall.Signal) error {
	var errs []error
	for _, process := range []*lab.Daemon{s.Daemons[node], s.Speakers[node]} {
		if process != nil && !process.Ended() {
			errs = append(errs, process.Signal(signal))
		}
	}
	return errors.Join(errs...)
}
