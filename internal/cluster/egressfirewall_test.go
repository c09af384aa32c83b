package cluster

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFirewallFindingsHaveABound decodes an EgressFirewall of many bad rules: the problems have a bound, and each rule counts.
func TestFirewallFindingsHaveABound(t *testing.T) {
	const rules = 1000
	decode := func(field string, data []byte, into any) *Problem {
		if err := json.Unmarshal(data, into); err != nil {
			return &Problem{Field: field, Reason: ReasonInvalidValue, Message: err.Error()}
		}
		return nil
	}
	for name, rule := range map[string]string{
		"no rule":      `7`,
		"parts":        `{"type": 1, "ports": 2, "to": 3}`,
		"undecodable":  `{"type": "Deny", "to": 3}`,
		"decodable":    `{"type": "Deny", "to": {"cidrSelector": "x"}}`,
		"some of each": `7, {"type": "Deny", "to": {"cidrSelector": "x"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			spec := `{"egress": [` + strings.Repeat(rule+",", rules-1) + rule + `]}`
			_, e, problems, ok := DecodeEgressFirewall(metav1.ObjectMeta{Namespace: "shop", Name: NameEgressFirewall}, []byte(spec), decode)
			require.True(t, ok)
			require.Equal(t, mostFindings, len(problems))
			require.GreaterOrEqual(t, len(e.Rules), rules)
			for _, r := range e.Rules {
				require.True(t, r.Deny && !r.To.IsValid(), "%+v", r)
			}

			_, _, problems, ok = DecodeEgressFirewall(metav1.ObjectMeta{Namespace: "shop", Name: "gold"}, []byte(spec), decode)
			require.False(t, ok)
			require.LessOrEqual(t, len(problems), mostFindings)
			require.Equal(t, ReasonInvalidName, problems[0].Reason, "the reason why the object is not read")
		})
	}
}
