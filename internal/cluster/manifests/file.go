package manifests

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/egressway/egressway/internal/cluster"
)

// maxSize bounds the size of one file: 50,000 endpoints need less.
const maxSize = 32 << 20

// timeStep returns how long after a change at this time another change may leave the same time stamp. File systems count
// time in steps: in kernel ticks of at most 10 ms if stamps are finer than milliseconds, else in steps of up to 2 s.
func timeStep(changed syscall.Timespec) time.Duration {
	if changed.Nsec%int64(time.Millisecond) != 0 {
		return 50 * time.Millisecond
	}
	return 2 * time.Second
}

// file is the parsed content of a file.
type file struct {
	path  string
	state state
	sum   uint64 // of the text
	parts []part
	gone  bool     // the file was removed; its objects are in kept
	flaw  bool     // not read completely: unreadable, empty, cut off, being written, or with a broken document
	whole outline  // outline of its last content without a flaw
	kept  []*entry // former objects that no file holds now
}

// outline holds hashes of a text by which its beginning is recognized.
type outline struct {
	size int
	sums []uint64 // of the text's beginnings, each outlineStep bytes longer
	line bool     // the text ends with a line end
}

// outlineStep makes an outline an eighth as large as its text.
const outlineStep = 64

func outlineOf(text []byte) outline {
	o := outline{size: len(text), line: bytes.HasSuffix(text, []byte("\n"))}
	var h maphash.Hash
	h.SetSeed(seed)
	for ; len(text) >= outlineStep; text = text[outlineStep:] {
		_, _ = h.Write(text[:outlineStep]) // never fails
		o.sums = append(o.sums, h.Sum64())
	}
	return o
}

// cut reports whether another text is a beginning of this one and ends inside a line, as after a full disk or an
// interrupted copy. A shorter text that ends with a line end may be intended.
func (o outline) cut(is outline) bool {
	return o.line && !is.line && is.size < o.size && slices.Equal(is.sums, o.sums[:min(len(is.sums), len(o.sums))])
}

// part is a document of a file. Its objects depend only on its text; their Problems name lines and depend on its place,
// too.
type part struct {
	before  int // lines of the file that precede it
	sum     uint64
	entries []*entry
}

var seed = maphash.MakeSeed()

// state identifies a file's version: it differs after every change if sure.
type state struct {
	device, inode     uint64
	size              int64
	modified, changed syscall.Timespec
	settled           bool // false: read so soon after a change that another may have the same time stamp
}

// readFile reads a file, and returns former if it has not changed. A file that is too large, or whose reading could
// block, gets a Problem.
func readFile(path string, former *file) *file {
	former = cmp.Or(former, &file{})
	f := &file{path: path, whole: former.whole}
	now, err := stateOf(path)
	if err != nil {
		return f.unread(err)
	}
	if now.settled && former.state == now {
		return former
	}
	if former.state.same(now) && former.sumIs(path) {
		former.state = now
		return former
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return f.unread(err)
	}
	f.state, f.sum = now, maphash.Bytes(seed, text)
	if former.read() && former.sum == f.sum {
		former.state = now
		return former
	}
	if err := f.fill(text, former); err != nil {
		return f.unread(err)
	}
	return f
}

// openFile returns a file that is being written, which is not read. It has no state, so that the next reading does not take it for
// known.
func openFile(path string, former *file) *file {
	f := &file{path: path, whole: cmp.Or(former, &file{}).whole}
	return f.unread(errors.New("is being written: it counts once it is closed"))
}

// unread returns the file with a Problem in place of its objects.
func (f *file) unread(err error) *file {
	f.flaw = true
	f.parts = []part{{entries: []*entry{{problems: []cluster.Problem{{
		Kind: "Manifest", Object: filepath.Base(f.path), Reason: cluster.ReasonInvalidFile, Message: reason(err), Where: f.path,
	}}}}}}
	return f
}

// fill parses text unless the file is incomplete.
func (f *file) fill(text []byte, former *file) error {
	whole := outlineOf(text) // before parsing, which changes text
	switch {
	case len(bytes.TrimSpace(text)) == 0:
		return errors.New("is empty")
	case former.whole.cut(whole):
		return errors.New("is cut off: it is the beginning of its former content and ends inside a line")
	}
	f.parse(text, former)
	if f.flaw = slices.ContainsFunc(f.parts, part.broken); !f.flaw {
		f.whole = whole
	}
	return nil
}

// sumIs reports whether the text of the file at path has the sum of this one. It takes less time and memory than to read it.
func (f *file) sumIs(path string) bool {
	now, err := os.Open(path)
	if err != nil {
		return false
	}
	defer now.Close()
	var h maphash.Hash
	h.SetSeed(seed)
	_, err = io.Copy(&h, now)
	return err == nil && h.Sum64() == f.sum
}

// read reports whether the file could be read.
func (f *file) read() bool { return f.state != state{} }

// broken reports whether the document, or an object in it, could not be read.
func (p part) broken() bool {
	return slices.ContainsFunc(p.entries, func(e *entry) bool { return e.name == nameless })
}

// same reports whether two states are of one version of a file as far as they show.
func (s state) same(as state) bool {
	s.settled, as.settled = false, false
	return s == as
}

func stateOf(path string) (state, error) {
	began := time.Now()
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return state{}, err
	case !info.Mode().IsRegular():
		return state{}, errors.New("not a regular file")
	case info.Size() > maxSize:
		return state{}, fmt.Errorf("larger than %d MiB", maxSize>>20)
	}
	s := state{size: info.Size()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.device, s.inode, s.modified, s.changed = sys.Dev, sys.Ino, sys.Mtim, sys.Ctim
		s.settled = true
		for _, t := range []syscall.Timespec{sys.Mtim, sys.Ctim} {
			s.settled = s.settled && began.Sub(time.Unix(t.Unix())) > timeStep(t)
		}
	}
	return s, nil
}

// parse reads the documents, except those that former has with the same text.
func (f *file) parse(text []byte, former *file) {
	known := map[uint64][]part{}
	if former.read() {
		for _, p := range former.parts {
			known[p.sum] = append(known[p.sum], p)
		}
	}
	for _, d := range documents(text, filepath.Ext(f.path) == ".json") {
		d.file = f.path
		p := part{before: d.before, sum: maphash.Bytes(seed, d.text)}
		same := known[p.sum]
		if i := slices.IndexFunc(same, p.reusable); i >= 0 {
			p.entries = same[i].entries
			known[p.sum] = slices.Delete(same, i, i+1)
		} else {
			p.entries = read(d)
		}
		if len(p.entries) > 0 {
			f.parts = append(f.parts, p)
		}
	}
}

// reusable reports whether the entries of be, a part with the same text, are valid here: Problems name lines, so then the
// place must be the same.
func (p part) reusable(be part) bool {
	return p.before == be.before || !slices.ContainsFunc(be.entries, (*entry).hasProblems)
}

// entries iterates over all entries in order, then over kept ones.
func (f *file) entries() iter.Seq[*entry] {
	return func(yield func(*entry) bool) {
		for _, p := range f.parts {
			if !yieldAll(p.entries, yield) {
				return
			}
		}
		yieldAll(f.kept, yield)
	}
}

// yieldAll yields entries until yield returns false, which it returns, too.
func yieldAll(entries []*entry, yield func(*entry) bool) bool {
	for _, e := range entries {
		if !yield(e) {
			return false
		}
	}
	return true
}
