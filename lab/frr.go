package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// FRR stands in for FRR's image: Debian's daemons at their standard paths, those that /etc/frr/daemons asks for with
// the options given there. Each reads its own file (bgpd.conf), or all of them frr.conf; the first is much quicker.
var FRR = Image{
	Dirs:  []string{"/etc/frr", "/run/frr", "/var/log/frr", "/var/tmp/frr"},
	Owner: "frr",
	Start: func(ctx context.Context, n *Node) error {
		ctx, cancel := context.WithTimeout(ctx, frrLimit) // vtysh waits for daemons that do not answer
		defer cancel()
		_, err := n.Run(ctx, "sh", "-ec", `
[ -e /etc/frr/vtysh.conf ] || : >/etc/frr/vtysh.conf
. /etc/frr/daemons
zebra=yes
for daemon in zebra staticd bfdd bgpd; do
	eval wanted=\${$daemon:-no} options=\${${daemon}_options:-}
	[ "$wanted" = no ] || /usr/lib/frr/$daemon -d -F traditional $options
done
[ ! -e /etc/frr/frr.conf ] || vtysh -b`)
		return err
	},
}

// KillFRR ends all daemons of FRR on a node at once, as a crash would: without a message to its peers. FRR.Start starts
// them again.
func KillFRR(ctx context.Context, n *Node) error {
	ctx, cancel := context.WithTimeout(ctx, frrLimit)
	defer cancel()
	_, err := n.Run(ctx, "sh", "-ec", `
for pid in $(cat /run/frr/*.pid); do
	kill -9 $pid
	while kill -0 $pid 2>/dev/null; do sleep 0.02; done
done
rm -f /run/frr/*`)
	return err
}

// frrLimit is how long all daemons of FRR on a node may take to start or to end, on a busy machine.
const frrLimit = time.Minute

// vtyLimit is how long a daemon of FRR may take to answer.
const vtyLimit = 30 * time.Second

// VTY gives commands to a daemon of FRR over the socket that vtysh uses, which is far quicker than vtysh, and returns
// the answer to the last one. The first is run as "enable" would be; "configure terminal" leads to configuration.
func (n *Node) VTY(daemon string, commands ...string) (string, error) {
	var conn net.Conn
	err := n.Do(func() (err error) {
		conn, err = net.Dial("unix", "/run/frr/"+daemon+".vty")
		return err
	})
	if err != nil {
		return "", fmt.Errorf("node %s: connect to %s: %w", n.Name, daemon, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(vtyLimit)); err != nil {
		return "", err
	}
	var answer string
	for _, c := range append([]string{"enable"}, commands...) {
		if answer, err = vtyAsk(conn, c); err != nil {
			return answer, fmt.Errorf("node %s: %s: %q: %w: %s", n.Name, daemon, c, err, answer)
		}
	}
	return answer, nil
}

// VTYJSON decodes the answer to a command that ends in "json".
func (n *Node) VTYJSON(into any, daemon, command string) error {
	answer, err := n.VTY(daemon, command)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(answer), into); err != nil {
		return fmt.Errorf("node %s: %s: %q: %w: %s", n.Name, daemon, command, err, answer)
	}
	return nil
}

// vtyAsk sends a command, which ends in a zero byte. The answer ends in three and a status.
func vtyAsk(conn net.Conn, command string) (string, error) {
	if _, err := conn.Write(append([]byte(command), 0)); err != nil {
		return "", err
	}
	const success, warning = 0, 1 // CMD_SUCCESS, CMD_WARNING
	var answer []byte
	for buf := make([]byte, 64<<10); ; {
		n, err := conn.Read(buf)
		if err != nil {
			return string(answer), err
		}
		answer = append(answer, buf[:n]...)
		end := len(answer) - 4
		if end < 0 || !bytes.Equal(answer[end:end+3], []byte{0, 0, 0}) {
			continue
		}
		if status := answer[end+3]; status != success && status != warning {
			return string(answer[:end]), fmt.Errorf("status %d", status)
		}
		return string(answer[:end]), nil
	}
}
