package speaker

import (
	"bytes"
	"encoding/json"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzMessages reads anything as what an agent says to the speaker, and as what the speaker says to an agent.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(`{"hello":{"protocol":1,"version":"v1"}}`))
	f.Add([]byte(`{"id":1,"apply":{"full":true,"speakers":[{"network":"red","speaker":{"asn":64512,"peers":[{"address":"192.0.2.1"}]},"announce":{"set":[{"prefix":"192.0.2.9/32"}]}}]}}
{"id":2,"withdraw":{"networks":[{"network":"red","prefixes":["192.0.2.9/32"],"peers":["192.0.2.1"]}]}}`))
	f.Add([]byte(`{"apply":{"speakers":[{"network":"red"}],"gone":["blue"]}}`))
	f.Add([]byte(`{"learned":{"network":"red","routes":{"set":[{"dst":"0.0.0.0/0","nextHops":[{"gateway":"192.0.2.1"}]}],"gone":["::/0"]},"more":true}} {"learned":{"network":"red","gone":true}}`))
	f.Add([]byte(`{"learned":{"network":"red","groups":[{"to":"0.0.0.0/0 ::/0","nextHops":[{"gateway":"192.0.2.1"}]},{"to":" x"},{"to":""}]}}`))
	f.Add([]byte(`{"sessions":{"all":[{"network":"red","peer":"x"}]}} {"nodes":{}} {"answer":{"errors":["a"]}} {"again":true} {"told":true} {"ending":true}`))
	f.Add([]byte(`{"apply":null} [] 1 "x" {"apply":{"speakers":[{"speaker":{"routerID":"::"},"refuse":{"set":[{"prefix":""}]}}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		here, there := net.Pipe()
		defer here.Close()
		defer there.Close()
		w := &wire{conn: here, in: json.NewDecoder(bytes.NewReader(data))}
		a := asked{}
		l := &link{wire: w, wake: func() {}, asked: asked{}, pieces: routes{}, awaited: map[uint64]chan *answer{}}
		for {
			m, err := w.read()
			if err != nil {
				return
			}
			if m.Withdraw != nil {
				a = a.without(*m.Withdraw)
			}
			if m.Apply != nil {
				before := a
				next, err := a.changed(*m.Apply)
				if err == nil {
					require.True(t, next.changeTo(next).empty())
					// An agent that takes the speaker over gets there from anything.
					again, err := before.changed(before.changeTo(next))
					require.NoError(t, err)
					require.True(t, again.changeTo(next).empty())
					require.Empty(t, next.excess(next).Networks)
				}
				a = next
			}
			for _, sp := range a.speakers() {
				_, err := json.Marshal(toWire(sp))
				_ = err // an address that is none cannot be told
				_ = sp.Peers
			}
			_ = l.hear(m, func() {})
			_ = worthAPass(l.known().sessions, nil)
		}
	})
}
