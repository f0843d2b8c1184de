package reload

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// write makes a file that looks unchanged for long enough. The clock of these tests is not the file system's.
func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	require.NoError(t, os.Chtimes(path, time.Time{}, time.Now().Add(-quiet)))
}

// words is made from one file, which must not hold 'bad'.
func words(t *testing.T, path string) *Value[string] {
	t.Helper()
	v, err := New(func() (string, error) {
		content, err := os.ReadFile(path)
		if strings.Contains(string(content), "bad") {
			return "", errors.New("bad")
		}
		return string(content), err
	}, path)
	require.NoError(t, err)
	return v
}

func TestValueFollowsItsFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		write(t, path, "one")
		v := words(t, path)
		write(t, path, "two")
		require.Equal(t, "one", v.Get(), "it was read a moment ago")
		time.Sleep(pause)
		require.Equal(t, "two", v.Get())
		time.Sleep(time.Hour)
		write(t, path, "three")
		require.Equal(t, "three", v.Get(), "who asks first after a long time gets the newest")

		time.Sleep(pause)
		write(t, path, "fo")
		require.NoError(t, os.Chtimes(path, time.Time{}, time.Now()))
		require.Equal(t, "three", v.Get(), "somebody is writing")
		time.Sleep(pause)
		require.Equal(t, "fo", v.Get())
	})
}

// TestValueFollowsALink: a mount of a Kubernetes Secret changes when one link, to the folder of all files, is renamed.
func TestValueFollowsALink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := t.TempDir()
		for _, name := range []string{"one", "two"} {
			require.NoError(t, os.Mkdir(filepath.Join(folder, name), 0o700))
			write(t, filepath.Join(folder, name, "file"), name)
		}
		require.NoError(t, os.Symlink("one", filepath.Join(folder, "..data")))
		require.NoError(t, os.Symlink("..data/file", filepath.Join(folder, "file")))
		v := words(t, filepath.Join(folder, "file"))
		require.NoError(t, os.Symlink("two", filepath.Join(folder, "..new")))
		require.NoError(t, os.Rename(filepath.Join(folder, "..new"), filepath.Join(folder, "..data")))
		time.Sleep(pause)
		require.Equal(t, "two", v.Get())
	})
}

// TestValueOutlivesABadFile: an invalid file leaves the value as it was, and is logged once.
func TestValueOutlivesABadFile(t *testing.T) {
	var log bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		write(t, path, "good")
		v := words(t, path)
		look := func() string {
			time.Sleep(pause)
			return v.Get()
		}
		write(t, path, "bad")
		for range 5 {
			require.Equal(t, "good", look())
		}
		require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), log.String())
		require.NoError(t, os.Remove(path))
		for range 5 {
			require.Equal(t, "good", look())
		}
		require.Equal(t, 2, strings.Count(log.String(), "level=ERROR"), log.String())
		write(t, path, "better")
		require.Equal(t, "better", look())
		require.Equal(t, 1, strings.Count(log.String(), "level=INFO"), log.String())
	})
}

// TestValueOfAFileThatNamesAnother: the other file may be made later, and is not watched.
func TestValueOfAFileThatNamesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := t.TempDir()
		file, missing := filepath.Join(folder, "file"), filepath.Join(folder, "missing")
		other := filepath.Join(folder, "other")
		require.NoError(t, os.WriteFile(other, []byte("1"), 0o600))
		require.NoError(t, os.WriteFile(file, []byte(other), 0o600))
		v, err := New(func() (string, error) {
			name, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			content, err := os.ReadFile(string(name))
			return string(content), err
		}, file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, []byte(missing), 0o600))
		time.Sleep(2 * pause)
		require.Equal(t, "1", v.Get())
		require.NoError(t, os.WriteFile(missing, []byte("2"), 0o600))
		time.Sleep(2 * pause)
		require.Equal(t, "2", v.Get())
	})
}

// TestValueForMany is for the race detector.
func TestValueForMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write(t, path, "one")
	v := words(t, path)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				v.next.Store(0)
				v.Get()
			}
		})
	}
	write(t, path, "two")
	all.Wait()
	v.next.Store(0)
	require.Equal(t, "two", v.Get())
}

func TestNothingToBegin(t *testing.T) {
	_, err := New(func() (int, error) { return 0, nil }, filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = New(func() (int, error) { return 0, errors.New("bad") }, os.DevNull)
	require.ErrorContains(t, err, "bad")
}

func BenchmarkGet(b *testing.B) {
	v, err := New(func() (int, error) { return 1, nil }, os.DevNull)
	require.NoError(b, err)
	for b.Loop() {
		v.Get()
	}
}
