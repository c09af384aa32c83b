package cluster

import (
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
)

// mapParts is the number of parts of a Map. A change copies one part: about 40 of 10,000 entries.
const mapParts = 256

// Map is an immutable map. Maps made from one another share their equal parts, so a change is cheap however many
// entries there are. The zero Map is empty. Maps may be read concurrently.
type Map[K comparable, V any] struct {
	parts  *[mapParts]map[K]V // nil: no entries; a part without entries is nil too, so that equal Maps are deeply equal
	length int
}

var mapSeed = maphash.MakeSeed()

func partOf[K comparable](key K) uint8 {
	return uint8(maphash.Comparable(mapSeed, key)) //nolint:gosec // any eight bits do
}

// MapOf returns a Map with the entries of a Go map.
func MapOf[K comparable, V any](entries map[K]V) Map[K, V] {
	var d Draft[K, V]
	for key, value := range entries {
		d.Set(key, value)
	}
	return d.Map()
}

// Same reports whether two Maps are one and the same, which takes no look at their entries.
func (m Map[K, V]) Same(o Map[K, V]) bool { return m.parts == o.parts }

// Len returns the number of entries.
func (m Map[K, V]) Len() int { return m.length }

// Get returns the value of a key, and whether there is one.
func (m Map[K, V]) Get(key K) (V, bool) {
	if m.parts == nil {
		var none V
		return none, false
	}
	value, ok := m.parts[partOf(key)][key]
	return value, ok
}

// At returns the value of a key, or the zero value.
func (m Map[K, V]) At(key K) V {
	value, _ := m.Get(key)
	return value
}

// All iterates over the entries, in no order.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		if m.parts == nil {
			return
		}
		for _, part := range m.parts {
			for key, value := range part {
				if !yield(key, value) {
					return
				}
			}
		}
	}
}

// Keys iterates over the keys, in no order.
func (m Map[K, V]) Keys() iter.Seq[K] {
	return func(yield func(K) bool) {
		for key := range m.All() {
			if !yield(key) {
				return
			}
		}
	}
}

// With returns a Map in which a key has this value.
func (m Map[K, V]) With(key K, value V) Map[K, V] {
	d := Draft[K, V]{now: m}
	d.Set(key, value)
	return d.Map()
}

// Without returns a Map without a key.
func (m Map[K, V]) Without(key K) Map[K, V] {
	d := Draft[K, V]{now: m}
	d.Delete(key)
	return d.Map()
}

// Draft returns a Draft with the Map's entries.
func (m Map[K, V]) Draft() *Draft[K, V] { return &Draft[K, V]{now: m} }

// String formats the Map as a Go map.
func (m Map[K, V]) String() string { return fmt.Sprint(maps.Collect(m.All())) }

// Draft is a Map that is being changed. It copies parts that it shares with Maps before it changes them. The zero Draft
// is empty. A Draft is for one goroutine.
type Draft[K comparable, V any] struct {
	now   Map[K, V]
	owned *[mapParts]bool // the parts that no Map shares; nil: any may be shared, and so is parts itself
}

// Map returns a Map with the present entries.
func (d *Draft[K, V]) Map() Map[K, V] {
	d.owned = nil
	if d.now.length == 0 {
		d.now.parts = nil
	}
	return d.now
}

// Get returns the value of a key, and whether there is one.
func (d *Draft[K, V]) Get(key K) (V, bool) { return d.now.Get(key) }

// At returns the value of a key, or the zero value.
func (d *Draft[K, V]) At(key K) V { return d.now.At(key) }

// All iterates over the entries, in no order. The Draft must not be changed meanwhile.
func (d *Draft[K, V]) All() iter.Seq2[K, V] { return d.now.All() }

// own returns a part that may be changed.
func (d *Draft[K, V]) own(of uint8) map[K]V {
	switch {
	case d.now.parts == nil:
		d.now.parts, d.owned = new([mapParts]map[K]V), new([mapParts]bool)
	case d.owned == nil:
		copied := *d.now.parts
		d.now.parts, d.owned = &copied, new([mapParts]bool)
	}
	part := d.now.parts[of]
	if !d.owned[of] && part != nil {
		part = maps.Clone(part)
	}
	if part == nil {
		part = map[K]V{}
	}
	d.now.parts[of], d.owned[of] = part, true
	return part
}

// Set sets the value of a key.
func (d *Draft[K, V]) Set(key K, value V) {
	part := d.own(partOf(key))
	before := len(part)
	part[key] = value
	d.now.length += len(part) - before
}

// Delete removes a key.
func (d *Draft[K, V]) Delete(key K) {
	if _, there := d.now.Get(key); !there {
		return
	}
	of := partOf(key)
	part := d.own(of)
	delete(part, key)
	if d.now.length--; len(part) == 0 {
		d.now.parts[of] = nil
	}
}
