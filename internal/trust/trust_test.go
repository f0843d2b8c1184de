package trust

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	unix.Umask(0o022) // else others may write the folders of tests
	os.Exit(m.Run())
}

// TestWhatOthersMayWrite: a file is refused if another user may write the file or a folder above it. A sticky folder
// above the file is an exception. The message names the path.
func TestWhatOthersMayWrite(t *testing.T) {
	root := t.TempDir()
	folder := filepath.Join(root, "above", "folder")
	file := filepath.Join(folder, "file")
	require.NoError(t, Folder(folder))
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	link := filepath.Join(root, "link")
	require.NoError(t, os.Symlink(folder, link))
	for _, c := range []struct {
		mode             os.FileMode
		what             string
		okFile, okFolder bool
	}{
		{0o777, file, false, true}, {0o620, file, false, true}, {0o644, file, true, true}, {0o600, file, true, true},
		{0o777, folder, false, false}, {0o720, folder, false, false}, {0o777 | os.ModeSticky, folder, true, false}, {0o755, folder, true, true},
		{0o702, filepath.Dir(folder), false, false}, {0o777 | os.ModeSticky, filepath.Dir(folder), true, true}, {0o700, filepath.Dir(folder), true, true},
	} {
		require.NoError(t, os.Chmod(c.what, c.mode))
		for path, ok := range map[string]bool{file: c.okFile, folder: c.okFolder, filepath.Join(link, "file"): c.okFile, link: c.okFolder} {
			err := File(path)
			if ok {
				require.NoError(t, err, "%s of %s", path, c.mode)
				continue
			}
			require.ErrorContains(t, err, "other users may write '"+c.what+"'", path)
		}
	}
	require.ErrorIs(t, File(filepath.Join(folder, "missing")), os.ErrNotExist)
}

// TestWhatBelongsToOthers: a file that belongs to another user is refused, even if only that user may write it.
func TestWhatBelongsToOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	folder := filepath.Join(t.TempDir(), "folder")
	require.NoError(t, Folder(folder))
	file := filepath.Join(folder, "file")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	require.NoError(t, os.Chown(file, 12345, 0))
	require.ErrorContains(t, File(file), "belongs to another user (uid 12345)")
	require.NoError(t, os.Chown(file, 0, 12345))
	require.NoError(t, File(file))
	require.NoError(t, os.Chown(folder, 12345, 0))
	require.ErrorContains(t, File(file), "'"+folder+"' belongs to another user")
	require.ErrorContains(t, Folder(folder), "'"+folder+"' belongs to another user")
}

// TestMounts: a volume is a mount point.
func TestMounts(t *testing.T) {
	for path, want := range map[string]bool{"/dev": true, t.TempDir(): false, "/": false} {
		var is unix.Stat_t
		require.NoError(t, unix.Lstat(path, &is))
		require.Equal(t, want, isMount(path, uint64(is.Dev)), path) //nolint:unconvert // darwin has other types
	}
}
