package flowlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/pause"
)

const (
	// mostQueued limits the bytes of lines that wait for the file: half a second of 20,000 connections a second.
	mostQueued = 4 << 20
	// writeEvery is the time in which lines gather for one write.
	writeEvery = 100 * time.Millisecond
	// retryAfter is the pause after a write that failed.
	retryAfter = time.Second
	// flushWithin is how long the end of the log waits for the file.
	flushWithin = time.Second
	// stuckAfter is how long one write may take before it is a problem.
	stuckAfter = 10 * time.Second
)

// queue holds lines until the file accepts them. It never waits for the file.
type queue struct {
	log    *Log
	file   file
	filled chan struct{} // signals lines, or losses
	room   chan struct{} // signals that lines were taken

	mu      sync.Mutex
	lines   []byte
	missing [losses]uint64 // lines that are missing, for which there is no line yet
}

func newQueue(l *Log, path string) *queue {
	return &queue{log: l, file: file{path: path}, filled: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// begin queues the line that the log begins.
func (q *queue) begin() {
	q.put(line{Event: eventBegin, Time: time.Now().UTC(), Node: q.log.node})
}

// put queues a line, or counts it as missing if there is no room.
func (q *queue) put(l line) {
	text := l.text()
	q.mu.Lock()
	full := len(q.lines)+len(text) > mostQueued
	if !full {
		q.lines = append(q.lines, text...)
	}
	q.mu.Unlock()
	if full {
		q.log.linesLost.Add(1)
		q.miss(lossFile, 1)
	}
	signal(q.filled)
}

// await waits until half of the room is free: lines about ends come first.
func (q *queue) await(ctx context.Context) {
	for q.waiting() > mostQueued/2 {
		select {
		case <-q.room:
		case <-ctx.Done():
			return
		}
	}
}

func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.lines)
}

// miss counts lines that are missing.
func (q *queue) miss(why loss, lines uint64) {
	q.mu.Lock()
	q.missing[why] += lines
	q.mu.Unlock()
	signal(q.filled)
}

// take returns the queued lines, after a line for each cause of missing ones, and how many lines are missing for each.
func (q *queue) take() (lines []byte, missing [losses]uint64) {
	q.mu.Lock()
	queued := q.lines
	missing = q.missing
	q.lines, q.missing = nil, [losses]uint64{}
	q.mu.Unlock()
	signal(q.room)
	for why, n := range missing {
		if n > 0 {
			lost := line{Event: eventLost, Time: time.Now().UTC(), Node: q.log.node, Lost: n, LostBy: loss(why).String()}
			lines = append(lines, lost.text()...)
		}
	}
	return append(lines, queued...), missing
}

// run writes queued lines, until ctx ends and the rest is written.
func (q *queue) run(ctx context.Context) {
	defer q.file.close()
	for ended := false; !ended; {
		select {
		case <-q.filled:
			pause.For(ctx, writeEvery)
		case <-ctx.Done():
			ended = true
		}
		if err := q.write(); err != nil && !ended {
			ended = !pause.For(ctx, retryAfter)
		}
	}
}

// write writes the queued lines. It counts lines that the file does not accept as missing.
func (q *queue) write() error {
	lines, missing := q.take()
	if len(lines) == 0 {
		return nil
	}
	stuck := time.AfterFunc(stuckAfter, func() {
		q.log.report(fmt.Sprintf("the file has accepted nothing for %s: connections that end now are counted, but not in it", stuckAfter))
	})
	n, err := q.file.write(lines)
	stuck.Stop()
	about := 0 // lines about losses
	for _, count := range missing {
		about += min(int(count), 1)
	}
	whole := bytes.Count(lines[:n], []byte{'\n'})
	lost := bytes.Count(lines[n:], []byte{'\n'})
	q.log.written.Add(uint64(max(whole-about, 0)))
	if err == nil {
		q.log.report("")
		return nil
	}
	q.restore(missing, whole, max(lost-max(about-whole, 0), 0))
	q.log.report(fmt.Sprintf("the file accepts no lines, so connections are missing in it: %s", err))
	return err
}

// restore counts lines again whose count the file did not accept, and those that it did not accept. written is the number of lines
// that it accepted: those about losses come first.
func (q *queue) restore(missing [losses]uint64, written, lost int) {
	for why, n := range missing {
		switch {
		case n == 0:
		case written > 0:
			written--
		default:
			q.miss(loss(why), n)
		}
	}
	q.log.linesLost.Add(uint64(lost))
	q.miss(lossFile, uint64(lost))
}

// file appends to the file that has a path at the time.
type file struct {
	path    string // or config.StandardOutput
	open    *os.File
	partial bool // the last line in the file has no end
}

// write appends lines. It opens the file again if another one has its path, or none, as after a rotation. n is the number of bytes
// that were written.
func (f *file) write(lines []byte) (n int, err error) {
	if err := f.reopen(); err != nil {
		return 0, err
	}
	if f.partial {
		if _, err := f.open.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		f.partial = false
	}
	n, err = f.open.Write(lines)
	f.partial = n > 0 && lines[n-1] != '\n'
	return n, err
}

// reopen opens the file unless the path names the one that is open.
func (f *file) reopen() error {
	if f.open != nil && f.current() {
		return nil
	}
	f.close()
	if f.path == config.StandardOutput {
		fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3) // a write to 1 itself would end the process when the reader is gone
		if err != nil {
			return fmt.Errorf("open standard output: %w", err)
		}
		f.open = os.NewFile(uintptr(fd), "standard output")
		return nil
	}
	// Only the operator may read who talks to whom.
	opened, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK, 0o640)
	if err != nil {
		return err
	}
	f.open = opened
	return nil
}

// current reports whether the path names the open file.
func (f *file) current() bool {
	if f.path == config.StandardOutput {
		return true
	}
	named, err := os.Stat(f.path)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	is, err := f.open.Stat()
	return err == nil && os.SameFile(named, is)
}

func (f *file) close() {
	if f.open != nil {
		_ = f.open.Close()
	}
	f.open, f.partial = nil, false
}

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}
