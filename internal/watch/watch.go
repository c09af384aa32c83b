// Package watch tells when files change.
package watch

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Folder calls changed once when the watch stands, so that nothing between an earlier reading and the watch is missed,
// and then whenever something in dir changed, until ctx ends. A change is told when nothing more happened for as long as
// quiet, or after ten times that where it never ends. The folder is watched, not its files: editors replace files, and
// a mounted ConfigMap swaps one symbolic link for all of them. The folder may vanish and come back; it must be there at
// the start. The content is not looked at, so changed may be called for nothing.
//
// The files named are watched themselves too: one that is a mount of its own, as containers have them, may be written to
// where it comes from, which the folder does not tell.
func Folder(ctx context.Context, dir string, quiet time.Duration, changed func(), files ...string) error {
	return folder(ctx, dir, quiet, func(settled bool) time.Duration {
		if settled {
			changed()
		}
		return 0
	}, files)
}

// Eager is Folder, but calls changed for a file at once too, with settled false: when it was put there whole, or was closed after it was
// written, and none is being written. More may follow, so changed is called again when the folder has settled. The removal of a file is
// reported then only. changed returns after how long it wants another call though nothing happens; 0: it wants none.
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
		_ = n.file.Close() // which ends the reading
		<-reading
	}()
	// The folder's own coming and going shows in its parent only.
	parent := filepath.Dir(dir)
	if err := n.add(parent, parentEvents); err != nil {
		return fmt.Errorf("watch folder %s: %w", parent, err)
	}
	if err := n.add(dir, folderEvents); err != nil {
		return fmt.Errorf("watch folder %s: %w", dir, err)
	}
	for _, f := range files {
		_ = n.add(f, fileEvents) // not there yet: its creation is an event of the folder
	}
	settle := time.NewTimer(quiet)
	settle.Stop()
	defer settle.Stop()
	settled := func() {
		if again := changed(true); again > 0 {
			settle.Reset(again)
		}
	}
	settled()
	var since time.Time          // of the first change not told yet
	written := map[string]bool{} // files that are being written
	// take takes an event in, and reports whether a file is there whole that may not have been before.
	take := func(r rawEvent) bool {
		e, known := n.event(r)
		if !known || e.path != "" && filepath.Dir(e.path) != dir && e.path != dir {
			return false // the parent's other business
		}
		there := e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0
		if e.path == dir && there {
			// Another folder under the old name. What is missed until the watch stands is seen by the wake-up that follows.
			_ = n.add(dir, folderEvents) // gone again already: its return is an event of the parent
		}
		if there && slices.Contains(files, e.path) {
			_ = n.add(e.path, fileEvents) // in place of the one before
		}
		if since.IsZero() {
			since = time.Now()
		}
		if time.Since(since) < 10*quiet {
			settle.Reset(quiet)
		}
		return whole(e, written)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-n.raw:
			// A folder that changes faster than it is read is told of for several changes at once.
			tell := take(r)
			for more := true; more; {
				select {
				case r = <-n.raw:
					tell = take(r) || tell
				default:
					more = false
				}
			}
			if tell && len(written) == 0 {
				changed(false)
			}
		case err := <-n.failed:
			return fmt.Errorf("watch folder %s: %w", dir, err)
		case <-settle.C:
			since = time.Time{}
			clear(written)
			settled()
		}
	}
}

// whole reports whether an event brings a file that is whole, and leaves none that is not. It keeps account of those that are being
// written.
func whole(e event, written map[string]bool) bool {
	switch {
	case e.mask&unix.IN_MODIFY != 0, e.mask&unix.IN_CREATE != 0 && e.mask&unix.IN_ISDIR == 0:
		written[e.path] = true // a file that is made is written next; a link is not, but is told of soon enough
		return false
	case e.mask&(unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO) != 0:
		delete(written, e.path)
		return len(written) == 0
	case e.mask&(unix.IN_MOVED_FROM|unix.IN_DELETE) != 0:
		delete(written, e.path)
	}
	return false
}
