package cluster

import (
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
)

// mapParts is into how many parts a Map is split. A change copies one of them: of 10,000 entries about 40.
const mapParts = 256

// Map is an immutable map. Those that come from one another share what they have in common: a change costs little, however many
// entries there are. The zero Map is empty. Maps may be read concurrently.
type Map[K comparable, V any] struct {
	parts  *[mapParts]map[K]V // nil: no entries; a part without entries is nil too, so that equal Maps are deeply equal
	length int
}

var mapSeed = maphash.MakeSeed()

func partOf[K comparable](key K) uint8 {
	return uint8(maphash.Comparable(mapSeed, key)) //nolint:gosec // any eight bits do
}

// MapOf gives what a Go map has.
func MapOf[K comparable, V any](entries map[K]V) Map[K, V] {
	var d Draft[K, V]
	for key, value := range entries {
		d.Set(key, value)
	}
	return d.Map()
}

// Len is the number of entries.
func (m Map[K, V]) Len() int { return m.length }

// Get gives the value of a key, and whether there is one.
func (m Map[K, V]) Get(key K) (V, bool) {
	if m.parts == nil {
		var none V
		return none, false
	}
	value, ok := m.parts[partOf(key)][key]
	return value, ok
}

// At gives the value of a key; without one, the zero value.
func (m Map[K, V]) At(key K) V {
	value, _ := m.Get(key)
	return value
}

// All goes through the entries, in no order.
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

// Keys goes through the keys, in no order.
func (m Map[K, V]) Keys() iter.Seq[K] {
	return func(yield func(K) bool) {
		for key := range m.All() {
			if !yield(key) {
				return
			}
		}
	}
}

// With gives a Map where a key has this value.
func (m Map[K, V]) With(key K, value V) Map[K, V] {
	d := Draft[K, V]{now: m}
	d.Set(key, value)
	return d.Map()
}

// Without gives a Map that does not have a key.
func (m Map[K, V]) Without(key K) Map[K, V] {
	d := Draft[K, V]{now: m}
	d.Delete(key)
	return d.Map()
}

// Draft gives what a Map has, to be changed.
func (m Map[K, V]) Draft() *Draft[K, V] { return &Draft[K, V]{now: m} }

// String is that of a Go map.
func (m Map[K, V]) String() string { return fmt.Sprint(maps.Collect(m.All())) }

// Draft is a Map that is being changed. What it shares with Maps that were handed out is copied before it is changed. The zero Draft
// is empty. It is for one goroutine.
type Draft[K comparable, V any] struct {
	now   Map[K, V]
	owned *[mapParts]bool // the parts that no Map has; nil: any may be another's, and so is the list of parts
}

// Map is what the Draft has now.
func (d *Draft[K, V]) Map() Map[K, V] {
	d.owned = nil
	if d.now.length == 0 {
		d.now.parts = nil
	}
	return d.now
}

// Get gives the value of a key, and whether there is one.
func (d *Draft[K, V]) Get(key K) (V, bool) { return d.now.Get(key) }

// At gives the value of a key; without one, the zero value.
func (d *Draft[K, V]) At(key K) V { return d.now.At(key) }

// All goes through the entries, in no order. Nothing may be changed meanwhile.
func (d *Draft[K, V]) All() iter.Seq2[K, V] { return d.now.All() }

// own gives the part that a key is in, to be changed.
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

// Set has a key have this value.
func (d *Draft[K, V]) Set(key K, value V) {
	part := d.own(partOf(key))
	before := len(part)
	part[key] = value
	d.now.length += len(part) - before
}

// Delete takes a key away.
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
