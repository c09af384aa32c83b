package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/plan"
)

// calledAt returns the address of this node that a peer connects to, or the unspecified address of its family. A VRF
// has its ports to itself. Networks without a VRF share the host's ports: each listens only where its sessions begin.
func calledAt(d plan.Speaker, p plan.Peer) (netip.Addr, error) {
	switch {
	case p.Interface != "", p.Address.Is6() && (d.Device != "" || p.Address.IsLinkLocalUnicast()):
		return netip.IPv6Unspecified(), nil // GoBGP cannot listen at an address with a zone
	case d.Device != "":
		return netip.IPv4Unspecified(), nil
	case p.SourceAddress.IsValid():
		return p.SourceAddress, nil
	}
	return dialledFrom(p)
}

// dialledFrom returns the address from which the kernel dials a peer, without a VRF.
func dialledFrom(p plan.Peer) (netip.Addr, error) {
	own, err := source(p.Address)
	// The link's address stays while the link is down, and the kernel would use another.
	onLink := slices.DeleteFunc(slices.Clone(p.OnLink), func(l netip.Prefix) bool { return !l.Contains(p.Address) })
	if len(onLink) > 0 && !slices.ContainsFunc(onLink, func(l netip.Prefix) bool { return l.Addr() == own }) {
		return onLink[0].Addr(), nil
	}
	return own, err
}

// source returns the address that the kernel gives to connections without a VRF. It sends no packet.
func source(to netip.Addr) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 179)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// covers reports whether a socket at address l receives connections to a.
func covers(l, a netip.Addr) bool { return l == a || l.IsUnspecified() && l.Is4() == a.Is4() }

// listenable returns the addresses where this process can listen for the peers of d now. GoBGP would not start if it
// could not listen at one.
func listenable(d plan.Speaker) (free []netip.Addr) {
	if d.ListenPort <= 0 {
		return nil
	}
	var open []net.Listener // until all are tried: two of them may exclude each other
	for _, a := range calledAddresses(d) {
		if l, err := listenAt(d, a); err == nil {
			open, free = append(open, l), append(free, a)
		}
	}
	for _, l := range open {
		l.Close()
	}
	return free
}

// calledAddresses returns the addresses of this node that the peers of d connect to, the unspecified ones first.
func calledAddresses(d plan.Speaker) []netip.Addr {
	at := map[netip.Addr]bool{}
	if d.Device != "" {
		at[netip.IPv4Unspecified()], at[netip.IPv6Unspecified()] = true, true
	}
	for _, p := range d.Peers {
		if a, err := calledAt(d, p); err == nil {
			at[a] = true
		}
	}
	return slices.SortedFunc(maps.Keys(at), netip.Addr.Compare)
}

// listenAt listens as GoBGP does.
func listenAt(d plan.Speaker, a netip.Addr) (net.Listener, error) {
	network := "tcp6"
	if a.Is4() {
		network = "tcp4"
	}
	c := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if d.Device == "" {
			return nil
		}
		return errors.Join(c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), d.Device) }), err)
	}}
	return c.Listen(context.Background(), network, net.JoinHostPort(a.String(), strconv.Itoa(d.ListenPort)))
}

// unheard returns, for each peer whose connections a speaker does not accept, the reason. curable reports whether the
// speaker would accept some of them after a restart.
func (s *Speakers) unheard(sp *speaker, d plan.Speaker) (why map[string]string, curable bool) {
	if d.ListenPort <= 0 {
		return nil, false
	}
	why = map[string]string{}
	for _, p := range d.Peers {
		a, err := calledAt(d, p)
		if err != nil {
			why[nameOf(p)] = fmt.Sprintf("no address of this node leads to it: %s: it needs a route", err)
			continue
		}
		if slices.ContainsFunc(sp.listens, func(l netip.Addr) bool { return covers(l, a) }) {
			if p.PasswordFile == "" && sp.keyed[sp.addressOf(p)] {
				why[nameOf(p)] = "the speaker requires the password that it had, until no session of the network is established: " +
					"restart the speaker to have it accept connections without one now"
				curable = true
			}
			continue
		}
		if l, err := listenAt(d, a); err != nil {
			why[nameOf(p)] = refusedPort(s.holder(d, a), err).Error()
		} else {
			l.Close()
			why[nameOf(p)] = fmt.Sprintf("the speaker has not listened at %s since its start, and will when no session of the network "+
				"is established: restart the speaker to have it listen now", a)
			curable = true
		}
	}
	return why, curable
}

// holder returns the network whose speaker keeps d from listening at an address; empty: none does.
func (s *Speakers) holder(d plan.Speaker, a netip.Addr) string {
	for _, sp := range s.list() {
		if sp.identity.device == d.Device && sp.identity.listenPort == d.ListenPort &&
			slices.ContainsFunc(sp.listens, func(l netip.Addr) bool { return covers(l, a) || covers(a, l) }) {
			return sp.network
		}
	}
	return ""
}

// refusedPort adds the remedy to a listen error. holder is the network that listens there.
func refusedPort(holder string, err error) error {
	switch {
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w: a port below 1024 needs CAP_NET_BIND_SERVICE: give the speaker that, or set another port, or -1", err)
	case errors.Is(err, syscall.EADDRINUSE) && holder != "":
		return fmt.Errorf("%w: network %s listens there since its speaker started, and one network can listen at an address: "+
			"put one of them into a VRF; if it needs the address no more, restart the speaker", err, holder)
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w: another program on this node listens there: set another port, or -1", err)
	}
	return err
}

// idle reports whether no peer would notice a restart of the speaker.
func (s *speaker) idle() bool {
	if s.learnedRoutes().Len() > 0 { // of a peer that restarts gracefully
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.states {
		if st.state == bgp.BGP_FSM_ESTABLISHED || st.overLimit {
			return false
		}
	}
	return true
}

func (s *speaker) noteUnheard(why map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unheard = why
}
