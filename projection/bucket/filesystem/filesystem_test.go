package filesystem

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/logplane/logplane/projection/bucket"
)

// A process of these tests with writerFolder in its environment is one of several writers in that folder.
// writerIncrements says how often the process writes.
const (
	writerFolder     = "BUCKET_TEST_WRITER_FOLDER"
	writerIncrements = "BUCKET_TEST_WRITER_INCREMENTS"
)

func TestMain(m *testing.M) {
	if folder := os.Getenv(writerFolder); folder != "" {
		increments, err := strconv.Atoi(os.Getenv(writerIncrements))
		if err == nil {
			err = increment(folder, increments)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func open(t *testing.T, folder string) *Bucket {
	t.Helper()
	b, err := Open(folder)
	require.NoError(t, err)
	return b
}

const (
	increments = 40
	// endless is for a writer that is killed: the test may be late to notice its first increments.
	endless = math.MaxInt32
)

// increment is the whole life of a writer: it increments the count, and prints a line for each increment.
func increment(folder string, increments int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b, err := Open(folder)
	if err != nil {
		return err
	}
	for done := 0; done < increments; {
		body, etag, err := b.Get(ctx, "cell/root")
		if err != nil {
			return err
		}
		_, err = b.Replace(ctx, "cell/root", count(binary.BigEndian.Uint64(body)+1), etag)
		if errors.Is(err, bucket.ErrPrecondition) {
			continue
		}
		if err != nil {
			return err
		}
		fmt.Println("done")
		done++
	}
	return nil
}

// count returns the count followed by a nonce, which makes every content unique.
func count(n uint64) []byte {
	body := binary.BigEndian.AppendUint64(nil, n)
	return binary.BigEndian.AppendUint64(body, rand.Uint64())
}

func TestTwoProcessesLoseNoReplacement(t *testing.T) {
	folder := t.TempDir()
	b := open(t, folder)
	_, err := b.Create(t.Context(), "cell/root", count(0))
	require.NoError(t, err)
	var writers []*exec.Cmd
	for range 2 {
		writers = append(writers, startWriter(t, folder, increments))
	}
	for _, w := range writers {
		require.NoError(t, w.Wait(), "%s", w.Stderr)
		require.Equal(t, increments, acknowledged(w))
	}
	require.EqualValues(t, 2*increments, countIn(t, b))
}

// TestKilledWriter: a killed writer blocks nobody and leaves no partial object. Every increment that the writer
// acknowledged is there.
func TestKilledWriter(t *testing.T) {
	folder := t.TempDir()
	b := open(t, folder)
	_, err := b.Create(t.Context(), "cell/root", count(0))
	require.NoError(t, err)
	killed := startWriter(t, folder, endless)
	for countIn(t, b) < 3 {
		require.NoError(t, t.Context().Err())
	}
	require.NoError(t, killed.Process.Kill())
	require.Error(t, killed.Wait())

	before := countIn(t, b)
	require.LessOrEqual(t, acknowledged(killed), int(before))
	require.LessOrEqual(t, int(before), acknowledged(killed)+1)
	other := startWriter(t, folder, increments)
	require.NoError(t, other.Wait(), "%s", other.Stderr)
	require.EqualValues(t, before+increments, countIn(t, b))
}

func startWriter(t *testing.T, folder string, increments int) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	w := exec.CommandContext(ctx, os.Args[0])
	w.Env = append(os.Environ(), writerFolder+"="+folder, writerIncrements+"="+strconv.Itoa(increments))
	w.Stdout, w.Stderr = &strings.Builder{}, &strings.Builder{}
	require.NoError(t, w.Start())
	return w
}

func acknowledged(w *exec.Cmd) int {
	return strings.Count(w.Stdout.(*strings.Builder).String(), "done\n")
}

func countIn(t *testing.T, b *Bucket) uint64 {
	t.Helper()
	body, _, err := b.Get(t.Context(), "cell/root")
	require.NoError(t, err)
	require.Len(t, body, 16)
	return binary.BigEndian.Uint64(body)
}

// TestStoppedHolderOfTheLock: a request that waits for a stopped holder of the lock waits no longer than its context,
// and the lock is free afterwards.
func TestStoppedHolderOfTheLock(t *testing.T) {
	folder := t.TempDir()
	b := open(t, folder)
	etag, err := b.Create(t.Context(), "root", []byte("1"))
	require.NoError(t, err)
	holder, err := os.OpenFile(filepath.Join(folder, lockName), os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, flock(holder, unix.LOCK_EX))

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, _, err = b.Get(ctx, "root")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = b.Replace(ctx, "root", []byte("2"), etag)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	part, err := b.GetRange(t.Context(), "root", 0, 1)
	require.NoError(t, err, "a range needs no lock")
	require.Equal(t, "1", string(part))

	require.NoError(t, holder.Close())
	_, err = b.Replace(t.Context(), "root", []byte("2"), etag)
	require.NoError(t, err)
}

// TestWritesRemoveAbandonedOnes: the first write removes abandoned files. Reads remove nothing.
func TestWritesRemoveAbandonedOnes(t *testing.T) {
	folder := t.TempDir()
	b := open(t, folder)
	_, err := b.Create(t.Context(), "a", []byte("x"))
	require.NoError(t, err)
	old, young := filepath.Join(folder, stagedName, "old"), filepath.Join(folder, stagedName, "young")
	require.NoError(t, os.WriteFile(old, nil, 0o600))
	require.NoError(t, os.WriteFile(young, nil, 0o600))
	then := time.Now().Add(-2 * stagedAge)
	require.NoError(t, os.Chtimes(old, then, then))

	b = open(t, folder)
	_, _, err = b.Get(t.Context(), "a")
	require.NoError(t, err)
	require.FileExists(t, old, "nothing was written")
	_, err = b.Create(t.Context(), "a", []byte("x"))
	require.ErrorIs(t, err, bucket.ErrPrecondition)
	require.NoFileExists(t, old)
	require.FileExists(t, young, "it may be a write of another process")
	require.NoError(t, b.List(t.Context(), "", func(a bucket.Attributes) error {
		require.Equal(t, "a", a.Key)
		return nil
	}))
}

// TestNothingStaysStaged: no write leaves its staged file behind, whatever its outcome.
func TestNothingStaysStaged(t *testing.T) {
	folder := t.TempDir()
	b := open(t, folder)
	ctx := t.Context()
	etag, err := b.Create(ctx, "a", []byte("1"))
	require.NoError(t, err)
	_, err = b.Create(ctx, "a", []byte("2"))
	require.ErrorIs(t, err, bucket.ErrPrecondition)
	_, err = b.Replace(ctx, "a", []byte("2"), etag)
	require.NoError(t, err)
	_, err = b.Replace(ctx, "a", []byte("3"), etag)
	require.ErrorIs(t, err, bucket.ErrPrecondition)
	_, err = b.Replace(ctx, "b", []byte("3"), etag)
	require.ErrorIs(t, err, bucket.ErrNotFound)
	_, err = b.Create(ctx, "a/below", []byte("1"))
	require.Error(t, err, "a file cannot be a folder")
	require.NotErrorIs(t, err, bucket.ErrNotFound)
	staged, err := os.ReadDir(filepath.Join(folder, stagedName))
	require.NoError(t, err)
	require.Empty(t, staged)
}

// planted are things that others with write access to a bucket's folder could put in place of the bucket's own files.
// Each function gets the path, and the path of a folder outside of the bucket with a file "a".
var planted = map[string]func(path, outside string) error{
	"link to a folder": func(path, outside string) error { return os.Symlink(outside, path) },
	"link to a file":   func(path, outside string) error { return os.Symlink(filepath.Join(outside, "a"), path) },
	"link within":      func(path, _ string) error { return os.Symlink("cell", path) },
	"link to a device": func(path, _ string) error { return os.Symlink("/dev/zero", path) },
	"pipe":             func(path, _ string) error { return unix.Mkfifo(path, 0o600) },
	"socket": func(path, _ string) error {
		l, err := net.Listen("unix", path)
		if err == nil {
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			err = l.Close()
		}
		return err
	},
}

// TestOpenRefusesWhatIsNoFile: Open refuses a bucket that has anything but folders and regular files, in whichever
// folder. Open names that entry, and touches nothing outside of the bucket.
func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	for what, plant := range planted {
		for _, place := range []string{"cell/root", "cell/seg", stagedName, lockName} {
			t.Run(what+" as "+place, func(t *testing.T) {
				folder, outside := t.TempDir(), t.TempDir()
				require.NoError(t, os.MkdirAll(filepath.Join(folder, "cell"), 0o700))
				file, then := filepath.Join(outside, "a"), time.Now().Add(-2*stagedAge)
				require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
				require.NoError(t, os.Chtimes(file, then, then))
				path := filepath.Join(folder, place)
				require.NoError(t, plant(path, outside))
				b, err := Open(folder)
				if err == nil {
					_, _ = b.Create(t.Context(), "cell/other", []byte("x"))
				}
				require.ErrorContains(t, err, "'"+path+"' is not a regular file")
				require.FileExists(t, file)
			})
		}
	}
}

// TestNothingLeadsOutOfTheBucket: a thing that is planted later has no effect: the bucket does not read, write or
// remove it, and does not wait for it.
func TestNothingLeadsOutOfTheBucket(t *testing.T) {
	for what, plant := range planted {
		if what == "link within" {
			continue // such a link is followed
		}
		t.Run(what, func(t *testing.T) {
			folder, outside := t.TempDir(), t.TempDir()
			file, then := filepath.Join(outside, "a"), time.Now().Add(-2*stagedAge)
			b, ctx := open(t, folder), t.Context()
			require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
			require.NoError(t, os.Chtimes(file, then, then))
			require.NoError(t, plant(filepath.Join(folder, "cell"), outside))
			for _, key := range []string{"cell", "cell/a"} {
				_, _, err := b.Get(ctx, key)
				require.Error(t, err)
				_, err = b.GetRange(ctx, key, 0, 1)
				require.Error(t, err)
				_, err = b.Replace(ctx, key, []byte("y"), etagOf([]byte("x")))
				require.Error(t, err)
				_, err = b.Create(ctx, key, []byte("y"))
				require.Error(t, err)
				require.Error(t, b.Copy(ctx, key, "copy"))
				if key == "cell/a" {
					_ = b.Delete(ctx, key)
				}
			}
			require.NoError(t, os.RemoveAll(filepath.Join(folder, stagedName)))
			require.NoError(t, plant(filepath.Join(folder, stagedName), outside))
			_, err := b.Create(ctx, "more", []byte("y"))
			require.Error(t, err)
			b.removeAbandoned()
			body, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, "x", string(body))
			left, err := os.ReadDir(outside)
			require.NoError(t, err)
			require.Len(t, left, 1)
		})
	}
}

func BenchmarkGet(b *testing.B) {
	folder, err := Open(b.TempDir())
	require.NoError(b, err)
	const key = "logplane/seg/0/x"
	_, err = folder.Create(b.Context(), key, make([]byte, 100<<10))
	require.NoError(b, err)
	b.Run("whole", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := folder.Get(b.Context(), key); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("range", func(b *testing.B) {
		for b.Loop() {
			if _, err := folder.GetRange(b.Context(), key, 1<<10, 8<<10); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkCreate(b *testing.B) {
	folder, err := Open(b.TempDir())
	require.NoError(b, err)
	for i := 0; b.Loop(); i++ {
		if _, err := folder.Create(b.Context(), fmt.Sprintf("seg/0/%d", i), make([]byte, 100<<10)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReplace(b *testing.B) {
	folder, err := Open(b.TempDir())
	require.NoError(b, err)
	etag, err := folder.Create(b.Context(), "root", count(0))
	require.NoError(b, err)
	for i := 1; b.Loop(); i++ {
		if etag, err = folder.Replace(b.Context(), "root", count(uint64(i)), etag); err != nil {
			b.Fatal(err)
		}
	}
}

// TestWritersWaitWithoutThreads: at most one writer of a process waits in the system call, on a thread, even when
// nobody waits for the writer any more.
func TestWritersWaitWithoutThreads(t *testing.T) {
	folder := t.TempDir()
	b := open(t, folder)
	holder, err := os.OpenFile(filepath.Join(folder, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	require.NoError(t, err)
	defer holder.Close()
	require.NoError(t, flock(holder, unix.LOCK_EX))
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(all)
	}
	before := descriptors()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var writers sync.WaitGroup
	for range 100 {
		writers.Go(func() { _ = b.Delete(ctx, "seg/x") })
	}
	writers.Wait()
	require.LessOrEqual(t, descriptors(), before+1)
}

// TestALinkedFolder: a folder that is reached by a link is listed, synced and opened like any other.
func TestALinkedFolder(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(t.TempDir(), link))
	_ = open(t, link)
	b := open(t, link)
	_, err := b.Create(t.Context(), "log/a", []byte("x"))
	require.NoError(t, err)
	for _, prefix := range []string{"", "lo", "log/"} {
		var keys []string
		require.NoError(t, b.List(t.Context(), prefix, func(a bucket.Attributes) error { keys = append(keys, a.Key); return nil }))
		require.Equal(t, []string{"log/a"}, keys, "list of %q", prefix)
	}
}
