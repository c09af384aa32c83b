package e2e

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/lab"
)

const bfdLimit = lab.Patience

// far is our engine on a node and FRR's daemon on another, with a router between them.
type far struct {
	*lab.Lab
	t      *testing.T
	engine *bfd.Engine
}

// pairs are the addresses of the node and of FRR.
var pairs = []struct{ node, frr netip.Addr }{
	{netip.MustParseAddr("10.0.1.2"), netip.MustParseAddr("10.0.2.2")},
	{netip.MustParseAddr("fd00:1::2"), netip.MustParseAddr("fd00:2::2")},
}

var fastBFD = config.BFDProfile{TransmitInterval: 100, ReceiveInterval: 100, DetectMultiplier: 3}

// listen starts our engine, which watches FRR or waits for it.
func (f *far) listen(active bool) {
	f.t.Helper()
	require.NoError(f.t, f.Node("node").Do(func() (err error) {
		f.engine, err = bfd.Listen(bfd.Options{Profile: fastBFD, Log: slog.New(slog.NewTextHandler(f.t.Output(), nil))})
		return err
	}))
	f.watch(active)
}

func (f *far) watch(active bool) {
	var peers []bfd.Peer
	for _, p := range pairs {
		peers = append(peers, bfd.Peer{Node: "frr", Address: p.frr, Local: p.node, Active: active})
	}
	f.engine.Set(peers)
}

// configure gives commands to FRR for each of its peers.
func (f *far) configure(commands ...string) {
	f.t.Helper()
	for _, p := range pairs {
		peer := fmt.Sprintf("peer %s multihop local-address %s", p.node, p.frr)
		_, err := f.Node("frr").VTY("bfdd", slices.Concat([]string{"configure terminal", "bfd", peer}, commands)...)
		require.NoError(f.t, err)
	}
}

// frrPeer is what FRR tells about a session; intervals in milliseconds.
type frrPeer struct {
	Peer       netip.Addr `json:"peer"`
	Status     string     `json:"status"`
	Diagnostic string     `json:"diagnostic"`
	RemoteDiag string     `json:"remote-diagnostic"`
	RemoteMult int        `json:"remote-detect-multiplier"`
	RemoteRx   int        `json:"remote-receive-interval"`
	RemoteTx   int        `json:"remote-transmit-interval"`
}

// until waits until all sessions are as ours and theirs want them. Nil: they may be anything.
func (f *far) until(what string, ours func(bfd.Session) bool, theirs func(frrPeer) bool) {
	f.t.Helper()
	require.NoError(f.t, lab.Wait(f.t.Context(), bfdLimit, func() error {
		if ours != nil {
			for _, s := range f.engine.Sessions() {
				if !ours(s) {
					return fmt.Errorf("%s: we have %+v", what, s)
				}
			}
		}
		if theirs == nil {
			return nil
		}
		var all []frrPeer
		if err := f.Node("frr").VTYJSON(&all, "bfdd", "show bfd peers json"); err != nil {
			return err
		}
		if len(all) != len(pairs) {
			return fmt.Errorf("%s: FRR has %+v", what, all)
		}
		for _, p := range all {
			if !theirs(p) {
				return fmt.Errorf("%s: FRR has %+v", what, p)
			}
		}
		return nil
	}))
}

// up waits until both ends are up with the intervals that were agreed upon.
func (f *far) up(what string) {
	f.t.Helper()
	f.until(what, func(s bfd.Session) bool {
		return s.State == bfd.Up && !s.Failed && s.Detection == 300*time.Millisecond && s.LastError == ""
	}, func(p frrPeer) bool {
		return p.Status == "up" && p.RemoteMult == 3 && p.RemoteRx == 100 && p.RemoteTx == 100
	})
}

// Our BFD and FRR's understand each other over several hops, in both families, whoever begins.
func TestBFDWithFRR(t *testing.T) {
	l, err := lab.Deploy(t.Context(), "testdata/bfd/bfd.clab.yml", lab.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Destroy()) })
	f := &far{Lab: l, t: t}
	failed := func(s bfd.Session) bool { return s.Failed && s.State == bfd.Down }
	quiet := func(s bfd.Session) bool { return !s.Failed && s.State == bfd.Down && s.LastError != "" }
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }

	f.listen(true)
	f.configure("receive-interval 100", "transmit-interval 100")
	f.up("both begin")

	require.NoError(t, f.engine.SetProfile(config.BFDProfile{TransmitInterval: 150, ReceiveInterval: 200, DetectMultiplier: 4}))
	f.until("we poll", func(s bfd.Session) bool { return s.State == bfd.Up && s.Detection == ms(600) }, func(p frrPeer) bool {
		return p.Status == "up" && p.RemoteMult == 4 && p.RemoteRx == 200 && p.RemoteTx == 150
	})
	require.NoError(t, f.engine.SetProfile(fastBFD))
	f.up("we poll back")
	f.configure("transmit-interval 250", "detect-multiplier 5")
	f.until("FRR polls", func(s bfd.Session) bool { return s.State == bfd.Up && s.Detection == ms(1250) }, nil)
	f.configure("transmit-interval 100", "detect-multiplier 3")
	f.up("FRR polls back")

	f.configure("detect-multiplier 20") // FRR that stands still for a moment is no failure here
	f.until("FRR may be silent for long", func(s bfd.Session) bool { return s.State == bfd.Up && s.Detection == ms(2000) }, nil)
	f.configure("shutdown")
	f.until("FRR takes it down", quiet, nil)
	f.configure("no shutdown", "detect-multiplier 3")
	f.up("FRR takes it up")

	require.NoError(t, f.engine.Close())
	f.until("we take it down", nil, func(p frrPeer) bool {
		return p.Status == "down" && p.RemoteDiag == "administratively down"
	})
	f.listen(false)
	f.up("FRR begins")

	cable := func(state string) {
		_, err := f.Node("between").Run(t.Context(), "ip", "link", "set", "eth2", state)
		require.NoError(t, err)
	}
	cable("down")
	f.until("the cable is cut", failed, func(p frrPeer) bool { return p.Status == "down" })
	cable("up")
	// The kernel took the addresses and routes of the router with the cable.
	_, err = f.Node("between").Run(t.Context(), "ip", "addr", "replace", "fd00:2::1/64", "dev", "eth2", "nodad")
	require.NoError(t, err)
	f.up("the cable is back")

	f.watch(true)
	require.NoError(t, lab.KillFRR(t.Context(), f.Node("frr")))
	f.until("FRR is killed", failed, nil)
	require.NoError(t, lab.FRR.Start(t.Context(), f.Node("frr")))
	f.configure("receive-interval 100", "transmit-interval 100", "passive-mode")
	f.up("we begin")
	c := f.engine.Counters()
	t.Logf("%+v", c)
	require.NoError(t, f.engine.Close())

	// On one node they get along by our default port, and by no other's.
	require.NoError(t, f.Node("frr").Do(func() error {
		e, err := bfd.Listen(bfd.Options{Port: config.Defaults().Failover.BFD.Port, Profile: fastBFD})
		if err != nil {
			return err
		}
		return e.Close()
	}))
	require.ErrorIs(t, f.Node("frr").Do(func() error {
		_, err := bfd.Listen(bfd.Options{Profile: fastBFD})
		return err
	}), syscall.EADDRINUSE)
}
