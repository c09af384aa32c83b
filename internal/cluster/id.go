package cluster

// Kind is a kind of object that claims addresses.
type Kind uint8

// The kinds, in the order of their precedence.
const (
	// KindEgressService is the kind of EgressServices. A Service and its endpoints have the identity of the EgressService of
	// their name, whether it exists or not.
	KindEgressService Kind = iota
	// Kinds is the number of kinds.
	Kinds = iota
)

// String returns the name of the kind in manifests.
func (k Kind) String() string { return [Kinds]string{KindEgressService: "EgressService"}[k] }

// ID returns the identity of the object of this kind with a key.
func (k Kind) ID(key Key) ID { return ID{Kind: k, Key: key} }

// ID identifies an object among those of all kinds.
type ID struct {
	Kind Kind
	Key
}

// String returns the kind, and namespace and name.
func (i ID) String() string { return i.Kind.String() + " " + i.Key.String() }

// Compare orders objects by precedence of their kinds, then by namespace and name.
func (i ID) Compare(o ID) int {
	if i.Kind != o.Kind {
		return int(i.Kind) - int(o.Kind)
	}
	return i.Key.Compare(o.Key)
}
