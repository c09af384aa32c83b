package cluster

// Changed names the objects that may differ between two Objects.
type Changed struct {
	// All means that everything may differ. Changes of Nodes, Namespaces and ServiceCIDRs set it.
	All bool
	// Of names, by kind, the objects that differ, are new, or are gone.
	Of [Kinds]map[Key]bool
	// Pods names Pods that differ, are new, or are gone.
	Pods map[Key]bool
}

// Everything is the change from nothing known.
func Everything() Changed { return Changed{All: true} }

// Empty reports that nothing differs.
func (c Changed) Empty() bool {
	for _, keys := range c.Of {
		if len(keys) > 0 {
			return false
		}
	}
	return !c.All && len(c.Pods) == 0
}

// Add adds an object.
func (c *Changed) Add(id ID) {
	if c.Of[id.Kind] == nil {
		c.Of[id.Kind] = map[Key]bool{}
	}
	c.Of[id.Kind][id.Key] = true
}

// AddPod adds the key of a Pod.
func (c *Changed) AddPod(key Key) {
	if c.Pods == nil {
		c.Pods = map[Key]bool{}
	}
	c.Pods[key] = true
}

// Join adds another change.
func (c *Changed) Join(o Changed) {
	c.All = c.All || o.All
	for kind, keys := range o.Of {
		for key := range keys {
			c.Add(Kind(kind).ID(key))
		}
	}
	for key := range o.Pods {
		c.AddPod(key)
	}
}
