// Package filesystem is a bucket in a folder of a local file system, shared by any number of processes of one machine.
// Every write is on the disk before it returns.
//
// An object is a file, whose path is the key. A write has four steps:
//
//  1. The content is written to its own file in '.staged' and fsynced. A crash leaves a staged file that no key names.
//     Once the file is an hour old, the first write of another process removes it.
//  2. The folder's lock is taken (flock of '.lock', which ends with its process) and the precondition checked.
//  3. Create links the staged file to its key, which fails if the key is taken; Replace renames the staged file over
//     the key. A crash here leaves the old state or the new one, never a part.
//  4. Before the lock is released, the key's folder is fsynced. At the first use of the folder, its parents are fsynced
//     too. Get takes the lock too, so the objects that it reads are durable. If a crash leaves folder entries unsynced,
//     the next write in that folder or the next Open makes the entries durable.
//
// Others with write access to the folder could put anything there. So nothing outside of the folder is ever read,
// written or removed (os.Root), and only regular files are objects: Open refuses a bucket with links, pipes or devices.
//
// The ETag is a hash of the content. A caller that must tell a content from an equal later content must make its
// contents unique. A file system that ignores case needs keys that differ in more than case.
package filesystem

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/logplane/logplane/projection/bucket"
)

const (
	lockName   = ".lock"
	stagedName = ".staged"
	// stagedAge is the age at which a staged file counts as left by a crashed write. No write takes so long.
	stagedAge = time.Hour
)

// Bucket is a bucket.Bucket. It owns no goroutine between requests and needs no closing.
type Bucket struct {
	root *os.Root
	turn chan struct{} // held by one writer at a time, see lock
	tidy sync.Once     // at the first write: a reader removes nothing

	mu      sync.Mutex      // guards durable
	durable map[string]bool // folders whose entries in all parents are known to be on the disk
}

var _ bucket.Bucket = (*Bucket)(nil)

// Open returns the bucket in folder. It creates the folder if it is missing.
func Open(folder string) (*Bucket, error) {
	root, err := makeRoot(folder)
	if err != nil {
		return nil, fmt.Errorf("open bucket: %w", err)
	}
	b := &Bucket{root: root, turn: make(chan struct{}, 1), durable: map[string]bool{}}
	if err := b.syncAll(); err != nil {
		return nil, fmt.Errorf("open bucket: %w", err)
	}
	return b, nil
}

// makeRoot opens the folder. A folder that makeRoot creates is durable. The path of the folder may contain links.
func makeRoot(folder string) (*os.Root, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	there := existing(folder)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	for dir := folder; dir != there; dir = filepath.Dir(dir) {
		parent, err := os.Open(filepath.Dir(dir))
		if err := syncAndClose(parent, err); err != nil {
			return nil, err
		}
	}
	return os.OpenRoot(folder)
}

// syncAll fsyncs every folder, for objects of processes that died between the third and the fourth step of a write. It
// refuses files that this package never makes.
func (b *Bucket) syncAll() error {
	return fs.WalkDir(b.root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir():
			b.durable[path] = true
			return b.syncFolder(path)
		case !e.Type().IsRegular():
			return b.foreign(path)
		}
		return nil
	})
}

func (b *Bucket) foreign(path string) error {
	return fmt.Errorf("'%s' is not a regular file, and a bucket has nothing else: see what put it there, and remove it",
		filepath.Join(b.root.Name(), path))
}

// Get implements bucket.Bucket.
func (b *Bucket) Get(ctx context.Context, key string) ([]byte, string, error) {
	path, err := b.path(ctx, key)
	if err != nil {
		return nil, "", err
	}
	body, err := content(b.openDurable(ctx, path))
	if err != nil {
		return nil, "", failure("get", key, err)
	}
	return body, etagOf(body), nil
}

// openDurable opens a file while no write is between its third and fourth step. The open file does not change
// afterwards, because a replacement is another file.
func (b *Bucket) openDurable(ctx context.Context, path string) (*os.File, error) {
	unlock, err := b.lock(ctx, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return b.openObject(path)
}

// GetRange implements bucket.Bucket. It takes no lock, because its caller has the key from a root.
func (b *Bucket) GetRange(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	path, err := b.path(ctx, key)
	if err != nil {
		return nil, err
	}
	f, err := b.openObject(path)
	if err != nil {
		return nil, failure("get range of", key, err)
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return nil, failure("get range of", key, err)
	}
	from, to := bucket.Span(stat.Size(), offset, length)
	part := make([]byte, to-from)
	if _, err := f.ReadAt(part, from); err != nil {
		return nil, failure("get range of", key, err)
	}
	return part, nil
}

// Create implements bucket.Bucket.
func (b *Bucket) Create(ctx context.Context, key string, body []byte) (string, error) {
	return b.write(ctx, "create", key, body, b.link)
}

func (b *Bucket) link(from, to string) error {
	err := b.makeFolder(filepath.Dir(to))
	if err != nil {
		return err
	}
	err = b.root.Link(from, to)
	switch {
	case errors.Is(err, fs.ErrExist):
		return bucket.ErrPrecondition
	case missing(err):
		return bucket.ErrNotFound
	}
	return err
}

// Copy implements bucket.Bucket. It gives the file another name. A file is never changed, so each name is an object of
// its own.
func (b *Bucket) Copy(ctx context.Context, from, to string) error {
	original, err := b.path(ctx, from)
	if err != nil {
		return err
	}
	path, err := b.path(ctx, to)
	if err != nil {
		return err
	}
	return b.change(ctx, "copy", from, path, func() error {
		stat, err := b.root.Lstat(original)
		if err == nil {
			err = b.regular(original, stat)
		}
		if err != nil && !missing(err) {
			return err
		}
		return b.link(original, path)
	})
}

// Replace implements bucket.Bucket.
func (b *Bucket) Replace(ctx context.Context, key string, body []byte, etag string) (string, error) {
	return b.write(ctx, "replace", key, body, func(staged, path string) error {
		current, err := content(b.openObject(path))
		if err != nil {
			return err
		}
		if etagOf(current) != etag {
			return bucket.ErrPrecondition
		}
		if err := b.makeFolder(filepath.Dir(path)); err != nil {
			return err
		}
		return b.root.Rename(staged, path)
	})
}

// write does the four steps of the package comment; publish is the third.
func (b *Bucket) write(
	ctx context.Context, op, key string, body []byte, publish func(staged, path string) error,
) (etag string, err error) {
	path, err := b.path(ctx, key)
	if err != nil {
		return "", err
	}
	staged, err := b.stage(body)
	if err != nil {
		return "", failure(op, key, err)
	}
	defer func() { _ = b.root.Remove(staged) }() // after a link: one more name of the object; after a rename: gone
	if err := b.change(ctx, op, key, path, func() error { return publish(staged, path) }); err != nil {
		return "", err
	}
	return etagOf(body), nil
}

// change does the second to the fourth step of the package comment.
func (b *Bucket) change(ctx context.Context, op, key, path string, change func() error) error {
	unlock, err := b.lock(ctx, unix.LOCK_EX)
	if err != nil {
		return failure(op, key, err)
	}
	defer unlock()
	if err = change(); err == nil {
		err = b.syncFolder(filepath.Dir(path))
	}
	if err != nil {
		return failure(op, key, err)
	}
	return nil
}

func (b *Bucket) stage(body []byte) (string, error) {
	if err := b.makeFolder(stagedName); err != nil {
		return "", err
	}
	b.tidy.Do(b.removeAbandoned)
	staged := filepath.Join(stagedName, rand.Text())
	f, err := b.root.OpenFile(staged, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = f.Write(body)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err != nil {
		_ = b.root.Remove(staged)
		return "", err
	}
	return staged, nil
}

// Delete implements bucket.Bucket. A deletion is as durable as a write. The key's folder stays.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	path, err := b.path(ctx, key)
	if err != nil {
		return err
	}
	err = b.change(ctx, "delete", key, path, func() error {
		if stat, err := b.root.Lstat(path); missing(err) || err == nil && stat.IsDir() {
			return bucket.ErrNotFound
		}
		return b.root.Remove(path)
	})
	if errors.Is(err, bucket.ErrNotFound) {
		return nil
	}
	return err
}

// List implements bucket.Bucket.
func (b *Bucket) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	if err := bucket.CheckPrefix(prefix); err != nil {
		return err
	}
	keys, err := b.keys(ctx, prefix)
	if err != nil {
		return failure("list", prefix, err)
	}
	for _, key := range keys {
		if err := ctx.Err(); err != nil {
			return err
		}
		stat, err := b.root.Lstat(filepath.FromSlash(key))
		if missing(err) {
			continue // deleted meanwhile
		}
		if err != nil {
			return failure("list", key, err)
		}
		if err := yield(bucket.Attributes{Key: key, Size: stat.Size(), Modified: stat.ModTime()}); err != nil {
			return err
		}
	}
	return nil
}

// keys are sorted as whole strings: folder 'a/' comes after object 'a-b', although 'a' comes before it.
func (b *Bucket) keys(ctx context.Context, prefix string) (keys []string, err error) {
	folder := path.Clean(prefix[:strings.LastIndexByte(prefix, '/')+1])
	err = fs.WalkDir(b.root.FS(), folder, func(key string, e fs.DirEntry, err error) error {
		switch {
		case missing(err):
			return nil
		case err != nil || ctx.Err() != nil:
			return cmp.Or(err, ctx.Err())
		case e.IsDir() && hidden(e.Name()) && key != ".":
			return fs.SkipDir
		case !e.IsDir() && !hidden(e.Name()) && strings.HasPrefix(key, prefix):
			keys = append(keys, key)
		}
		return nil
	})
	slices.Sort(keys)
	return keys, err
}

// path checks the key and returns the path of its object.
func (b *Bucket) path(ctx context.Context, key string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if err := bucket.CheckKey(key); err != nil {
		return "", err
	}
	return filepath.FromSlash(key), nil
}

// makeFolder creates a folder below the root, and fsyncs its parents once in the life of each Bucket: another process
// may have created the folder and died before it fsynced the parents.
func (b *Bucket) makeFolder(folder string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.durable[folder] {
		return nil
	}
	if err := b.root.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	for dir := folder; !b.durable[dir]; dir = filepath.Dir(dir) {
		if err := b.syncFolder(filepath.Dir(dir)); err != nil {
			return err
		}
	}
	for dir := folder; !b.durable[dir]; dir = filepath.Dir(dir) {
		b.durable[dir] = true
	}
	return nil
}

// removeAbandoned removes the staged files of crashed writes. A file that it cannot remove costs only space.
func (b *Bucket) removeAbandoned() {
	folder, err := b.openFolder(stagedName)
	if err != nil {
		return
	}
	defer folder.Close()
	names, _ := folder.Readdirnames(-1)
	for _, name := range names {
		staged := filepath.Join(stagedName, name)
		if stat, err := b.root.Lstat(staged); err == nil && time.Since(stat.ModTime()) > stagedAge {
			_ = b.root.Remove(staged)
		}
	}
}

// openObject opens a regular file. It does not wait for the other end of a pipe.
func (b *Bucket) openObject(path string) (*os.File, error) {
	f, err := b.root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if missing(err) {
		return nil, bucket.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	stat, err := f.Stat()
	if err == nil {
		err = b.regular(path, stat)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// regular returns an error if the file cannot be an object.
func (b *Bucket) regular(path string, stat fs.FileInfo) error {
	switch {
	case stat.IsDir():
		return bucket.ErrNotFound
	case !stat.Mode().IsRegular():
		return b.foreign(path)
	}
	return nil
}

// content reads the whole open file, and closes it. err is the error of opening it.
func content(f *os.File, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return nil, err
	}
	body := make([]byte, stat.Size())
	_, err = io.ReadFull(f, body)
	return body, err
}

func (b *Bucket) syncFolder(path string) error {
	return syncAndClose(b.openFolder(path))
}

// openFolder opens a folder. It does not wait for the other end of a pipe either.
func (b *Bucket) openFolder(path string) (*os.File, error) {
	return b.root.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
}

func syncAndClose(f *os.File, err error) error {
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// existing is the nearest existing folder at or above path.
func existing(path string) string {
	for _, err := os.Stat(path); err != nil && path != filepath.Dir(path); _, err = os.Stat(path) {
		path = filepath.Dir(path)
	}
	return path
}

func etagOf(body []byte) string {
	sum := sha256.Sum256(body)
	return fmt.Sprintf("%x-%d", sum[:16], len(body))
}

// missing reports whether the error says that a file does not exist, or that its path leads through another file.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

func failure(op, key string, err error) error {
	return fmt.Errorf("%s %s: %w", op, key, err)
}

// hidden reports whether a name is that of the staging folder or the lock, which are not objects.
func hidden(name string) bool { return strings.HasPrefix(name, ".") }
