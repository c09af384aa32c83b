package names

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// Answer is an answer to a question about a name.
type Answer struct {
	ID        uint16
	Name      string // in lower case, without final dot
	Type      dnsmessage.Type
	Truncated bool   // the server left something out
	Addrs     []Addr // sorted
}

// Addr is an address of a name.
type Addr struct {
	netip.Addr
	TTL time.Duration // the least on the way from the name to the address
}

// Errors of Parse that callers distinguish.
var (
	errNoAnswer = errors.New("not an answer to one question of class IN")
	errRefused  = errors.New("the server answers with an error")
)

// Parse reads an answer: the addresses at the end of the chain of CNAMEs that begins at the question's name, whatever the order of
// the records. It ignores records of other names. The question is in the Answer even with an error about the records.
func Parse(message []byte) (Answer, error) {
	var p dnsmessage.Parser
	a, err := question(&p, message)
	if err != nil {
		return a, err
	}
	r := records{aliases: map[string]alias{}, addrs: map[string][]Addr{}}
	for {
		err := r.next(&p)
		switch {
		case errors.Is(err, dnsmessage.ErrSectionDone):
			a.Addrs = r.follow(a.Name)
			return a, nil
		case err != nil:
			return a, fmt.Errorf("answer about %q: %w", a.Name, err)
		}
	}
}

// question reads a message up to its first question.
func question(p *dnsmessage.Parser, message []byte) (a Answer, err error) {
	h, err := p.Start(message)
	if err != nil {
		return a, fmt.Errorf("header: %w", err)
	}
	if !h.Response || h.OpCode != 0 {
		return a, errNoAnswer
	}
	q, err := p.Question()
	if err != nil {
		return a, fmt.Errorf("question: %w", err)
	}
	if q.Class != dnsmessage.ClassINET {
		return a, errNoAnswer
	}
	a = Answer{ID: h.ID, Name: plain(q.Name), Type: q.Type, Truncated: h.Truncated}
	if _, err := p.Question(); !errors.Is(err, dnsmessage.ErrSectionDone) {
		return a, errNoAnswer
	}
	if h.RCode != dnsmessage.RCodeSuccess {
		return a, fmt.Errorf("%w: %v", errRefused, h.RCode)
	}
	return a, nil
}

// Question returns the name that the beginning of an answer is about; empty: it is no answer, or too short.
func Question(beginning []byte) string {
	var p dnsmessage.Parser
	h, err := p.Start(beginning)
	if err != nil || !h.Response || h.OpCode != 0 {
		return ""
	}
	q, err := p.Question()
	if err != nil || q.Class != dnsmessage.ClassINET {
		return ""
	}
	return plain(q.Name)
}

// records are those of an answer that lead to addresses, by name.
type records struct {
	aliases map[string]alias
	addrs   map[string][]Addr
}

type alias struct {
	name string
	ttl  time.Duration
}

// next reads a record. ErrSectionDone: there are no more.
func (r *records) next(p *dnsmessage.Parser) error {
	h, err := p.AnswerHeader()
	if err != nil {
		return err
	}
	if h.Class != dnsmessage.ClassINET {
		return p.SkipAnswer()
	}
	name := plain(h.Name)
	switch h.Type {
	case dnsmessage.TypeCNAME:
		c, err := p.CNAMEResource()
		if _, twice := r.aliases[name]; err == nil && !twice {
			r.aliases[name] = alias{plain(c.CNAME), seconds(h.TTL)}
		}
		return err
	case dnsmessage.TypeA:
		a, err := p.AResource()
		if err == nil {
			r.addrs[name] = append(r.addrs[name], Addr{netip.AddrFrom4(a.A), seconds(h.TTL)})
		}
		return err
	case dnsmessage.TypeAAAA:
		a, err := p.AAAAResource()
		if addr := netip.AddrFrom16(a.AAAA); err == nil && !addr.Is4In6() {
			r.addrs[name] = append(r.addrs[name], Addr{addr, seconds(h.TTL)})
		}
		return err
	}
	return p.SkipAnswer()
}

// follow returns the addresses at the end of a name's chain, each once.
func (r *records) follow(name string) []Addr {
	const day = 24 * time.Hour
	least := 36500 * day
	for range len(r.aliases) + 1 { // a longer chain is a loop
		next, is := r.aliases[name]
		if !is {
			return unique(r.addrs[name], least)
		}
		name, least = next.name, min(least, next.ttl)
	}
	return nil
}

// unique sorts addresses, and keeps each with its least TTL, which is at most ttl.
func unique(addrs []Addr, ttl time.Duration) []Addr {
	for i := range addrs {
		addrs[i].TTL = min(addrs[i].TTL, ttl)
	}
	slices.SortFunc(addrs, func(a, b Addr) int {
		if c := a.Compare(b.Addr); c != 0 {
			return c
		}
		return int(a.TTL/time.Second) - int(b.TTL/time.Second)
	})
	return slices.CompactFunc(addrs, func(a, b Addr) bool { return a.Addr == b.Addr })
}

// seconds returns a TTL. One with the highest bit counts as 0 (RFC 2181, 8).
func seconds(ttl uint32) time.Duration {
	if ttl > 1<<31-1 {
		return 0
	}
	return time.Duration(ttl) * time.Second
}

// plain returns a name in lower case, without final dot. Bytes beyond ASCII stay (RFC 4343).
func plain(n dnsmessage.Name) string {
	b := n.Data[:n.Length]
	if len(b) > 0 && b[len(b)-1] == '.' {
		b = b[:len(b)-1]
	}
	lower := make([]byte, len(b))
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[i] = c
	}
	return string(lower)
}
