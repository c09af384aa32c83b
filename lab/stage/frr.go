package stage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/egressway/egressway/lab"
)

// furnishFRR prepares a node for an FRR beside its other programs, with a configuration as in frr.conf.
func (s *Stage) furnishFRR(ctx context.Context, node, config string) error {
	daemons, err := os.ReadFile(filepath.Join(s.dir, "vrf-egress", "daemons"))
	if err != nil {
		return err
	}
	n := s.Node(node)
	for _, d := range lab.FRR.Dirs {
		if _, err := n.Run(ctx, "sh", "-ec", fmt.Sprintf(
			"mkdir -p %[1]s; mount -t tmpfs -o mode=755 tmpfs %[1]s; chown %[2]s: %[1]s", d, lab.FRR.Owner)); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		"frr.conf": config, "daemons": strings.TrimRight(string(daemons), "\n") + "\nstaticd=yes\n",
	} {
		if _, err := n.Input(ctx, content, "sh", "-ec", "cat >/etc/frr/"+name); err != nil {
			return err
		}
	}
	return nil
}

// StartFRR starts FRR on a node that Options.FRR names, also after lab.KillFRR.
func (s *Stage) StartFRR(ctx context.Context, node string) error {
	if err := lab.FRR.Start(ctx, s.Node(node)); err != nil {
		return fmt.Errorf("start FRR on %s: %w", node, err)
	}
	return nil
}
