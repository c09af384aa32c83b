package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	"github.com/egressway/egressway/internal/cluster"
)

// ErrNoDaemon means that no process answers on the socket.
var ErrNoDaemon = errors.New("no daemon answers")

// clientHost is the Host header of this package's requests.
const clientHost = "egressway"

// Read asks the daemon on the socket for its report.
func Read(ctx context.Context, socket string) (Report, error) {
	var r Report
	body, err := request(ctx, socket, http.MethodGet, "/status")
	if err != nil {
		return r, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&r); err != nil {
		return r, fmt.Errorf("read the status on socket %s: %w", socket, err)
	}
	return r, nil
}

// Ask asks the daemon on the socket for its plan for an address.
func Ask(ctx context.Context, socket string, is netip.Addr) (Address, error) {
	return askDaemon(ctx, socket, is, url.Values{})
}

// AskAbout asks the daemon for its plan for an address, and for connections from there to a port of a destination.
func AskAbout(ctx context.Context, socket string, is, to netip.Addr, port cluster.FirewallPort) (Address, error) {
	return askDaemon(ctx, socket, is, url.Values{
		"to": {to.String()}, "protocol": {strconv.Itoa(int(port.Protocol))}, "port": {strconv.Itoa(int(port.Number))},
	})
}

func askDaemon(ctx context.Context, socket string, is netip.Addr, about url.Values) (Address, error) {
	var a Address
	about.Set("is", is.String())
	body, err := request(ctx, socket, http.MethodGet, "/address?"+about.Encode())
	if err != nil {
		return a, err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&a); err != nil {
		return a, fmt.Errorf("read the answer of the daemon on socket %s about %s: %w", socket, is, err)
	}
	return a, nil
}

// Text fetches a text from the daemon on the socket, such as /metrics or /goroutines, up to most bytes.
func Text(ctx context.Context, socket, path string, most int64) ([]byte, error) {
	body, err := request(ctx, socket, http.MethodGet, path)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, most))
	if err != nil {
		return b, fmt.Errorf("read %s on socket %s: %w", path, socket, err)
	}
	return b, nil
}

// Follow calls seen with the daemon's report and with each later one that differs, until seen fails, the daemon ends,
// which is an error, or ctx ends, which is not.
func Follow(ctx context.Context, socket string, seen func(Report) error) error {
	body, err := request(ctx, socket, http.MethodGet, "/status?watch=1")
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer body.Close()
	for lines := json.NewDecoder(body); ; {
		var r Report
		err := lines.Decode(&r)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return fmt.Errorf("the daemon on socket %s ended", socket)
		case err != nil:
			return fmt.Errorf("read the status on socket %s: %w", socket, err)
		}
		if err := seen(r); err != nil {
			return err
		}
	}
}

// Drain asks the daemon on the socket to move this node's services away, or to stop doing so.
func Drain(ctx context.Context, socket string, yes bool) error {
	method := http.MethodPost
	if !yes {
		method = http.MethodDelete
	}
	body, err := request(ctx, socket, method, "/drain")
	if err == nil {
		body.Close()
	}
	return err
}

// request sends a request to the daemon. If the daemon refuses it, the error contains the reason that it gives.
func request(ctx context.Context, socket, method, path string) (io.ReadCloser, error) {
	var d net.Dialer
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) },
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+clientHost+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask the daemon: %w", err)
	}
	resp, err := client.Do(req)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w on socket %s", ErrNoDaemon, socket)
	case err != nil:
		return nil, fmt.Errorf("ask the daemon on socket %s: %w", socket, errors.Unwrap(err)) // without the made-up URL
	case resp.StatusCode == http.StatusConflict:
		defer resp.Body.Close()
		const longest = 4 << 10
		said, err := io.ReadAll(io.LimitReader(resp.Body, longest))
		return nil, fmt.Errorf("the daemon refuses: %w", cmp.Or(err, errors.New(strings.TrimSpace(string(said)))))
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent:
		resp.Body.Close()
		return nil, fmt.Errorf("ask the daemon on socket %s: it answers %s", socket, resp.Status)
	}
	return resp.Body, nil
}
