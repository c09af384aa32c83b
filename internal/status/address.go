package status

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"runtime/pprof"
	"slices"
	"strconv"
	"time"

	"github.com/egressway/egressway/internal/cluster"
	"github.com/egressway/egressway/internal/plan"
)

// Address is the plan for one address.
type Address struct {
	Address  netip.Addr `json:"address"`
	Selected bool       `json:"selected"` // an endpoint of an EgressService
	// Path is "network NAME" or "steer NODE"; empty: a selected pod's packets are dropped.
	Path string `json:"path,omitempty"`
	// HostAt is the address of that node which the tunnel sends to, if hosts without a path id share the path.
	HostAt netip.Addr `json:"hostAt,omitzero"`
	Source netip.Addr `json:"source,omitzero"` // with which it leaves this node; invalid: the outgoing interface's
	Node   string     `json:"node,omitempty"`  // the pod's node, if known

	// Held is why new flows of an address that is not selected are dropped on the way out; empty: they are not.
	Held string `json:"held,omitempty"`

	// Firewall is the rule that decides about connections to the destination that was asked about; empty: no rule matches, or none was
	// asked about. Denied reports whether they are denied.
	Firewall string `json:"firewall,omitempty"`
	Denied   bool   `json:"denied,omitempty"`

	// Marking is the DSCP value for packets to the destination that was asked about; nil: no rule of an EgressQoS selects the pod.
	Marking *Marking `json:"marking,omitempty"`

	Ingress bool   `json:"ingress"`           // an ingress IP of an EgressService
	Network string `json:"network,omitempty"` // of the ingress IP, if it has a path here
}

// addressOf returns the plan for an address.
func addressOf(p *plan.NodePlan, a netip.Addr) Address {
	found := Address{Address: a}
	if p == nil {
		return found
	}
	d := &p.DataPlane
	name := func(id plan.PathID) (key plan.PathKey) {
		for i := range d.Paths {
			if d.Paths[i].ID == id {
				return d.Paths[i].Key
			}
		}
		return key
	}
	if e, ok := d.Endpoints.Get(plan.Endpoint{Addr: a}); ok {
		found.Selected, found.Source, found.Node = true, e.Source, e.Node
		if k := name(e.Path); e.Path != 0 {
			found.leadTo(k, p.Tunnel, e.Via)
		}
	}
	if !found.Selected {
		found.Held = heldOf(p, a)
	}
	if i, ok := d.Ingress.Get(plan.IngressIP{Addr: a}); ok {
		found.Ingress, found.Network = true, name(i.Path).Name
	}
	return found
}

// leadTo sets the path of an address. via is the MAC of its host on PathShared.
func (found *Address) leadTo(k plan.PathKey, t *plan.Tunnel, via plan.MAC) {
	if host, ok := t.Host(via); ok && k.Kind == plan.PathShared {
		k, found.HostAt = plan.PathKey{Kind: plan.PathSteer, Name: host.Node}, host.Remote
	}
	found.Path = string(k.Kind) + " " + k.Name
}

// heldOf returns why an address that is not an endpoint is held; empty: it is not.
func heldOf(p *plan.NodePlan, a netip.Addr) string {
	d := &p.DataPlane
	ofPod := func(of netip.Prefix) bool { return of.Contains(a) }
	if _, let := d.Let.Get(plan.Address{Addr: a}); !d.Hold || let || !slices.ContainsFunc(d.Pods, ofPod) {
		return ""
	}
	if w, ok := p.Waiting.Get(plan.Waiting{Addr: a}); ok {
		return fmt.Sprintf("pod %s is selected by hold[%d] of the configuration, and is no endpoint of an EgressService", w.Pod, w.Entry)
	}
	return "no running Pod of this node is known to have it, and hold is configured or an EgressFirewall exists"
}

// address serves the plan for an address.
func (s *Status) address(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	a, err := netip.ParseAddr(r.URL.Query().Get("is"))
	if err != nil {
		http.Error(w, fmt.Sprintf("is: %v", err), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	p := s.current.Load().plan
	found := addressOf(p, a.Unmap())
	if to, err := netip.ParseAddr(r.URL.Query().Get("to")); err == nil && p != nil {
		number := func(of string, bits int) uint64 {
			n, _ := strconv.ParseUint(r.URL.Query().Get(of), 10, bits)
			return n
		}
		protocol, port := uint8(number("protocol", 8)), uint16(number("port", 16)) //nolint:gosec // of these sizes
		found.Firewall, found.Denied = firewallRuleOf(p, s.known(), a.Unmap(), to.Unmap(),
			cluster.FirewallPort{Protocol: protocol, Number: port})
		found.Marking = markingOf(p, a.Unmap(), to.Unmap())
	}
	_ = json.NewEncoder(w).Encode(found) // the client is gone
}

// goroutines serves the stacks of all goroutines, for error reports.
func goroutines(w http.ResponseWriter, _ *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_ = pprof.Lookup("goroutine").WriteTo(w, 1) // the client is gone
}
