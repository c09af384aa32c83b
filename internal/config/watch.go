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

// Watch calls loaded with the file at path, or the error of loading it: once at the start, whenever the content
// changed, and on each signal of again, until ctx ends. After an error, the caller keeps the last good configuration.
func Watch(ctx context.Context, path string, again <-chan os.Signal, loaded func(*Config, error)) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("watch configuration %s: %w", path, err)
	}
	var (
		mu    sync.Mutex // keeps calls of loaded in the order of reads
		last  []byte
		first = true
	)
	read := func(always bool) {
		mu.Lock()
		defer mu.Unlock()
		c, data, err := load(path)
		if !always && !first && data != nil && bytes.Equal(data, last) {
			return // other files in the folder changed
		}
		first, last = false, data
		loaded(c, err)
	}
	ctx, end := context.WithCancel(ctx)
	var asked sync.WaitGroup
	defer asked.Wait()
	defer end()
	asked.Go(func() {
		for {
			select {
			case <-again:
				read(true)
			case <-ctx.Done():
				return
			}
		}
	})
	return watch.Folder(ctx, filepath.Dir(path), 100*time.Millisecond, func() { read(false) }, path)
}
