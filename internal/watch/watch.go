// Package watch tells when files change.
package watch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
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
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("watch folder %s: %w", dir, err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch folder %s: %w", dir, err)
	}
	defer w.Close()
	// The folder's own coming and going shows in its parent only.
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := w.Add(d); err != nil {
			return fmt.Errorf("watch folder %s: %w", d, err)
		}
	}
	for _, f := range files {
		_ = w.Add(f) // not there yet: its creation is an event of the folder
	}
	changed()
	settle := time.NewTimer(quiet)
	settle.Stop()
	defer settle.Stop()
	var since time.Time // of the first change not told yet
	pending := func() {
		if since.IsZero() {
			since = time.Now()
		}
		if time.Since(since) < 10*quiet {
			settle.Reset(quiet)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.Events:
			if filepath.Dir(e.Name) != dir && e.Name != dir {
				continue // the parent's other business
			}
			if e.Name == dir && e.Has(fsnotify.Create) {
				// Another folder under the old name. What is missed until the watch stands is seen by the wake-up that follows.
				_ = w.Remove(dir)
				_ = w.Add(dir) // gone again already: its return is an event of the parent
			}
			if e.Has(fsnotify.Create) && slices.Contains(files, e.Name) {
				_ = w.Remove(e.Name) // the one before
				_ = w.Add(e.Name)
			}
			pending()
		case err := <-w.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fmt.Errorf("watch folder %s: %w", dir, err)
			}
			pending() // events were lost, which ones does not matter
		case <-settle.C:
			since = time.Time{}
			changed()
		}
	}
}
