package stage

import (
	"errors"
	"syscall"

	"github.com/egressway/egressway/lab"
)

// cables are a node's interfaces: in the LAN, of the two networks, and towards the API server if there is one.
func (s *Stage) cables(node string) []string {
	all := []string{node + ":eth1", node + ":eth2", node + ":eth3"}
	if s.API != nil {
		all = append(all, node+":eth0")
	}
	return all
}

// Freeze makes a node silent: no packet leaves it or comes to it, and neither its daemon nor its speaker runs. Its
// neighbours get no sign: their links stay up, and no connection is ended.
func (s *Stage) Freeze(node string) error {
	if err := s.Unplug(s.cables(node)...); err != nil {
		return err
	}
	return s.signal(node, syscall.SIGSTOP)
}

// Thaw undoes Freeze. The node's processes continue where they stopped.
func (s *Stage) Thaw(node string) error {
	return errors.Join(s.signal(node, syscall.SIGCONT), s.Plug(s.cables(node)...))
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
