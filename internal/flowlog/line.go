package flowlog

import (
	"encoding/json"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/kernel/conntrack"
)

// The events of lines.
const (
	eventBegin      = "begin"      // the log begins; connections that ended before have no line unless a former run wrote it
	eventOpen       = "open"       // a connection that was open when the log began
	eventConnection = "connection" // a connection that has ended
	eventLost       = "lost"       // lines are missing
	eventStop       = "stop"       // the log ends
)

// loss is the cause of missing lines.
type loss int

// The causes.
const (
	lossKernel loss = iota // the kernel dropped events
	lossFile               // the file did not accept lines, or not in time
	losses     = iota
)

func (c loss) String() string { return [losses]string{lossKernel: "kernel", lossFile: "file"}[c] }

// line is a line of the log. docs/flowlog.md describes the fields for users.
type line struct {
	Event string    `json:"event"`
	Time  time.Time `json:"time"` // when the line was made
	Node  string    `json:"node"`

	Kind      string `json:"kind,omitempty"`      // of the object that selects the pod
	Namespace string `json:"namespace,omitempty"` // of the object, or of the pod
	Name      string `json:"name,omitempty"`      // of the object
	Role      string `json:"role,omitempty"`      // of this node for the object: host or standby

	Network         string     `json:"network,omitempty"`
	Protocol        string     `json:"protocol,omitempty"`
	PodIP           netip.Addr `json:"podIP,omitzero"`
	PodPort         uint16     `json:"podPort,omitempty"`
	Pod             string     `json:"pod,omitempty"`
	PodNode         string     `json:"podNode,omitempty"`
	SourceIP        netip.Addr `json:"sourceIP,omitzero"`
	SourcePort      uint16     `json:"sourcePort,omitempty"`
	DestinationIP   netip.Addr `json:"destinationIP,omitzero"`
	DestinationPort uint16     `json:"destinationPort,omitempty"`

	Start           *time.Time `json:"start,omitempty"`
	End             *time.Time `json:"end,omitempty"`
	PacketsSent     *uint64    `json:"packetsSent,omitempty"`
	BytesSent       *uint64    `json:"bytesSent,omitempty"`
	PacketsReceived *uint64    `json:"packetsReceived,omitempty"`
	BytesReceived   *uint64    `json:"bytesReceived,omitempty"`

	Lost   uint64 `json:"lost,omitempty"`
	LostBy string `json:"lostBy,omitempty"`
}

// newLine returns the line about a connection, without the names of objects.
func newLine(event, node string, r conntrack.Record) line {
	l := line{
		Event: event, Time: time.Now().UTC(), Node: node, Protocol: protocol(r.Proto),
		PodIP: r.Src.Addr(), PodPort: r.Src.Port(), SourceIP: r.SNAT.Addr(), SourcePort: r.SNAT.Port(),
		DestinationIP: r.Dst.Addr(), DestinationPort: r.Dst.Port(),
	}
	if !r.Start.IsZero() {
		l.Start = &r.Start
	}
	if r.Counted {
		l.PacketsSent, l.BytesSent = &r.Sent.Packets, &r.Sent.Bytes
		l.PacketsReceived, l.BytesReceived = &r.Received.Packets, &r.Received.Bytes
	}
	return l
}

var protocols = map[uint8]string{
	unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_ICMP: "icmp", unix.IPPROTO_ICMPV6: "icmpv6",
	unix.IPPROTO_SCTP: "sctp", unix.IPPROTO_DCCP: "dccp", unix.IPPROTO_UDPLITE: "udplite", unix.IPPROTO_GRE: "gre",
}

// protocol returns the name of an IP protocol, or its number.
func protocol(number uint8) string {
	if name, ok := protocols[number]; ok {
		return name
	}
	return strconv.Itoa(int(number))
}

// text returns the line in JSON with its end.
func (l line) text() []byte {
	b, err := json.Marshal(l)
	if err != nil {
		panic(err) // only numbers, strings and times of this century
	}
	return append(b, '\n')
}
