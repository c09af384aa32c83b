package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

// answer serves HTTP on an address.
func answer(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: box answer ADDRESS")
	}
	return serve(args[0], mirror)
}

// netexec serves HTTP as Kubernetes' agnhost does, as far as containerlab/kind asks it.
func netexec(args []string) error {
	f := flag.NewFlagSet("box netexec", flag.ExitOnError)
	port := f.Int("http-port", 8080, "`port` of HTTP")
	if err := f.Parse(args); err != nil {
		return err
	}
	return serve(fmt.Sprint(":", *port), func(w http.ResponseWriter, r *http.Request) {
		name, err := os.Hostname()
		if r.URL.Path != "/hostname" || err != nil {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, name) // without a line's end, as agnhost
	})
}

func serve(address string, page http.HandlerFunc) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s := &http.Server{Handler: page, ReadHeaderTimeout: time.Minute}
	s.SetKeepAlivesEnabled(false) // each question is a connection
	return s.Serve(l)
}

// mirror writes the client's address and the name of this host.
func mirror(w http.ResponseWriter, r *http.Request) {
	client, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	name, err := os.Hostname()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, client, name)
}

// ask prints the answers of servers, in their order, until one fails. Each has three seconds.
func ask(args []string) error {
	f := flag.NewFlagSet("box ask", flag.ExitOnError)
	from := f.String("from", "", "`IP` address of the question")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() == 0 {
		return errors.New("usage: box ask [-from IP] URL, or several")
	}
	dialer := &net.Dialer{}
	if *from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(*from)}
	}
	client := http.Client{Timeout: slower(3 * time.Second), Transport: &http.Transport{DialContext: dialer.DialContext}}
	for _, url := range f.Args() {
		if err := askOne(client, url); err != nil {
			return err
		}
	}
	return nil
}

func askOne(client http.Client, url string) error {
	r, err := client.Get(url)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("ask %s: %s", url, r.Status)
	}
	_, err = io.Copy(os.Stdout, r.Body)
	return err
}

// forward accepts connections on the listener that is its standard input. That listener keeps the network namespace in which it
// was opened, so connections reach this namespace without an interface or an address between the two.
func forward(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: box forward ADDRESS <LISTENER")
	}
	l, err := net.FileListener(os.Stdin)
	if err != nil {
		return err
	}
	return relayAll(l, args[0])
}

func relayAll(l net.Listener, to string) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go relay(c, to)
	}
}

// relay copies both directions of a connection, each to its end.
func relay(in net.Conn, to string) {
	defer in.Close()
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		pipe(out, in)
	}()
	pipe(in, out)
	<-done
}

// pipe copies until one side ends, and hands the end on. An error ends both sides: the other direction then ends too.
func pipe(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		from.Close()
		return
	}
	if c, ok := to.(*net.TCPConn); ok {
		_ = c.CloseWrite() // the other side may have closed
	}
}
