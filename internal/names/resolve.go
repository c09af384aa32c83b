package names

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	cryptorand "crypto/rand"

	"golang.org/x/net/dns/dnsmessage"
)

// answerWithin bounds a question to one resolver.
const answerWithin = 2 * time.Second

// mostTries bounds the resolvers that are asked one question.
const mostTries = 3

// largestDatagram is the size in bytes that answers by UDP may have: they are not fragmented (RFC 9715).
const largestDatagram = 1232

var errNoAddress = errors.New("it has no address")

// lookup asks resolvers for the addresses of a name, until one answers. ttl is the least of all for which an address counts as valid;
// 0: there is none.
func lookup(
	ctx context.Context, resolvers []netip.AddrPort, name string, types []dnsmessage.Type,
) (addrs []Addr, ttl time.Duration, err error) {
	if len(resolvers) == 0 {
		return nil, 0, errors.New("no resolver is known")
	}
	first := rand.IntN(len(resolvers))
	var fault error
	for _, typ := range types {
		var a Answer
		for i := range min(len(resolvers), mostTries) {
			r := resolvers[(first+i)%len(resolvers)]
			if a, err = ask(ctx, r, name, typ); err == nil {
				break
			}
		}
		fault = cmp.Or(fault, err)
		addrs = append(addrs, a.Addrs...)
	}
	for i, a := range addrs {
		if valid := max(a.TTL, leastTTL); i == 0 || valid < ttl {
			ttl = valid
		}
	}
	if len(addrs) == 0 && fault == nil {
		fault = errNoAddress
	}
	return addrs, ttl, fault
}

// ask asks a resolver one question: by UDP, and by TCP where the answer is truncated.
func ask(ctx context.Context, resolver netip.AddrPort, name string, typ dnsmessage.Type) (Answer, error) {
	fail := func(err error) (Answer, error) {
		return Answer{}, fmt.Errorf("ask %s for %v of %q: %w", resolver, typ, name, err)
	}
	q, err := newQuery(name, typ)
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	a, err := q.overUDP(ctx, resolver)
	if a.Truncated {
		a, err = q.overTCP(ctx, resolver)
	}
	if err != nil {
		return fail(err)
	}
	return a, nil
}

// query is a question, and the message that asks it.
type query struct {
	id      uint16
	name    string
	typ     dnsmessage.Type
	message []byte
}

func newQuery(name string, typ dnsmessage.Type) (query, error) {
	q := query{name: name, typ: typ}
	var random [2]byte
	_, _ = cryptorand.Read(random[:]) // never fails
	q.id = binary.BigEndian.Uint16(random[:])
	n, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return q, err
	}
	var edns dnsmessage.ResourceHeader
	if err := edns.SetEDNS0(largestDatagram, dnsmessage.RCodeSuccess, false); err != nil {
		return q, err
	}
	m := dnsmessage.Message{
		Header:      dnsmessage.Header{ID: q.id, RecursionDesired: true},
		Questions:   []dnsmessage.Question{{Name: n, Type: typ, Class: dnsmessage.ClassINET}},
		Additionals: []dnsmessage.Resource{{Header: edns, Body: &dnsmessage.OPTResource{}}},
	}
	q.message, err = m.Pack()
	return q, err
}

// read reads an answer. ours is false where it belongs to another question: anyone may have sent it.
func (q query) read(message []byte) (a Answer, ours bool, err error) {
	a, err = Parse(message)
	return a, a.ID == q.id && a.Name == q.name && a.Type == q.typ, err
}

// overUDP asks from a socket of its own, which accepts packets of the resolver only.
func (q query) overUDP(ctx context.Context, resolver netip.AddrPort) (Answer, error) {
	conn, err := q.dial(ctx, "udp", resolver)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	if _, err := conn.Write(q.message); err != nil {
		return Answer{}, err
	}
	buf := make([]byte, 1<<16)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return Answer{}, err
		}
		if a, ours, err := q.read(buf[:n]); ours {
			return a, err
		}
	}
}

func (q query) overTCP(ctx context.Context, resolver netip.AddrPort) (Answer, error) {
	conn, err := q.dial(ctx, "tcp", resolver)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	size := binary.BigEndian.AppendUint16(nil, uint16(len(q.message)))
	if _, err := conn.Write(append(size, q.message...)); err != nil {
		return Answer{}, err
	}
	if _, err := io.ReadFull(conn, size); err != nil {
		return Answer{}, err
	}
	message := make([]byte, binary.BigEndian.Uint16(size))
	if _, err := io.ReadFull(conn, message); err != nil {
		return Answer{}, err
	}
	a, ours, err := q.read(message)
	if !ours {
		return Answer{}, cmp.Or(err, errNoAnswer)
	}
	return a, err
}

// dial connects, and makes reads and writes end with ctx.
func (query) dial(ctx context.Context, network string, resolver netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, resolver.String())
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return conn, nil
}
