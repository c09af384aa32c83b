package speaker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGroupMemory(t *testing.T) {
	root := t.TempDir()
	self := filepath.Join(root, "self")
	put := func(path, content string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	require.EqualValues(t, usualMemory, groupMemory(self, root), "no groups")
	put(self, "12:memory:/a\n1:name=systemd:/a\n")
	require.EqualValues(t, usualMemory, groupMemory(self, root), "of the first version")
	put(self, "0::/\n")
	require.EqualValues(t, usualMemory, groupMemory(self, root), "no limit")
	put(filepath.Join(root, "memory.max"), "268435456\n")
	require.EqualValues(t, 256<<20, groupMemory(self, root), "a container's own")
	put(self, "0::/pods/speaker\n")
	put(filepath.Join(root, "pods", "speaker", "memory.max"), "max\n")
	put(filepath.Join(root, "pods", "memory.max"), "134217728\n")
	require.EqualValues(t, 128<<20, groupMemory(self, root), "of a group around it")
	put(filepath.Join(root, "pods", "speaker", "memory.max"), "67108864\n")
	require.EqualValues(t, 64<<20, groupMemory(self, root))
}
