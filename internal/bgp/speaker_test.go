package bgp

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// An error of listening names the key, its value and what would be right.
func TestRefusedPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, err = net.Listen("tcp", l.Addr().String())
	require.ErrorContains(t, refusedPort(1179, err), "bgp.listenPort: 1179: ")
	require.ErrorContains(t, refusedPort(1179, err), "another program on this node listens there")
	denied := &net.OpError{Op: "listen", Err: syscall.EACCES}
	require.EqualError(t, refusedPort(179, denied), "bgp.listenPort: 179: listen: permission denied: a port below 1024 needs CAP_NET_BIND_SERVICE; give the speaker that, or another port, or -1")
	require.Equal(t, net.ErrClosed, refusedPort(179, net.ErrClosed))
}
