package cluster

// Changed names the objects that may differ between two Objects.
type Changed struct {
	// All means that everything may differ. Changes of Nodes, Namespaces and ServiceCIDRs set it.
	All bool
	// Keys names EgressServices, Services and endpoints that differ, are new, or are gone.
	Keys map[Key]bool
	// Pods names Pods that differ, are new, or are gone.
	Pods map[Key]bool
}

// Everything is the change from nothing known.
func Everything() Changed { return Changed{All: true} }

// Empty reports that nothing differs.
func (c Changed) Empty() bool { return !c.All && len(c.Keys)+len(c.Pods) == 0 }

// Add adds a key.
func (c *Changed) Add(key Key) {
	if c.Keys == nil {
		c.Keys = map[Key]bool{}
	}
	c.Keys[key] = true
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
	for key := range o.Keys {
		c.Add(key)
	}
	for key := range o.Pods {
		c.AddPod(key)
	}
}
