package watch

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/egressway/egressway/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const quiet = 10 * time.Millisecond

// start watches dir and returns the wake-ups after the first one, of the start.
func start(t *testing.T, dir string) <-chan struct{} {
	t.Helper()
	woken, done := make(chan struct{}, 1000), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- Folder(ctx, dir, quiet, func() { woken <- struct{}{} }) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	wait(t, woken)
	return woken
}

func wait(t *testing.T, woken <-chan struct{}) {
	t.Helper()
	select {
	case <-woken:
	case <-time.After(lab.Patience):
		require.FailNow(t, "no wake-up")
	}
}

func TestEditors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	woken := start(t, dir)
	require.NoError(t, os.WriteFile(file, []byte("1"), 0o600))
	wait(t, woken)
	require.NoError(t, os.WriteFile(file+".new", []byte("2"), 0o600))
	require.NoError(t, os.Rename(file+".new", file))
	wait(t, woken)
	require.NoError(t, os.Remove(file))
	wait(t, woken)
}

// TestHalfWritten checks that a file that an editor has emptied and not yet written again is waited for, though the folder is quiet.
func TestHalfWritten(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(path, []byte("good"), 0o600))
	n, err := newNotifier()
	require.NoError(t, err)
	defer n.file.Close()
	require.NoError(t, n.add(dir, folderEvents))
	p := pending{
		n: n, dir: dir, quiet: time.Hour, openFor: time.Hour, settle: time.NewTimer(time.Hour),
		written: map[string]bool{}, modified: map[string]time.Time{},
	}
	defer p.settle.Stop()

	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0o600)
	require.NoError(t, err)
	require.NoError(t, p.handleAll()) // the kernel had the event before the call returned
	require.True(t, p.unfinished(time.Now()))
	require.False(t, p.unfinished(time.Now().Add(10*p.quiet)), "a file that stays open is not waited for without end")
	_, err = f.WriteString("new")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, p.handleAll())
	require.False(t, p.unfinished(time.Now()))

	require.NoError(t, os.Symlink(path, path+".link"))
	require.NoError(t, p.handleAll())
	require.False(t, p.unfinished(time.Now()), "a link is whole")
}

// TestOpen checks which files count as open for writing.
func TestOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	require.NoError(t, os.Mkdir(dir, 0o700))
	n, err := newNotifier()
	require.NoError(t, err)
	defer n.file.Close()
	p := pending{
		n: n, dir: dir, quiet: time.Hour, openFor: time.Hour, settle: time.NewTimer(time.Hour),
		written: map[string]bool{}, modified: map[string]time.Time{},
	}
	defer p.settle.Stop()
	require.NoError(t, p.watchFolder())
	path := func(name string) string { return filepath.Join(dir, name) }
	open := func(name string) *os.File {
		f, err := os.Create(path(name))
		require.NoError(t, err)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	modify := func(f *os.File) {
		_, err := f.WriteString("1")
		require.NoError(t, err)
	}

	f, g := open("f"), open("g")
	require.Empty(t, p.open(), "created")
	modify(g)
	modify(f)
	require.Equal(t, []string{"f", "g"}, p.open())
	require.NoError(t, os.WriteFile(path("h"), []byte("1"), 0o600))
	require.Equal(t, []string{"f", "g"}, p.open())
	require.NoError(t, f.Close())
	require.Equal(t, []string{"g"}, p.open(), "closed")
	require.NoError(t, os.Rename(path("g"), path("i")))
	require.Empty(t, p.open(), "moved away")
	modify(g)
	require.Equal(t, []string{"i"}, p.open())
	require.NoError(t, os.Rename(path("h"), path("i")))
	require.Empty(t, p.open(), "replaced")

	open("f")
	require.Equal(t, []string{"f"}, p.open(), "emptied")
	require.NoError(t, os.Remove(path("f")))
	require.Empty(t, p.open(), "removed")

	modify(open("f"))
	require.Equal(t, []string{"f"}, p.open())
	p.giveUp(time.Now())
	require.Equal(t, []string{"f"}, p.open())
	p.giveUp(time.Now().Add(p.openFor))
	require.Empty(t, p.open(), "for too long")

	modify(open("f"))
	require.Equal(t, []string{"f"}, p.open())
	require.NoError(t, os.Rename(dir, dir+".old"))
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.Empty(t, p.open(), "of another folder")
}

// TestEagerPastOpenFile checks that a file which is being written does not hold up others for long, and that one which is never closed
// counts as written in the end.
func TestEagerPastOpenFile(t *testing.T) {
	for name, openFor := range map[string]time.Duration{"closed": time.Hour, "never closed": 50 * quiet} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			type wake struct{ slow, other, open string }
			seen, done := make(chan wake), make(chan error)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				done <- Eager(ctx, dir, quiet, openFor, func(_ bool, open func() []string) time.Duration {
					var w wake
					for name, text := range map[string]*string{"slow": &w.slow, "other": &w.other} {
						data, _ := os.ReadFile(filepath.Join(dir, name))
						*text = string(data)
					}
					w.open = strings.Join(open(), " ")
					select {
					case seen <- w:
					case <-ctx.Done():
					}
					return 0
				})
			}()
			until := func(want wake) {
				t.Helper()
				for late := time.After(lab.Patience); ; {
					select {
					case got := <-seen:
						if got.slow == "1" && openFor == time.Hour {
							require.Equal(t, "slow", got.open)
						}
						if got == want {
							return
						}
					case <-late:
						require.FailNow(t, "no wake-up", "%+v", want)
					}
				}
			}
			until(wake{})
			f, err := os.Create(filepath.Join(dir, "slow"))
			require.NoError(t, err)
			defer f.Close()
			_, err = f.WriteString("1")
			require.NoError(t, err)
			if openFor == time.Hour {
				until(wake{slow: "1", open: "slow"})
				require.NoError(t, os.WriteFile(filepath.Join(dir, "other"), []byte("2"), 0o600))
				until(wake{slow: "1", other: "2", open: "slow"})
				_, err = f.WriteString("2")
				require.NoError(t, err)
				require.NoError(t, f.Close())
				until(wake{slow: "12", other: "2"})
			} else {
				until(wake{slow: "1"})
			}
			cancel()
			require.NoError(t, <-done)
		})
	}
}

// TestEager checks that a complete file is reported at once, except while another is being written, and again when all has settled.
func TestEager(t *testing.T) {
	dir := t.TempDir()
	type wake struct{ settled, whole bool }
	woken, done := make(chan wake), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	half := filepath.Join(dir, "half")
	go func() {
		done <- Eager(ctx, dir, time.Second, 0, func(settled bool, _ func() []string) time.Duration {
			text, err := os.ReadFile(half)
			woken <- wake{settled, err != nil || string(text) == "12"}
			return 0
		})
	}()
	require.Equal(t, wake{settled: true, whole: true}, <-woken)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("1"), 0o600))
	require.Equal(t, wake{whole: true}, <-woken)
	require.NoError(t, os.Rename(filepath.Join(dir, "f"), filepath.Join(dir, "g")))
	require.Equal(t, wake{whole: true}, <-woken)

	f, err := os.Create(half)
	require.NoError(t, err)
	_, err = f.WriteString("1")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("2"), 0o600))
	_, err = f.WriteString("2")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Equal(t, wake{whole: true}, <-woken)
	require.Equal(t, wake{settled: true, whole: true}, <-woken)
	require.NoError(t, os.Remove(half))
	require.Equal(t, wake{settled: true, whole: true}, <-woken, "what is gone may come back")
	cancel()
	require.NoError(t, <-done)
}

// TestEagerAgain checks that another call follows after the time that one asks for, without an event.
func TestEagerAgain(t *testing.T) {
	woken, done := make(chan bool), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	dir := t.TempDir()
	go func() {
		calls := 0
		done <- Eager(ctx, dir, quiet, 0, func(settled bool, _ func() []string) time.Duration {
			woken <- settled
			if calls++; calls < 3 {
				return quiet
			}
			return 0
		})
	}()
	for range 3 {
		require.True(t, <-woken)
	}
	cancel()
	require.NoError(t, <-done)
}

// TestConfigMapSwap watches a folder like a mounted ConfigMap, whose links lead through ..data, which is swapped.
func TestConfigMapSwap(t *testing.T) {
	dir := t.TempDir()
	version := func(name, text string) {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, "f"), []byte(text), 0o600))
		require.NoError(t, os.Symlink(name, filepath.Join(dir, "..tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
	}
	version("..1", "1")
	require.NoError(t, os.Symlink("..data/f", filepath.Join(dir, "f")))
	woken := start(t, dir)
	version("..2", "2")
	wait(t, woken)
	data, err := os.ReadFile(filepath.Join(dir, "f"))
	require.NoError(t, err)
	require.Equal(t, "2", string(data))
}

// TestLinkIntoAnotherFolder replaces the file behind a link of the folder, again and again, and leaves the link without a file for a while.
func TestLinkIntoAnotherFolder(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	target, link := filepath.Join(elsewhere, "f"), filepath.Join(dir, "f")
	write := func(text string) {
		require.NoError(t, os.WriteFile(target+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(target+".new", target))
	}
	write("0")
	require.NoError(t, os.Symlink(target, link))
	seen, done := make(chan string, 1000), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- Folder(ctx, dir, quiet, func() {
			text, _ := os.ReadFile(link)
			seen <- string(text)
		}, link)
	}()
	until := func(text string) {
		t.Helper()
		for late := time.After(lab.Patience); ; {
			select {
			case got := <-seen:
				if got == text {
					return
				}
			case <-late:
				require.FailNow(t, "no wake-up", "for the content %q", text)
			}
		}
	}
	until("0")
	for _, text := range []string{"1", "2", "3"} {
		write(text)
		until(text)
	}
	require.NoError(t, os.Remove(target))
	until("")
	until("")
	write("4")
	until("4")
	require.NoError(t, os.WriteFile(target, []byte("5"), 0o600))
	until("5")
	cancel()
	require.NoError(t, <-done)
}

func TestFolderIsReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	require.NoError(t, os.Mkdir(dir, 0o700))
	woken := start(t, dir)
	require.NoError(t, os.Rename(dir, dir+".old"))
	require.NoError(t, os.Mkdir(dir, 0o700))
	wait(t, woken)
	require.Eventually(t, func() bool { // until the new folder is watched, as its wake-ups show
		require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte(time.Now().String()), 0o600))
		select {
		case <-woken:
			return true
		case <-time.After(20 * quiet):
			return false
		}
	}, lab.Patience, quiet)
}

// TestFolderBehindALink watches a folder on whose path a link is swapped, as git-sync does. Without an event a further call notices that;
// with the removal of the former folder, the event of that suffices. Each time the folder that is there now has events.
func TestFolderBehindALink(t *testing.T) {
	for name, again := range map[string]time.Duration{"the former folder stays": quiet, "it is removed": 0} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			version := func(name string) {
				require.NoError(t, os.MkdirAll(filepath.Join(root, name, "d"), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(root, name, "d", "f"), []byte(name), 0o600))
				require.NoError(t, os.Symlink(name, filepath.Join(root, "next")))
				require.NoError(t, os.Rename(filepath.Join(root, "next"), filepath.Join(root, "current")))
			}
			version("1")
			type wake struct {
				settled bool
				text    string
			}
			seen, done := make(chan wake, 10000), make(chan error)
			ctx, cancel := context.WithCancel(t.Context())
			dir := filepath.Join(root, "current", "d")
			go func() {
				done <- Eager(ctx, dir, quiet, 0, func(settled bool, _ func() []string) time.Duration {
					text, _ := os.ReadFile(filepath.Join(dir, "f"))
					seen <- wake{settled, string(text)}
					return again
				})
			}()
			until := func(want wake) {
				t.Helper()
				for late := time.After(lab.Patience); ; {
					select {
					case got := <-seen:
						if got == want {
							return
						}
					case <-late:
						require.FailNow(t, "no wake-up", "%+v", want)
					}
				}
			}
			until(wake{true, "1"})
			for _, next := range []string{"2", "3"} {
				version(next)
				if again == 0 {
					require.NoError(t, os.RemoveAll(filepath.Join(root, string(next[0]-1))))
				}
				until(wake{true, next})
				require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte(next+" changed"), 0o600))
				until(wake{false, next + " changed"}) // only an event wakes before the folder has settled
			}
			cancel()
			require.NoError(t, <-done)
		})
	}
}

func TestEndlessChangesAreTold(t *testing.T) {
	dir := t.TempDir()
	woken := start(t, dir)
	ticks := time.NewTicker(quiet / 5)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600))
		case <-woken:
			return
		case <-t.Context().Done():
			require.FailNow(t, "no wake-up")
		}
	}
}

func TestNoFolder(t *testing.T) {
	err := Folder(t.Context(), filepath.Join(t.TempDir(), "none"), quiet, func() {})
	require.ErrorIs(t, err, os.ErrNotExist)
}
