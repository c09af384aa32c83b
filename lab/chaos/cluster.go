package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/egressway/egressway/lab/stage"
)

// clusterFaults are those of the API server and of its objects.
var clusterFaults = map[string]fault{
	"API server killed": {
		inject: func(ctx context.Context, r *run, _ *step) error { return r.API.Kill(ctx) },
		heal:   afterwards(func(ctx context.Context, r *run) error { return r.API.Up(ctx) }),
		hold:   away,
	},
	"API server frozen": {
		inject: func(ctx context.Context, r *run, _ *step) error { return r.API.Freeze(ctx) },
		heal:   afterwards(func(ctx context.Context, r *run) error { return r.API.Thaw(ctx) }),
		hold:   away,
	},
	"API server unreachable": { // and the change is made meanwhile
		inject: func(ctx context.Context, r *run, _ *step) error {
			return errors.Join(r.Unplug(ends()...), r.toggle(ctx))
		},
		heal: func(_ context.Context, r *run, _ *step) error { return r.Plug(ends()...) },
		hold: away,
	},
	"host selected": {
		inject: func(ctx context.Context, r *run, s *step) error {
			return r.Edit(ctx, "web.yaml", webNetwork, webNetwork+selector(s.node))
		},
		heal: func(ctx context.Context, r *run, s *step) error {
			return r.Edit(ctx, "web.yaml", webNetwork+selector(s.node), webNetwork)
		},
		hold: aWhile, moves: true,
	},
	"node cordoned": {
		inject: func(ctx context.Context, r *run, s *step) error {
			return r.Edit(ctx, "cluster.yaml", nodeSpec(s.node), nodeSpec(s.node)+cordon)
		},
		heal: func(ctx context.Context, r *run, s *step) error {
			return r.Edit(ctx, "cluster.yaml", nodeSpec(s.node)+cordon, nodeSpec(s.node))
		},
		hold: aWhile, moves: true,
	},
	"node drained": {
		inject: func(ctx context.Context, r *run, s *step) error {
			_, err := r.Egressway(ctx, s.node, "drain", "--timeout", settleLimit.String())
			return err
		},
		heal: func(ctx context.Context, r *run, s *step) error {
			_, err := r.Egressway(ctx, s.node, "drain", "--undo")
			return err
		},
		hold: aWhile, moves: true,
	},
	"rules changed": { // of all pods' EgressFirewall and EgressQoS
		inject: changeRules,
	},
	"node not Ready": {
		inject: func(ctx context.Context, r *run, s *step) error { return r.ready(ctx, s.node, true, false) },
		heal:   func(ctx context.Context, r *run, s *step) error { return r.ready(ctx, s.node, false, true) },
		hold:   aWhile,
	},
}

var (
	away   = [2]time.Duration{2 * time.Second, 8 * time.Second}
	aWhile = [2]time.Duration{2 * time.Second, 6 * time.Second}
)

// afterwards makes a change as soon as the API server is back.
func afterwards(back func(context.Context, *run) error) func(context.Context, *run, *step) error {
	return func(ctx context.Context, r *run, s *step) error {
		if err := back(ctx, r); err != nil {
			return err
		}
		s.healed = time.Now() // the server takes some seconds to start
		return r.toggle(ctx)
	}
}

// ends are the nodes' ends of the cables towards the API server.
func ends() (all []string) {
	for _, node := range stage.Nodes {
		all = append(all, node+":eth0")
	}
	return all
}

// toggle makes the guest an endpoint of web, or removes it from the endpoints.
func (r *run) toggle(ctx context.Context) error {
	to := team
	if r.now[guest] != web {
		to = web
	}
	r.before, r.now = r.now, r.now.with(identities{guest: to})
	r.expect()
	var edits []string
	for _, addresses := range [][2]string{{"[10.244.1.11]", "[10.244.3.11]"}, {`["fd44:1::11"]`, `["fd44:3::11"]`}} {
		without := endpoint(addresses[0], "a")
		with := without + endpoint(addresses[1], "c")
		if to == web {
			edits = append(edits, without, with)
		} else {
			edits = append(edits, with, without)
		}
	}
	return r.Edit(ctx, "web.yaml", edits...)
}

func endpoint(addresses, node string) string {
	return fmt.Sprintf("  - {addresses: %s, nodeName: %s, conditions: {ready: true}}\n", addresses, node)
}

const (
	webNetwork = "  network: red\n"
	cordon     = "  unschedulable: true\n"
)

func selector(node string) string {
	return fmt.Sprintf("  nodeSelector: {matchLabels: {kubernetes.io/hostname: %s}}\n", node)
}

// nodeSpec is where the specification of a Node begins.
func nodeSpec(node string) string {
	return "  labels: " + nodeLabels(node) + "\nspec:\n"
}

// ready changes whether a Node is.
func (r *run) ready(ctx context.Context, node string, from, to bool) error {
	text := func(ready bool) string {
		status := map[bool]string{true: "True", false: "False"}[ready]
		return fmt.Sprintf("    - {type: InternalIP, address: \"fd00::%s\"}\n  conditions:\n    - {type: Ready, status: %q}\n",
			number[node], status)
	}
	return r.Edit(ctx, "cluster.yaml", text(from), text(to))
}
