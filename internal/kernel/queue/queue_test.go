package queue

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/lab/netns"
)

const number = 3

// queueLab is a resolver and a pod, and between them a node that queues answers.
type queueLab struct {
	*testing.T
	netns.Family
	resolver, node, pod *netns.Machine
	at, client          string // addresses of the resolver and of the pod
}

func newQueueLab(t *testing.T, f netns.Family) *queueLab {
	t.Helper()
	l := &queueLab{t, f, netns.New(t), netns.New(t), netns.New(t), f.Out1 + "2", f.Pod1 + "2"}
	netns.Wire(f, l.node, "out", l.resolver, "eth0", f.Out1)
	netns.Wire(f, l.node, "pod", l.pod, "eth0", f.Pod1)
	l.node.Run("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
	l.resolver.Run(f.IP + " route add default via " + f.Out1 + "1")
	l.pod.Run(f.IP + " route add default via " + f.Pod1 + "1")
	l.node.Run(fmt.Sprintf(`nft '
		table inet t {
			chain answers {
				type filter hook postrouting priority 310;
				oifname pod ct direction reply meta l4proto { tcp, udp } th sport 53 queue flags bypass to %d
			}
		}'`, number))
	return l
}

func (l *queueLab) open() *Queue {
	l.Helper()
	var q *Queue
	require.NoError(l, l.node.Do(func() (err error) {
		q, err = Open(number)
		return err
	}))
	l.Cleanup(func() { _ = q.Close() })
	return q
}

func forEachFamily(t *testing.T, run func(*testing.T, *queueLab)) {
	t.Helper()
	for _, f := range netns.Families {
		t.Run(f.Name, func(t *testing.T) { run(t, newQueueLab(t, f)) })
	}
}

// exchange is a pod's socket and the resolver's, which has its question.
type exchange struct {
	*testing.T
	pod      net.Conn
	resolver net.PacketConn
	from     net.Addr
}

// question sends a question from the pod to a port of the resolver.
func (l *queueLab) question(port int) exchange {
	l.Helper()
	e := exchange{T: l.T}
	require.NoError(l, l.resolver.Do(func() (err error) {
		e.resolver, err = net.ListenPacket("udp", net.JoinHostPort(l.at, fmt.Sprint(port)))
		return err
	}))
	l.Cleanup(func() { e.resolver.Close() })
	require.NoError(l, l.pod.Do(func() (err error) {
		e.pod, err = net.Dial("udp", e.resolver.LocalAddr().String())
		return err
	}))
	l.Cleanup(func() { e.pod.Close() })
	_, err := e.pod.Write([]byte("?"))
	require.NoError(l, err)
	_, e.from, err = e.resolver.ReadFrom(make([]byte, 1))
	require.NoError(l, err)
	return e
}

func (e exchange) answer(text string) {
	e.Helper()
	_, err := e.resolver.WriteTo([]byte(text), e.from)
	require.NoError(e, err)
}

func (e exchange) received() string {
	e.Helper()
	b := make([]byte, 1<<16)
	n, err := e.pod.Read(b)
	require.NoError(e, err)
	return string(b[:n])
}

// read reads so many packets, and returns their numbers and messages.
func read(t *testing.T, q *Queue, count int) (ids []uint32, messages []string) {
	t.Helper()
	for len(ids) < count {
		packets, err := q.Read()
		require.NoError(t, err)
		for _, p := range packets {
			message, content := Message(p.Payload)
			require.Equal(t, Whole, content)
			ids, messages = append(ids, p.ID), append(messages, string(message))
		}
	}
	return ids, messages
}

func TestAnswersWait(t *testing.T) {
	forEachFamily(t, func(t *testing.T, l *queueLab) {
		q := l.open()
		dns, other := l.question(53), l.question(54)
		// Fragments are whole in the queue.
		answers := []string{"one", "two", strings.Repeat("three", 1000), "four", "five"}
		for _, a := range answers {
			dns.answer(a)
		}
		other.answer("other")
		require.Equal(t, "other", other.received(), "packets of other ports do not wait")
		ids, messages := read(t, q, len(answers))
		require.Equal(t, answers, messages)

		require.NoError(t, q.Accept(ids[2]))
		require.Equal(t, answers[2], dns.received(), "in any order")
		require.NoError(t, q.Accept(ids[3], ids[1], ids[0]))
		for _, i := range []int{0, 1, 3} {
			require.Equal(t, answers[i], dns.received())
		}
		require.NoError(t, q.Accept(ids[0], 999), "those that are gone are ignored")
		dns.answer("six")
		ids, messages = read(t, q, 1)
		require.Equal(t, []string{"six"}, messages, "errors about verdicts are no packets")

		dns.answer("seven") // perhaps not read
		require.NoError(t, q.Close())
		for _, a := range []string{"five", "six", "seven"} {
			require.Equal(t, a, dns.received(), "those that wait pass at the end")
		}
		require.ErrorIs(t, q.Accept(ids...), os.ErrClosed)
		dns.answer("eight")
		require.Equal(t, "eight", dns.received(), "without a reader, answers pass")
	})
}

func TestCloseEndsRead(t *testing.T) {
	l := newQueueLab(t, netns.Families[0])
	q := l.open()
	ended := make(chan error)
	go func() {
		_, err := q.Read()
		ended <- err
	}()
	require.NoError(t, q.Close())
	require.ErrorIs(t, <-ended, os.ErrClosed)
}

func TestQueueInUse(t *testing.T) {
	l := newQueueLab(t, netns.Families[0])
	q := l.open()
	open := func() error {
		return l.node.Do(func() error {
			q, err := Open(number)
			if err == nil {
				err = q.Close()
			}
			return err
		})
	}
	require.ErrorIs(t, open(), ErrInUse)
	require.NoError(t, q.Close())
	require.NoError(t, open())
}

// TestFullQueuePasses sends more answers than wait in the kernel: those beyond pass unread, and the others wait for their verdict.
func TestFullQueuePasses(t *testing.T) {
	l := newQueueLab(t, netns.Families[0])
	q := l.open()
	dns, other := l.question(53), l.question(54)
	require.NoError(t, dns.pod.(*net.UDPConn).SetReadBuffer(8<<20))
	const beyond = 100
	for i := range Length + beyond {
		dns.answer(fmt.Sprint(i))
	}
	other.answer("other")
	require.Equal(t, "other", other.received())
	for i := range beyond {
		require.Equal(t, fmt.Sprint(Length+i), dns.received())
	}
	ids, messages := read(t, q, Length)
	require.Len(t, ids, Length)
	require.Equal(t, fmt.Sprint(Length-1), messages[Length-1])
	require.NoError(t, q.Accept(ids...))
	dns.answer("last")
	ids, messages = read(t, q, 1)
	require.Equal(t, []string{"last"}, messages)
	require.NoError(t, q.Accept(ids...))
	for range Length - 1 {
		dns.received()
	}
	require.Equal(t, fmt.Sprint(Length-1), dns.received())
	require.Equal(t, "last", dns.received())
}

// TestAnswersByTCP carries two messages in segments of their own, and one in two segments.
func TestAnswersByTCP(t *testing.T) {
	forEachFamily(t, func(t *testing.T, l *queueLab) {
		q := l.open()
		var server net.Listener
		require.NoError(t, l.resolver.Do(func() (err error) {
			server, err = net.Listen("tcp", net.JoinHostPort(l.at, "53"))
			return err
		}))
		t.Cleanup(func() { server.Close() })
		type content struct {
			message string
			content Content
		}
		seen, ended := make(chan content, 100), make(chan error)
		go func() { // lets all packets go
			for {
				packets, err := q.Read()
				if err != nil {
					ended <- err
					return
				}
				for _, p := range packets {
					if message, c := Message(p.Payload); c != None {
						seen <- content{string(message), c}
					}
					if err := q.Accept(p.ID); err != nil && !errors.Is(err, os.ErrClosed) {
						ended <- err
						return
					}
				}
			}
		}()
		var client net.Conn
		require.NoError(t, l.pod.Do(func() (err error) {
			client, err = net.Dial("tcp", server.Addr().String())
			return err
		}))
		defer client.Close()
		c, err := server.Accept()
		require.NoError(t, err)
		defer c.Close()
		for _, segment := range []struct {
			bytes string
			want  content
		}{
			{"\x00\x03one", content{"one", Whole}},
			{"\x00\x03two", content{"two", Whole}},
			{"\x00\x05th", content{"th", Part}},
		} {
			_, err := c.Write([]byte(segment.bytes))
			require.NoError(t, err)
			require.Equal(t, segment.want, <-seen)
			got := make([]byte, len(segment.bytes))
			_, err = io.ReadFull(client, got)
			require.NoError(t, err)
			require.Equal(t, segment.bytes, string(got))
		}
		require.NoError(t, q.Close())
		require.ErrorIs(t, <-ended, os.ErrClosed)
	})
}
