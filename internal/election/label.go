package election

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/egressway/egressway/internal/cluster"
)

// Reasons why the host's node has no label.
const (
	ReasonLabelTooLong  cluster.Reason = "LabelTooLong"
	ReasonLabelConflict cluster.Reason = "LabelConflict"
)

// Labels returns the labels of every host, by which other programs, such as a BGPAdvertisement of MetalLB, can select it.
// The name of a label, without its prefix, is namespace-name. Two objects can have the same name there, as a-b/c and a/b-c
// do: the older object gets the label.
func Labels(objects cluster.Objects) (byNode map[string][]string, problems []cluster.Problem) {
	byNode = map[string][]string{}
	owner := map[string]cluster.Key{}
	for _, s := range byAge(&objects, egressServices{}) {
		key, host := s.Key, s.host
		if _, exists := objects.Nodes.Get(host); !exists {
			continue
		}
		refuse := func(reason cluster.Reason, format string, args ...any) {
			problems = append(problems, cluster.Problem{
				Kind: "EgressService", Object: key.String(), Field: "metadata.name", Reason: reason, Message: fmt.Sprintf(format, args...),
			})
		}
		name := key.Namespace + "-" + key.Name
		first, taken := owner[name]
		switch {
		case len(name) > validation.LabelValueMaxLength:
			refuse(ReasonLabelTooLong, "its host gets no label: namespace and name may have %d bytes together, these have %d",
				validation.LabelValueMaxLength-1, len(name)-1)
		case taken:
			refuse(ReasonLabelConflict, "its host gets no label: EgressService %s, which is older, has the same, %s", first, name)
		default:
			owner[name] = key
			byNode[host] = append(byNode[host], name)
		}
	}
	return byNode, problems
}
