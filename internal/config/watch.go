package config

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/egressway/egressway/internal/watch"
)

// retryEvery is the pause between loads of a refused configuration: a file that it names may arrive in a folder that is not watched.
const retryEvery = 5 * time.Second

// Watch calls loaded with the file at path, or the error of loading it: once at the start, whenever the content or the error
// changed, and on each signal of again, until ctx ends. After an error, the caller keeps the last good configuration.
func Watch(ctx context.Context, path string, again <-chan os.Signal, loaded func(*Config, error)) error {
	return watchFile(ctx, path, again, retryEvery, loaded)
}

// watchFile is Watch with its pause between loads of a refused configuration.
func watchFile(ctx context.Context, path string, again <-chan os.Signal, pause time.Duration, loaded func(*Config, error)) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("watch configuration %s: %w", path, err)
	}
	r := reader{path: path, loaded: loaded}
	ctx, end := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer end()
	beside.Go(func() {
		retries := time.NewTicker(pause)
		defer retries.Stop()
		for {
			select {
			case <-again:
				r.read(bySignal)
			case <-retries.C:
				r.read(byRetry)
			case <-ctx.Done():
				return
			}
		}
	})
	return watch.Folder(ctx, filepath.Dir(path), 100*time.Millisecond, func() { r.read(byChange) }, path)
}

// reader loads a configuration file again and again.
type reader struct {
	path   string
	loaded func(*Config, error)

	mu      sync.Mutex // keeps calls of loaded in the order of reads
	began   bool
	last    []byte // content at the last call of loaded; nil: the file could not be read
	refused string // the error of that call; empty: none
}

// cause is why the file is read.
type cause int

const (
	byChange cause = iota // of the file, or of another one in its folder
	bySignal
	byRetry
)

// read loads the file, and calls loaded unless nothing is new.
func (r *reader) read(why cause) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if why == byRetry && r.refused == "" {
		return
	}
	c, data, err := load(r.path)
	refused := ""
	if err != nil {
		refused = err.Error()
	}
	if !r.news(why, data, refused) {
		return
	}
	r.began, r.last, r.refused = true, data, refused
	r.loaded(c, err)
}

// news reports whether the caller needs this content, or its error.
func (r *reader) news(why cause, data []byte, refused string) bool {
	same := data != nil && r.last != nil && bytes.Equal(data, r.last)
	switch {
	case why == bySignal || !r.began:
		return true
	case why == byRetry && !same:
		return false // an editor may have emptied it, and be about to write: the watch waits for the end of that
	case same && r.refused == "":
		return false // another file in the folder changed; the configuration that is in force stays, even if one that it names is gone
	}
	unread := data == nil && r.last == nil
	return !same && !unread || refused != r.refused
}
