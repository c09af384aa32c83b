package config

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/egressway/egressway/internal/watch"
)

// Watch loads the file at path and passes on what Load made of it, once at the start and then whenever its content
// changed, until ctx ends. After an error the last good configuration, which the caller has, stays right.
func Watch(ctx context.Context, path string, loaded func(*Config, error)) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("watch configuration %s: %w", path, err)
	}
	var last []byte
	first := true
	return watch.Folder(ctx, filepath.Dir(path), 100*time.Millisecond, func() {
		c, data, err := load(path)
		if !first && data != nil && bytes.Equal(data, last) {
			return // its neighbours in the folder changed
		}
		first, last = false, data
		loaded(c, err)
	}, path)
}
