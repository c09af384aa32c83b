package stage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/egressway/egressway/lab"
)

// SpeakerSocket is where the speaker of a node listens, in the node.
const SpeakerSocket = "/run/egressway/speaker.sock"

// StartSpeaker starts the speaker of a node, confined as it is deployed, and waits until it listens.
func (s *Stage) StartSpeaker(node string) error {
	binary, err := lab.Binary()
	if err != nil {
		return err
	}
	if s.Speakers[node], err = s.Start(s.Node(node), "setpriv", "--bounding-set", "-all,+net_raw", "--no-new-privs", binary, "speaker",
		"--socket", SpeakerSocket); err != nil {
		return err
	}
	return lab.Wait(context.Background(), lab.Patience, func() error {
		return s.Node(node).Do(func() error {
			conn, err := net.Dial("unix", SpeakerSocket)
			if err == nil {
				conn.Close()
			}
			return err
		})
	})
}

// frrRouters are the nodes that run FRR.
var frrRouters = []string{"red1", "red2", "blue1", "blue2", "gw"}

// usualInterval of BFD is the one that nodes have among each other by default; milliseconds.
const usualInterval = 100

// bfd has routers and nodes watch each other, with this many milliseconds between packets.
func (s *Stage) bfd(interval int) error {
	folder := filepath.Join(s.dir, "vrf-egress")
	const group, daemons = " neighbor NODES peer-group\n", "        - vrf-egress/daemons:/etc/frr/daemons\n"
	bfdd := fmt.Sprintf("bfd\n profile fast\n  detect-multiplier 3\n  receive-interval %d\n  transmit-interval %[1]d\n", interval)
	profiles := fmt.Sprintf("  bfdProfiles: [{name: fast, transmitInterval: %d, receiveInterval: %[1]d, detectMultiplier: 3}]\n", interval)
	errs := []error{
		os.WriteFile(filepath.Join(folder, "bfdd.conf"), []byte(bfdd), 0o644),
		edit(filepath.Join(s.dir, "vrf-egress.clab.yml"), daemons, daemons+"        - vrf-egress/bfdd.conf:/etc/frr/bfdd.conf\n"),
		edit(filepath.Join(folder, "daemons"), "bgpd=yes\n", "bgpd=yes\nbfdd=yes\nbfdd_options=\"-A 127.0.0.1\"\n"),
		edit(filepath.Join(folder, "config.yaml"),
			"bgp:\n", "bgp:\n"+profiles,
			"        connectTime: 1s\n", "        connectTime: 1s\n        bfdProfile: fast\n"),
	}
	between := fmt.Sprintf("failover: {bfd: {transmitInterval: %d, receiveInterval: %[1]d}}\n", interval)
	if interval != usualInterval {
		errs = append(errs, edit(filepath.Join(folder, "config.yaml"), "bgp:\n", between+"bgp:\n"))
	}
	for _, router := range frrRouters {
		errs = append(errs, edit(filepath.Join(folder, router+".conf"), group, group+" neighbor NODES bfd profile fast\n"))
	}
	return errors.Join(errs...)
}

// patient gives BFD between nodes time, in a configuration without such a setting.
func patient(config string) string {
	if strings.Contains(config, "\nfailover:") {
		return config
	}
	return strings.Replace(config, "\nbgp:\n", "\nfailover: {bfd: {transmitInterval: 1000, receiveInterval: 1000}}\nbgp:\n", 1)
}

// edit replaces texts in a file, each of which must occur. fromTo alternates.
func edit(path string, fromTo ...string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	content := string(b)
	for i := 0; i+1 < len(fromTo); i += 2 {
		if !strings.Contains(content, fromTo[i]) {
			return fmt.Errorf("%s does not hold %q", path, fromTo[i])
		}
		content = strings.ReplaceAll(content, fromTo[i], fromTo[i+1])
	}
	return os.WriteFile(path, []byte(content), 0o644)
}
