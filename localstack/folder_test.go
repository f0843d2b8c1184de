package localstack_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/logplane/logplane/localstack"
)

// TestLockIsNoLink: Lock does not write through a link that another user may have made.
func TestLockIsNoLink(t *testing.T) {
	folder, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("kept"), 0o600))
	require.NoError(t, os.Symlink(file, filepath.Join(folder, "lock")))
	_, err := localstack.Lock(folder)
	require.ErrorContains(t, err, "open the data folder's lock")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "kept", string(text))
}
