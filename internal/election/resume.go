package election

import "github.com/egressway/egressway/internal/cluster"

// Resume notes in the choices which standbys were hosts in those of before, or are noted there already: such a standby has
// connections that go on. now is changed.
func Resume(before, now map[cluster.Key]Choice) {
	for key, c := range now {
		was := before[key]
		followed := was.Host == c.Standby && was.Host != c.Host
		noted := was.Former && was.Host == c.Host && was.Standby == c.Standby
		if c.Standby != "" && (followed || noted) {
			c.Former = true
			now[key] = c
		}
	}
}
