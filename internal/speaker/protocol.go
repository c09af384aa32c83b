// Package speaker runs the BGP and BFD sessions in a separate process, which outlives the agent that drives it. Routers
// and other nodes notice nothing when an agent ends, even if it is killed. The next agent, of the same or another
// version, adopts the sessions.
//
// The process serves a Unix socket. Both sides send JSON values, one per line. The agent sends a hello and then
// requests; the speaker answers each, and sends changes of sessions, learned routes and other nodes unasked. Each side
// ignores fields that it does not know, so that versions can work together; a change that must not be ignored needs a
// new Protocol. One agent drives at a time: the one that connected last. A connection that ends changes nothing.
package speaker

import (
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/plan"
)

// Protocol is the version of the protocol on the socket. Speakers and agents of different protocols cannot work
// together.
const Protocol = 1

const (
	// helloWithin limits how long either side waits for the other's hello.
	helloWithin = 5 * time.Second
	// writeWithin limits how long sending one message may take.
	writeWithin = 10 * time.Second
	// answerWithin limits every request.
	answerWithin = 30 * time.Second
	// chunk is the number of routes per message.
	chunk = 1000
)

// message is the only type that is sent. Exactly one of its pointers or flags is set.
type message struct {
	ID uint64 `json:"id,omitempty"` // of a request and of its answer

	// Requests.
	Milliseconds int64       `json:"milliseconds,omitempty"` // how long the agent waits for the answer
	Hello        *hello      `json:"hello,omitempty"`        // sent by both sides
	Withdraw     *withdrawal `json:"withdraw,omitempty"`
	Apply        *change     `json:"apply,omitempty"`
	Watch        *watching   `json:"watch,omitempty"`
	OnLink       *onLink     `json:"onLink,omitempty"`
	End          bool        `json:"end,omitempty"` // withdraw everything and exit

	// Messages of the speaker.
	Answer     *answer   `json:"answer,omitempty"`
	Sessions   *sessions `json:"sessions,omitempty"`
	Learned    *learned  `json:"learned,omitempty"`
	Nodes      *nodes    `json:"nodes,omitempty"`
	Complete   bool      `json:"told,omitempty"`       // a new agent has received the whole state
	Again      bool      `json:"again,omitempty"`      // the applied state is not complete: apply again to learn why
	Superseded string    `json:"superseded,omitempty"` // by an agent of this version
	Ending     bool      `json:"ending,omitempty"`     // the speaker is shutting down
}

// hello is the first message of either side.
type hello struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"` // of the program
	// Sent by the agent only: it understands learned.groups.
	Groups bool `json:"groups,omitempty"`
	// Sent by the speaker only: its start time, and the desired state that it has, without the prefixes to refuse.
	Started  time.Time     `json:"started,omitzero"`
	Speakers []wireSpeaker `json:"speakers,omitempty"`
}

// answer completes a request.
type answer struct {
	Errors []string `json:"errors,omitempty"`
	Full   bool     `json:"full,omitempty"` // the change refers to a network that the speaker does not have: send the full state
}

// withdrawal lists the announcements and peers to withdraw.
type withdrawal struct {
	Networks []networkWithdrawal `json:"networks,omitempty"`
}

// networkWithdrawal is the withdrawal of one network.
type networkWithdrawal struct {
	Network  string   `json:"network"`
	All      bool     `json:"all,omitempty"` // its speaker stops
	Prefixes []prefix `json:"prefixes,omitempty"`
	Peers    []string `json:"peers,omitempty"` // their addresses or interfaces
}

// change is the difference to the state that was last asked for on the same connection.
type change struct {
	Full     bool            `json:"full,omitempty"` // start from an empty state
	Speakers []speakerChange `json:"speakers,omitempty"`
	Gone     []string        `json:"gone,omitempty"` // networks
}

// speakerChange is the difference in one network.
type speakerChange struct {
	Network  string                        `json:"network"`
	Speaker  *wireSpeaker                  `json:"speaker,omitempty"` // all fields but the lists below; nil: unchanged
	Announce listChange[plan.Announcement] `json:"announce,omitzero"`
	Refuse   listChange[plan.Prefix]       `json:"refuse,omitzero"`
}

// wireSpeaker is a plan.Speaker with all its fields.
type wireSpeaker struct {
	plan.Speaker
	DeviceIndex int `json:"deviceIndex,omitempty"` // replaces the embedded field, which is not part of a plan's JSON
}

func toWire(s plan.Speaker) wireSpeaker { return wireSpeaker{s, s.DeviceIndex} }

func (w wireSpeaker) speaker() plan.Speaker {
	w.Speaker.DeviceIndex = w.DeviceIndex
	return w.Speaker
}

// sessions replaces the state of all sessions.
type sessions struct {
	All []bgp.Session `json:"all"`
}

// learned is the difference in the learned routes of one network.
type learned struct {
	Network string                 `json:"network"`
	Routes  listChange[plan.Route] `json:"routes,omitzero"`
	Groups  []group                `json:"groups,omitempty"` // what Routes.Set holds, for agents that understand it
	Gone    bool                   `json:"gone,omitempty"`   // the network has no speaker any more
	More    bool                   `json:"more,omitempty"`   // the change continues in the next message: apply all parts together
}

// group is a set of routes with the same next hops.
type group struct {
	To       prefixes       `json:"to"`
	NextHops []plan.NextHop `json:"nextHops"`
}

// wire is one end of a connection. It may be written to concurrently, but read by one goroutine only.
type wire struct {
	conn net.Conn
	in   *json.Decoder

	writing sync.Mutex
}

func newWire(conn net.Conn) *wire { return &wire{conn: conn, in: json.NewDecoder(conn)} }

// write sends a message. An error closes the connection.
func (w *wire) write(m message, within time.Duration) error {
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	w.writing.Lock()
	defer w.writing.Unlock()
	if err := w.conn.SetWriteDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := w.conn.Write(append(b, '\n')); err != nil {
		w.conn.Close()
		return err
	}
	return nil
}

func (w *wire) read() (m message, err error) {
	err = w.in.Decode(&m)
	return m, err
}

// readHello reads the first message, which must be a hello.
func (w *wire) readHello() (hello, error) {
	if err := w.conn.SetReadDeadline(time.Now().Add(helloWithin)); err != nil {
		return hello{}, err
	}
	m, err := w.read()
	if err != nil {
		return hello{}, err
	}
	if m.Hello == nil {
		return hello{}, fmt.Errorf("its first message is not a hello")
	}
	return *m.Hello, w.conn.SetReadDeadline(time.Time{})
}
