package names

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/egressway/egressway/internal/kernel/queue"
	"github.com/egressway/egressway/lab"
)

// server is a DNS server on loopback, by UDP and TCP.
type server struct {
	at       netip.AddrPort
	udp, tcp atomic.Int32 // questions
}

// serve answers questions with the messages that reply returns, by UDP or TCP.
func serve(t *testing.T, reply func(q dnsmessage.Message, overTCP bool) [][]byte) *server {
	t.Helper()
	s := &server{}
	var udp net.PacketConn
	var tcp net.Listener
	for range 100 { // the port may be in use by TCP
		var err error
		udp, err = net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		s.at = udp.LocalAddr().(*net.UDPAddr).AddrPort()
		if tcp, err = net.Listen("tcp", s.at.String()); err == nil {
			break
		}
		udp.Close()
	}
	require.NotNil(t, tcp)
	done := make(chan struct{}, 2)
	t.Cleanup(func() {
		udp.Close()
		tcp.Close()
		<-done
		<-done
	})
	go func() {
		defer func() { done <- struct{}{} }()
		b := make([]byte, 1<<16)
		for {
			n, from, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			s.udp.Add(1)
			for _, m := range reply(unpacked(b[:n]), false) {
				_, _ = udp.WriteTo(m, from)
			}
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			s.tcp.Add(1)
			size := make([]byte, 2)
			_, _ = io.ReadFull(c, size)
			question := make([]byte, binary.BigEndian.Uint16(size))
			_, _ = io.ReadFull(c, question)
			for _, m := range reply(unpacked(question), true) {
				_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(m))), m...))
			}
			c.Close()
		}
	}()
	return s
}

func unpacked(b []byte) (m dnsmessage.Message) {
	if err := m.Unpack(b); err != nil {
		panic(err)
	}
	return m
}

// reply returns an answer to a question, after a change.
func reply(t *testing.T, q dnsmessage.Message, change func(*dnsmessage.Message), records ...string) []byte {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true}, Questions: q.Questions}
	for _, r := range records {
		m.Answers = append(m.Answers, record(t, r))
	}
	if change != nil {
		change(&m)
	}
	b, err := m.Pack()
	require.NoError(t, err)
	return b
}

var bothTypes = []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA}

func TestLookup(t *testing.T) {
	s := serve(t, func(q dnsmessage.Message, _ bool) [][]byte {
		require.Len(t, q.Questions, 1)
		require.True(t, q.RecursionDesired)
		require.Equal(t, dnsmessage.Class(largestDatagram), q.Additionals[0].Header.Class)
		if q.Questions[0].Type == dnsmessage.TypeA {
			return [][]byte{reply(t, q, nil, "a.example 300 A 192.0.2.1", "a.example 60 A 192.0.2.2")}
		}
		return [][]byte{reply(t, q, nil, "a.example 70 AAAA 2001:db8::1")}
	})
	addrs, ttl, err := lookup(t.Context(), []netip.AddrPort{s.at}, "a.example", bothTypes)
	require.NoError(t, err)
	require.Equal(t, time.Minute, ttl)
	require.Equal(t, "192.0.2.1/300 192.0.2.2/60 2001:db8::1/70", shown(Answer{Addrs: addrs}))
	require.Equal(t, int32(2), s.udp.Load())
	require.Zero(t, s.tcp.Load())
}

// TestForgedAnswers come before the true one, and belong to other questions.
func TestForgedAnswers(t *testing.T) {
	s := serve(t, func(q dnsmessage.Message, _ bool) [][]byte {
		forged := "a.example 300 A 198.51.100.66"
		return [][]byte{
			{},
			{1, 2, 3},
			reply(t, q, func(m *dnsmessage.Message) { m.ID++ }, forged),
			reply(t, q, func(m *dnsmessage.Message) { m.Response = false }, forged),
			reply(t, q, func(m *dnsmessage.Message) { m.Questions[0].Name = dnsmessage.MustNewName("b.example.") }, forged),
			reply(t, q, func(m *dnsmessage.Message) { m.Questions = nil }, forged),
			reply(t, q, func(m *dnsmessage.Message) { m.Questions[0].Type = dnsmessage.TypeTXT }, forged),
			reply(t, q, func(m *dnsmessage.Message) {
				m.Questions = []dnsmessage.Question{{Name: dnsmessage.MustNewName("A.Example."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}
			}, "a.example 300 A 192.0.2.1"),
		}
	})
	addrs, _, err := lookup(t.Context(), []netip.AddrPort{s.at}, "a.example", bothTypes[:1])
	require.NoError(t, err)
	require.Equal(t, "192.0.2.1/300", shown(Answer{Addrs: addrs}))
}

func TestLookupByTCP(t *testing.T) {
	s := serve(t, func(q dnsmessage.Message, overTCP bool) [][]byte {
		if overTCP {
			return [][]byte{reply(t, q, nil, "a.example 300 A 192.0.2.1", "a.example 300 A 192.0.2.2")}
		}
		m := reply(t, q, func(m *dnsmessage.Message) { m.Truncated = true }, "a.example 300 A 192.0.2.1")
		return [][]byte{m[:len(m)-2]}
	})
	addrs, _, err := lookup(t.Context(), []netip.AddrPort{s.at}, "a.example", bothTypes[:1])
	require.NoError(t, err)
	require.Equal(t, "192.0.2.1/300 192.0.2.2/300", shown(Answer{Addrs: addrs}))
	require.Equal(t, int32(1), s.tcp.Load())
}

func TestLookupFails(t *testing.T) {
	refuse := serve(t, func(q dnsmessage.Message, _ bool) [][]byte {
		return [][]byte{reply(t, q, func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeNameError })}
	})
	empty := serve(t, func(q dnsmessage.Message, _ bool) [][]byte { return [][]byte{reply(t, q, nil)} })
	other := serve(t, func(q dnsmessage.Message, overTCP bool) [][]byte {
		return [][]byte{reply(t, q, func(m *dnsmessage.Message) { m.Truncated, m.ID = !overTCP, m.ID+map[bool]uint16{true: 1}[overTCP] })}
	})
	works := serve(t, func(q dnsmessage.Message, _ bool) [][]byte {
		return [][]byte{reply(t, q, nil, "a.example 9 A 192.0.2.1")}
	})
	closed, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	silent := closed.LocalAddr().(*net.UDPAddr).AddrPort()
	closed.Close()
	for _, c := range []struct {
		resolvers []netip.AddrPort
		name      string
		want      string
	}{
		{nil, "a.example", "no resolver is known"},
		{[]netip.AddrPort{refuse.at}, "a.example", "the server answers with an error: RCodeNameError"},
		{[]netip.AddrPort{empty.at}, "a.example", "it has no address"},
		{[]netip.AddrPort{other.at}, "a.example", "not an answer"},
		{[]netip.AddrPort{silent}, "a.example", "connection refused"},
		{[]netip.AddrPort{works.at}, "a..example", "zero length segment"},
	} {
		_, _, err := lookup(t.Context(), c.resolvers, c.name, bothTypes)
		require.ErrorContains(t, err, c.want)
	}
	addrs, _, err := lookup(t.Context(), []netip.AddrPort{silent, works.at, refuse.at}, "a.example", bothTypes[:1])
	require.NoError(t, err, "another resolver is asked")
	require.Equal(t, "192.0.2.1/9", shown(Answer{Addrs: addrs}))

	half := serve(t, func(q dnsmessage.Message, _ bool) [][]byte {
		if q.Questions[0].Type == dnsmessage.TypeA {
			return [][]byte{reply(t, q, nil, "a.example 0 A 192.0.2.1")}
		}
		return [][]byte{reply(t, q, func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeServerFailure })}
	})
	addrs, ttl, err := lookup(t.Context(), []netip.AddrPort{half.at}, "a.example", bothTypes)
	require.ErrorContains(t, err, "RCodeServerFailure")
	require.Equal(t, "192.0.2.1/0", shown(Answer{Addrs: addrs}))
	require.Equal(t, leastTTL, ttl, "there is an address, however short its time")

	mute, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer mute.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _, _ = mute.ReadFrom(make([]byte, 1))
		cancel() // the daemon ends
	}()
	_, _, err = lookup(ctx, []netip.AddrPort{mute.LocalAddr().(*net.UDPAddr).AddrPort()}, "a.example", bothTypes)
	require.Error(t, err)
}

// recorded hands on elements.
type recorded chan []Element

func (r recorded) WriteNames(all []Element) error {
	r <- all
	return nil
}

// TestListedNamesAreAsked runs a service without a queue.
func TestListedNamesAreAsked(t *testing.T) {
	s := serve(t, func(q dnsmessage.Message, _ bool) [][]byte {
		if q.Questions[0].Name.String() != "www.example." || q.Questions[0].Type != dnsmessage.TypeA {
			return [][]byte{reply(t, q, func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeNameError })}
		}
		return [][]byte{reply(t, q, nil, "www.example 300 CNAME a.cdn", "a.cdn 60 A 192.0.2.1", "a.cdn 60 A 10.1.1.1")}
	})
	filter, wakes := make(recorded), make(chan struct{}, 10)
	open := func() (packets, error) { return nil, queue.ErrUnsupported }
	service := newService(slog.New(slog.DiscardHandler), filter, open, func() { wakes <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- service.Run(ctx) }()
	with := settings(Set{Name: "s1", Patterns: []string{"*.example", "unknown.example", "www.example"}})
	with.Resolvers = []netip.AddrPort{s.at}
	service.Serve(with)
	var written []Element
	select {
	case written = <-filter:
	case <-time.After(lab.Patience):
	}
	require.Len(t, written, 1)
	require.Equal(t, netip.MustParseAddr("192.0.2.1"), written[0].Addr)
	<-wakes
	require.Equal(t, ReasonNamesPolled, service.Problems("node")[0].Reason)
	cancel()
	require.NoError(t, <-ended)
	require.LessOrEqual(t, s.udp.Load(), int32(2), "only families that have a set, and no wildcards")
}
