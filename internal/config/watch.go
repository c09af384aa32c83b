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

// Watch loads the file at path and passes on what Load made of it, once at the start, whenever its content changed, and whenever
// again tells to load it, until ctx ends. After an error the last good configuration, which the caller has, stays right.
func Watch(ctx context.Context, path string, again <-chan os.Signal, loaded func(*Config, error)) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("watch configuration %s: %w", path, err)
	}
	var (
		mu    sync.Mutex // what was read later is passed on later
		last  []byte
		first = true
	)
	read := func(always bool) {
		mu.Lock()
		defer mu.Unlock()
		c, data, err := load(path)
		if !always && !first && data != nil && bytes.Equal(data, last) {
			return // its neighbours in the folder changed
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
