package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// folderEvents are the events of files in a folder.
	folderEvents = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_CLOSE_WRITE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	// parentEvents are the events in its parent of a folder that is created, moved or removed.
	parentEvents = unix.IN_CREATE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_ONLYDIR
	// fileEvents are the events of a single file.
	fileEvents = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_CLOSE_WRITE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
)

// event is a change of a watched file or folder.
type event struct {
	path string // of the file or folder; empty: events were lost
	mask uint32 // inotify(7)
}

// notifier is an inotify instance.
type notifier struct {
	file    *os.File
	ready   chan struct{} // holds a value after events came; of capacity 1
	failed  chan error    // one, at the end
	buffer  []byte
	paths   map[int32]string
	watches map[string]int32 // by path
}

// rawEvent is an event as the kernel delivers it.
type rawEvent struct {
	watch int32
	mask  uint32
	name  string
}

func newNotifier() (*notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	n := &notifier{
		file: os.NewFile(uintptr(fd), "inotify"), ready: make(chan struct{}, 1), failed: make(chan error, 1),
		buffer: make([]byte, 64<<10), paths: map[int32]string{}, watches: map[string]int32{},
	}
	return n, nil
}

// add watches the file or folder that a path names now, instead of the former one. If it is the same, its watch goes on, and no event
// that waits to be read is lost.
func (n *notifier) add(path string, mask uint32) error {
	conn, err := n.file.SyscallConn()
	if err != nil {
		return err
	}
	watch := -1
	if e := conn.Control(func(fd uintptr) {
		watch, err = unix.InotifyAddWatch(int(fd), path, mask) // of one file, it returns the same number
		if old, had := n.watches[path]; had && int(old) != watch {
			// This fails if the file is gone, and the watch with it.
			_, _ = unix.InotifyRmWatch(int(fd), uint32(old)) //nolint:gosec // not negative
			delete(n.paths, old)
			delete(n.watches, path)
		}
	}); e != nil {
		return e
	}
	if err != nil {
		return &os.PathError{Op: "watch", Path: path, Err: err}
	}
	n.paths[int32(watch)], n.watches[path] = path, int32(watch) //nolint:gosec // it is an int in C
	return nil
}

// wait signals ready whenever events may wait to be read, until the file is closed.
func (n *notifier) wait() {
	conn, err := n.file.SyscallConn()
	if err == nil {
		err = conn.Read(func(uintptr) bool {
			select {
			case n.ready <- struct{}{}:
			default:
			}
			return false // wait for the next one
		})
	}
	n.failed <- err
}

// read returns events that wait to be read, and whether more may have waited.
func (n *notifier) read() (events []rawEvent, more bool, err error) {
	conn, err := n.file.SyscallConn()
	if err != nil {
		return nil, false, err
	}
	length := 0
	if e := conn.Control(func(fd uintptr) { length, err = unix.Read(int(fd), n.buffer) }); e != nil {
		return nil, false, e
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return nil, false, nil
	case err != nil:
		return nil, false, os.NewSyscallError("read", err)
	}
	for rest := n.buffer[:length]; len(rest) >= unix.SizeofInotifyEvent; {
		head := rest[:unix.SizeofInotifyEvent]
		e := rawEvent{
			watch: int32(binary.NativeEndian.Uint32(head[unsafe.Offsetof(unix.InotifyEvent{}.Wd):])), //nolint:gosec // an int in C
			mask:  binary.NativeEndian.Uint32(head[unsafe.Offsetof(unix.InotifyEvent{}.Mask):]),
		}
		size := int(binary.NativeEndian.Uint32(head[unsafe.Offsetof(unix.InotifyEvent{}.Len):]))
		named := min(unix.SizeofInotifyEvent+size, len(rest))
		e.name = string(bytes.TrimRight(rest[unix.SizeofInotifyEvent:named], "\x00"))
		rest = rest[named:]
		events = append(events, e)
	}
	const longest = unix.SizeofInotifyEvent + unix.NAME_MAX + 1
	return events, length > len(n.buffer)-longest, nil
}

// event translates a rawEvent; false: it belongs to no present watch.
func (n *notifier) event(r rawEvent) (event, bool) {
	if r.mask&unix.IN_Q_OVERFLOW != 0 {
		return event{mask: r.mask}, true
	}
	path, watched := n.paths[r.watch]
	if r.mask&unix.IN_IGNORED != 0 && watched { // the file is gone
		delete(n.paths, r.watch)
		delete(n.watches, path)
		return event{}, false
	}
	if r.name != "" {
		path = filepath.Join(path, r.name)
	}
	return event{path: path, mask: r.mask}, watched
}
