package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

// pulse is the time between two datagrams of a stream, unless it is given or a user-mode kernel runs, and patience the time in which one
// has to be answered.
const (
	pulse    = 100 * time.Millisecond
	patience = time.Second
)

// slower returns a duration, or three times as much in a user-mode kernel: there, the whole cluster has one processor, of which pods that
// send each pulse would use half.
func slower(d time.Duration) time.Duration {
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil && strings.Contains(string(b), "User Mode Linux") {
		return 3 * d
	}
	return d
}

// datagram is one of a stream, as text: "NAME/FAMILY/KIND SEQ MISSING". KIND is kept, all from one port, or new, each from a port
// of its own and so a new connection for the nodes. MISSING counts the earlier ones without an answer in time.
type datagram struct {
	Stream  string
	Seq     int
	Missing int
}

func (d datagram) bytes() []byte { return fmt.Appendf(nil, "%s %d %d", d.Stream, d.Seq, d.Missing) }

func parse(b []byte) (d datagram, err error) {
	_, err = fmt.Sscanf(string(b), "%s %d %d", &d.Stream, &d.Seq, &d.Missing)
	return d, err
}

// pod serves HTTP as answer does, and sends two streams to each UDP address.
func pod(args []string) error {
	f := flag.NewFlagSet("box pod", flag.ExitOnError)
	name := f.String("name", "", "`name` of its streams")
	every := f.Duration("pulse", slower(pulse), "`time` between two datagrams of a stream")
	var to list
	f.Var(&to, "to", "UDP `address` of a recorder (repeatable)")
	if err := f.Parse(args); err != nil {
		return err
	}
	for _, address := range to {
		family := "4"
		if strings.HasPrefix(address, "[") {
			family = "6"
		}
		go stream(*name+"/"+family+"/kept", address, *every, true)
		go stream(*name+"/"+family+"/new", address, *every, false)
	}
	return answer(f.Args())
}

// sender counts the datagrams of a stream that wait for their answers.
type sender struct {
	mu      sync.Mutex
	waiting map[int]time.Time
	missing int
}

func (s *sender) sent(seq int, now time.Time) (missing int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, since := range s.waiting {
		if now.Sub(since) > patience {
			delete(s.waiting, n)
			s.missing++
		}
	}
	s.waiting[seq] = now
	return s.missing
}

func (s *sender) answered(seq int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, seq)
}

// stream sends datagrams until the process ends. An error counts as a datagram that was lost: there may be no route yet.
func stream(name, address string, every time.Duration, kept bool) {
	s := &sender{waiting: map[int]time.Time{}}
	var conn net.Conn
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for seq := 1; ; seq++ {
		now := <-ticks.C
		missing := s.sent(seq, now)
		if conn == nil || !kept {
			c, err := net.Dial("udp", address)
			if err != nil {
				continue
			}
			conn = c
			go s.listen(c, kept)
		}
		_, _ = conn.Write(datagram{name, seq, missing}.bytes()) // lost: there was no route, or an ICMP error came for an earlier one
	}
}

// listen reads answers: of a kept connection all, otherwise the one that comes in time.
func (s *sender) listen(c net.Conn, kept bool) {
	defer c.Close()
	buf := make([]byte, 512)
	for {
		if !kept {
			_ = c.SetReadDeadline(time.Now().Add(patience))
		}
		n, err := c.Read(buf)
		if d, wrong := parse(buf[:n]); err == nil && wrong == nil {
			s.answered(d.Seq)
		}
		if !kept || errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// record counts the datagrams of a stream that arrived since the last question.
type record struct {
	Stream   string           `json:"stream"`
	Sources  map[string]int   `json:"sources"`  // datagrams by the address that they came from
	First    map[string]first `json:"first"`    // the first of these datagrams
	Lost     int              `json:"lost"`     // numbers that did not come
	Missing  int              `json:"missing"`  // datagrams whose answers did not come back in time
	SilentMS int              `json:"silentMs"` // the longest time without one

	last    datagram
	arrived time.Time
}

// first is the first datagram of a stream from one source: when it arrived, and its number.
type first struct {
	At  time.Time `json:"at"`
	Seq int       `json:"seq"`
}

// recorder answers datagrams of streams, and keeps a record of each.
type recorder struct {
	mu      sync.Mutex
	streams map[string]*record
}

func (r *recorder) heard(d datagram, source string, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.streams[d.Stream]
	if s == nil || d.Seq < s.last.Seq-20 { // a second late at most; a process that starts again counts from 1
		s = &record{
			Stream: d.Stream, Sources: map[string]int{}, First: map[string]first{},
			last: datagram{Seq: d.Seq - 1, Missing: d.Missing}, arrived: now,
		}
		r.streams[d.Stream] = s
	}
	if s.Sources[source]++; s.Sources[source] == 1 {
		s.First[source] = first{now, d.Seq}
	}
	if d.Seq <= s.last.Seq {
		s.Lost-- // it was counted when a later one came
		return
	}
	s.Lost += d.Seq - s.last.Seq - 1
	s.Missing += d.Missing - s.last.Missing
	s.SilentMS = max(s.SilentMS, int(now.Sub(s.arrived).Milliseconds()))
	s.last, s.arrived = d, now
}

// take returns the records and begins new ones. A stream that has ended has an empty record from then on.
func (r *recorder) take(now time.Time) []record {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []record
	for _, s := range r.streams {
		s.SilentMS = max(s.SilentMS, int(now.Sub(s.arrived).Milliseconds()))
		all = append(all, *s)
		s.Sources, s.First, s.Lost, s.Missing, s.SilentMS = map[string]int{}, map[string]first{}, 0, 0, 0
	}
	return all
}

func (r *recorder) serve(l net.PacketConn) error {
	buf := make([]byte, 512)
	for {
		n, from, err := l.ReadFrom(buf)
		if err != nil {
			return err
		}
		d, err := parse(buf[:n])
		if err != nil {
			continue // no datagram of a stream
		}
		r.heard(d, from.(*net.UDPAddr).AddrPort().Addr().Unmap().String(), time.Now())
		_, _ = l.WriteTo(buf[:n], from) // no route to the source: the stream's record shows it as missing
	}
}

// outside is a host beyond a router: it answers HTTP at one address, streams at others, and GET /take on 127.0.0.1:9001 with their records
// as JSON.
func outside(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: box outside HTTP-ADDRESS UDP-ADDRESS …")
	}
	r := &recorder{streams: map[string]*record{}}
	ended := make(chan error)
	for _, address := range args[1:] {
		l, err := net.ListenPacket("udp", address)
		if err != nil {
			return err
		}
		go func() { ended <- r.serve(l) }()
	}
	take := func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(r.take(time.Now())); err != nil {
			fmt.Fprintln(os.Stderr, "take:", err)
		}
	}
	go func() { ended <- serve("127.0.0.1:9001", take) }()
	go func() { ended <- answer(args[:1]) }()
	return <-ended
}
