package filesystem

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/logplane/logplane/projection/bucket"
)

// List implements bucket.Bucket.
func (b *Bucket) List(ctx context.Context, prefix string, yield func(bucket.Attributes) error) error {
	if err := bucket.CheckPrefix(prefix); err != nil {
		return err
	}
	return b.list(ctx, "", prefix, yield)
}

// list yields the objects under a folder, given as ” or a key and '/'.
func (b *Bucket) list(ctx context.Context, folder, prefix string, yield func(bucket.Attributes) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(b.root, filepath.FromSlash(folder)))
	if missing(err) {
		return nil
	}
	if err != nil {
		return failure("list", prefix, err)
	}
	for _, name := range names(entries) {
		key := folder + name
		if strings.HasSuffix(name, "/") {
			if strings.HasPrefix(key, prefix) || strings.HasPrefix(prefix, key) {
				err = b.list(ctx, key, prefix, yield)
			}
		} else if strings.HasPrefix(key, prefix) {
			err = b.yieldObject(key, yield)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// names sorts a folder's entries in the order of the keys they lead to: a folder 'a/' comes after the object 'a-b',
// though 'a' is before it.
func names(entries []fs.DirEntry) []string {
	var sorted []string
	for _, e := range entries {
		switch {
		case hidden(e.Name()):
		case e.IsDir():
			sorted = append(sorted, e.Name()+"/")
		default:
			sorted = append(sorted, e.Name())
		}
	}
	slices.Sort(sorted)
	return sorted
}

func (b *Bucket) yieldObject(key string, yield func(bucket.Attributes) error) error {
	stat, err := os.Lstat(filepath.Join(b.root, filepath.FromSlash(key)))
	if missing(err) {
		return nil // deleted meanwhile
	}
	if err != nil {
		return failure("list", key, err)
	}
	return yield(bucket.Attributes{Key: key, Size: stat.Size(), Modified: stat.ModTime()})
}
