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
	return folder(ctx, dir, quiet, func(settled bool) time.Duration {
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
func Eager(ctx context.Context, dir string, quiet time.Duration, changed func(settled bool) (again time.Duration)) error {
	return folder(ctx, dir, quiet, changed, nil)
}

func folder(ctx context.Context, dir string, quiet time.Duration, changed func(settled bool) time.Duration, files []string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("watch folder %s: %w", dir, err)
	}
	n, err := newNotifier()
	if err != nil {
		return fmt.Errorf("watch folder %s: %w", dir, err)
	}
	done := make(chan struct{})
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		n.read(done)
	}()
	defer func() {
		close(done)
		_ = n.file.Close() // ends the read
		<-reading
	}()
	p := pending{n: n, dir: dir, files: files, quiet: quiet, settle: time.NewTimer(quiet), written: map[string]bool{}}
	p.settle.Stop()
	defer p.settle.Stop()
	if err := p.watchFolder(); err != nil {
		return err
	}
	settled := func() {
		// Before the call, which covers changes before these watches.
		_ = p.watchFolder() // it fails while the folder is gone
		lost := p.watchFiles()
		again := changed(true)
		if lost {
			again = 10 * quiet
		}
		if again > 0 {
			p.settle.Reset(again)
		}
	}
	settled()
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-n.raw:
			if p.handleAll(r) && len(p.written) == 0 {
				changed(false)
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
	n       *notifier
	dir     string
	files   []string // files that are watched themselves, too
	quiet   time.Duration
	settle  *time.Timer     // fires once the folder has settled
	since   time.Time       // time of the first change not yet reported
	written map[string]bool // files that are being written; false: perhaps a link, which will not be closed
}

// handleAll processes an event and all that wait: if the folder changes faster than it is read, one call reports several
// changes. It reports whether a file may be newly complete.
func (p *pending) handleAll(r rawEvent) (report bool) {
	for {
		report = p.handle(r) || report
		select {
		case r = <-p.n.raw:
		default:
			return report
		}
	}
}

// handle processes an event, and reports whether a file may be newly complete.
func (p *pending) handle(r rawEvent) bool {
	e, known := p.n.event(r)
	if !known || p.elsewhere(e.path) {
		return false
	}
	if e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
		p.watchNew(e.path)
	}
	p.postpone()
	return whole(e, p.written)
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
	if err := p.n.add(p.dir, folderEvents); err != nil {
		return fmt.Errorf("watch folder %s: %w", p.dir, err)
	}
	return nil
}

// watchNew watches a folder or file that replaced the former one of its name.
func (p *pending) watchNew(path string) {
	if path == p.dir {
		// The call of changed that follows covers changes before this watch.
		_ = p.n.add(p.dir, folderEvents) // it fails if the folder is gone again: the parent has an event of its return
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
