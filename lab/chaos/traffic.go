package chaos

import (
	"maps"
	"net/netip"
	"strings"
	"time"

	"github.com/egressway/egressway/lab"
	"github.com/egressway/egressway/lab/stage"
)

// identity is a pod as the outside sees it: the external host that its packets reach, which is one of its network, and
// the source that this host sees, by family.
type identity struct{ host, source4, source6 string }

// identities holds the identity of each pod.
type identities map[string]identity

// web is the identity of the pods of the EgressService web.
var web = identity{"ext-red", "192.0.2.10", "2001:db8:2::10"}

// asDeployed returns the identities of the topology's pods.
func asDeployed() identities {
	return identities{
		"a-p1": web, "b-p1": web,
		"a-p2": {"ext-blue", "10.2.0.11", "fd02::11"}, "b-p2": {"ext-blue", "10.2.0.12", "fd02::12"},
		guest: team,
	}
}

// guest is the pod that is selected by web now and then, see toggle.
const guest = "c-p1"

// number is how the addresses of a node end.
var number = map[string]string{"a": "11", "b": "12", "c": "13"}

func (i identity) source(to netip.AddrPort) string {
	if to.Addr().Is4() {
		return i.source4
	}
	return i.source6
}

// with is a copy of all with some changed.
func (all identities) with(changed identities) identities {
	all = maps.Clone(all)
	maps.Copy(all, changed)
	return all
}

var outside = []netip.AddrPort{stage.Outside4, stage.Outside6}

// nodeOf is the node that a pod is on; empty for everybody else.
func nodeOf(name string) string {
	if node, _, ok := strings.Cut(name, "-p"); ok {
		return node
	}
	return ""
}

// How often each kind of question is asked. All kinds together are about a thousand a second, which take a tenth of the
// one processor that the lab may have.
const (
	often  = 10 * time.Millisecond
	seldom = 50 * time.Millisecond
	byTCP  = 100 * time.Millisecond
)

// ingress lists the questions from outside: the Service and the asking node.
var ingress = []struct {
	from string
	to   []netip.AddrPort
	pods []string
}{
	{
		"ext-red",
		[]netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:80"), netip.MustParseAddrPort("[2001:db8:2::10]:80")},
		[]string{"a-p1", "b-p1", "c-p1"},
	},
	{
		"ext-blue",
		[]netip.AddrPort{netip.MustParseAddrPort("192.0.2.20:80"), netip.MustParseAddrPort("[2001:db8:2::20]:80")},
		[]string{"a-p2", "b-p2"},
	},
}

// control asks questions that no fault touches: the loss of one means a machine that is too busy.
const control = "gw"

// questions returns the questions that are asked all the time, slower times less often than they could be.
func questions(now identities, slower int) (all []lab.Question) {
	add := func(from string, to netip.AddrPort, every time.Duration) {
		for _, q := range []lab.Question{
			{Protocol: lab.UDP, Every: every},
			{Protocol: lab.TCP, Every: byTCP},
			{Protocol: lab.TCP, Every: byTCP, Session: true},
		} {
			q.Node, q.To = from, to
			q.Every *= time.Duration(slower)
			q.Want = wanted(now)(q)
			all = append(all, q)
		}
	}
	for _, pod := range stage.Pods {
		every := seldom
		if now[pod].host == "ext-red" || pod == guest {
			every = often
		}
		for _, to := range outside {
			add(pod, to, every)
		}
		for _, to := range denied {
			q := lab.Question{Node: pod, To: to, Every: byTCP * time.Duration(slower)}
			for _, q.Protocol = range []lab.Protocol{lab.UDP, lab.TCP} {
				all = append(all, q)
			}
		}
	}
	for _, i := range ingress {
		for _, to := range i.to {
			add(i.from, to, 2*often)
		}
	}
	add(control, stage.Outside4, seldom)
	return all
}

// wanted returns the allowed answers to a question, while pods have some identities.
func wanted(some ...identities) func(lab.Question) []lab.Answerer {
	return func(q lab.Question) (all []lab.Answerer) {
		for _, i := range ingress {
			if q.Node == i.from {
				for _, pod := range i.pods {
					all = append(all, lab.Answerer{Name: pod})
				}
				return all
			}
		}
		if q.Node == control {
			return []lab.Answerer{{Name: "ext-default"}}
		}
		for _, ids := range some {
			id := ids[q.Node]
			all = append(all, lab.Answerer{Name: id.host, Source: netip.MustParseAddr(id.source(q.To))})
		}
		return all
	}
}

// expect makes the probe judge answers by the pods' present and former identities.
func (r *run) expect() {
	if maps.Equal(r.now, r.before) {
		r.probe.Expect(wanted(r.now))
	} else {
		r.probe.Expect(wanted(r.now, r.before))
	}
}

// allowed returns the sources of pods that routers may see, by network.
func (r *run) allowed() map[string][]string {
	networks := map[string]string{"ext-red": "red", "ext-blue": "blue", "ext-default": "default"}
	may := map[string][]string{}
	for _, ids := range []identities{r.now, r.before} {
		for _, i := range ids {
			n := networks[i.host]
			may[n] = append(may[n], i.source4, i.source6)
		}
	}
	return may
}
