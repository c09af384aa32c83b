// Package speaker keeps the BGP sessions, and BFD, in a process of their own. It outlives the agent that drives it: routers
// and other nodes notice nothing when an agent ends, however it does, and the next one, of the same version or another,
// adopts what is there.
//
// The process serves a Unix socket. On it, both sides send JSON values, a line each. The agent sends a hello and then
// requests; the speaker answers each, and tells without being asked what changed of sessions, learned routes and other nodes. Fields
// that one side does not know are ignored, so that versions understand each other; what could not be ignored is a new
// Protocol. One agent drives at a time, the one that came last. A connection that ends changes nothing.
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

// Protocol is the version of what is said on the socket. Speakers and agents of different ones cannot work together.
const Protocol = 1

const (
	// helloWithin is how long either side may take to say who it is.
	helloWithin = 5 * time.Second
	// writeWithin is how long a message may take to be taken by the other side.
	writeWithin = 10 * time.Second
	// answerWithin bounds a request for which nothing else does.
	answerWithin = 30 * time.Second
	// chunk is how many routes one message tells.
	chunk = 1000
)

// message is everything that is sent. Exactly one of its pointers is set, or one of its flags.
type message struct {
	ID uint64 `json:"id,omitempty"` // of a request and of its answer

	// Requests.
	Milliseconds int64       `json:"milliseconds,omitempty"` // that the agent waits for the answer
	Hello        *hello      `json:"hello,omitempty"`        // the speaker's, too
	Withdraw     *withdrawal `json:"withdraw,omitempty"`
	Apply        *change     `json:"apply,omitempty"`
	Watch        *watching   `json:"watch,omitempty"`
	End          bool        `json:"end,omitempty"` // take everything back and exit

	// What the speaker says.
	Answer     *answer   `json:"answer,omitempty"`
	Sessions   *sessions `json:"sessions,omitempty"`
	Learned    *learned  `json:"learned,omitempty"`
	Nodes      *nodes    `json:"nodes,omitempty"`
	Told       bool      `json:"told,omitempty"`       // all that a new agent must know
	Again      bool      `json:"again,omitempty"`      // what was applied is not complete: apply it once more to learn why
	Superseded string    `json:"superseded,omitempty"` // by an agent of this version
	Ending     bool      `json:"ending,omitempty"`     // the speaker was told to end
}

// hello is how either side begins.
type hello struct {
	Protocol int    `json:"protocol"`
	Version  string `json:"version"` // of the program
	// The speaker's: when it started, and what it was asked for, but for what must not be learned.
	Started  time.Time     `json:"started,omitzero"`
	Speakers []wireSpeaker `json:"speakers,omitempty"`
}

// answer is the end of a request.
type answer struct {
	Errors []string `json:"errors,omitempty"`
	Full   bool     `json:"full,omitempty"` // a change was about something that is not known: send all of it
}

// withdrawal names what goes.
type withdrawal struct {
	Networks []networkWithdrawal `json:"networks,omitempty"`
}

// networkWithdrawal is what goes in one network.
type networkWithdrawal struct {
	Network  string   `json:"network"`
	All      bool     `json:"all,omitempty"` // its speaker stops
	Prefixes []prefix `json:"prefixes,omitempty"`
	Peers    []string `json:"peers,omitempty"` // their addresses or interfaces
}

// change is what differs from what was asked for before on the same connection.
type change struct {
	Full     bool            `json:"full,omitempty"` // nothing of before stays
	Speakers []speakerChange `json:"speakers,omitempty"`
	Gone     []string        `json:"gone,omitempty"` // networks
}

// speakerChange is what differs for one network.
type speakerChange struct {
	Network  string                        `json:"network"`
	Speaker  *wireSpeaker                  `json:"speaker,omitempty"` // all but the lists below; nil: as before
	Announce listChange[plan.Announcement] `json:"announce,omitzero"`
	Refuse   listChange[plan.Prefix]       `json:"refuse,omitzero"`
}

// wireSpeaker is a plan.Speaker with all its fields.
type wireSpeaker struct {
	plan.Speaker
	DeviceIndex int `json:"deviceIndex,omitempty"` // takes the place of the one that plans do not show
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

// learned is what differs in the learned routes of one network.
type learned struct {
	Network string                 `json:"network"`
	Routes  listChange[plan.Route] `json:"routes,omitzero"`
	Gone    bool                   `json:"gone,omitempty"` // the network has no speaker any more
	More    bool                   `json:"more,omitempty"` // another message about it follows, only together they are right
}

// wire is one end of a connection. Several may write at once, one reads.
type wire struct {
	conn net.Conn
	in   *json.Decoder

	writing sync.Mutex
}

func newWire(conn net.Conn) *wire { return &wire{conn: conn, in: json.NewDecoder(conn)} }

// write sends a message. After an error the connection is of no use any more: it is closed.
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
		return hello{}, fmt.Errorf("it does not begin with a hello")
	}
	return *m.Hello, w.conn.SetReadDeadline(time.Time{})
}
