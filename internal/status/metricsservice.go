package status

import (
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics of each service are written by hand after those that the library writes: ten thousand services have fifty
// thousand lines, for which the library takes half a second and this code some milliseconds.

// serviceFamily is a metric of each service.
type serviceFamily struct{ name, help, kind string }

var (
	infoFamily   = serviceFamily{"egressway_egressservice_info", "EgressServices that this node is host or standby of; always 1.", "gauge"}
	ofIngressIPs = []ingressFamily{
		{
			serviceFamily{
				"egressway_egressservice_sent_packets_total",
				"Packets that left this node with this ingress IP as source.", "counter",
			},
			func(t *Traffic, a netip.Addr) (uint64, bool) { s, ok := t.Sent[a]; return s.Packets, ok },
		},
		{
			serviceFamily{
				"egressway_egressservice_sent_bytes_total",
				"Bytes that left this node with this ingress IP as source, IP headers included.", "counter",
			},
			func(t *Traffic, a netip.Addr) (uint64, bool) { s, ok := t.Sent[a]; return s.Bytes, ok },
		},
		{
			serviceFamily{
				"egressway_egressservice_connections",
				"Connections that leave this node with this ingress IP as source.", "gauge",
			},
			func(t *Traffic, a netip.Addr) (uint64, bool) { u, ok := t.Ports[a]; return uint64(u.Connections), ok },
		},
		{
			serviceFamily{
				"egressway_egressservice_snat_ports_used",
				"Source ports of this ingress IP in use with one port of one remote address, at most.", "gauge",
			},
			func(t *Traffic, a netip.Addr) (uint64, bool) { u, ok := t.Ports[a]; return uint64(u.Ports), ok },
		},
	}
)

// ingressFamily is a metric of each ingress IP of a service.
type ingressFamily struct {
	serviceFamily
	value func(*Traffic, netip.Addr) (uint64, bool)
}

// metrics serves all metrics as text. Every known client accepts this format.
func (s *Status) metrics() http.Handler {
	library := promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, DisableCompression: true})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.Clone(r.Context())
		r.Header.Del("Accept")
		answer := &statusCode{ResponseWriter: w}
		library.ServeHTTP(answer, r)
		if s.perService && (answer.code == 0 || answer.code == http.StatusOK) {
			t := s.traffic()
			_, _ = w.Write(ofServices(s.Report(), &t)) // the client is gone
		}
	})
}

// statusCode records the status code of an answer.
type statusCode struct {
	http.ResponseWriter
	code int // 0: only a body was written
}

// WriteHeader implements http.ResponseWriter.
func (s *statusCode) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

// ofServices returns the metrics of the services with the report's node as host or standby.
func ofServices(r Report, t *Traffic) (b []byte) {
	type mine struct {
		labels string // name
		role   string
		*Service
	}
	var services []mine
	for i := range r.Services {
		s := &r.Services[i]
		if role := s.role(r.Node); role != "" {
			services = append(services, mine{`{egressservice="` + escaped(s.Namespace+"/"+s.Name) + `"`, role, s})
		}
	}
	if len(services) == 0 {
		return nil
	}
	const about = 500 // bytes for a service with one ingress IP
	b = make([]byte, 0, about*len(services))
	head := func(f serviceFamily) {
		b = append(b, "# HELP "+f.name+" "+f.help+"\n# TYPE "+f.name+" "+f.kind+"\n"...)
	}
	head(infoFamily)
	for i := range services {
		s := &services[i]
		b = append(append(b, infoFamily.name...), s.labels...)
		b = append(append(b, `,network="`...), escaped(s.Network)...)
		b = append(append(append(b, `",role="`...), s.role...), "\"} 1\n"...)
	}
	for _, f := range ofIngressIPs {
		headed := false
		for i := range services {
			s := &services[i]
			for _, a := range s.IngressIPs {
				value, ok := f.value(t, a)
				if !ok {
					continue
				}
				if !headed {
					head(f.serviceFamily)
					headed = true
				}
				b = append(append(b, f.name...), s.labels...)
				b = append(a.AppendTo(append(b, `,ingress_ip="`...)), `"} `...)
				b = append(strconv.AppendUint(b, value, 10), '\n')
			}
		}
	}
	return b
}

// labelEscapes are the escapes of the text format.
var labelEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func escaped(s string) string { return labelEscapes.Replace(valid(s)) }
