// Package watch reports changes of files.
package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Folder calls changed once when the watch is in place, so that no change after an earlier reading is missed, and then
// whenever something in dir changed, until ctx ends. It calls changed after a time of quiet without events, or after
// ten times that while events continue or a file is open that was written to: an editor may have emptied it, and be about
// to write its new content. It watches the folder instead of its files, since editors replace files, and a
// mounted ConfigMap swaps one symbolic link for all of them. The folder must exist at the start, and may vanish and
// come back. Folder does not compare contents, so changed may be called without a difference.
//
// It also watches the named files themselves: one that is a mount of its own, as in containers, may be written at its
// origin, and one that is a link may be replaced where it leads to, which causes no event in the folder. While such a link leads to
// no file, Folder calls changed after every ten times quiet.
func Folder(ctx context.Context, dir string, quiet time.Duration, changed func(), files ...string) error {
	return folder(ctx, dir, quiet, 0, func(settled bool, _ func() []string) time.Duration {
		if settled {
			changed()
		}
		return 0
	}, files)
}

// Eager is Folder, but also calls changed at once, with settled false, when a file is complete and none is being
// written: when it was moved there, or closed after writing. More may follow, so it calls changed again when the folder
// has settled; it reports the removal of a file only then. changed returns after how long it wants another call without
// an event; 0: never. Such a call notices also, and from then on Eager follows, where a link on the way to the folder leads
// now; the removal of the former folder is an event.
//
// During its call, changed may ask open for the names of the folder's files that are being written. A file counts as being written from
// its first modification until it is closed, moved or removed, but for no longer than openFor after the last modification: a program may
// keep it open, or its event may be lost. After that time Eager calls changed again.
func Eager(ctx context.Context, dir string, quiet, openFor time.Duration, changed Changed) error {
	return folder(ctx, dir, quiet, openFor, changed, nil)
}

// Changed is the function that Eager calls.
type Changed func(settled bool, open func() []string) (again time.Duration)

func folder(ctx context.Context, dir string, quiet, openFor time.Duration, changed Changed, files []string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("watch folder %s: %w", dir, err)
	}
	n, err := newNotifier()
	if err != nil {
		return fmt.Errorf("watch folder %s: %w", dir, err)
	}
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		n.wait()
	}()
	defer func() {
		_ = n.file.Close() // ends the wait
		<-waiting
	}()
	p := pending{
		n: n, dir: dir, files: files, quiet: quiet, openFor: openFor, settle: time.NewTimer(quiet),
		complete: make(chan struct{}, 1), written: map[string]bool{}, modified: map[string]time.Time{},
	}
	p.settle.Stop()
	defer p.settle.Stop()
	if err := p.watchFolder(); err != nil {
		return err
	}
	settled := func() {
		// Before the call, which covers changes before these watches.
		_ = p.watchFolder() // it fails while the folder is gone
		lost := p.watchFiles()
		p.giveUp(time.Now())
		again := changed(true, p.open)
		if lost {
			again = 10 * quiet
		}
		p.callAgain(again)
	}
	settled()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.ready:
			if err := p.handleAll(); err != nil {
				return fmt.Errorf("watch folder %s: %w", dir, err)
			}
		case <-p.complete:
			if len(p.written) == 0 {
				changed(false, p.open)
			}
		case err := <-n.failed:
			return fmt.Errorf("watch folder %s: %w", dir, err)
		case <-p.settle.C:
			if p.unfinished(time.Now()) {
				p.settle.Reset(quiet)
				continue
			}
			p.since = time.Time{}
			clear(p.written)
			settled()
		}
	}
}

// pending holds the changes of a folder that are not yet reported.
type pending struct {
	n        *notifier
	dir      string
	files    []string // files that are watched themselves, too
	quiet    time.Duration
	openFor  time.Duration        // from its last modification on, a file that was not closed counts as open
	settle   *time.Timer          // fires once the folder has settled
	since    time.Time            // time of the first change not yet reported
	complete chan struct{}        // holds a value after a file was completed; of capacity 1
	written  map[string]bool      // files being written that a report waits for; false: perhaps a link, which will not be closed
	modified map[string]time.Time // time of the last modification of each open file
}

// handleAll processes all events that wait: if the folder changes faster than it is read, one call reports several changes. It does not
// wait for the end of events that keep coming.
func (p *pending) handleAll() error {
	for more := true; more; {
		var (
			events []rawEvent
			err    error
		)
		if events, more, err = p.n.read(); err != nil {
			return err
		}
		for _, r := range events {
			p.handle(r)
		}
	}
	return nil
}

// handle processes an event.
func (p *pending) handle(r rawEvent) {
	e, known := p.n.event(r)
	if !known || p.elsewhere(e.path) {
		return
	}
	if e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
		p.watchNew(e.path)
	}
	p.postpone()
	p.noteOpen(e)
	if whole(e, p.written) {
		select {
		case p.complete <- struct{}{}:
		default:
		}
	}
}

// noteOpen records whether an event shows that a file is open for writing, or no longer.
func (p *pending) noteOpen(e event) {
	switch {
	case e.mask&unix.IN_MODIFY != 0:
		p.modified[e.path] = time.Now()
	case e.mask&(unix.IN_CLOSE_WRITE|unix.IN_MOVED_FROM|unix.IN_MOVED_TO|unix.IN_DELETE) != 0:
		delete(p.modified, e.path)
	}
}

// open returns the names of the files that are open for writing. It processes the events that wait, so that it also names a file that was
// opened during the call of changed.
func (p *pending) open() (names []string) {
	_ = p.handleAll() // an error comes again
	for path := range p.modified {
		names = append(names, filepath.Base(path))
	}
	slices.Sort(names)
	return names
}

// giveUp makes open files whose last modification is openFor ago count as closed.
func (p *pending) giveUp(now time.Time) {
	maps.DeleteFunc(p.modified, func(_ string, last time.Time) bool { return now.Sub(last) >= p.openFor })
}

// callAgain makes the folder count as settled after a time, 0 for never, or earlier if giveUp can give up a file by then.
func (p *pending) callAgain(after time.Duration) {
	if !p.since.IsZero() {
		return // the timer runs already, for an event that open processed
	}
	for _, last := range p.modified {
		if left := max(p.openFor-time.Since(last), time.Millisecond); after == 0 || left < after {
			after = left
		}
	}
	if after > 0 {
		p.settle.Reset(after)
	}
}

// postpone makes the folder count as settled quiet after this change, or ten times quiet after the first one.
func (p *pending) postpone() {
	if p.since.IsZero() {
		p.since = time.Now()
	}
	if !p.overdue(time.Now()) {
		p.settle.Reset(p.quiet)
	}
}

// overdue reports whether changes have waited long enough.
func (p *pending) overdue(now time.Time) bool { return now.Sub(p.since) >= 10*p.quiet }

// unfinished reports whether the folder has not settled yet, though it is quiet, since a file is being written.
func (p *pending) unfinished(now time.Time) bool {
	writing := slices.Contains(slices.Collect(maps.Values(p.written)), true)
	return writing && !p.overdue(now)
}

// elsewhere reports whether a path is that of another file in the folder's parent.
func (p *pending) elsewhere(path string) bool {
	return path != "" && filepath.Dir(path) != p.dir && path != p.dir
}

// watchFolder watches the folder that the path leads to now, and its parent: only the parent has events of the folder itself. A link on
// the way to them that is replaced causes no event in either, and both watches stay on the former folders.
func (p *pending) watchFolder() error {
	parent := filepath.Dir(p.dir)
	if err := p.n.add(parent, parentEvents); err != nil {
		return fmt.Errorf("watch folder %s: %w", parent, err)
	}
	if err := p.watchDir(); err != nil {
		return fmt.Errorf("watch folder %s: %w", p.dir, err)
	}
	return nil
}

// watchDir watches the folder, and forgets open files of a former one.
func (p *pending) watchDir() error {
	former := p.n.watches[p.dir]
	err := p.n.add(p.dir, folderEvents)
	if p.n.watches[p.dir] != former {
		clear(p.modified)
	}
	return err
}

// watchNew watches a folder or file that replaced the former one of its name.
func (p *pending) watchNew(path string) {
	if path == p.dir {
		// The call of changed that follows covers changes before this watch.
		_ = p.watchDir() // it fails if the folder is gone again: the parent has an event of its return
	}
	if slices.Contains(p.files, path) {
		_ = p.n.add(path, fileEvents)
	}
}

// watchFiles watches the files that the names of p.files lead to now: a watch ends with its file, and no event of the folder shows that
// another file replaced it behind a link. It reports whether such a link leads to no file, whose return is no event either.
func (p *pending) watchFiles() (lost bool) {
	for _, f := range p.files {
		if err := p.n.add(f, fileEvents); errors.Is(err, os.ErrNotExist) {
			_, err := os.Lstat(f)
			lost = lost || err == nil // without the name itself, its creation is an event of the folder
		}
	}
	return lost
}

// whole reports whether an event completes a file while none is being written. written holds the files that are being
// written.
func whole(e event, written map[string]bool) bool {
	switch {
	case e.mask&unix.IN_MODIFY != 0:
		written[e.path] = true
		return false
	case e.mask&unix.IN_CREATE != 0 && e.mask&unix.IN_ISDIR == 0:
		written[e.path] = false // a file is written next; a link is not, and is reported once the folder has settled
		return false
	case e.mask&(unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO) != 0:
		delete(written, e.path)
		return len(written) == 0
	case e.mask&(unix.IN_MOVED_FROM|unix.IN_DELETE) != 0:
		delete(written, e.path)
	}
	return false
}
