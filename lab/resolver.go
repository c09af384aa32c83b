package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/net/dns/dnsmessage"
)

// Record is an address of a name, or another name for it.
type Record struct {
	Name  string
	TTL   uint32
	Addr  netip.Addr
	Alias string // instead of an address
}

// Zone returns the records of an answer. found is false for a name that does not exist.
type Zone func(name string, typ dnsmessage.Type) (records []Record, found bool)

// Resolver is a DNS server, by UDP and TCP.
type Resolver struct {
	Asked atomic.Int64 // questions

	zone Zone
	udp  net.PacketConn
	tcp  net.Listener
	work sync.WaitGroup
}

// Resolve starts a DNS server on port 53 of a node of the lab. It ends with the lab.
func (l *Lab) Resolve(n *Node, zone Zone) (*Resolver, error) {
	r := &Resolver{zone: zone}
	err := n.Do(func() (err error) {
		if r.udp, err = net.ListenPacket("udp", ":53"); err != nil {
			return err
		}
		r.tcp, err = net.Listen("tcp", ":53")
		return err
	})
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("node %s: start resolver: %w", n.Name, err)
	}
	r.work.Go(r.serveUDP)
	r.work.Go(r.serveTCP)
	l.atEnd(r.Close)
	return r, nil
}

// Close ends the server.
func (r *Resolver) Close() {
	if r.udp != nil {
		r.udp.Close()
	}
	if r.tcp != nil {
		r.tcp.Close()
	}
	r.work.Wait()
}

func (r *Resolver) serveUDP() {
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := r.udp.ReadFrom(buf)
		if err != nil {
			return
		}
		if b, err := r.answer(buf[:n], false); err == nil {
			_, _ = r.udp.WriteTo(b, from)
		}
	}
}

func (r *Resolver) serveTCP() {
	for {
		c, err := r.tcp.Accept()
		if err != nil {
			return
		}
		r.work.Go(func() {
			defer c.Close()
			for {
				q, err := readMessage(c)
				if err != nil {
					return
				}
				b, err := r.answer(q, true)
				if err != nil || writeMessage(c, b) != nil {
					return
				}
			}
		})
	}
}

// answer answers one question. By UDP, an answer that is too long has no records.
func (r *Resolver) answer(question []byte, overTCP bool) ([]byte, error) {
	r.Asked.Add(1)
	var q dnsmessage.Message
	if err := q.Unpack(question); err != nil || len(q.Questions) != 1 {
		return nil, errors.New("not a question")
	}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: q.ID, Response: true, RecursionAvailable: true}, Questions: q.Questions}
	records, found := r.zone(strings.ToLower(strings.TrimSuffix(q.Questions[0].Name.String(), ".")), q.Questions[0].Type)
	if !found {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, x := range records {
		m.Answers = append(m.Answers, x.resource())
	}
	limit := 512
	for _, x := range q.Additionals {
		if x.Header.Type == dnsmessage.TypeOPT {
			limit = int(x.Header.Class)
		}
	}
	b, err := m.Pack()
	if err == nil && !overTCP && len(b) > limit {
		m.Truncated, m.Answers = true, nil
		return m.Pack()
	}
	return b, err
}

func (x Record) resource() dnsmessage.Resource {
	r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{
		Name: dnsmessage.MustNewName(x.Name + "."), Class: dnsmessage.ClassINET, TTL: x.TTL,
	}}
	switch {
	case x.Alias != "":
		r.Body = &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(x.Alias + ".")}
	case x.Addr.Is4():
		r.Body = &dnsmessage.AResource{A: x.Addr.As4()}
	default:
		r.Body = &dnsmessage.AAAAResource{AAAA: x.Addr.As16()}
	}
	return r
}

func readMessage(c io.Reader) ([]byte, error) {
	size := make([]byte, 2)
	if _, err := io.ReadFull(c, size); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(size))
	_, err := io.ReadFull(c, b)
	return b, err
}

func writeMessage(c io.Writer, b []byte) error {
	_, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...))
	return err
}

// questionID numbers the questions of this process.
var questionID atomic.Uint32

// Lookup asks a server for the addresses of a name: by UDP, and by TCP where the answer is truncated; or by TCP at once.
func (n *Node) Lookup(ctx context.Context, server netip.AddrPort, name string, typ dnsmessage.Type, overTCP bool) ([]netip.Addr, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	m, err := n.lookup(ctx, server, name, typ, overTCP)
	if err == nil && m.Truncated {
		m, err = n.lookup(ctx, server, name, typ, true)
	}
	if err == nil && m.RCode != dnsmessage.RCodeSuccess {
		err = errors.New(m.RCode.String())
	}
	if err != nil {
		return nil, fmt.Errorf("node %s asks %s for %v of %s: %w", n.Name, server, typ, name, because(ctx, err))
	}
	var all []netip.Addr
	for _, x := range m.Answers {
		switch r := x.Body.(type) {
		case *dnsmessage.AResource:
			all = append(all, netip.AddrFrom4(r.A))
		case *dnsmessage.AAAAResource:
			all = append(all, netip.AddrFrom16(r.AAAA))
		}
	}
	return all, nil
}

func (n *Node) lookup(
	ctx context.Context, server netip.AddrPort, name string, typ dnsmessage.Type, overTCP bool,
) (m dnsmessage.Message, err error) {
	q := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: uint16(questionID.Add(1)), RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: typ, Class: dnsmessage.ClassINET}},
	}
	b, err := q.Pack()
	if err != nil {
		return m, err
	}
	network := map[bool]string{false: "udp", true: "tcp"}[overTCP]
	conn, err := n.dial(ctx, network, server.String(), nil)
	if err != nil {
		return m, err
	}
	defer conn.Close()
	release, err := bound(ctx, conn)
	if err != nil {
		return m, err
	}
	defer release()
	if overTCP {
		if err = writeMessage(conn, b); err == nil {
			b, err = readMessage(conn)
		}
	} else if _, err = conn.Write(b); err == nil {
		b = make([]byte, maxDatagram)
		var size int
		size, err = conn.Read(b)
		b = b[:size]
	}
	if err != nil {
		return m, err
	}
	err = m.Unpack(b)
	return m, err
}
