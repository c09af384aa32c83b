package names

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// packed returns an answer about a name, with records as "name TTL type value".
func packed(tb testing.TB, name string, typ dnsmessage.Type, records ...string) []byte {
	tb.Helper()
	return changed(tb, func(*dnsmessage.Message) {}, name, typ, records...)
}

// changed returns such an answer after a change.
func changed(tb testing.TB, change func(*dnsmessage.Message), name string, typ dnsmessage.Type, records ...string) []byte {
	tb.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, Response: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: typ, Class: dnsmessage.ClassINET}},
	}
	for _, r := range records {
		m.Answers = append(m.Answers, record(tb, r))
	}
	change(&m)
	b, err := m.Pack()
	require.NoError(tb, err)
	return b
}

func record(tb testing.TB, line string) dnsmessage.Resource {
	tb.Helper()
	var name, typ, value string
	var ttl uint32
	_, err := fmt.Sscan(line, &name, &ttl, &typ, &value)
	require.NoError(tb, err, line)
	r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{
		Name: dnsmessage.MustNewName(name + "."), Class: dnsmessage.ClassINET, TTL: ttl,
	}}
	switch typ {
	case "A":
		r.Body = &dnsmessage.AResource{A: netip.MustParseAddr(value).As4()}
	case "AAAA":
		r.Body = &dnsmessage.AAAAResource{AAAA: netip.MustParseAddr(value).As16()}
	case "CNAME":
		r.Body = &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(value + ".")}
	case "TXT":
		r.Body = &dnsmessage.TXTResource{TXT: []string{value}}
	default:
		tb.Fatal(line)
	}
	return r
}

// shown is an Answer's addresses as text.
func shown(a Answer) string {
	var all []string
	for _, x := range a.Addrs {
		all = append(all, fmt.Sprintf("%s/%d", x.Addr, x.TTL/time.Second))
	}
	return strings.Join(all, " ")
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name    string
		records []string
		want    string
	}{
		{"none", nil, ""},
		{"one", []string{"www.example.com 300 A 192.0.2.1"}, "192.0.2.1/300"},
		{"several, sorted", []string{"www.example.com 300 A 192.0.2.2", "www.example.com 60 A 192.0.2.1"}, "192.0.2.1/60 192.0.2.2/300"},
		{"twice: the least TTL", []string{"www.example.com 300 A 192.0.2.1", "www.example.com 60 A 192.0.2.1"}, "192.0.2.1/60"},
		{"IPv6", []string{"www.example.com 0 AAAA 2001:db8::1"}, "2001:db8::1/0"},
		{"IPv4 in IPv6", []string{"www.example.com 60 AAAA ::ffff:192.0.2.1"}, ""},
		{"in capitals", []string{"WWW.Example.COM 300 A 192.0.2.1"}, "192.0.2.1/300"},
		{"of another name", []string{"evil.example.com 300 A 192.0.2.1", "www.example.com 300 A 192.0.2.2"}, "192.0.2.2/300"},
		{"of other types", []string{"www.example.com 300 TXT x", "www.example.com 300 A 192.0.2.2"}, "192.0.2.2/300"},
		{"a chain", []string{
			"www.example.com 300 CNAME a.cdn.example", "a.cdn.example 20 CNAME B.cdn.example", "b.cdn.example 60 A 192.0.2.1",
			"b.cdn.example 5 A 192.0.2.2",
		}, "192.0.2.1/20 192.0.2.2/5"},
		{"a chain, from its end", []string{
			"b.cdn.example 60 A 192.0.2.1", "a.cdn.example 20 CNAME b.cdn.example", "www.example.com 300 CNAME a.cdn.example",
		}, "192.0.2.1/20"},
		{"addresses beside the chain", []string{
			"www.example.com 300 CNAME a.cdn.example", "www.example.com 300 A 192.0.2.9", "a.cdn.example 300 A 192.0.2.1",
			"c.cdn.example 300 A 192.0.2.8",
		}, "192.0.2.1/300"},
		{"a chain without end", []string{"www.example.com 300 CNAME a.cdn.example"}, ""},
		{"a loop", []string{"www.example.com 9 CNAME a.cdn.example", "a.cdn.example 9 CNAME www.example.com", "www.example.com 9 A 192.0.2.1"}, ""},
		{"a loop of itself", []string{"www.example.com 300 CNAME www.example.com", "www.example.com 300 A 192.0.2.1"}, ""},
		{"two aliases: the first", []string{
			"www.example.com 300 CNAME a.example", "www.example.com 300 CNAME b.example", "a.example 9 A 192.0.2.1", "b.example 9 A 192.0.2.2",
		}, "192.0.2.1/9"},
		{"the highest TTL", []string{"www.example.com 2147483647 A 192.0.2.1"}, "192.0.2.1/2147483647"},
		{"a negative TTL", []string{"www.example.com 2147483648 A 192.0.2.1"}, "192.0.2.1/0"},
	} {
		a, err := Parse(packed(t, "wWw.example.Com", dnsmessage.TypeA, c.records...))
		require.NoError(t, err, c.name)
		require.Equal(t, "www.example.com", a.Name, c.name)
		require.Equal(t, uint16(7), a.ID)
		require.Equal(t, dnsmessage.TypeA, a.Type)
		require.Equal(t, c.want, shown(a), c.name)
	}
}

func TestParseRefuses(t *testing.T) {
	other := dnsmessage.Question{Name: dnsmessage.MustNewName("b."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	for name, change := range map[string]func(*dnsmessage.Message){
		"a question":           func(m *dnsmessage.Message) { m.Response = false },
		"another operation":    func(m *dnsmessage.Message) { m.OpCode = 5 },
		"an error":             func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeNameError },
		"no question":          func(m *dnsmessage.Message) { m.Questions = nil },
		"two questions":        func(m *dnsmessage.Message) { m.Questions = append(m.Questions, other) },
		"a question of CHAOS":  func(m *dnsmessage.Message) { m.Questions[0].Class = dnsmessage.ClassCHAOS },
		"a question of no one": func(m *dnsmessage.Message) { m.Questions[0].Class = 0 },
	} {
		a, err := Parse(changed(t, change, "a.example", dnsmessage.TypeA, "a.example 9 A 192.0.2.1"))
		require.Error(t, err, name)
		require.Empty(t, a.Addrs, name)
	}
	whole := packed(t, "a.example", dnsmessage.TypeA, "a.example 9 A 192.0.2.1")
	for n := range whole {
		a, err := Parse(whole[:n])
		require.Error(t, err, n)
		require.Empty(t, a.Addrs)
	}
	a, err := Parse(changed(t, func(m *dnsmessage.Message) { m.Answers[0].Header.Class = dnsmessage.ClassCHAOS }, "a.example", dnsmessage.TypeA,
		"a.example 9 A 192.0.2.1", "a.example 9 A 192.0.2.2"))
	require.NoError(t, err)
	require.Equal(t, "192.0.2.2/9", shown(a), "records of another class")
}

func TestTruncated(t *testing.T) {
	truncate := func(m *dnsmessage.Message) { m.Truncated = true }
	whole := changed(t, truncate, "a.example", dnsmessage.TypeA, "a.example 9 A 192.0.2.1")
	a, err := Parse(whole)
	require.NoError(t, err)
	require.True(t, a.Truncated)
	require.Equal(t, "192.0.2.1/9", shown(a))
	a, err = Parse(whole[:len(whole)-1])
	require.Error(t, err)
	require.True(t, a.Truncated)
	require.Equal(t, "a.example", a.Name)

	require.Equal(t, "a.example", Question(whole[:12+11+4]))
	require.Empty(t, Question(whole[:12+11+3]))
	require.Empty(t, Question(changed(t, func(m *dnsmessage.Message) { m.Response = false }, "a.example", dnsmessage.TypeA)))
}

// FuzzParse looks for messages that the parser cannot bear, and for names and addresses that no set may have.
func FuzzParse(f *testing.F) {
	f.Add(packed(f, "www.example.com", dnsmessage.TypeA, "www.example.com 300 A 192.0.2.1", "www.example.com 60 TXT x"))
	f.Add(packed(f, "www.example.com", dnsmessage.TypeAAAA, "www.example.com 300 CNAME a.b", "a.b 1 CNAME c.d", "c.d 2 AAAA 2001:db8::1"))
	f.Add(packed(f, "a.b", dnsmessage.TypeA, "a.b 1 CNAME c.d", "c.d 1 CNAME a.b"))
	f.Add(packed(f, "A.b", dnsmessage.TypeAAAA, "a.B 1 AAAA ::ffff:192.0.2.1"))
	f.Add(changed(f, func(m *dnsmessage.Message) { m.Truncated = true }, "a.b", dnsmessage.TypeA, "a.b 1 A 192.0.2.1"))
	f.Add(changed(f, func(m *dnsmessage.Message) { m.RCode = 3 }, "a.b", dnsmessage.TypeA))
	f.Add(changed(f, func(m *dnsmessage.Message) {
		m.Additionals = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName("."), Type: dnsmessage.TypeOPT}, Body: &dnsmessage.OPTResource{}}}
	}, "a.b", dnsmessage.TypeA, "a.b 1 A 192.0.2.1"))
	f.Fuzz(func(t *testing.T, message []byte) {
		if a, err := Parse(message); err == nil {
			checkAnswer(t, a)
			if q := Question(message); q != a.Name {
				t.Fatalf("Question says %q, Parse %q", q, a.Name)
			}
		}
		Question(message)
	})
}

func checkAnswer(t *testing.T, a Answer) {
	t.Helper()
	for i, c := range []byte(a.Name) {
		if 'A' <= c && c <= 'Z' || c == '.' && i == len(a.Name)-1 {
			t.Fatalf("name %q", a.Name)
		}
	}
	for i, x := range a.Addrs {
		if !x.IsValid() || x.Is4In6() || x.TTL < 0 || x.TTL > (1<<31-1)*time.Second || i > 0 && !a.Addrs[i-1].Less(x.Addr) {
			t.Fatalf("addresses %v", a.Addrs)
		}
	}
}
