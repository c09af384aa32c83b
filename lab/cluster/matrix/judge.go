package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// record counts the datagrams of a stream that a host outside received: see "box outside".
type record struct {
	Stream   string           `json:"stream"`
	Sources  map[string]int   `json:"sources"`
	First    map[string]first `json:"first"` // by source
	Lost     int              `json:"lost"`
	Missing  int              `json:"missing"`
	SilentMS int              `json:"silentMs"`
	losing   []string         // of a sum: streams that lost datagrams or answers
}

// first is the first datagram of a stream from one source: when it arrived, and its number.
type first struct {
	At  time.Time `json:"at"`
	Seq int       `json:"seq"`
}

func (r record) received() (n int) {
	for _, count := range r.Sources {
		n += count
	}
	return n
}

// add continues a record by the next one of its stream.
func (r *record) add(next record) {
	if r.Sources == nil {
		r.Sources, r.First = map[string]int{}, map[string]first{}
	}
	for source, count := range next.Sources {
		r.Sources[source] += count
	}
	for source, f := range next.First {
		if known, ok := r.First[source]; !ok || f.At.Before(known.At) {
			r.First[source] = f
		}
	}
	r.Lost, r.Missing, r.SilentMS = r.Lost+next.Lost, r.Missing+next.Missing, max(r.SilentMS, next.SilentMS)
}

// wire holds the records of all streams by the host outside that received them.
type wire map[string]map[string]*record

func (w wire) add(host string, records []record) {
	if w[host] == nil {
		w[host] = map[string]*record{}
	}
	for _, r := range records {
		if w[host][r.Stream] == nil {
			w[host][r.Stream] = &record{Stream: r.Stream}
		}
		w[host][r.Stream].add(r)
	}
}

// way has the host outside at which a pod's packets have to arrive, and their sources: IPv4, IPv6. Its former sources are right as well.
type way struct {
	host    string
	sources [2]string
	former  [2]string
}

func (w way) source(family string) string { return ofFamily(w.sources, family) }

func (w way) allows(source, family string) bool {
	return source == w.source(family) || source == ofFamily(w.former, family)
}

func ofFamily(ips [2]string, family string) string {
	if family == "6" {
		return ips[1]
	}
	return ips[0]
}

// kinds and families are the parts of a stream's name beside the pod's.
var (
	families = []string{"4", "6"}
	kinds    = []string{"kept", "new"}
)

func streamsOf(pod string) (names []string) {
	for _, family := range families {
		for _, kind := range kinds {
			names = append(names, pod+"/"+family+"/"+kind)
		}
	}
	return names
}

// wrong lists each stream that arrived elsewhere, with another source, or from a pod that has no way.
func (w wire) wrong(ways map[string]way) (found []string) {
	for host, streams := range w {
		for name, r := range streams {
			pod, rest, _ := strings.Cut(name, "/")
			want, known := ways[pod]
			for source, n := range r.Sources {
				if known && want.host == host && want.allows(source, rest[:1]) {
					continue
				}
				found = append(found, fmt.Sprintf("%d of %s at %s from %s, not at %s from %s",
					n, name, host, source, want.host, want.source(rest[:1])))
			}
		}
	}
	slices.Sort(found)
	return found
}

// sum adds the records of the pods' streams up. Streams that have not arrived count as silent.
func (w wire) sum(ways map[string]way, pods []string) (total record, silent []string) {
	for _, pod := range pods {
		for _, name := range streamsOf(pod) {
			r := w[ways[pod].host][name]
			if r == nil || r.received() == 0 {
				silent = append(silent, name)
				continue
			}
			total.add(*r)
			if r.Lost+r.Missing > 0 {
				total.losing = append(total.losing, fmt.Sprintf("%s: %d and %d answers", name, r.Lost, r.Missing))
			}
		}
	}
	slices.Sort(silent)
	return total, silent
}

// least returns the fewest datagrams that arrived of any stream of the pods.
func (w wire) least(ways map[string]way, pods []string) int {
	least := -1
	for _, pod := range pods {
		for _, name := range streamsOf(pod) {
			n := 0
			if r := w[ways[pod].host][name]; r != nil {
				n = r.received()
			}
			if least < 0 || n < least {
				least = n
			}
		}
	}
	return least
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
