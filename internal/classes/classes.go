// Package classes finds the addresses that share a content, such as the rules for their packets, and numbers each such class. It is
// pure. The number of a class derives from its content: a class that comes or goes leaves the others as they are, and the numbers do
// not depend on earlier ones.
package classes

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
)

// Key is a hash of a content. The zero Key is no content.
type Key [sha256.Size]byte

// KeyOf hashes the encoding of a content; an empty one is no content.
func KeyOf(encoded []byte) Key {
	if len(encoded) == 0 {
		return Key{}
	}
	return sha256.Sum256(encoded)
}

// Classes holds the contents that addresses have.
type Classes[C any] struct {
	at     map[netip.Addr]Key
	used   map[Key]*class[C]
	others bool         // other classes are used than when they were numbered
	moved  map[Key]bool // classes whose number changed then
}

// class is a content that addresses have.
type class[C any] struct {
	content C
	uses    int
	id      uint32
}

// New returns Classes of no address.
func New[C any]() Classes[C] {
	return Classes[C]{at: map[netip.Addr]Key{}, used: map[Key]*class[C]{}}
}

// Set gives an address a content, or none with the zero Key.
func (c *Classes[C]) Set(a netip.Addr, key Key, content C) {
	was := c.at[a]
	if was == key {
		return
	}
	c.use(key, content, 1)
	c.use(was, content, -1)
	if c.at[a] = key; key == (Key{}) {
		delete(c.at, a)
	}
}

// use counts the addresses of a class.
func (c *Classes[C]) use(key Key, content C, n int) {
	if key == (Key{}) {
		return
	}
	of := c.used[key]
	if of == nil {
		of = &class[C]{content: content}
		c.used[key], c.others = of, true
	}
	if of.uses += n; of.uses == 0 {
		delete(c.used, key)
		c.others = true
	}
}

// Number calls each for the used classes by their numbers, in order, if other classes are used than at the last call. It reports
// whether that is so. Numbers are greater than 0 and have 24 bits, unless many contents begin alike in their hashes.
func (c *Classes[C]) Number(each func(id uint32, content C)) (differ bool) {
	c.moved = nil
	if !c.others {
		return false
	}
	c.others, c.moved = false, map[Key]bool{}
	last := uint32(0)
	for _, key := range slices.SortedFunc(maps.Keys(c.used), func(a, b Key) int { return slices.Compare(a[:], b[:]) }) {
		of := c.used[key]
		last = max(binary.BigEndian.Uint32(key[:])>>8, last+1)
		if of.id != last {
			of.id, c.moved[key] = last, true
		}
		each(last, of.content)
	}
	return true
}

// IDs calls each for addresses with the number of their class; 0: the address has none. These are the touched addresses, and those
// whose class got another number by the last call of Number.
func (c *Classes[C]) IDs(touched map[netip.Addr]bool, each func(a netip.Addr, id uint32)) {
	for a := range touched {
		each(a, c.id(c.at[a]))
	}
	if len(c.moved) == 0 {
		return
	}
	for a, key := range c.at {
		if c.moved[key] && !touched[a] {
			each(a, c.id(key))
		}
	}
}

// id returns the number of a class; 0: no address has it.
func (c *Classes[C]) id(key Key) uint32 {
	if of := c.used[key]; of != nil {
		return of.id
	}
	return 0
}
