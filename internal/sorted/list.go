// Package sorted has immutable sorted lists that share their equal parts: a change costs as much as it changes, and the
// differences between two lists made from one another are found without a look at the rest.
package sorted

import (
	"encoding/json"
	"iter"
	"slices"
)

// Item is an element of a List.
type Item[T any] interface {
	// Compare orders elements by their keys. A list has at most one element of a key.
	Compare(T) int
	// Equal reports whether two elements of one key are equal in everything else, too.
	Equal(T) bool
}

// Sizes of chunks. A change copies one chunk and the list of chunks: with 100,000 elements, the two are about as large.
const (
	chunkMost  = 256
	chunkLeast = chunkMost / 4
)

// List is an immutable sorted list. The zero List is empty. Lists may be read concurrently.
type List[T Item[T]] struct {
	chunks [][]T // without empty ones
	length int
}

// Of returns a List of elements in any order. Of several with one key, the last is kept. Of sorts items in place.
func Of[T Item[T]](items ...T) List[T] {
	if !slices.IsSortedFunc(items, T.Compare) {
		slices.SortStableFunc(items, T.Compare)
	}
	items = lastOfEach(items)
	l := List[T]{length: len(items)}
	for chunk := range slices.Chunk(items, chunkMost/2) {
		l.chunks = append(l.chunks, slices.Clone(chunk)) // a chunk that shares the array would keep all of it in memory
	}
	return l
}

// lastOfEach keeps the last of neighbours with one key.
func lastOfEach[T Item[T]](items []T) []T {
	kept := items[:0]
	for i, item := range items {
		if i+1 == len(items) || items[i+1].Compare(item) != 0 {
			kept = append(kept, item)
		}
	}
	return kept
}

// Len returns the number of elements.
func (l List[T]) Len() int { return l.length }

// IsZero reports whether the list is empty. encoding/json calls it for omitzero.
func (l List[T]) IsZero() bool { return l.length == 0 }

// All iterates over the elements in order.
func (l List[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, chunk := range l.chunks {
			for _, item := range chunk {
				if !yield(item) {
					return
				}
			}
		}
	}
}

// Slice returns the elements in order.
func (l List[T]) Slice() []T { return slices.Concat(l.chunks...) }

// Get returns the element with the key of like.
func (l List[T]) Get(like T) (item T, ok bool) {
	if i := l.chunkOf(like); i < len(l.chunks) {
		if j, found := slices.BinarySearchFunc(l.chunks[i], like, T.Compare); found {
			return l.chunks[i][j], true
		}
	}
	return item, false
}

// From iterates over the elements in order, from the first whose key is not before that of like.
func (l List[T]) From(like T) iter.Seq[T] {
	return func(yield func(T) bool) {
		first := l.chunkOf(like)
		for i, chunk := range l.chunks[first:] {
			if i == 0 {
				j, _ := slices.BinarySearchFunc(chunk, like, T.Compare)
				chunk = chunk[j:]
			}
			for _, item := range chunk {
				if !yield(item) {
					return
				}
			}
		}
	}
}

// chunkOf returns the index of the first chunk whose last element is not before like: the only one that can hold its
// key.
func (l List[T]) chunkOf(like T) int {
	i, _ := slices.BinarySearchFunc(l.chunks, like, func(chunk []T, like T) int { return chunk[len(chunk)-1].Compare(like) })
	return i
}

// With returns the list with the elements of set, which replace those of the same keys, and without the keys of gone. A
// key in both is set.
func (l List[T]) With(set, gone []T) List[T] {
	if len(set)+len(gone) == 0 {
		return l
	}
	changes := changesOf(set, gone)
	next := List[T]{chunks: make([][]T, 0, len(l.chunks)+1)}
	rest := 0 // the first chunk that is not in next
	for len(changes) > 0 {
		at := min(l.chunkOf(changes[0].item), max(len(l.chunks)-1, 0)) // elements beyond the end go into the last chunk
		next.chunks = append(next.chunks, l.chunks[rest:at]...)
		mine := changes
		var chunk []T
		if at < len(l.chunks) {
			chunk = l.chunks[at]
		}
		if at+1 < len(l.chunks) {
			end, _ := slices.BinarySearchFunc(changes, l.chunks[at+1][0], func(c change[T], first T) int { return c.item.Compare(first) })
			mine = changes[:end]
		}
		changes = changes[len(mine):]
		next.add(merge(chunk, mine))
		rest = at + 1
	}
	if rest < len(l.chunks) {
		next.chunks = append(next.chunks, l.chunks[rest:]...)
	}
	for _, chunk := range next.chunks {
		next.length += len(chunk)
	}
	return next
}

type change[T any] struct {
	item T
	gone bool
}

// changesOf sorts changes by key. Of those of one key, the last is in force.
func changesOf[T Item[T]](set, gone []T) []change[T] {
	changes := make([]change[T], 0, len(set)+len(gone))
	for _, item := range gone {
		changes = append(changes, change[T]{item: item, gone: true})
	}
	for _, item := range set {
		changes = append(changes, change[T]{item: item})
	}
	if order := func(x, y change[T]) int { return x.item.Compare(y.item) }; !slices.IsSortedFunc(changes, order) {
		slices.SortStableFunc(changes, order)
	}
	return changes
}

// merge returns a chunk with changes, or the chunk itself if nothing changes.
func merge[T Item[T]](chunk []T, changes []change[T]) []T {
	merged := make([]T, 0, len(chunk)+len(changes))
	rest, same := chunk, true
	for i, c := range changes {
		if overridden(changes, i) {
			continue
		}
		j, found := slices.BinarySearchFunc(rest, c.item, T.Compare)
		merged, rest = append(merged, rest[:j]...), rest[j:]
		same = same && changesNothing(c, rest, found)
		if found {
			rest = rest[1:]
		}
		if !c.gone {
			merged = append(merged, c.item)
		}
	}
	if same {
		return chunk
	}
	return append(merged, rest...)
}

// overridden reports whether a later one of the sorted changes has the same key.
func overridden[T Item[T]](changes []change[T], i int) bool {
	return i+1 < len(changes) && changes[i+1].item.Compare(changes[i].item) == 0
}

// changesNothing reports whether a change is in force already. If found, the first of rest has its key.
func changesNothing[T Item[T]](c change[T], rest []T, found bool) bool {
	if c.gone {
		return !found
	}
	return found && rest[0].Equal(c.item)
}

// add appends a chunk, in chunks of a fit size.
func (l *List[T]) add(chunk []T) {
	if last := len(l.chunks) - 1; last >= 0 && len(chunk) < chunkLeast && len(l.chunks[last]) < chunkLeast {
		chunk = slices.Concat(l.chunks[last], chunk)
		l.chunks = l.chunks[:last]
	}
	if len(chunk) > chunkMost {
		for part := range slices.Chunk(chunk, chunkMost/2) {
			l.chunks = append(l.chunks, part)
		}
	} else if len(chunk) > 0 {
		l.chunks = append(l.chunks, chunk)
	}
}

// Changes iterates over the differences from l to next, in order. The second value is nil for removed elements, the
// first for new ones. Neither may be written to.
func (l List[T]) Changes(next List[T]) iter.Seq2[*T, *T] {
	return func(yield func(former, now *T) bool) {
		if OneSlice(l.chunks, next.chunks) {
			return
		}
		a, b := cursor[T]{chunks: l.chunks}, cursor[T]{chunks: next.chunks}
		for {
			for a.skips(&b) {
				a.chunks, b.chunks = a.chunks[1:], b.chunks[1:]
			}
			x, y := a.item(), b.item()
			if x == nil && y == nil {
				return
			}
			switch order := compareItems(x, y); {
			case order < 0:
				a.step()
				y = nil
			case order > 0:
				b.step()
				x = nil
			default:
				a.step()
				b.step()
				if (*x).Equal(*y) {
					continue
				}
			}
			if !yield(x, y) {
				return
			}
		}
	}
}

// compareItems compares the next elements of two lists of which one at most has ended: it comes last.
func compareItems[T Item[T]](x, y *T) int {
	switch {
	case x == nil:
		return 1
	case y == nil:
		return -1
	}
	return (*x).Compare(*y)
}

// cursor is a position in a list.
type cursor[T any] struct {
	chunks [][]T
	at     int // index in the first chunk
}

// skips reports whether both are at the beginning of the same chunk.
func (c *cursor[T]) skips(o *cursor[T]) bool {
	if c.at != 0 || o.at != 0 || len(c.chunks) == 0 || len(o.chunks) == 0 {
		return false
	}
	x, y := c.chunks[0], o.chunks[0]
	return len(x) == len(y) && &x[0] == &y[0]
}

func (c *cursor[T]) item() *T {
	if len(c.chunks) == 0 {
		return nil
	}
	return &c.chunks[0][c.at]
}

func (c *cursor[T]) step() {
	if c.at++; c.at == len(c.chunks[0]) {
		c.chunks, c.at = c.chunks[1:], 0
	}
}

// Same reports whether two lists have equal elements.
func (l List[T]) Same(o List[T]) bool {
	for range l.Changes(o) {
		return false
	}
	return true
}

// MarshalJSON encodes the elements as an array.
func (l List[T]) MarshalJSON() ([]byte, error) {
	if l.length == 0 {
		return []byte("[]"), nil
	}
	return json.Marshal(l.Slice())
}

// UnmarshalJSON decodes an array.
func (l *List[T]) UnmarshalJSON(data []byte) error {
	var items []T
	if err := json.Unmarshal(data, &items); err != nil {
		return err
	}
	*l = Of(items...)
	return nil
}
